"""Formats that write a function's name and then its arguments as JSON."""

from __future__ import annotations

import re
import secrets
from typing import Any

from decodestep.chat.text_feed import Reading, TextFeed
from decodestep.chat.tool_call_format import Between, CallBegin, CallEnd, CallFormat, Functions, Pieces, Reads
from decodestep.chat.tool_json import call_arguments, read_string

_DIGITS = re.compile(r"\d*")


class DeepSeek(CallFormat):
    """DeepSeek V3.1: calls between control tokens, name<sep>{...}; reads the format of V3 and R1 too."""

    marks = ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>")
    ends: tuple[str, ...] = ("```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>")
    spelled = (*marks, "<｜tool▁sep｜>", *ends[1:])

    def calls(self, feed: TextFeed) -> Reads:
        section, begin = self.marks
        yield from feed.optional(section)
        yield from feed.space()
        yield from feed.expect(begin)
        yield from feed.space()
        yield CallBegin((yield from self._name(feed)))
        yield from call_arguments(feed, *self.ends)
        yield from self._end(feed)

    def _name(self, feed: TextFeed) -> Reading[str]:
        """The name of a function, with what stands between it and the arguments."""
        kind = yield from feed.name()
        yield from feed.optional("<｜tool▁sep｜>")
        name = yield from feed.name()  # of V3 and R1, where "function" stands before it
        yield from feed.space()
        yield from feed.optional("```json")
        return name or kind

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        begin = f"{''.join(self.marks)}{name}<｜tool▁sep｜>"
        return [begin, schema, "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"]


class DeepSeekFenced(DeepSeek):
    """DeepSeek V3 and R1: function<sep>name, and the arguments in a Markdown code block."""

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        _, arguments, end = super().call(name, schema)
        return [f"{''.join(self.marks)}function<｜tool▁sep｜>{name}\n```json\n", arguments, f"\n```{end}"]


class KimiSection(DeepSeek):
    """Kimi K2: calls between control tokens, functions.name:number<argument begin>{...}."""

    marks = ("<|tool_calls_section_begin|>", "<|tool_call_begin|>")
    ends = ("<|tool_call_end|>", "<|tool_calls_section_end|>")
    spelled = (*marks, "<|tool_call_argument_begin|>", *ends)

    def _name(self, feed: TextFeed) -> Reading[str]:
        yield from feed.optional("functions.")
        name = yield from feed.name()
        if (yield from feed.optional(":")):
            yield from feed.run(_DIGITS)
        yield from feed.space()
        yield from feed.expect("<|tool_call_argument_begin|>")
        return name

    def new_id(self, name: str, number: int) -> str:
        return f"functions.{name}:{number}"  # written into the prompt in place of the name

    def own_id(self, call_id: str, name: str, number: int) -> str:
        return call_id if call_id.startswith(f"functions.{name}:") else self.new_id(name, number)

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        begin, end = "".join(self.marks), "".join(self.ends)
        return [f"{begin}functions.{name}:0<|tool_call_argument_begin|>", schema, end]


class SolarCalls(CallFormat):
    """Solar Open: control tokens before the call's id, the function's name and the arguments, and at the end."""

    marks = ("<|tool_call:begin|>",)
    ends = ("<|tool_call:end|>",)
    spelled = (*marks, "<|tool_call:name|>", "<|tool_call:args|>", *ends)

    def calls(self, feed: TextFeed) -> Reads:
        yield from feed.expect(*self.marks)
        yield from feed.name()
        yield from feed.expect("<|tool_call:name|>")
        yield CallBegin((yield from feed.name()))
        yield from feed.expect("<|tool_call:args|>")
        yield from call_arguments(feed, *self.ends)
        yield from self._end(feed)

    def new_id(self, name: str, number: int) -> str:
        return secrets.token_hex(5)  # ten letters and digits, as the prompt asks of the model

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        return [f"<|tool_call:begin|>0000000000<|tool_call:name|>{name}<|tool_call:args|>", schema, "<|tool_call:end|>"]


class ApertusList(CallFormat):
    """Apertus: <|tools_prefix|>[{name: {...}}, ...]<|tools_suffix|>."""

    marks = ("<|tools_prefix|>",)
    ends = ("<|tools_suffix|>",)
    spelled = (*marks, *ends)

    def calls(self, feed: TextFeed) -> Reads:
        yield from feed.expect(*self.marks)
        yield from feed.space()
        yield from feed.expect("[")
        closed = False
        while not closed:
            yield from feed.space()
            yield from feed.expect("{")
            yield from feed.space()
            yield CallBegin((yield from read_string(feed)))
            yield from feed.space()
            yield from feed.expect(":")
            yield from call_arguments(feed)
            yield from feed.space()
            yield from feed.expect("}")
            yield ""
            yield from feed.space()
            closed = (yield from feed.expect(",", "]")) == "]"
            yield Between()
        yield from self._end(feed)

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        return [f'<|tools_prefix|>[{{"{name}": ', schema, "}]<|tools_suffix|>"]


class FunctionaryTags(CallFormat):
    """Functionary 3.1: <function=name>{...}</function>."""

    marks = ("<function=",)
    ends = ("</function>",)

    def calls(self, feed: TextFeed) -> Reads:
        yield from feed.expect(*self.marks)
        name = yield from feed.name()
        yield from feed.expect(">")
        yield CallBegin(name)
        yield from call_arguments(feed, *self.ends)
        yield from self._end(feed)

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        return [f"<function={name}>", schema, "</function>"]


class FunctionaryRecipients(CallFormat):
    """Functionary 3.2: messages, each after >>> and a line that says whom it is to: a function, or all, who read content.

    The prompt ends with the first >>>.
    """

    marks = (">>>",)
    always_marked = False
    silent = ("all",)

    def __init__(self, functions: Functions) -> None:
        super().__init__(functions)
        self.first_marks = tuple(f"{name}\n" for name in (*functions, *self.silent))

    def calls(self, feed: TextFeed) -> Reads:
        yield from feed.optional(*self.marks)
        name = yield from feed.name()
        yield from feed.expect("\n")
        yield CallBegin(name)
        if name in self.silent:
            yield CallEnd(True)
        else:
            yield from call_arguments(feed)
            yield from feed.space()

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        return [f"{name}\n", schema]
