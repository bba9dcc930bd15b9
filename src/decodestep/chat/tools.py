"""Tools: how they are described to a model, and how its calls are read from its text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from decodestep._base.checks import Phrase, refuse
from decodestep.chat.tool_call_format import CallFormat, Pieces
from decodestep.chat.tool_formats import find_call_format
from decodestep.chat.tool_grammar import Thought, answer_or_calls, one_call, text_at, text_or_calls
from decodestep.chat.tool_json_formats import TaggedJson
from decodestep.chat.tool_messages import DESCRIBES, in_turns, reads_tools_of_system, with_calls, with_tools_in_system
from decodestep.chat.tool_trial import try_calls
from decodestep.constraints.json_schema import check
from decodestep.errors import RequestError

if TYPE_CHECKING:
    from decodestep.chat.template import ChatModel
    from decodestep.tokenizers.tokenizer import Tokenizer

_OP = "chat"
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_NAMED = '{"type": "function", "function": {"name": one of the tools}}'
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
_DESCRIPTION = """\
You may call functions to help with the user's request. Their signatures:
<tools>
{tools}
</tools>
For a call, answer with its name and arguments as JSON:
{example}"""


@dataclass(frozen=True)
class ToolFormat:
    """A request's tools, and how their calls are read.

    call_format: that of a call, with the functions that may be called. required: whether one must be. of_template: whether the
    chat template describes the tools to the model; otherwise a system message does. definitions: of all functions. several:
    whether a message may have more than one call. earlier: the number of calls in the conversation.
    """

    call_format: CallFormat
    required: bool
    of_template: bool
    definitions: tuple[Any, ...]
    several: bool = True
    earlier: int = 0

    def describe_tools(self, conversation: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The conversation with the functions described in its system message."""
        tools = "\n".join(json.dumps(tool) for tool in self.definitions)
        text = _DESCRIPTION.format(tools=tools, example=_example(self.call_format.call("<name>", {}), "<arguments>"))
        first, *rest = conversation
        if first["role"] == "system":
            return [{**first, "content": f"{first['content']}\n\n{text}"}, *rest]
        return [{"role": "system", "content": text}, *conversation]

    def grammar(self, tokenizer: Tokenizer, answer: dict[str, Any] | None, thought: Thought | None = None) -> str | None:
        """The grammar of the response; None if it is any text.

        answer: the JSON schema of a response that is no call. Where a call is required, arguments follow the schema of their
        function; elsewhere those of strict functions do. If only some of the functions may be called, or one is strict, and the
        format's calls do not always begin with a mark, any text is left to who reads the calls. thought: the reasoning with
        which the response begins, which is not bound; none by default.
        """
        format_, thought = self.call_format, thought or Thought()
        marks = format_.marks if format_.always_marked else ()
        if not (self.required or answer is not None or (self._restricted and marks)):
            return None
        texts = [self._call(name, schema) for name, schema in format_.functions.items()]
        if self.required:
            return one_call(texts, thought)
        if answer is not None:
            several = bool(marks) and self.several
            return answer_or_calls(texts, answer, thought, begin=format_.answer_begin, several=several)
        spelled = tokenizer.control_ids((*format_.spelled, *thought.format.control_tokens))
        hidden = sorted(tokenizer.special - tokenizer.end_token_ids - spelled)
        return text_or_calls(texts, marks, hidden, thought, several=self.several)

    def refusal(self, grammar: str, error: RequestError) -> RequestError | None:
        """The error of the function that an error in compiling the grammar is about; None if it is about none."""
        i = text_at(grammar, error.got)
        return None if i is None else _refused(list(self.call_format.functions)[i], error)

    def _call(self, name: str, schema: Mapping[str, Any]) -> Pieces:
        """The text of a call with the arguments that the function may have."""
        if not (self.required or name in self._strict):
            return self.call_format.any_call(name)
        try:
            check(json.dumps(schema))
        except RequestError as error:
            raise _refused(name, error) from None
        return self.call_format.call(name, dict(schema))

    @property
    def _restricted(self) -> bool:
        """Whether calls are restricted where none is required: to some of the functions, or to the schema of a strict one."""
        return bool(self._strict) or any(_name_of(tool) not in self.call_format.functions for tool in self.definitions)

    @property
    def _strict(self) -> set[str]:
        """The names of the strict functions."""
        return {_name_of(tool) for tool in self.definitions if tool["function"].get("strict")}


def read(model: ChatModel, body: Mapping[str, Any], conversation: list[dict[str, Any]]) -> ToolFormat | None:
    """The format of a request's tools; None without tools, or if none may be called. conversation: its parsed messages."""
    definitions, choice = body.get("tools"), body.get("tool_choice")
    if not isinstance(body.get("parallel_tool_calls"), bool | None):
        refuse(_OP, "parallel_tool_calls", "a bool", body["parallel_tool_calls"])
    if definitions is None or definitions == []:
        if choice not in (None, "none", "auto"):
            refuse(_OP, "tool_choice", "none or auto without tools", choice)
        return None
    names = _names(definitions)
    if choice == "none":
        return None
    chosen, required = _choice(choice, names)
    template = model.template.text(tools=True)
    kind = find_call_format(template)
    given = [_arguments(name, tool["function"]) for name, tool in zip(names, definitions, strict=True)]
    schemas = {name: schema for name, schema in zip(names, given, strict=True) if name in chosen}
    described = kind is not None and DESCRIBES.search(template) is not None
    several = body.get("parallel_tool_calls") is not False and (kind is None or try_calls(model).several)
    earlier = sum(len(message.get("tool_calls") or ()) for message in conversation)
    return ToolFormat(
        call_format=(kind or TaggedJson)(schemas),
        required=required,
        of_template=described,
        definitions=tuple(map(_definition, definitions)),
        several=several,
        earlier=earlier,
    )


