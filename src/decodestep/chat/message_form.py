"""The form in which a chat template reads messages, found once by rendering small conversations with it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from decodestep.chat.partial_json import complete_part

Message = dict[str, Any]
Tools = list[dict[str, Any]] | None
# The text of a conversation, exactly as it is given; None if the template refuses it.
Render = Callable[[list[Message], Tools], str | None]


@dataclass(frozen=True)
class MessageForm:
    """What a chat template reads of messages.

    strings, parts: the roles whose contents it writes if they are strings, and if they are lists of parts,
        {"type": "text", "text": ...} each.
    system: whether it has a system role. neighbours: whether it writes two system messages at the beginning. later: whether it
        writes a system message after others, and the first one too.
    turns: whether two messages of the user must not follow each other.
    null: whether it asks if the content beside calls is None, and so must see that; others would write "None", or fail.
    text_arguments: whether it writes the arguments of calls as they are, and so must get JSON as text; others read mappings.
    thinking_parts: whether it reads reasoning as parts of the contents, {"type": "thinking", "thinking": ...} each; others read
        the fields `REASONING`.
    lone_reasoning: whether it refuses a content beside reasoning and calls.
    """

    strings: frozenset[str] = frozenset()
    parts: frozenset[str] = frozenset()
    system: bool = True
    neighbours: bool = True
    later: bool = True
    turns: bool = False
    null: bool = False
    text_arguments: bool = False
    thinking_parts: bool = False
    lone_reasoning: bool = False

    def apply(self, messages: list[Message]) -> list[Message]:
        """The messages in this form. A system message that the template would not write begins the next user's message, or ends
        the system message before it."""
        found = [self._with_calls(self._with_reasoning(message)) for message in messages]
        count = (
            next((i for i, message in enumerate(found) if message.get("role") != "system"), len(found)) if self.system else 0
        )
        first, others = found[:count], found[count:]
        if count > 1 and not self.neighbours:
            first = [reduce(_with, first)]
        if not (self.system and self.later):
            others = _without_system(others)
        found = [*first, *(_in_turns(others) if self.turns else others)]
        return [{**message, "content": self._content(message)} if "content" in message else message for message in found]

    def _with_reasoning(self, message: Message) -> Message:
        reasoning = next((message[name] for name in REASONING if message.get(name)), None)
        if reasoning is None or message.get("role") != "assistant":
            return message
        content = message.get("content")
        if self.lone_reasoning and message.get("tool_calls"):
            return {**message, "content": None}
        if self.thinking_parts:
            parts = _as_parts(content) if content else []
            return {**message, "content": [{"type": "thinking", "thinking": reasoning}, *parts]}
        return message

    def _with_calls(self, message: Message) -> Message:
        calls = message.get("tool_calls")
        if isinstance(calls, list):
            message = {**message, "tool_calls": [self._call(call) for call in calls]}
        if message.get("role") == "assistant" and message.get("content") is None:
            message = {**message, "content": None if calls and self.null else ""}
        return message

    def _call(self, call: object) -> object:
        if not isinstance(call, dict) or not isinstance(function := call.get("function"), dict):
            return call
        arguments = function.get("arguments")
        if arguments is None:
            return call
        if isinstance(arguments, str) and not self.text_arguments:
            arguments = complete_part(arguments)  # all of them, unless the call was cut
        elif not isinstance(arguments, str) and self.text_arguments:
            arguments = json.dumps(arguments, ensure_ascii=False)
        return {**call, "function": {**function, "arguments": arguments}}

    def _content(self, message: Message) -> Any:
        content, role = message["content"], message.get("role")
        if role not in self.strings | self.parts:
            role = "user"
        if isinstance(content, str) and role in self.parts - self.strings:
            return _as_parts(content)
        return content if role in self.parts else _as_string(content)


def find_form(render: Render) -> MessageForm:
    """The form of a template. One that does not write what a user says is taken to read messages as they are given."""
    for tools in (None, _TOOLS):  # some cannot do without
        user = _read_kinds("user", lambda content: render([_say("user", content)], tools))  # noqa: B023 - called at once
        if user.strings | user.parts:
            break
    else:
        return MessageForm(strings=_ROLES, parts=_ROLES)
    hello = _say("user", "Hello" if user.strings else _as_parts("Hello"))
    system = _read_kinds("system", lambda content: render([_say("system", content), hello], tools))
    assistant = _read_kinds("assistant", lambda content: render([hello, _say("assistant", content), hello], tools))
    form = replace(
        user,
        strings=user.strings | system.strings | assistant.strings,
        parts=user.parts | system.parts | assistant.parts,
        system=bool(system.strings | system.parts),
    )
    form = _with_roles(form, lambda messages: render(form.apply(messages), tools) or "")
    form = _with_reasoning(_with_calls(form, render), render)
    tool = _read_kinds("tool", lambda content: render([*form.apply([hello, _CALL]), {**_RESULT, "content": content}], _TOOLS))
    return replace(form, strings=form.strings | tool.strings, parts=form.parts | tool.parts)


# The names under which messages have their reasoning; templates read one or the other.
REASONING = ("reasoning_content", "reasoning", "thinking")

_ROLES = frozenset(("system", "user", "assistant", "tool"))
_WORD, _THOUGHT = "Quokka", "Numbat"  # which no template writes of its own accord
# A list of parts, as Python or JSON writes it.
_WRITTEN_LIST = re.compile(rf"""text\\*["']: ?\\*["']{_WORD}""")
_WRITTEN_THINKING = re.compile(rf"""thinking\\*["']: ?\\*["']{_THOUGHT}""")
_NAME, _ARGUMENTS = "find_animal", {"place": _WORD}
_PLACE = {"type": "string", "description": "Where it lives."}
_PARAMETERS = {"type": "object", "properties": {"place": _PLACE}, "required": ["place"]}
_TOOLS = [{"type": "function", "function": {"name": _NAME, "description": "Finds animals.", "parameters": _PARAMETERS}}]
_CALL_ID = "abcdefg12"  # nine letters and digits, as Mistral's templates want them
_FUNCTION = {"name": _NAME, "arguments": _ARGUMENTS}
_CALL = {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "id": _CALL_ID, "function": _FUNCTION}]}
_RESULT = {"role": "tool", "content": "found", "name": _NAME, "tool_call_id": _CALL_ID}


