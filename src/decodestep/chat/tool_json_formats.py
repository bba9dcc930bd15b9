"""Formats whose calls are JSON objects with the function's name in them, alone or in lists."""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import Any

from decodestep.chat.text_feed import TextFeed
from decodestep.chat.tool_call_format import CallBegin, CallFormat, Pieces, Reads
from decodestep.chat.tool_json import call_arguments, call_list, call_object, call_schema

_ID_LENGTH = 9  # of Mistral's calls


class MarkedJson(CallFormat):
    """A mark, and after it {"name": ..., "arguments": {...}} or a list of these."""

    _KEY = "arguments"
    _AROUND = ("", "")  # what stands around a call, between the mark and the end

    def calls(self, feed: TextFeed) -> Reads:
        yield from feed.expect(*self.marks)
        yield from call_list(feed)
        yield from self._end(feed)

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        begin, end = self._AROUND
        return [self.marks[0] + begin, call_schema(name, self._KEY, schema), end + "".join(self.ends)]


class TaggedJson(MarkedJson):
    """Hermes, Qwen 2.5 and 3, SmolLM 3, Granite 4: <tool_call> {"name": ..., "arguments": {...}} </tool_call>."""

    marks = ("<tool_call>",)
    ends = ("</tool_call>",)
    _AROUND = ("\n", "\n")


class GraniteList(MarkedJson):
    """Granite 3: <|tool_call|>[{"name": ..., "arguments": {...}}, ...]."""

    marks = ("<|tool_call|>",)
    spelled = marks
    _AROUND = ("[", "]")


class GraniteFunction(MarkedJson):
    """Granite 20b-functioncalling: <function_call> {"name": ..., "arguments": {...}}."""

    marks = ("<function_call>",)
    spelled = marks
    _AROUND = (" ", "")


class PhiList(MarkedJson):
    """Phi-4-mini: <|tool_call|>[{"name": ..., "arguments": {...}}, ...]<|/tool_call|>; it often writes functools[...]."""

    marks = ("<|tool_call|>", "functools")
    always_marked = False
    ends = ("<|/tool_call|>",)
    spelled = ("<|tool_call|>", "<|/tool_call|>")
    _AROUND = ("[", "]")


class NemotronList(MarkedJson):
    """Nemotron Nano 2: <TOOLCALL>[{"name": ..., "arguments": {...}}, ...]</TOOLCALL>."""

    marks = ("<TOOLCALL>",)
    ends = ("</TOOLCALL>",)
    _AROUND = ("[", "]")


class AprielList(MarkedJson):
    """Apriel: <tool_calls>[{"name": ..., "arguments": {...}}, ...]</tool_calls>."""

    marks = ("<tool_calls>",)
    ends = ("</tool_calls>",)
    _AROUND = ("[", "]")


class FunctoolsList(MarkedJson):
    """Firefunction: functools[{"name": ..., "arguments": {...}}, ...]."""

    marks = ("functools",)
    _AROUND = ("[", "]")


class GigaChatMessage(MarkedJson):
    """GigaChat 3: {"name": ..., "arguments": {...}} in a message of the role function call; 3.1: after <|function_call|>."""

    marks = ("function call<|role_sep|>", "<|function_call|>")
    ends = ("<|message_sep|>",)
    always_marked = False
    spelled = ("<|role_sep|>", "<|function_call|>", *ends)
    _AROUND = ("\n", "")


class CohereActions(MarkedJson):
    """Command R7B and A: a list of {"tool_call_id": ..., "tool_name": ..., "parameters": {...}} between control tokens."""

    marks = ("<|START_ACTION|>",)
    ends = ("<|END_ACTION|>",)
    spelled: tuple[str, ...] = ("<|START_ACTION|>", "<|END_ACTION|>")
    silent = ("directly_answer", "directly-answer")  # with which these models say that they call nothing

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        begin = f'<|START_ACTION|>[\n    {{"tool_call_id": "0", "tool_name": "{name}", "parameters": '
        return [begin, schema, "}\n]<|END_ACTION|>"]


class CohereFenced(CohereActions):
    """Command R and R+: Action: and a list of {"tool_name": ..., "parameters": {...}} in a Markdown code block."""

    marks = ("Action:",)
    ends = ("```",)
    spelled = ()

    def calls(self, feed: TextFeed) -> Reads:
        yield from feed.expect(*self.marks)
        yield from feed.space()
        yield from feed.expect("```json")
        yield from call_list(feed)
        yield from self._end(feed)

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        begin = f'Action: ```json\n[\n    {{\n        "tool_name": "{name}",\n        "parameters": '
        return [begin, schema, "\n    }\n]\n```"]


class BareJson(CallFormat):
    """Llama 3.1 to 3.3: the text is one or more {"name": ..., "parameters": {...}}, optionally after <|python_tag|>."""

    marks = ("<|python_tag|>",)
    first_marks = ("{",)
    always_marked = False
    spelled = ("<|python_tag|>",)
    _SEPARATORS = re.compile(r"[;,\s]*")

    def calls(self, feed: TextFeed) -> Reads:
        yield from feed.optional(*self.marks)
        yield from feed.space()
        yield from call_object(feed, strict=True)
        yield from feed.run(self._SEPARATORS)

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        return [call_schema(name, "parameters", schema)]


class MistralList(MarkedJson):
    """Mistral up to 2024: [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]; reads the later format too."""

    marks = ("[TOOL_CALLS]",)
    spelled = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")
    _AROUND = ("[", "]")

    def calls(self, feed: TextFeed) -> Reads:
        yield from feed.expect(*self.marks)
        yield from feed.space()
        name = yield from feed.name()
        if not name:
            yield from call_list(feed)
            return
        yield CallBegin(name)
        if (yield from feed.optional("[CALL_ID]")):
            yield from feed.name()
        yield from feed.optional("[ARGS]")
        yield from call_arguments(feed)

    def new_id(self, name: str, number: int) -> str:
        return secrets.token_hex(5)[:_ID_LENGTH]  # templates refuse ids that are not of nine letters and digits

    def own_id(self, call_id: str, name: str, number: int) -> str:
        if len(call_id) == _ID_LENGTH and call_id.isascii() and call_id.isalnum():
            return call_id
        return hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:_ID_LENGTH]


class MistralNamed(MistralList):
    """Mistral since 2025: [TOOL_CALLS]name[ARGS]{...}, once or several times."""

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        return [f"[TOOL_CALLS]{name}[ARGS]", schema]
