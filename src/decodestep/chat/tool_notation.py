"""How models write the values of arguments, and their JSON: it is built up while they come."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import ClassVar

from decodestep.chat.text_feed import Reading, TextFeed, UnreadableError

_DEEPEST = 256  # of lists and objects in each other
_OBJECT = "}"


class Notation(ABC):
    """A notation of values: scalars, lists and objects.

    Its readers yield pieces of the value's JSON as soon as they are certain, and None where more text is needed. They raise
    UnreadableError as soon as the text can be no value.

    brackets: those that open lists and objects, with those that close them. verbatim: whether it is JSON: then the pieces are
    the text as it was written, white space included. ends_with_comma: whether a list or an object may have a comma at its end.
    """

    brackets: ClassVar[Mapping[str, str]] = {"[": "]", "{": "}"}
    verbatim = False
    ends_with_comma = False

    @abstractmethod
    def scalar(self, feed: TextFeed) -> Iterator[str | None]:
        """A value that is no list and no object."""

    @abstractmethod
    def key(self, feed: TextFeed) -> Iterator[str | None]:
        """The key of a member, up to its colon."""

    def value(self, feed: TextFeed) -> Iterator[str | None]:
        """Any value. It does not call itself for what is within: a model may write a text as deep as it likes."""
        closings: list[str] = []
        while True:
            opening = yield from feed.optional(*self.brackets)
            if opening:
                if len(closings) == _DEEPEST:
                    raise UnreadableError
                closings.append(self.brackets[opening])
                yield ("{" if closings[-1] == _OBJECT else "[") + (yield from self._space(feed))
                if not (yield from feed.comes(closings[-1])):
                    yield from self._member(feed, closings[-1])
                    continue
            else:
                yield from self.scalar(feed)
            while closings:  # the value has ended, and those around it may, too
                yield (yield from self._space(feed))
                if (yield from feed.expect(",", closings[-1])) == ",":
                    space = yield from self._space(feed)
                    if not (self.ends_with_comma and (yield from feed.comes(closings[-1]))):
                        yield "," + space
                        yield from self._member(feed, closings[-1])
                        break
                    yield from feed.expect(closings[-1])
                yield _OBJECT if closings.pop() == _OBJECT else "]"
            else:
                return

    def skip(self, feed: TextFeed) -> Reading[None]:
        """Reads a value."""
        for piece in self.value(feed):
            if piece is None:
                yield

    def _member(self, feed: TextFeed, closing: str) -> Iterator[str | None]:
        """What stands before the value of a list's or an object's member."""
        if closing == _OBJECT:
            yield from self.key(feed)
            yield (yield from self._space(feed))
            yield (yield from feed.expect(":")) + (yield from self._space(feed))

    def _space(self, feed: TextFeed) -> Reading[str]:
        space = yield from feed.space()
        return space if self.verbatim else ""


def as_json(value: object) -> str:
    """Compact JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def escaped(text: str) -> str:
    """A piece of a text as JSON has it within a string."""
    return as_json(text)[1:-1]
