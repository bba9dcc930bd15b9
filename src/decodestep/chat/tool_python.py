"""Function calls that are written as Python: a list of calls whose arguments are literals."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from decodestep.chat.text_feed import EndedError, TextFeed, UnreadableError
from decodestep.chat.tool_call_format import (
    ANY_TEXT,
    Between,
    CallArguments,
    CallBegin,
    CallEnd,
    CallFormat,
    Event,
    Pieces,
    Reads,
)
from decodestep.chat.tool_notation import Notation, as_json, escaped
from decodestep.chat.tool_values import constrained_arguments

_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_SCALAR = re.compile(r"[-+.\w]*")
_NUMBER = re.compile(r"[-+]?(?:[0-9][0-9_]*)?(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0", "\n": ""}
_ESCAPE = re.compile(  # of x, u or U without their digits, the letter alone, once what follows says that they do not come
    r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[^xuU]"
    r"|x(?=[0-9a-fA-F]?[^0-9a-fA-F])|u(?=[0-9a-fA-F]{0,3}[^0-9a-fA-F])|U(?=[0-9a-fA-F]{0,7}[^0-9a-fA-F]))"
)
_ESCAPE_BEGUN = re.compile(r"\\(?:x[0-9a-fA-F]?|u[0-9a-fA-F]{0,3}|U[0-9a-fA-F]{0,7})?")
_VALUES = ('"', "'", "[", "{", "(", "-", "+", ".", *"0123456789", *_WORDS)  # how a value begins
_LONGEST_NUMBER = 4096  # characters


class _Literals(Notation):
    """Python's literals, and the words of JSON."""

    brackets = {"[": "]", "{": "}", "(": ")"}  # noqa: RUF012
    ends_with_comma = True

    def scalar(self, feed: TextFeed) -> Iterator[str | None]:
        if (yield from feed.comes("'", '"')):
            yield from self._string(feed)
            return
        written = yield from feed.run(_SCALAR)
        if (yield from feed.done()):
            raise EndedError
        yield _WORDS.get(written) or _number(written)

    def key(self, feed: TextFeed) -> Iterator[str | None]:
        return self._string(feed)

    def _string(self, feed: TextFeed) -> Iterator[str | None]:
        quote = yield from feed.expect("'", '"')
        yield '"'
        while True:
            for piece in feed.pieces_until(quote, "\\"):
                yield piece and escaped(piece)
            if (yield from feed.optional(quote)):
                yield '"'
                return
            yield _unescaped((yield from feed.form(_ESCAPE, _ESCAPE_BEGUN)))


def _number(written: str) -> str:
    """A number as JSON has it."""
    if not _NUMBER.fullmatch(written) or len(written) > _LONGEST_NUMBER:
        raise UnreadableError
    try:
        return json.dumps(float(written) if any(mark in written for mark in ".eE") else int(written), allow_nan=False)
    except ValueError:
        raise UnreadableError from None


def _unescaped(escape: str) -> str:
    """What an escape of Python's stands for, as JSON has it within a string."""
    kind, digits = escape[1], escape[2:]
    if digits and int(digits, 16) <= 0x10FFFF:
        character = chr(int(digits, 16))
        return json.dumps(character)[1:-1] if "\ud800" <= character <= "\udfff" else escaped(character)
    if kind in _ESCAPES:
        return escaped(_ESCAPES[kind])
    return escaped(kind if kind in "\\'\"/" else escape)  # the slash is JSON's


LITERALS = _Literals()


class PythonCalls(CallFormat):
    """Llama 4, OLMo 3: the text is [name(key=value, ...), ...]."""

    first_marks: tuple[str, ...] = ("[",)
    always_marked = False
    _AROUND = ("[", "]")
    _SEPARATORS = re.compile(r"[\s,;]*")

    def calls(self, feed: TextFeed) -> Reads:
        yield from feed.optional(*self.marks)
        yield from feed.space()
        yield from feed.expect("[")
        yield from feed.space()
        closed = False
        while not closed:
            yield from self._call(feed)
            yield from feed.space()
            closed = (yield from feed.expect(",", "]")) == "]"
            if not closed:
                yield from feed.space()
                yield Between()
                closed = bool((yield from feed.optional("]")))
        yield from self._end(feed)

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        begin, end = self._AROUND
        pieces: Pieces = [f"{begin}{name}("]
        for i, (key, kind) in enumerate(constrained_arguments(schema)):
            pieces += [f"{', ' if i else ''}{key}=", kind]
        return [*pieces, f"){end}"]

    def any_call(self, name: str) -> Pieces:
        begin, end = self._AROUND
        return [f"{begin}{name}(", ANY_TEXT, f"){end}"]

    def _call(self, feed: TextFeed) -> Iterator[Event]:
        yield CallBegin((yield from feed.name()))
        yield from feed.expect("(")
        yield from feed.space()
        begin, more = "{", not (yield from feed.optional(")"))
        while more:
            key = yield from feed.name()
            yield from feed.space()
            yield from feed.expect("=")
            yield from feed.space()
            place = feed.at
            yield from feed.expect(*_VALUES)
            feed.at = place
            yield CallArguments(f"{begin}{as_json(key)}:")
            for piece in LITERALS.value(feed):
                yield piece and CallArguments(piece)
            begin = ","
            yield from feed.space()
            more = (yield from feed.expect(",", ")")) == ","
            if more:
                yield from feed.space()
                more = not (yield from feed.optional(")"))
        yield CallArguments("{}" if begin == "{" else "}")
        yield CallEnd(True)


class MarkedPythonCalls(PythonCalls):
    """LFM2: as Llama 4, between <|tool_call_start|> and <|tool_call_end|>, which some of its models leave out."""

    marks = ("<|tool_call_start|>",)
    ends = ("<|tool_call_end|>",)
    spelled = ("<|tool_call_start|>", "<|tool_call_end|>")
    _AROUND = ("<|tool_call_start|>[", "]<|tool_call_end|>")


class OlmoCalls(PythonCalls):
    """OLMo 3: calls between <function_calls> and </function_calls>, one a line, or in a list as Llama 4's."""

    marks = ("<function_calls>",)
    first_marks = ()
    always_marked = True
    ends = ("</function_calls>",)
    _AROUND = ("<function_calls>", "</function_calls>")

    def calls(self, feed: TextFeed) -> Reads:
        place = feed.at
        yield from feed.expect(*self.marks)
        yield from feed.space()
        if (yield from feed.comes("[")):
            feed.at = place
            yield from super().calls(feed)
            return
        while not (yield from feed.optional(*self.ends)):
            yield from self._call(feed)
            yield ""
            yield from feed.run(self._SEPARATORS)
            yield Between()
            if (yield from feed.done()):
                return
