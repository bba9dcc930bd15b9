"""gpt-oss's messages in channels, of which some are function calls."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from decodestep.chat.reasoning import Mark, Thought
from decodestep.chat.text_feed import EndedError, Reading, TextFeed, UnreadableError
from decodestep.chat.tool_call_format import CallArguments, CallBegin, CallEnd, CallFormat, Event, Pieces, Reads
from decodestep.chat.tool_json import call_arguments

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_TO = re.compile(r"to=functions\.([\w-]+)")
_ANALYSIS = re.compile(r"<\|channel\|>analysis")
_HEAD_BEGUN = re.compile(r"<\|start\|>\w*(?:<\|channel\|>\w*)?")
_ANSWERS = re.compile(r"<\|channel\|>(final|commentary)")


class Harmony(CallFormat):
    """gpt-oss: messages in channels; a message to functions.name is a call, others in final or commentary are the answer, and
    those in analysis are reasoning."""

    whole = True
    answer_begin = f"{_CHANNEL}final{_MESSAGE}"
    marks = (_START, _CHANNEL)
    first_marks = ("to=functions.",)
    ends = ("<|end|>", "<|call|>", "<|return|>")
    always_marked = False
    spelled = (_START, _CHANNEL, _MESSAGE, "<|constrain|>", "<|end|>", "<|call|>")

    def events(self, feed: TextFeed) -> Iterator[Event]:
        first, between, complete = True, "", False  # complete: whether a message ends here
        while True:
            feed.begin()
            if (yield from feed.done()):
                return
            space = (yield from feed.space()) if first else ""
            feed.begin()
            if not (yield from feed.mark(*self.marks, *(self.first_marks if first else ()))):
                first = complete = False
                yield space + feed.plain(self.marks)  # of no message
                continue
            first = True
            try:
                head = yield from self._head(feed)
            except UnreadableError as error:
                begun = isinstance(error, EndedError) and complete and _HEAD_BEGUN.fullmatch(feed.since_begin)
                if begun or (feed.cut and isinstance(error, EndedError)):  # of a message that says nothing
                    feed.drop()
                    return
                feed.back()
                yield space + feed.take(1)
                yield from self._body(feed)
                yield (yield from feed.optional(*self.ends))
                complete = False
                continue
            if _TO.search(head):
                feed.back()
                complete = yield from self._at_mark(feed)
                continue
            thinks, shown = _ANALYSIS.search(head) is not None, _ANSWERS.search(head) is not None
            if thinks:
                yield Mark(head, True)
            elif shown:
                yield between
                between = "\n"
            for piece in self._body(feed):
                yield Thought(piece) if thinks and piece is not None else piece if shown or piece is None else ""
            ended = yield from feed.optional(*self.ends)
            complete = bool(ended)
            if thinks and (ended or not (yield from feed.done())):
                yield Mark(ended, False)

    def calls(self, feed: TextFeed) -> Reads:
        called = _TO.search((yield from self._head(feed)))
        if called is None:
            raise UnreadableError
        yield CallBegin(called[1])
        yield from feed.space()
        if (yield from feed.done()) and not feed.cut:  # an end token, which has no text, may follow a call without arguments
            yield CallArguments("{}")
            yield CallEnd(True)
            return
        yield from call_arguments(feed, *self.ends)
        yield from feed.space()
        yield from feed.optional(*self.ends)

    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        return [f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>", schema]

    def _head(self, feed: TextFeed) -> Reading[str]:
        """What stands before the text of the message that comes next."""
        begin = yield from feed.optional(_START)
        before = yield from feed.until(_CHANNEL, _MESSAGE, _START, *self.ends)
        yield from feed.expect(_CHANNEL)
        after = yield from feed.until(_MESSAGE, _CHANNEL, _START, *self.ends)
        return begin + before + _CHANNEL + after + (yield from feed.expect(_MESSAGE))

    def _body(self, feed: TextFeed) -> Iterator[str | None]:
        """The text of a message in pieces; None where more is needed."""
        while not (yield from feed.done()) and not (yield from feed.mark(*self.ends, _START)):
            yield feed.plain((*self.ends, _START))
