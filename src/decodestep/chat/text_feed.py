"""A text that is read while it comes: readers wait where what has come does not decide."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")
# What reads from a feed is a generator: it yields None where it needs more text, and returns what it has read.
Reading = Generator[None, None, T]

_WORD = re.compile(r"[\w-]*")
SPACE = re.compile(r"\s*")


class UnreadableError(ValueError):
    """The text looks like a call but is none."""


class EndedError(UnreadableError):
    """The text ends where a call could have gone on."""


class TextFeed:
    """A text that comes in pieces, and how far it has been read.

    ended: whether all of the text has come: then nothing waits. cut: whether it ended without the model's doing: then what may
    begin a literal at its end is no other text, and raises EndedError, but for `mark` and `plain`.

    What a reader decides depends on the text alone, never on how it was cut into pieces. What has been read is kept from the
    last `begin` on; each piece is looked at once, however many follow.
    """

    def __init__(self, text: str = "", *, ended: bool = False) -> None:
        self.ended = ended
        self.cut = False
        self._text = text  # what has come and has not been read, and what was read since the last piece came
        self._next = 0  # the place in it where the next read begins
        self._kept: list[str] = []  # what was read before, from `begin` on
        self._offset = 0  # of `_text` in the whole text
        self._begun = 0  # a place in the whole text

    def add(self, text: str) -> None:
        if self._next:
            if read := self._text[max(0, self._begun - self._offset) : self._next]:
                self._kept.append(read)
            self._offset += self._next
            self._text, self._next = self._text[self._next :], 0
        self._text += text

    @property
    def at(self) -> int:
        """The place in the text where the next read begins. It may be set back, as far as where `begin` was last called."""
        return self._offset + self._next

    @at.setter
    def at(self, place: int) -> None:
        if place < self._offset:
            pieces = [self._text]
            while place < self._offset:
                pieces.append(self._kept.pop())
                self._offset -= len(pieces[-1])
            self._text = "".join(reversed(pieces))
        self._next = place - self._offset

    def begin(self) -> None:
        """Something may begin here: `back` returns to this place."""
        self._kept.clear()
        self._begun = self.at

    def back(self) -> None:
        self.at = self._begun

    @property
    def begun(self) -> str:
        """What has been read since `begin`."""
        return "".join((*self._kept, self._text[max(0, self._begun - self._offset) : self._next]))

    @property
    def since_begin(self) -> str:
        """All that has come since `begin`."""
        return self.begun + self._text[self._next :]

    def take(self, count: int) -> str:
        """The next characters, which have come."""
        self._next += count
        return self._text[self._next - count : self._next]

    def drop(self) -> None:
        """Leaves out all that has come."""
        self._next = len(self._text)
        self.begin()

    def done(self) -> Reading[bool]:
        """Whether the text ends here."""
        while self._next == len(self._text) and not self.ended:
            yield
        return self._next == len(self._text)

    def comes(self, *literals: str) -> Reading[str]:
        """The literal with which the text goes on, which is not read; "" if it is none of them. None may begin with another."""
        longest = max(map(len, literals), default=0)
        while True:
            if self._text.startswith(literals, self._next):
                return next(literal for literal in literals if self._text.startswith(literal, self._next))
            rest = self._text[self._next : self._next + longest]
            if len(rest) == longest or not _may_begin(rest, literals):
                return ""
            if self.ended:
                if rest and self.cut:
                    raise EndedError
                return ""
            yield

    def mark(self, *marks: str) -> Reading[str]:
        """As `comes`, in a text where all that is no mark is `plain`; "" if the text was cut within one."""
        try:
            return (yield from self.comes(*marks))
        except EndedError:
            return ""

    def plain(self, marks: tuple[str, ...]) -> str:
        """The text before the next mark or what may become one, as far as it has come. It is not kept. Of a text that was cut,
        two characters or more that begin a mark at its end are left out."""
        found = self._before(marks)
        if self.ended and not self._text.startswith(marks, self._next):  # what is left may be the beginning of a mark
            rest = self.take(len(self._text) - self._next)
            found += rest if len(rest) == 1 else ""
        self.begin()
        return found

    def optional(self, *literals: str) -> Reading[str]:
        """As `comes`, and reads it."""
        found = yield from self.comes(*literals)
        self._next += len(found)
        return found

    def expect(self, *literals: str) -> Reading[str]:
        """As `optional`. Raises UnreadableError if it is none of them."""
        found = yield from self.optional(*literals)
        if not found:
            rest = self._text[self._next :]
            raise EndedError if _may_begin(rest, literals) else UnreadableError
        return found

    def run(self, characters: re.Pattern[str]) -> Reading[str]:
        """The longest text of these characters. characters: a pattern that repeats one, and matches an empty text too."""
        pieces = []
        while True:
            if found := characters.match(self._text, self._next):
                pieces.append(found[0])
                self._next = found.end()
            if self._next < len(self._text) or self.ended:
                return "".join(pieces)
            yield

    def form(self, whole: re.Pattern[str], begun: re.Pattern[str]) -> Reading[str]:
        """The text of a form. begun: matches what may become it. Raises UnreadableError if another text comes."""
        while not (found := whole.match(self._text, self._next)):
            if not begun.fullmatch(self._text, self._next):
                raise UnreadableError
            if self.ended:
                raise EndedError
            yield
        self._next = found.end()
        return found[0]

    def space(self) -> Reading[str]:
        return self.run(SPACE)

    def name(self) -> Reading[str]:
        """A word, which may be empty. Raises EndedError if the text ends with it: it may be the beginning of another."""
        found = yield from self.run(_WORD)
        if (yield from self.done()):
            raise EndedError
        return found

    def until(self, *literals: str) -> Reading[str]:
        """The text before the first of the literals. Raises EndedError if the text ends before."""
        pieces = []
        for piece in self.pieces_until(*literals):
            if piece is None:
                yield
            else:
                pieces.append(piece)
        return "".join(pieces)

    def pieces_until(self, *literals: str) -> Iterator[str | None]:
        """As `until`, in pieces that are certain; None where more text is needed. Where a text was cut, what may be the
        beginning of a literal is no part of them."""
        while True:
            if piece := self._before(literals):
                yield piece
            if _any_of(literals).match(self._text, self._next):
                return
            if self.ended:
                raise EndedError
            yield None

    def _before(self, literals: tuple[str, ...]) -> str:
        """The text before the first of the literals or what may be the beginning of one, as far as it has come; reads it."""
        found = _any_of(literals).search(self._text, self._next)
        end = found.start() if found else len(self._text)
        whole = self.ended and not self.cut  # then nothing becomes a literal
        if not (found or whole) and self._text.endswith(beginnings := _beginnings(literals), self._next):
            end -= next(len(each) for each in beginnings if self._text.endswith(each, self._next))
        return self.take(end - self._next)


def _may_begin(text: str, literals: tuple[str, ...]) -> bool:
    """Whether one of the literals begins with the text."""
    return any(literal.startswith(text) for literal in literals)


@lru_cache
def _beginnings(literals: tuple[str, ...]) -> tuple[str, ...]:
    """How the literals may begin without their ends, the longest first."""
    return tuple(sorted({literal[:n] for literal in literals for n in range(1, len(literal))}, key=len, reverse=True))


@lru_cache
def _any_of(literals: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, literals)) or r"(?!)")
