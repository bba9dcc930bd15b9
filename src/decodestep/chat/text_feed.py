"""A text that is read while it comes: readers wait where what has come does not decide."""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Any, TypeVar

from decodestep.chat.tool_json import UnreadableError, parse

T = TypeVar("T")
# What reads from a feed is a generator: it yields None where it needs more text, and returns what it has read.
Reading = Generator[None, None, T]

WORD = re.compile(r"[\w-]*")
_SPACE = re.compile(r"\s*")
_SCALAR = re.compile(r"[-+.\w]*")  # numbers and words of JSON, and others, which `parse` refuses
_CLOSING = {"{": "}", "[": "]"}
_DEEPEST = 256  # of lists and objects in each other


class TextFeed:
    """The part of a text that has come and has not been read.

    at: the place where the next read begins. It may be set back to where it was, but not across `plain`. ended: whether all of
    the text has come: then nothing waits.

    What a reader decides depends on the text alone, never on how it was cut into pieces.
    """

    def __init__(self, text: str = "", *, ended: bool = False) -> None:
        self.at = 0
        self.ended = ended
        self._text = text
        self._begun = 0

    def add(self, text: str) -> None:
        self._text += text

    def begin(self) -> None:
        """Something may begin here: `back` returns to this place."""
        self._begun = self.at

    def back(self) -> None:
        self.at = self._begun

    @property
    def begun(self) -> str:
        """What has been read since `begin`."""
        return self._text[self._begun : self.at]

    @property
    def since_begin(self) -> str:
        """All that has come since `begin`."""
        return self._text[self._begun :]

    def take(self, count: int) -> str:
        """The next characters, which have come."""
        self.at += count
        return self._text[self.at - count : self.at]

    def plain(self, marks: tuple[str, ...]) -> str:
        """The text before the next mark or what may become one, as far as it has come."""
        end = min((at for mark in marks if (at := self._text.find(mark, self.at)) >= 0), default=len(self._text))
        if end == len(self._text) and not self.ended:
            rest = self._text[self.at :]
            end -= max((n for mark in marks for n in range(len(mark)) if rest.endswith(mark[:n])), default=0)
        found = self._text[self.at : end]
        self._text, self.at, self._begun = self._text[end:], 0, 0
        return found

    def done(self) -> Reading[bool]:
        """Whether the text ends here."""
        while self.at == len(self._text) and not self.ended:
            yield
        return self.at == len(self._text)

    def comes(self, *literals: str) -> Reading[str]:
        """The literal with which the text goes on, which is not read; "" if it is none of them. None may begin with another."""
        longest = max(map(len, literals), default=0)
        while True:
            rest = self._text[self.at : self.at + longest]
            found = next((literal for literal in literals if rest.startswith(literal)), "")
            if found or self.ended or not any(literal.startswith(rest) for literal in literals):
                return found
            yield

    def optional(self, *literals: str) -> Reading[str]:
        """As `comes`, and reads it."""
        found = yield from self.comes(*literals)
        self.at += len(found)
        return found

    def expect(self, *literals: str) -> Reading[str]:
        """As `optional`. Raises UnreadableError if it is none of them."""
        found = yield from self.optional(*literals)
        if not found:
            raise UnreadableError
        return found

    def run(self, characters: re.Pattern[str]) -> Reading[str]:
        """The longest text of these characters. characters: a pattern that repeats one, and matches an empty text too."""
        start = self.at
        while True:
            if found := characters.match(self._text, self.at):
                self.at = found.end()
            if self.at < len(self._text) or self.ended:
                return self._text[start : self.at]
            yield

    def space(self) -> Reading[str]:
        return self.run(_SPACE)

    def until(self, *literals: str) -> Reading[str]:
        """The text before the first of the literals. Raises UnreadableError if the text ends before."""
        start = searched = self.at
        while True:
            places = [at for literal in literals if (at := self._text.find(literal, searched)) >= 0]
            if places:
                self.at = min(places)
                return self._text[start : self.at]
            if self.ended:
                raise UnreadableError
            searched = max(start, len(self._text) - max(map(len, literals)) + 1)
            yield

    def json(self, *openings: str) -> Reading[Any]:
        """A JSON value that begins with one of these, after white space. Raises UnreadableError as soon as it can be none."""
        yield from self.space()
        if not (yield from self.comes(*openings)):
            raise UnreadableError
        start = self.at
        yield from self._skip_value(0)
        return parse(self._text[start : self.at])

    def _skip_value(self, depth: int) -> Reading[None]:
        yield from self.space()
        opening = yield from self.optional('"', *(_CLOSING if depth < _DEEPEST else ()))
        if opening == '"':
            yield from self._skip_string()
        elif opening:
            yield from self._skip_members(opening, depth)
        elif not (yield from self.run(_SCALAR)):
            raise UnreadableError

    def _skip_members(self, opening: str, depth: int) -> Reading[None]:
        closing = _CLOSING[opening]
        yield from self.space()
        closed = bool((yield from self.optional(closing)))
        while not closed:
            if opening == "{":
                yield from self.space()
                yield from self.expect('"')
                yield from self._skip_string()
                yield from self.space()
                yield from self.expect(":")
            yield from self._skip_value(depth + 1)
            yield from self.space()
            closed = (yield from self.expect(",", closing)) == closing

    def _skip_string(self) -> Reading[None]:
        """Reads a string whose opening quote has been read."""
        while True:
            part = yield from self.until('"')
            yield from self.expect('"')
            if (len(part) - len(part.rstrip("\\"))) % 2 == 0:
                return