def for_template(
    model: ChatModel, conversation: list[dict[str, Any]], format_: ToolFormat | None
) -> tuple[list[dict[str, Any]], tuple[Any, ...] | None]:
    """What the chat template is given: the conversation, and the tools if it describes them; else a message does.

    format_: as `read` returns it.
    """
    if format_ is not None and format_.of_template:
        readable = with_calls(model, conversation, format_.call_format)
        if reads_tools_of_system(model.template.text(tools=True)):
            return with_tools_in_system(readable, format_.definitions), None
        described = try_calls(model).described
        return readable, tuple(map(_with_descriptions, format_.definitions)) if described else format_.definitions
    return with_tools_as_text(model, conversation, format_), None


def with_tools_as_text(
    model: ChatModel, conversation: list[dict[str, Any]], format_: ToolFormat | None
) -> list[dict[str, Any]]:
    """The conversation for a chat template that is not given the tools. format_: as `read` returns it."""
    kind = find_call_format(model.template.text())
    readable = with_calls(model, conversation, kind({})) if kind else in_turns(conversation)
    return readable if format_ is None else format_.describe_tools(readable)


def _choice(choice: object, names: list[str]) -> tuple[list[str], bool]:
    """The names of the functions that may be called, and whether one must be."""
    if choice in (None, "auto", "required"):
        return names, choice == "required"
    if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
        rule = f"none, auto, required, {_NAMED} or of type allowed_tools"
        return [_name(choice, names, "tool_choice", rule)], True
    allowed = choice.get("allowed_tools")
    mode, tools = (allowed.get("mode"), allowed.get("tools")) if isinstance(allowed, dict) else (None, None)
    if mode not in ("auto", "required"):
        refuse(_OP, "tool_choice.allowed_tools.mode", "auto or required", mode)
    field, rule = "tool_choice.allowed_tools.tools", f"a non-empty list of {_NAMED}"
    allowed_names = [_name(tool, names, field, rule) for tool in _as_list(tools)]
    if not allowed_names:
        refuse(_OP, field, rule, tools)
    return allowed_names, mode == "required"


def _name(tool: object, names: list[str], field: str, rule: str) -> str:
    """The name of a function that a choice names."""
    name = _function(tool).get("name")
    if name not in names:
        refuse(_OP, field, rule, tool)
    return str(name)


def _names(definitions: object) -> list[str]:
    rule = 'a list of {"type": "function", "function": {"name", "description": a string, "parameters": a JSON schema}}'
    functions = [_function(tool) for tool in _as_list(definitions)]
    names: list[Any] = [function.get("name") for function in functions]
    if not names or not all(isinstance(name, str) for name in names):
        refuse(_OP, "tools", rule, definitions)
    for name in names:
        if not _NAME.fullmatch(name):
            refuse(_OP, "tools", "named with 1 to 128 letters, digits, _ and -", name)
    for field, kind in (("description", str), ("parameters", dict), ("strict", bool)):
        if not all(isinstance(function.get(field), kind | None) for function in functions):
            refuse(_OP, "tools", rule, definitions)
    if len(set(names)) < len(names):
        refuse(_OP, "tools", "a list of functions with different names", names)
    return names


def _arguments(name: str, function: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a function's arguments, which are an object even if it does not say so, or allows something else."""
    schema = function.get("parameters") or _NO_PARAMETERS
    kinds = schema.get("type", "object")
    if "object" not in (kinds if isinstance(kinds, list) else [kinds]):
        refuse(_OP, "tools", f"such that the parameters of {name} are an object", Phrase(f"the type {kinds!r}"))
    return {**schema, "type": "object"}


def _refused(name: str, error: RequestError) -> RequestError:
    """The error about the schema of a function's arguments."""
    return RequestError(_OP, "tools", f"such that the schema of {name} is {error.rule}", error.got)


def _name_of(definition: Mapping[str, Any]) -> str:
    return str(definition["function"]["name"])


def _function(tool: object) -> Mapping[str, Any]:
    """The function of a tool or of a choice; {} if it is something else."""
    found = tool.get("function") if isinstance(tool, dict) and tool.get("type") in (None, "function") else None
    return found if isinstance(found, dict) else {}


def _as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _definition(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool without fields that are null, and with those that are optional in a request but that some templates read."""
    given, function = _without_nulls(tool), _without_nulls(tool["function"])
    optional = {"description": "", "parameters": _NO_PARAMETERS}
    return {"type": "function", **given, "function": function | optional | function}  # in the order of the request


def _with_descriptions(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool with a description of each property, which some templates read."""
    function = tool["function"]
    properties = function["parameters"].get("properties", {})
    known = {key: {"description": "", **kind} if isinstance(kind, dict) else kind for key, kind in properties.items()}
    return {**tool, "function": {**function, "parameters": {**function["parameters"], "properties": known}}}


def _without_nulls(given: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in given.items() if value is not None}


def _example(pieces: Any, arguments: str) -> str:
    """The pieces of a call as an example for the prompt."""
    return "".join(piece if isinstance(piece, str) else _example_object(piece, arguments) for piece in pieces)


def _example_object(schema: Mapping[str, Any], arguments: str) -> str:
    keys = [key for key in schema.get("properties", ()) if key != "name"]
    return f'{{"name": <name>, "{keys[0]}": <object>}}' if keys else arguments
