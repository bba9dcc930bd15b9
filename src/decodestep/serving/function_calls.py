"""The functions of chat completions before there were tools, which clients of old versions still send."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from decodestep.serving.errors import refusal

NAMES = {"tools": "functions", "tool_choice": "function_call"}  # what requests call the fields of tools
_CHOICE = 'none, auto or {"name": one of the functions}'


def has_functions(body: Mapping[str, Any]) -> bool:
    """Whether a request has functions, or says which are called; null and an empty list say nothing. Refuses both beside
    tools."""
    given = [name for name in NAMES.values() if body.get(name) not in (None, [])]
    beside = [name for name in NAMES if body.get(name) is not None]
    if given and beside:
        raise refusal(given[0], f"omitted with {beside[0]}")
    return bool(given)


def as_tools(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of tools that say the same as those of functions; a message has one call."""
    functions, choice = body.get("functions"), body.get("function_call")
    tools = [{"type": "function", "function": each} for each in functions] if isinstance(functions, list) else functions
    if isinstance(choice, dict) and choice.keys() == {"name"}:
        choice = {"type": "function", "function": choice}
    elif choice not in (None, "none", "auto"):
        raise refusal("function_call", _CHOICE)
    return {"tools": tools, "tool_choice": choice, "parallel_tool_calls": False}


def with_tool_calls(messages: Sequence[object]) -> Iterator[object]:
    """A conversation's messages, with the calls and results of functions as those of tools."""
    call_id = ""  # of the last call: a result follows its call, and has no id
    for i, message in enumerate(messages):
        if not isinstance(message, dict):
            yield message
        elif message.get("role") == "function":
            yield {**message, "role": "tool", "tool_call_id": call_id}
        elif message.get("role") == "assistant" and message.get("function_call") is not None:
            call = message["function_call"]
            if not isinstance(call, dict) or not isinstance(call.get("name"), str) or message.get("tool_calls"):
                raise refusal(f"messages[{i}].function_call", 'a call {"name", "arguments": JSON as text}, without tool_calls')
            call_id = f"call{i % 10**5:05}"  # nine letters and digits, as some templates want it
            rest = {name: value for name, value in message.items() if name != "function_call"}
            yield {**rest, "tool_calls": [{"id": call_id, "type": "function", "function": call}]}
        else:
            yield message