def _say(role: str, content: object) -> Message:
    return {"role": role, "content": content}


def _read_kinds(role: str, render: Callable[[Any], str | None]) -> MessageForm:
    """A form that says in which kinds a role's contents are read. render: of a conversation with this content."""
    as_string, as_parts = render(_WORD) or "", render(_as_parts(_WORD)) or ""
    return MessageForm(
        strings=frozenset([role] if _WORD in as_string else ()),
        parts=frozenset([role] if _WORD in as_parts and not _WRITTEN_LIST.search(as_parts) else ()),
    )


def _with_roles(form: MessageForm, render: Callable[[list[Message]], str]) -> MessageForm:
    """The form, with what may follow what. render: of messages in the form."""
    hello, answer = _say("user", "Hello"), _say("assistant", "Hello")
    first, second = _say("system", _WORD), _say("system", _THOUGHT)

    def writes(*messages: Message) -> bool:
        text = render([*messages])
        return _WORD in text and _THOUGHT in text

    return replace(
        form,
        neighbours=writes(first, second, hello),
        later=writes(first, hello, answer, second, hello),
        turns=not writes(_say("user", _WORD), _say("user", _THOUGHT)),
    )


def _with_calls(form: MessageForm, render: Render) -> MessageForm:
    """The form, with how calls are read. Mappings and "" come first: what reads both reads these better."""
    texts: dict[MessageForm, str] = {}
    for text_arguments in (False, True):
        for is_null in (False, True):
            tried = replace(form, text_arguments=text_arguments, null=is_null)
            text = render(tried.apply([_say("user", "Hello"), _CALL, _RESULT]), _TOOLS)
            if text is not None:
                texts[tried] = text
    # Neither the mapping as Python writes it, nor text as JSON within JSON.
    wrong = (str(_ARGUMENTS), json.dumps('"place"')[1:-1])
    written = [tried for tried, text in texts.items() if _WORD in text and not any(each in text for each in wrong)]
    empty = replace(written[0] if written else form, null=False)
    null = replace(empty, null=True)
    with_empty, with_null = texts.get(empty, ""), texts.get(null, "")
    prints = any(with_null.count(word) > with_empty.count(word) for word in ("None", "null"))
    asks = null in texts and with_null != with_empty and not prints
    return null if asks and (null in written or empty not in written) else empty


def _with_reasoning(form: MessageForm, render: Render) -> MessageForm:
    """The form, with how reasoning is read: beside calls, or without them."""

    def attempt(form: MessageForm, message: Message) -> str | None:
        results = [_RESULT] if "tool_calls" in message else []
        return render(form.apply([_say("user", "Hello"), message, *results]), _TOOLS)

    def reads(form: MessageForm) -> bool:
        texts = [attempt(form, message) or "" for message in (called, {**_say("assistant", "Hello"), **thought})]
        return any(_THOUGHT in text and not _WRITTEN_THINKING.search(text) for text in texts)

    thought = dict.fromkeys(REASONING, _THOUGHT)
    called, parts = {**_CALL, **thought}, replace(form, thinking_parts=True)
    if not reads(form):
        return parts if reads(parts) else form
    texts = [attempt(form, {**message, "content": "Hello"}) for message in (called, _CALL)]
    return replace(form, lone_reasoning=texts[0] is None and texts[1] is not None and attempt(form, called) is not None)


def _without_system(messages: list[Message]) -> list[Message]:
    found: list[Message] = []
    waiting: object = ""
    for message in messages:
        if message.get("role") == "system":
            waiting = _joined(waiting, message.get("content"))
        elif message.get("role") == "user" and waiting:
            found.append(_with(_say("user", waiting), message))
            waiting = ""
        else:
            found.append(message)
    if waiting and found and found[-1].get("role") == "user":
        found[-1] = _with(found[-1], _say("user", waiting))
    elif waiting:
        found.append(_say("user", waiting))
    return found


def _in_turns(messages: list[Message]) -> list[Message]:
    """The messages, of which those of the user that follow each other are one."""
    found: list[Message] = []
    for message in messages:
        if found and message.get("role") == found[-1].get("role") == "user":
            found[-1] = _with(found[-1], message)
        else:
            found.append(message)
    return found


def _with(first: Message, second: Message) -> Message:
    """Two messages of one role as one."""
    return {**first, **second, "content": _joined(first.get("content"), second.get("content"))}


def _joined(first: object, second: object) -> Any:
    """Two contents as one, an empty line between them if both are text."""
    one, other = _as_string(first), _as_string(second)
    if not one or not other:
        return one or other
    if isinstance(one, str) and isinstance(other, str):
        return f"{one}\n\n{other}"
    return [*_as_parts(one), *_as_parts(other)]


def _as_string(content: object) -> Any:
    """The text of parts that are all text, a line each; other contents as they are."""
    if not isinstance(content, list):
        return content
    texts = [part["text"] for part in content if isinstance(part, dict) and part.get("type") == "text" and "text" in part]
    return "\n".join(map(str, texts)) if len(texts) == len(content) else content


def _as_parts(content: str | Iterable[Any]) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
