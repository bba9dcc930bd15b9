"""Tools, calls and results in the messages of conversations, for chat templates that do not write them of their own."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from decodestep.chat.partial_json import complete_part
from decodestep.chat.tool_call_format import CallFormat
from decodestep.chat.tool_json import read_arguments
from decodestep.chat.tool_json_formats import TaggedJson
from decodestep.chat.tool_trial import try_calls

if TYPE_CHECKING:
    from decodestep.chat.template import ChatModel

Conversation = list[dict[str, Any]]

DESCRIBES = re.compile(r"{[%{][^}]*\btools\b")  # matches templates that describe the tools
_OF_SYSTEM = re.compile(r"""'tools' in message|message(?:\.tools|\[['"]tools['"]\])""")  # what reads a message's own tools


def reads_tools_of_system(template: str) -> bool:
    """Whether a template takes the tools from a system message alone."""
    rest, count = _OF_SYSTEM.subn("", template)
    return count > 0 and DESCRIBES.search(rest) is None


def with_tools_in_system(conversation: Conversation, definitions: Sequence[Any]) -> Conversation:
    """The conversation with the functions as JSON in its system message."""
    tools = json.dumps([tool["function"] for tool in definitions], ensure_ascii=False)
    first, *rest = conversation
    if first["role"] == "system":
        return [{**first, "tools": tools}, *rest]
    return [{"role": "system", "content": "", "tools": tools}, *conversation]


def with_calls(model: ChatModel, conversation: Conversation, format_: CallFormat) -> Conversation:
    """The conversation for a template of a known format. Calls that it would not write are a part of the content, or a message
    after the content's; where it writes one call of a message, each has its own."""
    found: Conversation = []
    conversation = _with_own_ids(conversation, format_)
    if any(len(message.get("tool_calls") or ()) > 1 for message in conversation) and not try_calls(model).several:
        conversation = _one_by_one(conversation)
    for message in conversation:
        calls = message.get("tool_calls") or ()
        trial = try_calls(model) if calls else None
        if trial and not trial.calls:
            found.append(_told(message, [_written(format_, call["function"]) for call in calls]))
        elif trial and not trial.with_content:
            said = [{"role": message["role"], "content": message["content"]}] if message.get("content") else []
            found += [*said, {**message, "content": None}]
        else:
            found.append(message)
    return found


def _with_own_ids(conversation: Conversation, format_: CallFormat) -> Conversation:
    """The conversation with the ids of calls, and of their results, in the form of the format's, whichever server made them."""
    ids: dict[object, str] = {}  # of the calls so far; one that is given twice is the later call's
    number = 0
    found: Conversation = []
    for message in conversation:
        calls = []
        for call in message.get("tool_calls") or ():
            given = call.get("id")
            if isinstance(given, str):
                ids[given] = format_.own_id(given, str(call["function"].get("name")), number)
            calls.append({**call, "id": ids[given]} if isinstance(given, str) else call)
            number += 1
        result = message.get("tool_call_id")
        if isinstance(result, str):  # that of no call has no name either
            message = {**message, "tool_call_id": ids.get(result) or format_.own_id(result, str(message.get("name")), number)}
        found.append({**message, "tool_calls": calls} if calls else message)
    return found


def _one_by_one(conversation: Conversation) -> Conversation:
    """The conversation with one call in a message, each before its results."""
    found: Conversation = []
    waiting: Conversation = []  # messages of calls whose results come
    for message in conversation:
        if waiting and message["role"] == "tool":
            called = [each["tool_calls"][0].get("id") for each in waiting]
            result = message.get("tool_call_id")
            found += [waiting.pop(called.index(result) if result in called else 0), message]
            continue
        found += waiting
        first, *more = message.get("tool_calls") or (None,)
        waiting = [{"role": message["role"], "content": None, "tool_calls": [call]} for call in more]
        waiting = [{**message, "tool_calls": [first]}, *waiting] if more else []
        found += [] if more else [message]
    return [*found, *waiting]


def in_turns(conversation: Conversation) -> Conversation:
    """The conversation for a template without tools: calls and results are written as text.

    Some templates want users and assistants to take turns: results that follow each other, and a user's message after them, are
    one message.
    """
    found: Conversation = []
    result = False  # whether the last message is one
    for message in conversation:
        text = _as_text(message)
        if result and text["role"] == "user":
            found[-1] = {**text, "content": f"{found[-1]['content']}\n{text['content']}"}
        else:
            found.append(text)
        result = message["role"] == "tool"
    return found


def _as_text(message: dict[str, Any]) -> dict[str, Any]:
    """A message in a form for templates without tools."""
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    return _told(message, [_written(TaggedJson({}), call["function"]) for call in message.get("tool_calls") or ()])


def _told(message: dict[str, Any], calls: list[str]) -> dict[str, Any]:
    """A message with its calls as a part of its content. calls: their texts."""
    kept = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**kept, "content": "\n".join(filter(None, (message["content"], *calls)))}


def _written(format_: CallFormat, function: Mapping[str, Any]) -> str:
    """A call as models write it: the constrained text of one whose schema is that of its arguments, filled in."""
    arguments = read_arguments(function.get("arguments"))
    name, given = function.get("name"), arguments if isinstance(arguments, dict) else complete_part(str(arguments))
    kinds = {key: {"type": "string"} if isinstance(value, str) else {} for key, value in given.items()}
    schema = {"type": "object", "properties": kinds, "required": list(kinds)}
    values = iter(given.values())
    texts = []
    for piece in format_.call(str(name), schema):
        if isinstance(piece, str):
            texts.append(piece)
        elif isinstance(piece, re.Pattern):
            texts.append(next(values))
        elif piece is schema:
            texts.append(json.dumps(given, ensure_ascii=False))
        elif piece.get("required", [""])[0] == "name":  # a whole call
            texts.append(json.dumps({key: name if key == "name" else given for key in piece["properties"]}, ensure_ascii=False))
        else:
            texts.append(json.dumps(next(values), ensure_ascii=False))
    return "".join(texts)
