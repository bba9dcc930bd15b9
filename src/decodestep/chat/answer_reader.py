"""Reads the reasoning, the text and the calls of an answer while it is generated."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

from decodestep.chat.reasoning import Mark, ReasoningFormat, Thought, without_ends
from decodestep.chat.text_feed import TextFeed
from decodestep.chat.tool_call_format import CallFormat, Event, ToolCall

_LINE_ENDS = "\r\n"


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


class AnswerReader:
    """What one answer says, as far as it is certain; the same however its text is cut into pieces.

    reasoning: without its marks and the line ends beside them. content: the text without reasoning, without calls and without
    the white space around them; text after one of them begins on a new line. What may still become a mark or a call is not in
    it yet. calls: in order; at most one if not several. in_reasoning: whether the next character is reasoning, as far as is
    known.
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
        self.reasoning = self.content = ""
        self.calls: list[Call] = []
        self.in_reasoning = begun
        self._format, self._separate, self._several, self._earlier = call_format, separate, several, earlier
        self._call_ids = {} if call_ids is None else call_ids
        self._feed = TextFeed()
        self._parts: list[Part] = []  # since they were last returned
        self._space = ""  # at the end of the content so far: it is left out if a call follows
        self._thought_space = ""  # at the end of the reasoning so far: its line ends are left out if a mark follows
        self._thinks = False  # whether this part of the reasoning has more than white space
        self._after_mark = ended and separate  # whether no text has followed a mark
        self._after_call = False  # whether no text has followed the last call
        self._begins = True  # whether the text so far may be reasoning alone
        self._events = self._read(reasoning, begun, ended)

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
        completed = self._completed_by(stop)
        for event in completed:
            self._take(event)
        if not completed:
            self._feed.ended = True
            self._advance()
        if self._thinks and self._thought_space:
            self._add("reasoning", self._thought_space)
        if self._space:
            self._add("content", self._space)
        self._space = self._thought_space = ""
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
        """What is held back with a call at its end, if the stop string completes one."""
        if not stop or self._begins:
            return []
        events = list(self._format.events(TextFeed(self._feed.since_begin + stop, ended=True)))
        rest = ""  # of the text after the last call
        while events and isinstance(event := events[-1], str):
            rest = event + rest
            events.pop()
        return events if len(rest) < len(stop) else []

    def _take(self, event: Event) -> None:
        if isinstance(event, ToolCall):
            self._call(event)
        elif isinstance(event, Mark):
            self._mark(event)
        elif isinstance(event, Thought):
            if self._separate:
                self._think(event.text)
            else:
                self._write(event.text)
        elif event:
            self._write(event)

    def _call(self, call: ToolCall) -> None:
        self._space, self._after_call = "", True
        index = len(self.calls)
        if index and not self._several:
            return
        new_id = self._call_ids.setdefault(index, self._format.new_id(call.name, self._earlier + index))
        self.calls.append(Call(new_id, call.name, json.dumps(call.arguments, ensure_ascii=False)))
        self._parts.append(Part("call", self.calls[-1].arguments, index, new_id, call.name))

    def _mark(self, mark: Mark) -> None:
        self.in_reasoning = mark.opens
        if not self._separate:
            self._write(mark.text)
            return
        if self._thinks:
            self._add("reasoning", self._thought_space.rstrip(_LINE_ENDS))
        self._space = self._space.rstrip(_LINE_ENDS)  # of an answer that has an end of its own
        self._thought_space, self._thinks, self._after_mark = "", False, not mark.opens

    def _think(self, text: str) -> None:
        text = self._thought_space + text
        if not self._thinks:
            text = text.lstrip(_LINE_ENDS)
        thought = text.rstrip()
        self._thought_space = text[len(thought) :]
        if thought:
            joint = "\n" if self.reasoning and not self._thinks else ""
            self._thinks = True
            self._add("reasoning", joint + thought)

    def _write(self, text: str) -> None:
        if self._after_mark:
            text = text.lstrip(_LINE_ENDS)
            if not text:
                return
            self._after_mark = False
            text = f"\n{text}" if self.content else text
        if self._after_call:
            text = text.lstrip()
            if not text:
                return
            self._after_call = False
            text = f"\n{text}" if self.content else text
        text = self._space + text
        visible = text.rstrip()
        self._space = text[len(visible) :]
        if visible:
            self._add("content", visible)

    def _add(self, kind: str, text: str) -> None:
        if not text:
            return
        if kind == "reasoning":
            self.reasoning += text
        else:
            self.content += text
        last = self._parts[-1] if self._parts else None
        if last is not None and last.kind == kind:
            self._parts[-1] = last._replace(text=last.text + text)
        else:
            self._parts.append(Part(kind, text))

    def _take_parts(self) -> list[Part]:
        parts, self._parts = self._parts, []
        return parts
