"""JSON in function calls: how it is read while it comes, and the schemas that constrain it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

from decodestep.chat.long_text import LongText
from decodestep.chat.text_feed import EndedError, Reading, TextFeed, UnreadableError
from decodestep.chat.tool_call_format import Between, CallArguments, CallBegin, CallEnd, Event, Reads
from decodestep.chat.tool_notation import Notation, escaped

_CONTROL = re.compile(r"[\x00-\x1f]+")  # which JSON has escaped in strings, and some models write as they are
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_ESCAPE_BEGUN = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?")
_SCALAR = re.compile(r"[-+.\w]*")
_VALID_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null")
_LONGEST_NUMBER = 4096  # characters; parsers refuse longer ones
_VALUES = ('"', "{", "[", "-", *"0123456789", "true", "false", "null")  # how a value begins
_NAMES, _ARGUMENTS = ("name", "tool_name"), ("arguments", "parameters")
_OTHERS = ("id", "tool_call_id", "type", "call_id")  # further keys of calls


def _finite(text: str) -> float:
    """A number of JSON, which has no infinity and no NaN, though Python reads and writes them."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)


def parse(text: str) -> Any:
    """The JSON value that a text is, between spaces. Raises UnreadableError."""
    try:
        return _DECODER.decode(text.strip())
    except (ValueError, RecursionError):
        raise UnreadableError from None


class _Json(Notation):
    """JSON, piece by piece as it was written. Only line ends and other control characters in strings, which it cannot have, are
    written with escapes."""

    verbatim = True

    def scalar(self, feed: TextFeed) -> Iterator[str | None]:
        if (yield from feed.comes('"')):
            yield from self.string(feed)
            return
        written = yield from feed.run(_SCALAR)
        if not _VALID_SCALAR.fullmatch(written):
            raise EndedError if (yield from feed.done()) else UnreadableError
        if len(written) > _LONGEST_NUMBER or not math.isfinite(float(written) if written[-1].isdigit() else 0):
            raise UnreadableError
        yield written

    def key(self, feed: TextFeed) -> Iterator[str | None]:
        return self.string(feed)

    def string(self, feed: TextFeed) -> Iterator[str | None]:
        yield (yield from feed.expect('"'))
        while True:
            for piece in feed.pieces_until('"', "\\"):
                yield piece and _CONTROL.sub(lambda found: escaped(found[0]), piece)
            if (yield from feed.optional('"')):
                yield '"'
                return
            yield (yield from feed.form(_ESCAPE, _ESCAPE_BEGUN))


class _CompactJson(_Json):
    """JSON without the white space between its tokens."""

    verbatim = False


JSON, COMPACT_JSON = _Json(), _CompactJson()


def call_arguments(feed: TextFeed, *ends: str) -> Iterator[Event]:
    """The arguments of a call whose name has been read, as an object of JSON. ends: of a call, which may have none before
    them."""
    yield from feed.space()
    if (yield from feed.comes(*ends)):
        yield CallArguments("{}")
        yield CallEnd(True)
        return
    place = feed.at
    yield from feed.expect("{")
    yield from feed.space()
    if not (yield from feed.comes("}")):  # then a call is decided by the first key, and how the value begins
        for piece in JSON.string(feed):
            if piece is None:
                yield None
        yield from feed.space()
        yield from feed.expect(":")
        yield from feed.space()
        value = feed.at
        yield from feed.expect(*_VALUES)
        feed.at = value
    feed.at = place
    for piece in JSON.value(feed):
        yield piece and CallArguments(piece)
    yield CallEnd(True)


