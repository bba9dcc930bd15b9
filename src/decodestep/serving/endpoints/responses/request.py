"""Requests of OpenAI's Responses API as conversations. Unknown fields are ignored: new ones appear all the time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from decodestep.chat.tool_json import read_arguments
from decodestep.serving.chats import Chat, join_neighbours, library_fields, template_variables
from decodestep.serving.errors import refusal
from decodestep.serving.request_fields import bool_field, list_field, object_field

# What the request calls fields of chat completions and of SamplingParams.
_NAMES = {
    "messages": "input",
    "max_new_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}
_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "reasoning_text": "text", "refusal": "refusal"}
# What needs stored answers or other services: these must be absent, or false.
_REFUSED = {
    "background": "false: an answer lives no longer than its request",
    "conversation": "omitted: no conversation is stored here",
    "previous_response_id": "omitted: no answer is stored here; send its output items as input",
    "prompt": "omitted: no prompt is stored here",
}
_ITEMS = "a message, function_call, function_call_output, custom_tool_call, custom_tool_call_output or reasoning"
# A custom tool's call is one text, which a model writes as a function's only argument.
CUSTOM_ARGUMENT = "input"


def read_chat(body: Mapping[str, Any]) -> Chat:
    for name, rule in _REFUSED.items():
        if body.get(name) not in (None, False):
            raise refusal(name, rule)
    included = body.get("include")
    if not isinstance(included, list | None):
        raise refusal("include", "a list")
    if "message.output_text.logprobs" in (included or ()):
        raise refusal("include", "without message.output_text.logprobs: an answer of this API has no log-probabilities here")
    return Chat(
        _conversation(body),
        tools=_tools(body),
        variables={**_reasoning(body), **template_variables(body)},
        schema=_schema(body),
        sampling={**library_fields(body), "max_tokens": body.get("max_output_tokens")},
        stream=bool(bool_field(body, "stream")),
        names=_NAMES,
    )


def custom_tools(body: Mapping[str, Any]) -> frozenset[str]:
    """The names of the tools whose calls are a text."""
    return frozenset(tool["name"] for tool in body.get("tools") or () if tool.get("type") == "custom")


def _conversation(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages. Neighbouring reasoning, text and calls of the assistant are one."""
    instructions, given = body.get("instructions"), body.get("input")
    if not isinstance(instructions, str | None):
        raise refusal("instructions", "a string")
    found = [{"role": "system", "content": instructions}] if instructions else []
    if isinstance(given, str):
        return [*found, {"role": "user", "content": given}]
    functions: dict[str, str] = {}  # of the calls so far, by their ids
    thought: list[str] = []  # of the message that follows
    for i, item in enumerate(list_field(body, "input")):
        place = f"input[{i}]"
        if not isinstance(item, dict):
            raise refusal(place, _ITEMS)
        kind = str(item.get("type") or ("message" if "role" in item else None))
        if kind == "reasoning":
            content = item.get("content") or []  # empty where it is encrypted
            thought += [_text(f"{place}.content", content)] if content else []
            continue
        if kind not in _READERS:
            raise refusal(place, f"{_ITEMS}; got {kind[:100]}")
        message = _READERS[kind](place, item, functions)
        if message["role"] == "assistant" and thought:
            message["reasoning_content"] = "\n".join(thought)
        thought = []
        found.append(message)
    return join_neighbours(found, ("assistant",))


def _message(place: str, item: Mapping[str, Any], _: dict[str, str]) -> dict[str, Any]:
    role = _ROLES.get(str(item.get("role")))
    if role is None:
        raise refusal(f"{place}.role", f"one of {', '.join(_ROLES)}")
    return {"role": role, "content": _text(f"{place}.content", item.get("content"))}


def _function_call(place: str, item: Mapping[str, Any], functions: dict[str, str]) -> dict[str, Any]:
    return _called(place, item, functions, read_arguments(item.get("arguments")))


def _custom_call(place: str, item: Mapping[str, Any], functions: dict[str, str]) -> dict[str, Any]:
    return _called(place, item, functions, {CUSTOM_ARGUMENT: _string(f"{place}.input", item.get("input"))})


def _called(place: str, item: Mapping[str, Any], functions: dict[str, str], arguments: object) -> dict[str, Any]:
    name, call_id = (_string(f"{place}.{field}", item.get(field)) for field in ("name", "call_id"))
    functions[call_id] = name
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def _call_output(place: str, item: Mapping[str, Any], functions: dict[str, str]) -> dict[str, Any]:
    call_id = _string(f"{place}.call_id", item.get("call_id"))
    message = {"role": "tool", "tool_call_id": call_id, "content": _text(f"{place}.output", item.get("output"))}
    return message | ({"name": functions[call_id]} if call_id in functions else {})


_READERS = {
    "message": _message,
    "function_call": _function_call,
    "function_call_output": _call_output,
    "custom_tool_call": _custom_call,
    "custom_tool_call_output": _call_output,
}


