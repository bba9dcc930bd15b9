"""The base class of function-call formats."""

from __future__ import annotations

import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from decodestep.chat.reasoning import Mark, Thought
from decodestep.chat.text_feed import Reading, TextFeed
from decodestep.chat.tool_json import UnreadableError

Functions = Mapping[str, Mapping[str, Any]]  # the JSON schema of each function's arguments
# The parts of a constrained text: literal text, JSON that matches a schema, or a regular expression with literal text after it,
# whose first occurrence ends it.
Pieces = list[str | dict[str, Any] | re.Pattern[str]]
ANY_TEXT = re.compile(r"(.|\n)*")


class ToolCall(NamedTuple):
    """A call as it was written. source: its own text if it was one of a list."""

    name: str
    arguments: Any
    source: str = ""


# A part of an answer: text, a call, or reasoning between its marks, where a format has it in messages of their own; None where
# more text is needed.
Event = str | ToolCall | Thought | Mark | None


class CallFormat(ABC):
    """A format of function calls. functions: those that may be called.

    marks: strings that begin a call, anywhere in the text. first_marks: those that begin one at the beginning of the text or
    after another call. always_marked: whether nothing but `marks` begins one, and `call` contains all of them. spelled: the
    names of the control tokens that calls contain. whole: whether answers without calls are written in the format too.
    """

    marks: tuple[str, ...] = ()
    first_marks: tuple[str, ...] = ()
    always_marked: bool = True
    spelled: tuple[str, ...] = ()
    whole: bool = False

    def __init__(self, functions: Functions) -> None:
        self.functions = functions

    def events(self, feed: TextFeed) -> Iterator[Event]:
        """The parts of an answer. A mark after which no call can be read is text, and so is a call of an unknown function, or
        whose arguments are no object."""
        first = True
        while True:
            feed.begin()
            if (yield from feed.done()):
                return
            if first:
                yield (yield from feed.space())
                feed.begin()
            if not (yield from feed.comes(*self.marks, *(self.first_marks if first else ()))):
                first = False
                yield feed.plain(self.marks)
                continue
            try:
                found = yield from self.calls(feed)
            except UnreadableError:
                first = False
                feed.back()
                yield feed.take(1)
            else:
                first = True
                yield from self.readable(found, feed.begun)

    def readable(self, found: Sequence[ToolCall], source: str) -> Sequence[str | ToolCall]:
        """Calls, those as text that are none. source: the text of all."""
        good = [call.name in self.functions and isinstance(call.arguments, dict) for call in found]
        if not any(good):
            return [source]
        return [call if is_good else call.source for call, is_good in zip(found, good, strict=True)]

    def new_id(self, name: str, number: int) -> str:
        """An id that the chat template accepts when the call comes back. number: of the calls before it in the conversation."""
        return f"call_{secrets.token_hex(12)}"

    @abstractmethod
    def calls(self, feed: TextFeed) -> Reading[list[ToolCall]]:
        """The calls at a mark, which comes next, with all that belongs to them. Raises UnreadableError."""

    @abstractmethod
    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        """The whole text of one call. schema: of its arguments."""

    def any_call(self, name: str) -> Pieces:
        """The whole text of one call, with any arguments."""
        return self.call(name, {"type": "object"})

    def _end(self, feed: TextFeed, *ends: str) -> Reading[None]:
        """Reads the end of a call, if it has one; without it another call must follow, or the text end."""
        yield from feed.space()
        if not (yield from feed.optional(*ends)) and not (yield from feed.comes(*self.marks)) and not (yield from feed.done()):
            raise UnreadableError


class NoCalls(CallFormat):
    """Of a conversation without tools: all is text."""

    def calls(self, feed: TextFeed) -> Reading[list[ToolCall]]:
        raise UnreadableError

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        return []
