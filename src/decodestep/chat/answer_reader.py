"""Reads the text and the calls of an answer while it is generated."""

from __future__ import annotations

from collections.abc import Iterator

from decodestep.chat.reasoning import Reasoning
from decodestep.chat.text_feed import TextFeed
from decodestep.chat.tool_call_format import Call, CallFormat, Event


class AnswerReader:
    """The content and the calls of one answer, as far as they are certain.

    content: the text without calls and without the white space around them; text after a call begins on a new line. What may
    still become a call is not in it yet. calls: in order; at most one if not several. in_reasoning: whether the answer begins
    within reasoning.

    Both are the same however the text is cut into pieces.
    """

    def __init__(self, call_format: CallFormat, reasoning: Reasoning, *, in_reasoning: bool, several: bool) -> None:
        self.content = ""
        self.calls: list[Call] = []
        self._format, self._several = call_format, several
        self._feed = TextFeed()
        self._space = ""  # at the end of the text so far: it is left out if a call follows
        self._after_call = False  # whether no text has followed the last call
        self._reasons = True  # whether the text so far may be reasoning alone
        self._events = self._read(reasoning, in_reasoning)

    def add(self, text: str) -> None:
        self._feed.add(text)
        self._advance()

    def end(self, stop: str = "") -> None:
        """No more text comes. stop: the stop string that has been cut from its end: that may be the end of a call."""
        completed = self._completed_by(stop)
        for event in completed:
            self._take(event)
        if not completed:
            self._feed.ended = True
            self._advance()
        self.content += self._space

    def _read(self, reasoning: Reasoning, begun: bool) -> Iterator[Event]:
        yield from reasoning.read(self._feed, begun=begun)
        self._reasons = False
        yield from self._format.events(self._feed)

    def _advance(self) -> None:
        for event in self._events:
            if event is None:
                return
            self._take(event)

    def _completed_by(self, stop: str) -> list[Event]:
        """What is held back with a call at its end, if the stop string completes one."""
        if not stop or self._reasons:
            return []
        events = list(self._format.events(TextFeed(self._feed.held + stop, ended=True)))
        rest = ""  # of the text after the last call
        while events and isinstance(event := events[-1], str):
            rest = event + rest
            events.pop()
        return events if len(rest) < len(stop) else []

    def _take(self, event: Event) -> None:
        if isinstance(event, Call):
            if self._several or not self.calls:
                self.calls.append(event)
            self._space, self._after_call = "", True
        elif event:
            self._write(event)

    def _write(self, text: str) -> None:
        if self._after_call:
            text = text.lstrip()
            if not text:
                return
            self._after_call = False
            text = f"\n{text}" if self.content else text
        text = self._space + text
        visible = text.rstrip()
        self.content += visible
        self._space = text[len(visible) :]