def _text(place: str, given: object) -> str:
    """The text of a string, or of parts of text, a line each."""
    if isinstance(given, str):
        return given
    if not isinstance(given, list):
        raise refusal(place, "a string or a list of text parts")
    texts = []
    for i, part in enumerate(given):
        kind = str(part.get("type")) if isinstance(part, dict) else ""
        text = part.get(_TEXTS[kind]) if kind in _TEXTS else None
        if not isinstance(text, str):
            raise refusal(f"{place}[{i}]", f"a part of text: input_text, output_text or refusal; got {kind[:100]}")
        texts.append(text)
    return "\n".join(texts)


def _tools(body: Mapping[str, Any]) -> dict[str, Any]:
    """The tools in the form of chat completions. Those that run at OpenAI are left out, and refused if they are chosen."""
    given = body.get("tools")
    if not isinstance(given, list | None) or not all(isinstance(tool, dict) for tool in given or ()):
        raise refusal("tools", "a list of tools")
    functions = []
    for i, tool in enumerate(given or ()):
        if tool.get("type") in ("function", "custom"):
            name = _string(f"tools[{i}].name", tool.get("name"))
            function = _custom_function(i, tool) if tool["type"] == "custom" else _function(i, tool)
            functions.append({"type": "function", "function": {"name": name, **function}})
    found: dict[str, Any] = {"tools": functions, "parallel_tool_calls": bool_field(body, "parallel_tool_calls")}
    return {**found, "tool_choice": _tool_choice(body.get("tool_choice"))}


def _function(index: int, tool: Mapping[str, Any]) -> dict[str, Any]:
    """Strict is what says so: at OpenAI null is strict too, and changes the schema to one that can be."""
    description, parameters = tool.get("description"), tool.get("parameters")
    if not isinstance(description, str | None):
        raise refusal(f"tools[{index}].description", "a string")
    if not isinstance(parameters, dict | None):
        raise refusal(f"tools[{index}].parameters", "an object")
    return {"description": description, "parameters": parameters, "strict": bool_field(tool, "strict")}


def _custom_function(index: int, tool: Mapping[str, Any]) -> dict[str, Any]:
    """The function that stands for a custom tool, whose text is bound by a regular expression if it has one."""
    form, description = object_field(tool, "format"), tool.get("description")
    if not isinstance(description, str | None):
        raise refusal(f"tools[{index}].description", "a string")
    if form.get("type", "text") == "text":
        return {"description": description, "parameters": _custom_schema({})}
    place = f"tools[{index}].format"
    if form["type"] != "grammar":
        raise refusal(f"{place}.type", "text or grammar")
    if form.get("syntax") != "regex":  # of the text itself: the model writes it as a string of JSON
        raise refusal(f"{place}.syntax", "regex: no other grammar can be enforced for the text of a custom tool")
    pattern = f"^({_string(f'{place}.definition', form.get('definition'))})$"
    return {"description": description, "parameters": _custom_schema({"pattern": pattern}), "strict": True}


def _custom_schema(more: Mapping[str, Any]) -> dict[str, Any]:
    text = {"type": "string", **more}
    return {
        "type": "object",
        "properties": {CUSTOM_ARGUMENT: text},
        "required": [CUSTOM_ARGUMENT],
        "additionalProperties": False,
    }


def _tool_choice(choice: object) -> object:
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") == "allowed_tools":
        tools = choice.get("tools")
        if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
            raise refusal("tool_choice.tools", "a list of tools")
        allowed = [_chosen(tool) for tool in tools if tool.get("type") in ("function", "custom")]
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode"), "tools": allowed}}
    if choice.get("type") not in ("function", "custom"):
        kind = str(choice.get("type"))[:100]
        raise refusal("tool_choice", f"none, auto, required, or of type function, custom or allowed_tools; got {kind}")
    return _chosen(choice)


def _chosen(tool: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": tool.get("name")}}


def _reasoning(body: Mapping[str, Any]) -> dict[str, Any]:
    """The variables of the chat template that say how much the model thinks."""
    effort = object_field(body, "reasoning").get("effort")
    if not isinstance(effort, str | None):
        raise refusal("reasoning.effort", "a string")
    found: dict[str, Any] = {} if effort is None else {"reasoning_effort": effort}
    return {**found, "enable_thinking": False} if effort == "none" else found


def _schema(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    form = object_field(object_field(body, "text"), "format")
    kind, schema = form.get("type", "text"), form.get("schema")
    if kind == "json_object":
        return {"type": "object"}
    if kind == "json_schema" and isinstance(schema, dict):
        return schema
    if kind != "text":
        raise refusal("text.format", '{"type": "text" or "json_object"}, or {"type": "json_schema", "name", "schema"}')
    return None


def _string(place: str, value: object) -> str:
    if not isinstance(value, str):
        raise refusal(place, "a string")
    return value
