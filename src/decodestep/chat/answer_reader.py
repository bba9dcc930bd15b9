"""Reads the reasoning, the text and the calls of an answer while it is generated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from decodestep.chat.long_text import LongText
from decodestep.chat.reasoning import Mark, ReasoningFormat, Thought, without_ends
from decodestep.chat.text_feed import TextFeed
from decodestep.chat.tool_call_format import CallArguments, CallBegin, CallEnd, CallFormat, Event

_LINE_ENDS = "\r\n"
_REASONING, _CONTENT, _CALL = "reasoning", "content", "call"


class Part(NamedTuple):
    """A piece of an answer.

    kind: "reasoning", "content" or "call". text: of reasoning or content; of a call, a piece of its arguments as JSON text,
    which may be "". index: of a call among the answer's calls, from 0. id, name: of a call, in its first part alone.
    """

    kind: str
    text: str
    index: int = -1  # type: ignore[assignment]  # a tuple's method
    id: str = ""
    name: str = ""


class Call(NamedTuple):
    """A call. arguments: as JSON text, which is that of its parts joined."""

    id: str
    name: str
    arguments: str


class _Text:
    """A text that comes in pieces, with white space at its end that waits until more follows.

    begun: whether there is more than white space since `begun` was last set.
    """

    def __init__(self) -> None:
        self.begun = False
        self._text = LongText()
        self._space: list[str] = []

    def __str__(self) -> str:
        return str(self._text)

    def __bool__(self) -> bool:
        return bool(self._text)

    @property
    def waits(self) -> bool:
        return bool(self._space)

    def add(self, text: str) -> str:
        """What is certain now."""
        kept = text.rstrip()
        found = "".join((*self._space, kept)) if kept else ""
        if kept:
            self._space, self.begun = [], True
        if len(kept) < len(text):
            self._space.append(text[len(kept) :])
        return self.write(found)

    def strip(self, characters: str) -> None:
        """Leaves out these at the end of the white space that waits."""
        self._space = ["".join(self._space).rstrip(characters)]

    def take_space(self) -> str:
        """The white space that waits, no longer a part of the text."""
        space, self._space = "".join(self._space), []
        return space

    def write(self, text: str) -> str:
        """Adds what is certain."""
        self._text.write(text)
        return text


class AnswerReader:
    """What one answer says, as far as it is certain; the same however its text is cut into pieces.

    reasoning: without its marks and the line ends beside them. content: the text without reasoning, without calls and without
    the white space around them; text after one of them begins on a new line. What may still become a mark or a call is not in
    it yet. calls: in order; at most one if not several. in_reasoning: whether the next character is reasoning, as far as is
    known. cut_call: whether the answer has ended, by whatever reason, within a call, whose arguments are not complete.
    """

    def __init__(
        self,
        call_format: CallFormat,
        reasoning: ReasoningFormat,
        *,
        begun: bool = False,
        ended: bool = False,
        separate: bool = True,
        several: bool = True,
        earlier: int = 0,
        call_ids: dict[int, str] | None = None,
    ) -> None:
        """begun, ended, separate: as in `AnswerFormat`. several, earlier: as in `ToolFormat`. call_ids: those of the calls, by
        their indices, as far as other readers of the same answer have chosen them; this one adds its own."""
        self.in_reasoning = begun
        self.cut_call = False
        self._format, self._separate, self._several, self._earlier = call_format, separate, several, earlier
        self._call_ids = {} if call_ids is None else call_ids
        self._feed = TextFeed()
        self._parts: list[tuple[Part, list[str]]] = []  # since they were last returned, each with the pieces of its text
        self._content, self._reasoning = _Text(), _Text()
        self._calls: list[tuple[str, str, LongText]] = []  # the id, the name and the arguments of each
        self._in_call = False
        self._left_out = False  # whether the call that comes is one too many
        self._after_mark = ended and separate  # whether no text has followed a mark
        self._after_call = False  # whether no text has followed the last call
        self._begins = True  # whether the text so far may be reasoning alone
        self._events = self._read(reasoning, begun, ended)

    @property
    def reasoning(self) -> str:
        return str(self._reasoning)

    @property
    def content(self) -> str:
        return str(self._content)

    @property
    def calls(self) -> list[Call]:
        return [Call(id_, name, str(arguments)) for id_, name, arguments in self._calls]

    def add(self, text: str) -> list[Part]:
        """The parts that are certain now that this text has come."""
        self._feed.add(text)
        self._advance()
        return self._take_parts()

    def end(self, stop: str = "", *, cut: bool = False) -> list[Part]:
        """The last parts: no more text comes.

        stop: the stop string that has been cut from its end: that may be the end of a call. cut: whether the text ended without
        the model's doing, by its length, its time or the caller.
        """
        completed = self._completed_by(stop) if stop and not self._begins else []
        for event in completed:
            self._take(event)
        if not completed:
            self._feed.ended, self._feed.cut = True, cut or bool(stop)
            self._advance()
        if self._reasoning.begun:
            self._add(_REASONING, self._reasoning.write(self._reasoning.take_space()))
        self._add(_CONTENT, self._content.write(self._content.take_space()))
        return self._take_parts()

    def _read(self, reasoning: ReasoningFormat, begun: bool, ended: bool) -> Iterator[Event]:
        ends = yield from reasoning.read(self._feed, begun=begun, ended=ended)
        self._begins = False
        events = self._format.events(self._feed)
        yield from without_ends(events, ends) if ends else events

    def _advance(self) -> None:
        for event in self._events:
            if event is None:
                return
            self._take(event)

    def _completed_by(self, stop: str) -> list[Event]:
        """The rest of a call that the stop string completes, at the end of the text."""
        if self._in_call:
            feed, events = self._feed, self._events
            feed.add(stop)
        else:  # nothing of what is held back is certain
            feed = TextFeed(self._feed.since_begin + stop)
            events = self._format.events(feed)
        feed.ended = feed.cut = True
        found = list(events)
        last = max((i for i, event in enumerate(found) if isinstance(event, CallEnd)), default=-1)
        rest = "".join(event for event in found[last + 1 :] if isinstance(event, str))
        if last >= 0 and found[last] == CallEnd(True) and (self._in_call or len(rest) < len(stop)):
            return found[: last + 1]
        return [CallEnd(False, cut=True)] if self._in_call else []

    def _take(self, event: Event) -> None:
        if isinstance(event, CallBegin):
            self._begin_call(event.name)
        elif isinstance(event, CallArguments):
            self._add_arguments(event.text)
        elif isinstance(event, CallEnd):
            self.cut_call = event.cut and not self._left_out
            self._in_call = False
        elif isinstance(event, Mark):
            self._mark(event)
        elif isinstance(event, Thought):
            if self._separate:
                self._think(event.text)
            else:
                self._write(event.text)
        elif event:
            self._write(event)

    def _begin_call(self, name: str) -> None:
        self._content.take_space()
        self._after_call = self._in_call = True
        index = len(self._calls)
        self._left_out = index > 0 and not self._several
        if not self._left_out:
            new_id = self._call_ids.setdefault(index, self._format.new_id(name, self._earlier + index))
            self._calls.append((new_id, name, LongText()))
            self._parts.append((Part(_CALL, "", index, new_id, name), []))

    def _add_arguments(self, text: str) -> None:
        if not self._left_out:
            self._calls[-1][2].write(text)
            self._add(_CALL, text, len(self._calls) - 1)

    def _mark(self, mark: Mark) -> None:
        self.in_reasoning = mark.opens
        if not self._separate:
            self._write(mark.text)
            return
        space = self._reasoning.take_space().rstrip(_LINE_ENDS)
        if self._reasoning.begun:
            self._add(_REASONING, self._reasoning.write(space))
        self._content.strip(_LINE_ENDS)  # of an answer that has an end of its own
        self._reasoning.begun, self._after_mark = False, not mark.opens

    def _think(self, text: str) -> None:
        thought = self._reasoning
        if not thought.begun and not thought.waits:
            text = text.lstrip(_LINE_ENDS)
        if thought and not thought.begun and text.strip():
            self._add(_REASONING, thought.write("\n"))  # between two parts of it
        self._add(_REASONING, thought.add(text))

    def _write(self, text: str) -> None:
        if self._after_mark:
            text = text.lstrip(_LINE_ENDS)
        if self._after_call:
            text = text.lstrip()
        if self._after_mark or self._after_call:
            if not text:
                return
            self._after_mark = self._after_call = False
            text = f"\n{text}" if self._content else text
        self._add(_CONTENT, self._content.add(text))

    def _add(self, kind: str, text: str, index: int = -1) -> None:
        if not text:
            return
        if not self._parts or (self._parts[-1][0].kind, self._parts[-1][0].index) != (kind, index):
            self._parts.append((Part(kind, "", index), []))
        self._parts[-1][1].append(text)

    def _take_parts(self) -> list[Part]:
        parts, self._parts = self._parts, []
        return [part._replace(text="".join(pieces)) for part, pieces in parts]
