"""Gemma's function calls, in a notation of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from decodestep.chat.text_feed import EndedError, Reading, TextFeed, UnreadableError
from decodestep.chat.tool_call_format import ANY_TEXT, CallArguments, CallBegin, CallEnd, CallFormat, Pieces, Reads
from decodestep.chat.tool_json import JSON
from decodestep.chat.tool_notation import Notation, as_json, escaped
from decodestep.chat.tool_values import constrained_arguments, tagged_form, tagged_value

_QUOTE = '<|"|>'
_KEY = re.compile(r"[^:,{}\[\]<]*")
_BARE = re.compile(r"[^,{}\[\]]*")


class _Values(Notation):
    """Strings between control tokens, keys and words without quotes. Within lists and objects the models also write JSON, so
    strings in quotes are read too."""

    def scalar(self, feed: TextFeed) -> Iterator[str | None]:
        if (yield from feed.comes(_QUOTE)):
            yield from self._string(feed)
        elif (yield from feed.comes('"')):
            yield from JSON.string(feed)
        else:
            yield as_json(tagged_value((yield from _bare(feed, _BARE)), {}, {}))

    def key(self, feed: TextFeed) -> Iterator[str | None]:
        yield from feed.space()
        if (yield from feed.comes(_QUOTE)):
            yield from self._string(feed)
        elif (yield from feed.comes('"')):
            yield from JSON.string(feed)
        else:
            yield as_json((yield from _bare(feed, _KEY)))

    def _string(self, feed: TextFeed) -> Iterator[str | None]:
        yield from feed.expect(_QUOTE)
        yield '"'
        for piece in feed.pieces_until(_QUOTE):
            yield piece and escaped(piece)
        yield from feed.expect(_QUOTE)
        yield '"'


def _bare(feed: TextFeed, characters: re.Pattern[str]) -> Reading[str]:
    """A key or a word without quotes."""
    found = (yield from feed.run(characters)).strip()
    if (yield from feed.done()):
        raise EndedError
    if not found:
        raise UnreadableError
    return found


_VALUES = _Values()


class GemmaCalls(CallFormat):
    """Gemma 4: <|tool_call>call:name{key:value,...}<tool_call|>, strings between control tokens, keys without quotes."""

    marks = ("<|tool_call>",)
    ends = ("<tool_call|>",)
    spelled = ("<|tool_call>", "<tool_call|>", _QUOTE)

    def calls(self, feed: TextFeed) -> Reads:
        yield from feed.expect(*self.marks)
        yield from feed.space()
        yield from feed.expect("call:")
        yield from feed.space()
        yield CallBegin((yield from feed.name()))
        yield from feed.space()
        place = feed.at
        yield from feed.expect("{")
        yield from feed.space()
        if not (yield from feed.comes("}")):  # the first key and its colon decide that it is a call
            for piece in _VALUES.key(feed):
                if piece is None:
                    yield None
            yield from feed.space()
            yield from feed.expect(":")
        feed.at = place
        for piece in _VALUES.value(feed):
            yield piece and CallArguments(piece)
        yield CallEnd(True)
        yield from self._end(feed)

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        pieces: Pieces = [f"<|tool_call>call:{name}{{"]
        for i, (key, kind) in enumerate(constrained_arguments(schema)):
            value = tagged_form(kind)
            quoted = [_QUOTE, value, _QUOTE] if isinstance(value, re.Pattern) else [value]
            pieces += [f"{',' if i else ''}{key}:", *quoted]
        return [*pieces, "}<tool_call|>"]

    def any_call(self, name: str) -> Pieces:
        return [f"<|tool_call>call:{name}{{", ANY_TEXT, "}<tool_call|>"]
