"""Formats of function calls in tags that have the function's name, and the arguments' names and types, as attributes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from decodestep.chat.text_feed import Reading, TextFeed
from decodestep.chat.tool_call_format import Pieces
from decodestep.chat.tool_tags import TaggedCalls
from decodestep.chat.tool_values import constrained_arguments, is_string, properties, tagged_form


class MiniMaxInvokes(TaggedCalls):
    """MiniMax M2: <invoke name="..."> <parameter name="key">value</parameter> ... </invoke>, one or several within
    <minimax:tool_call> ... </minimax:tool_call>."""

    marks: tuple[str, ...] = ("<minimax:tool_call>", '<invoke name="')
    ends: tuple[str, ...] = ("</invoke>", "</minimax:tool_call>")
    _AROUND = "<minimax:tool_call>"
    _CALL, _KEY, _VALUE = ('<invoke name="', '">'), ('<parameter name="', '">'), ("", "</parameter>")

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        pieces: Pieces = [f"{self._AROUND}\n{self._CALL[0]}{name}{self._CALL[1]}\n"]
        for key, kind in constrained_arguments(schema):
            form = tagged_form(kind)
            pieces += [self._opening(key, form), form, f"{self._VALUE[1]}\n"]
        return [*pieces, "\n".join(self.ends)]

    def _opening(self, key: str, form: object) -> str:
        return f"{self._KEY[0]}{key}{self._KEY[1]}"


class DsmlInvokes(MiniMaxInvokes):
    """DeepSeek V3.2: as MiniMax M2, in tags with |DSML|, which say whether a value is a string; others are JSON."""

    marks: tuple[str, ...] = ("<｜DSML｜function_calls>", '<｜DSML｜invoke name="')
    ends: tuple[str, ...] = ("</｜DSML｜invoke>", "</｜DSML｜function_calls>")
    spelled = ("｜DSML｜",)
    _AROUND = "<｜DSML｜function_calls>"
    _CALL, _KEY = ('<｜DSML｜invoke name="', '">'), ('<｜DSML｜parameter name="', '"')
    _VALUE = ("", "</｜DSML｜parameter>")
    _SAYS = (' string="true">', ' string="false">', ">")

    def _kind(self, feed: TextFeed, kind: object, schema: Mapping[str, Any]) -> Reading[object]:
        says = yield from feed.expect(*self._SAYS)
        if says == self._SAYS[0]:
            return {"type": "string"}
        return {} if says == self._SAYS[1] and is_string(kind, schema) else kind

    def _opening(self, key: str, form: object) -> str:
        is_text = isinstance(form, re.Pattern)
        return f"{self._KEY[0]}{key}{self._KEY[1]}{self._SAYS[0 if is_text else 1]}"


class DsmlCalls(DsmlInvokes):
    """DeepSeek V4: as V3.2, within tool_calls."""

    marks = ("<｜DSML｜tool_calls>", '<｜DSML｜invoke name="')
    ends = ("</｜DSML｜invoke>", "</｜DSML｜tool_calls>")
    _AROUND = "<｜DSML｜tool_calls>"


class MiniMaxTags(MiniMaxInvokes):
    """MiniMax M3: as M2, with a control token before each tag, and an argument between tags of its own name."""

    _TOKEN = "]<]minimax[>["
    marks = (f"{_TOKEN}<tool_call>", f'{_TOKEN}<invoke name="')
    ends = (f"{_TOKEN}</invoke>", f"{_TOKEN}</tool_call>")
    spelled = (_TOKEN, "<tool_call>", "</tool_call>")
    _AROUND = f"{_TOKEN}<tool_call>"
    _CALL, _KEY = (f'{_TOKEN}<invoke name="', '">'), (f"{_TOKEN}<", ">")

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        pieces: Pieces = [f"{self._AROUND}\n{self._CALL[0]}{name}{self._CALL[1]}\n"]
        for key, kind in constrained_arguments(schema):
            pieces += [f"{self._TOKEN}<{key}>", tagged_form(kind), f"{self._TOKEN}</{key}>\n"]
        return [*pieces, "\n".join(self.ends)]

    def _openings(self, schema: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(f"{self._TOKEN}<{key}>" for key in properties(schema))

    def _key(self, feed: TextFeed, opening: str) -> Reading[str]:
        yield from ()
        return opening.removeprefix(self._KEY[0]).removesuffix(self._KEY[1])

    def _closing(self, feed: TextFeed, key: str) -> Reading[str]:
        yield from ()
        return f"{self._TOKEN}</{key}>"


class KimiElements(TaggedCalls):
    """Kimi K3: call elements within a tools element, with an argument element for each argument, which says its type."""

    _AROUND = "<|open|>tools<|sep|>"
    _CALL, _KEY = ('<|open|>call tool="', '"'), ('<|open|>argument key="', '"')
    _VALUE = ("", "<|close|>argument<|sep|>")
    marks = (_AROUND, _CALL[0])
    ends = ("<|close|>call<|sep|>", "<|close|>tools<|sep|>")
    spelled = ("<|open|>", "<|close|>", "<|sep|>")
    _SEP = "<|sep|>"

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        pieces: Pieces = [f'{self._AROUND}{self._CALL[0]}{name}" index="1"{self._SEP}']
        for key, kind in constrained_arguments(schema):
            form = tagged_form(kind)
            stated = "string" if isinstance(form, re.Pattern) else "object"
            pieces += [f'{self._KEY[0]}{key}" type="{stated}"{self._SEP}', form, self._VALUE[1]]
        return [*pieces, "".join(self.ends)]

    def _name(self, feed: TextFeed) -> Reading[str]:
        name = yield from super()._name(feed)
        yield from feed.until(self._SEP, *self.marks)
        yield from feed.expect(self._SEP)
        return name

    def _kind(self, feed: TextFeed, kind: object, schema: Mapping[str, Any]) -> Reading[object]:
        stated = yield from feed.until(self._SEP, *self.marks)
        yield from feed.expect(self._SEP)
        if 'type="string"' in stated:
            return {"type": "string"}
        return {} if is_string(kind, schema) else kind