def call_object(feed: TextFeed, *, strict: bool = False) -> Iterator[Event]:
    """A call that is written as one object: {"name": ..., "arguments": {...}}. strict: whether other keys than those that calls
    have say that it is none."""
    yield from feed.expect("{")
    yield from feed.space()
    name, early, ended = None, None, False
    closed = bool((yield from feed.optional("}")))
    while not closed:
        key = yield from read_string(feed)
        yield from feed.space()
        yield from feed.expect(":")
        yield from feed.space()
        if key in _NAMES and name is None:
            name = yield from read_string(feed)
            yield CallBegin(name)
            if early is not None:
                yield CallArguments(early)
                yield CallEnd(True)
                ended = True
        elif key in _ARGUMENTS and not ended and early is None:
            if name is not None:
                yield from _any_arguments(feed)
                ended = True
            else:
                early = yield from _read_arguments(feed)
        elif strict and key not in (*_NAMES, *_ARGUMENTS, *_OTHERS):
            raise UnreadableError
        else:
            yield from JSON.skip(feed)
        yield from feed.space()
        closed = (yield from feed.expect(",", "}")) == "}"
        yield from feed.space() if not closed else ()
    if name is None:
        raise UnreadableError
    if not ended:
        yield CallArguments("{}")
        yield CallEnd(True)
    yield ""  # what follows is no part of it


def call_list(feed: TextFeed) -> Reads:
    """The calls of a list of such objects, or of the one that stands in its place. A member that is none calls no function."""
    yield from feed.space()
    if (yield from feed.comes("{")):
        yield from call_object(feed)
        return
    yield from feed.expect("[")
    yield from feed.space()
    closed = bool((yield from feed.optional("]")))
    while not closed:
        yield from _member(feed)
        yield from feed.space()
        closed = (yield from feed.expect(",", "]")) == "]"
        if not closed:
            yield from feed.space()
            yield Between()


def _member(feed: TextFeed) -> Iterator[Event]:
    begun = False
    place = feed.at
    try:
        for event in call_object(feed):
            yield event
            begun = begun or isinstance(event, CallArguments)
    except UnreadableError as error:
        if begun or isinstance(error, EndedError):
            raise
        feed.at = place
        yield CallBegin("")
        for piece in JSON.value(feed):
            yield piece and CallArguments(piece)
        yield CallEnd(True)


def _any_arguments(feed: TextFeed) -> Iterator[Event]:
    """A call's arguments, also from JSON as text, which OpenAI's interface has and some models write. {} for null and an empty
    text, as a call of a function without parameters may have them."""
    if (yield from feed.comes('"')):
        within = TextFeed((yield from read_string(feed)) or "{}", ended=True)
        try:
            yield from call_arguments(within)
            yield from within.space()
            if not (yield from within.done()):
                raise UnreadableError
        except EndedError:  # the string has its end
            raise UnreadableError from None
    elif (yield from feed.optional("null")):
        yield CallArguments("{}")
        yield CallEnd(True)
    else:
        yield from call_arguments(feed)


def _read_arguments(feed: TextFeed) -> Reading[str]:
    """The arguments as a whole."""
    found = LongText()
    for event in _any_arguments(feed):
        if isinstance(event, CallArguments):
            found.write(event.text)
        elif event is None:
            yield
    return str(found)


def read_string(feed: TextFeed) -> Reading[str]:
    """A string of JSON, without its quotes and escapes."""
    pieces = []
    for piece in JSON.string(feed):
        if piece is None:
            yield
        else:
            pieces.append(piece)
    return str(json.loads("".join(pieces)))


def read_arguments(given: object) -> Any:
    """The arguments of a call in a conversation, of which a text is JSON. What is none stays a text: an answer may have been
    cut within a call, or say one that cannot be read, and comes back as it was."""
    try:
        arguments = parse(given) if isinstance(given, str) and given else given
    except UnreadableError:
        return given
    return {} if arguments in (None, "") else arguments


def call_schema(name: str, key: str, schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a call as an object; the arguments' schema gets an $id, so that "#" in it still refers to its own root."""
    inner = {"$id": f"tool:{name}", **schema}
    whole = {"type": "object", "properties": {"name": {"const": name}, key: inner}, "required": ["name", key]}
    return {**whole, "additionalProperties": False}
