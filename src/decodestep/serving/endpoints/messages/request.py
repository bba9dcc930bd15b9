"""Requests of Anthropic's Messages API as conversations. Unknown fields are ignored: new ones appear all the time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from decodestep.serving.chats import Chat, join_neighbours, library_fields, template_variables
from decodestep.serving.errors import HttpError, refusal
from decodestep.serving.request_fields import bool_field, list_field, object_field

# What the request calls fields of chat completions and of SamplingParams.
_NAMES = {
    "max_new_tokens": "max_tokens",
    "stop_strings": "stop_sequences",
    "strings": "stop_sequences",
    "response_format": "output_config.format",
    "thinking_budget_tokens": "thinking.budget_tokens",
    "reasoning_effort": "output_config.effort",
}
# ctx and msg have been sent by Claude Code.
_ROLES = {"user": "user", "ctx": "user", "msg": "user", "assistant": "assistant", "system": "system"}
# The first line of Claude Code's system text, with a number that changes with every request: no prompt would begin as the one
# before, and nothing of it would be in the cache. It says nothing to a model, which is not given it.
_BILLING = "x-anthropic-billing-header:"
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
# The code by which Anthropic's client knows that it is to send all messages with every request.
NO_THREADS = "thread_unsupported_request"


def read_chat(body: Mapping[str, Any]) -> Chat:
    if body.get("thread") is not None:  # of its messages, only the last ones would come
        raise HttpError(400, "thread must be omitted: no conversation is stored here", param="thread", code=NO_THREADS)
    messages = _system(body.get("system")) + _conversation(body)
    continues = messages[-1]["role"] == "assistant"
    if continues and messages[-1].get("tool_calls"):
        raise refusal("messages", "such that a tool_use at their end is followed by its tool_result")
    lengths = {"max_tokens": body.get("max_tokens"), "stop": body.get("stop_sequences")}
    return Chat(
        messages,
        tools=_tools(body),
        variables={**_thinking(body), **template_variables(body)},
        opens=not continues,
        continues=continues,
        schema=_schema(body),
        sampling={**library_fields(body), **_budget(body), **lengths},
        stream=bool(bool_field(body, "stream")),
        names=_NAMES,
    )


def _system(given: object) -> list[dict[str, Any]]:
    text = "" if given is None else _text("system", given)
    if text.startswith(_BILLING):
        text = text.partition("\n")[2]
    return [{"role": "system", "content": text}] if text else []


def _conversation(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages; neighbouring ones of users, or of assistants, are one, as Anthropic has it."""
    found: list[dict[str, Any]] = []
    functions: dict[str, str] = {}  # of the calls so far, by their ids
    for i, message in enumerate(list_field(body, "messages")):
        name = f"messages[{i}]"
        role = _ROLES.get(str(message.get("role"))) if isinstance(message, dict) else None
        if role is None:
            raise refusal(f"{name}.role", "user, assistant or system")
        content = message.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        place = f"{name}.content"
        if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
            raise refusal(place, "a string or a list of blocks")
        read = {"user": _user, "assistant": _assistant}.get(role, _system_message)
        found += read(place, blocks, functions)
    return join_neighbours(found, ("user", "assistant"))


def _user(place: str, blocks: list[dict[str, Any]], functions: Mapping[str, str]) -> list[dict[str, Any]]:
    """The results of tools that a message has, each a message, and the text of its own."""
    results, said = [], []
    for i, block in enumerate(blocks):
        name = f"{place}[{i}]"
        if block.get("type") == "tool_result":
            called = _string(f"{name}.tool_use_id", block.get("tool_use_id"))
            content = "" if block.get("content") is None else _text(f"{name}.content", block["content"])
            result = {"role": "tool", "tool_call_id": called, "content": content}
            results.append(result | ({"name": functions[called]} if called in functions else {}))
        else:
            said.append(_block_text(name, block, "text and tool_result"))
    return [*results, *([{"role": "user", "content": "\n".join(said)}] if said or not results else [])]


def _assistant(place: str, blocks: list[dict[str, Any]], functions: dict[str, str]) -> list[dict[str, Any]]:
    thought, said, calls = [], [], []
    for i, block in enumerate(blocks):
        name, kind = f"{place}[{i}]", block.get("type")
        if kind == "thinking":
            thought.append(_string(f"{name}.thinking", block.get("thinking")))
        elif kind == "tool_use":
            called, arguments = _string(f"{name}.name", block.get("name")), block.get("input")
            if not isinstance(arguments, dict):
                raise refusal(f"{name}.input", "an object")
            call_id = _string(f"{name}.id", block.get("id"))
            functions[call_id] = called
            calls.append({"id": call_id, "type": "function", "function": {"name": called, "arguments": arguments}})
        elif kind != "redacted_thinking":  # which only Anthropic can read
            said.append(_block_text(name, block, "text, thinking, redacted_thinking and tool_use"))
    message: dict[str, Any] = {"role": "assistant", "content": "\n".join(said) if said or not calls else None}
    return [message | ({"reasoning_content": "\n".join(thought)} if thought else {}) | ({"tool_calls": calls} if calls else {})]


