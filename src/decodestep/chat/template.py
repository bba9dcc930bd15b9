"""Renders conversations with a model's chat template, as transformers does."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypedDict

import numpy as np

from decodestep._base.checks import Phrase, refuse
from decodestep.chat import template_process
from decodestep.chat.message_form import REASONING, MessageForm, find_form
from decodestep.chat.traced_text import TracedText, runs
from decodestep.errors import ModelError

if TYPE_CHECKING:
    from decodestep.tokenizers.tokenizer import Tokenizer


class _Role(TypedDict):
    role: str


class Message(_Role, total=False):
    """A message of a conversation. A mapping with further keys, such as a template reads, is one too.

    role: "system", "user", "assistant" or "tool". content: a string, a list of {"type": "text", "text": a string}, or None
    beside tool_calls. tool_calls: of an assistant, {"function": {"name", "arguments"}} each. tool_call_id, name: of a tool's
    answer. reasoning_content, or reasoning, or thinking: what an assistant thought before its content.
    """

    content: str | Sequence[Mapping[str, Any]] | None
    tool_calls: Sequence[Mapping[str, Any]]
    tool_call_id: str
    name: str
    reasoning_content: str
    reasoning: str
    thinking: str


Conversation: TypeAlias = "Sequence[Message] | Sequence[Mapping[str, Any]]"

_OP = "chat_prompt"


class ChatModel(Protocol):
    """What conversations need of a `Model`."""

    template: ChatTemplate
    tokenizer: Tokenizer

    def chat_prompt(
        self, messages: Conversation, *, tools: Sequence[Mapping[str, Any]] | None = None, **variables: Any
    ) -> str: ...


class ChatTemplate:
    """A model's chat templates: one for all conversations, and optionally another for conversations with tools."""

    def __init__(self, templates: Mapping[str, Any], given: str | None = None) -> None:
        """templates: a file's, "default" and "tool_use". given: replaces them. Raises ModelError if one is not a string."""
        self._templates: dict[str, str] = {}
        self._forms: dict[str, MessageForm] = {}
        for name in ("default", "tool_use") if given is None else ():
            template = templates.get(name)
            if template is not None and not isinstance(template, str):
                raise ModelError(f"the chat template {name!r} must be a string; got {type(template).__name__}")
            if template:
                self._templates[name] = template
        if given is not None:
            self._templates["default"] = given

    def text(self, *, tools: bool = False) -> str:
        """The source of the template for conversations with or without tools; "" if there is none."""
        return (self._templates.get("tool_use", "") if tools else "") or self._templates.get("default", "")

    def prepare(self) -> None:
        """Starts the rendering process if there is a template; it takes 0.1 s, in parallel with loading the model."""
        if self._templates:
            template_process.prepare()

    def form(self, special: Mapping[str, str], *, tools: bool) -> MessageForm:
        """The form in which the template for conversations with or without tools reads messages; found once."""
        name = self._name(tools)

        def attempt(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> str | None:
            given = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": True}
            return template_process.attempt(self._templates[name], given, special)

        if name not in self._forms:
            self._forms[name] = find_form(attempt)
        return self._forms[name]

    def render(
        self,
        messages: Conversation,
        tools: Sequence[Mapping[str, Any]] | None,
        documents: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any],
        special: Mapping[str, str],
        form: MessageForm | None = None,
    ) -> TracedText:
        """The text of a conversation; see `Model.chat_prompt` for the arguments.

        special: variables that the model defines, not the caller: the template's own text. form: that the messages are brought
        into; None for messages as transformers passes them.
        """
        name = self._name(tools is not None)
        read = [_as_templates_read(message) for message in _mappings("messages", messages)]
        given = {
            "messages": read if form is None else form.apply(read),
            "tools": None if tools is None else _mappings("tools", tools),
            "documents": None if documents is None else _mappings("documents", documents),
            **_plain(dict(variables)),
        }
        return template_process.render(self._templates[name], given, special)

    def _name(self, tools: bool) -> str:
        name = "tool_use" if tools and "tool_use" in self._templates else "default"
        if name not in self._templates:
            raise ModelError(
                "the model file has no chat template: load it with one (chat_template=, --chat-template FILE), or give it "
                "plain text (a string, generate --raw)"
            )
        return name


def until_content(text: str, content: object) -> str:
    """The text of a conversation up to the end of its last message's content, which a template writes something after.

    Raises ModelError if that content is not the last thing that the template has been given to write, or empty.
    """
    parts = content if isinstance(content, (list, tuple)) else [content]
    last = parts[-1] if parts else None
    given = last.get("text") if isinstance(last, Mapping) else last
    written, end, at = "", 0, 0
    for run, own in runs(text):
        at += len(run)
        if not own:
            written, end = run.strip(), at
    if not (isinstance(given, str) and written and given.rstrip().endswith(written)):
        raise ModelError("the chat template's text does not end with the content of the last message, which is to be continued")
    return text[:end]


def _mappings(name: str, items: object) -> list[dict[str, Any]]:
    plain = items if isinstance(items, (str, bytes)) or not isinstance(items, Sequence) else _plain(list(items))
    if not isinstance(plain, list) or not all(isinstance(item, dict) for item in plain):
        refuse(_OP, name, "a sequence of mappings", items)
    if name == "messages" and not plain:
        refuse(_OP, name, "at least one message", Phrase("none"))
    return plain


def _as_templates_read(message: dict[str, Any]) -> dict[str, Any]:
    """A message without keys that are None, and with its reasoning under each name that templates read."""
    message = {key: value for key, value in message.items() if value is not None}
    reasoning = next((message[name] for name in REASONING if name in message), None)
    return message if reasoning is None else {**message, **dict.fromkeys(REASONING, reasoning)}


def _plain(value: object) -> Any:
    """`value` made of None, bool, int, float, str, list, tuple and dict alone, so that a template cannot reach a method of
    anything else. An object that is none of these and cannot be turned into one becomes the name of its type, `<ndarray>`."""
    try:
        return _plain_item(value)
    except RecursionError:
        refuse(_OP, "messages", "less deeply nested", Phrase(type(value).__name__))


def _plain_item(value: object) -> Any:
    if value is None or type(value) in (str, int, float, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):  # an enum, say
            return getattr(kind, f"__{kind.__name__}__")(value)
    if isinstance(value, Mapping):
        return {_plain_item(key): _plain_item(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_plain_item(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, np.generic):
        return _plain_item(value.item())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain_item(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if callable(dump := getattr(value, "model_dump", None)):  # pydantic
        return _plain_item(dump())
    return f"<{type(value).__name__}>"
