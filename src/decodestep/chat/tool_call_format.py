"""The base class of function-call formats."""

from __future__ import annotations

import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping
from typing import Any, NamedTuple

from decodestep.chat.reasoning import Mark, Thought
from decodestep.chat.text_feed import SPACE, EndedError, TextFeed, UnreadableError

Functions = Mapping[str, Mapping[str, Any]]  # the JSON schema of each function's arguments
# The parts of a constrained text: literal text, JSON that matches a schema, or a regular expression with literal text after it,
# whose first occurrence ends it.
Pieces = list[str | dict[str, Any] | re.Pattern[str]]
_CLOSING = re.compile(r"[\s}\]]*")
ANY_TEXT = re.compile(r"(.|\n)*")


class CallBegin(NamedTuple):
    """A call of this function begins."""

    name: str


class CallArguments(NamedTuple):
    """A piece of a call's arguments, as JSON text."""

    text: str


class CallEnd(NamedTuple):
    """A call ends. complete: whether its arguments are; otherwise the text has gone on as none can, or, cut, ended within."""

    complete: bool
    cut: bool = False


class Between(NamedTuple):
    """What has been read since the last event stands between two calls."""


# A piece of an answer: content, of a call, or of reasoning with its marks, where a format has it in messages of their own; None
# where more text is needed.
Event = str | CallBegin | CallArguments | CallEnd | Thought | Mark | None
Reads = Iterator[Event | Between]  # what `CallFormat.calls` yields


class CallFormat(ABC):
    """A format of function calls. functions: those that may be called.

    marks: strings that begin a call, anywhere in the text. first_marks: those that begin one at the beginning of the text or
    after another call. ends: those that end one, or several. always_marked: whether nothing but `marks` begins one, and `call`
    contains all of them. spelled: the names of the control tokens that calls contain. silent: names of the format's own in the
    place of a function's, whose calls are no part of the answer. whole: whether answers without calls are written in the format
    too. answer_begin: what stands before the text of such an answer.
    """

    marks: tuple[str, ...] = ()
    first_marks: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    always_marked: bool = True
    spelled: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    whole: bool = False
    answer_begin: str = ""

    def __init__(self, functions: Functions) -> None:
        self.functions = functions

    def events(self, feed: TextFeed) -> Iterator[Event]:
        """The pieces of an answer, as soon as they are certain.

        A call begins once the name of a known function has been read and its arguments have begun. From there it stays one, and
        its arguments come as they are written: if they go on as none can, it keeps those so far, and the text goes on after the
        next end of a call. A mark after which no call begins is text, and so is a call of an unknown function, to its end. Of a
        text that was cut, what may have been the beginning of a call is left out.
        """
        first = True
        while True:
            feed.begin()
            if (yield from feed.done()):
                return
            if first:
                yield (yield from feed.space())
                feed.begin()
            if (yield from feed.mark(*self.marks, *(self.first_marks if first else ()))):
                first = yield from self._at_mark(feed)
            else:
                first = False
                yield feed.plain(self.marks)

    def new_id(self, name: str, number: int) -> str:
        """An id that the chat template accepts when the call comes back. number: of the calls before it in the conversation."""
        return f"call_{secrets.token_hex(12)}"

    def own_id(self, call_id: str, name: str, number: int) -> str:
        """The id of an earlier call, of whatever server, as the chat template accepts it. name, number: as for `new_id`."""
        return call_id

    @abstractmethod
    def calls(self, feed: TextFeed) -> Reads:
        """The calls at a mark, which comes next, with all that belongs to them.

        A call's `CallBegin` comes with its name, of whatever function: it holds once a piece of the arguments comes. What has
        been read before any other event belongs to the call so far. Raises UnreadableError where the text goes on as no call
        does.
        """

    @abstractmethod
    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        """The whole text of one call. schema: of its arguments."""

    def any_call(self, name: str) -> Pieces:
        """The whole text of one call, with any arguments."""
        return self.call(name, {"type": "object"})

    def knows(self, name: str) -> bool:
        """Whether calls of this name are no text."""
        return name in self.functions or name in self.silent

    def _at_mark(self, feed: TextFeed) -> Generator[Event, None, bool]:
        """The events at a mark; returns whether a call has been read, of whatever function."""
        calls = _CallsAtMark(self, feed)
        try:
            for event in self.calls(feed):
                yield from calls.take(event)
        except UnreadableError as error:
            if calls.open:
                yield CallEnd(False, cut=isinstance(error, EndedError))
            elif feed.cut and isinstance(error, EndedError) and calls.expected:
                yield from calls.cut_short()
                feed.drop()
                return True
            if calls.known:
                yield from self._skip(feed)
            else:
                feed.back()
                yield feed.take(0 if calls.read else 1)
            return calls.read
        if not calls.known:
            yield feed.begun
        return calls.read

    def _skip(self, feed: TextFeed) -> Iterator[None]:
        """Reads the rest of an unreadable call, which ends with the next end of a call, or where another may begin."""
        try:
            for piece in feed.pieces_until(*self.ends, *self.marks):
                feed.begin()
                if piece is None:
                    yield
            yield from self._end(feed)
        except EndedError:
            feed.drop()

    def _end(self, feed: TextFeed) -> Iterator[None]:
        """Reads the ends of a call, if they follow, with brackets before them that close nothing."""
        for end in self.ends:
            place = feed.at
            for between in (SPACE, _CLOSING):
                yield from feed.run(between)
                try:
                    yield from feed.expect(end)
                    break
                except UnreadableError as error:
                    if feed.cut and isinstance(error, EndedError):
                        raise
                    feed.at = place


class _CallsAtMark:
    """How far the calls at a mark have been read.

    read: whether the arguments of one have begun. known: whether the last of these is no text. open: whether its `CallBegin`
    has been told, and its end has not.
    """

    def __init__(self, call_format: CallFormat, feed: TextFeed) -> None:
        self.read = self.known = self.open = False
        self._named: CallBegin | None = None  # of a call whose arguments have not begun
        self._format, self._feed = call_format, feed

    @property
    def expected(self) -> bool:
        """Whether what comes next would belong to a call that is no text."""
        return self._format.knows(self._named.name) if self._named else self.known or not self.read

    def take(self, event: Event | Between) -> Iterator[Event]:
        """What the next of the format's events tells."""
        if event is None:
            yield None
        elif isinstance(event, CallBegin):
            self._named = event
        elif isinstance(event, Between):
            if self.known:
                self._feed.begin()
        else:
            if not isinstance(event, str):
                yield from self._begin()
            if not self.known:
                yield self._feed.begun
            elif self.open or isinstance(event, str):
                yield event
                self.open = self.open and not isinstance(event, CallEnd)
            self._feed.begin()

    def cut_short(self) -> Iterator[Event]:
        """A call whose arguments would have begun next, where the text was cut."""
        yield from self._begin()
        if self.open:
            yield CallEnd(False, cut=True)

    def _begin(self) -> Iterator[CallBegin]:
        """The call that was named last is one."""
        if self._named is None:
            return
        self.read, self.known = True, self._format.knows(self._named.name)
        self.open = self._named.name in self._format.functions
        if self.open:
            yield self._named
        self._named = None


class NoCalls(CallFormat):
    """Of a conversation without tools: all is text."""

    def events(self, feed: TextFeed) -> Iterator[Event]:
        while not (yield from feed.done()):
            yield feed.plain(self.marks)

    def calls(self, feed: TextFeed) -> Reads:
        raise UnreadableError

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        return []