def _system_message(place: str, blocks: list[dict[str, Any]], _: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"role": "system", "content": _text(place, blocks)}]


def _text(place: str, given: object) -> str:
    """The text of a string, or of blocks of text, a line each."""
    if isinstance(given, str):
        return given
    if not isinstance(given, list) or not all(isinstance(block, dict) for block in given):
        raise refusal(place, "a string or a list of text blocks")
    return "\n".join(_block_text(f"{place}[{i}]", block, "text") for i, block in enumerate(given))


def _block_text(place: str, block: Mapping[str, Any], known: str) -> str:
    if block.get("type") != "text":
        _refuse_kind(place, block.get("type"), f"a block; of its types, {known} are supported here")
    return _string(f"{place}.text", block.get("text"))


def _tools(body: Mapping[str, Any]) -> dict[str, Any]:
    """The tools in the form of chat completions. Those that run at Anthropic are left out, and refused if they are chosen."""
    given = body.get("tools")
    if not isinstance(given, list | None) or not all(isinstance(tool, dict) for tool in given or ()):
        raise refusal("tools", "a list of tools")
    functions: list[dict[str, Any]] = []
    elsewhere = set()
    for i, tool in enumerate(given or ()):
        if tool.get("type") not in (None, "custom"):
            elsewhere.add(str(tool.get("name")))
            continue
        function = {"name": _string(f"tools[{i}].name", tool.get("name")), "strict": bool_field(tool, "strict")}
        description, schema = tool.get("description"), tool.get("input_schema")
        if not isinstance(description, str | None):
            raise refusal(f"tools[{i}].description", "a string")
        if not isinstance(schema, dict):
            raise refusal(f"tools[{i}].input_schema", "an object")
        functions.append({"type": "function", "function": {**function, "description": description, "parameters": schema}})
    choice = object_field(body, "tool_choice")
    found: dict[str, Any] = {"tools": functions}
    if bool_field(choice, "disable_parallel_tool_use"):
        found["parallel_tool_calls"] = False
    if not choice:
        return found
    kind, name = str(choice.get("type")), str(choice.get("name"))
    if kind == "tool":
        if name in elsewhere:
            _refuse_kind("tool_choice.name", name, "a tool that the client runs")
        if name not in [tool["function"]["name"] for tool in functions]:
            raise refusal("tool_choice.name", "the name of one of the tools")
        return {**found, "tool_choice": {"type": "function", "function": {"name": name}}}
    if kind not in _CHOICES:
        raise refusal("tool_choice.type", "auto, any, tool or none")
    return {**found, "tool_choice": _CHOICES[kind]}


def _thinking(body: Mapping[str, Any]) -> dict[str, Any]:
    """The variables of the chat template that say whether the model thinks, and how much: templates know one or the other."""
    given, effort = object_field(body, "thinking"), object_field(body, "output_config").get("effort")
    if not isinstance(effort, str | None):
        raise refusal("output_config.effort", "a string")
    found: dict[str, Any] = {} if effort is None else {"reasoning_effort": effort}
    if given and given.get("type") not in ("enabled", "disabled", "adaptive", "between_tools"):
        raise refusal("thinking.type", "enabled, disabled, adaptive or between_tools")
    if given.get("type") in ("enabled", "disabled"):
        thinks = given["type"] == "enabled"
        found |= {"enable_thinking": thinks, "thinking": thinks}
    return found


def _budget(body: Mapping[str, Any]) -> dict[str, Any]:
    given = object_field(body, "thinking")
    budget = given.get("budget_tokens") if given.get("type") == "enabled" else None
    return {} if budget is None else {"thinking_budget_tokens": budget}


def _schema(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    form = object_field(object_field(body, "output_config"), "format")
    if not form:
        return None
    schema = form.get("schema")
    if form.get("type") != "json_schema" or not isinstance(schema, dict):
        raise refusal("output_config.format", '{"type": "json_schema", "schema": a JSON schema}')
    return schema


def _string(place: str, value: object) -> str:
    if not isinstance(value, str):
        raise refusal(place, "a string")
    return value


def _refuse_kind(place: str, kind: object, rule: str) -> NoReturn:
    raise refusal(place, f"{rule}; got {str(kind)[:100]}")
