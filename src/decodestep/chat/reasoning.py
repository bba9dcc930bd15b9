"""Reasoning: the text with which many models begin an answer, between marks, and in which nothing is a call."""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

from decodestep.chat.text_feed import TextFeed


class Thought(NamedTuple):
    """A piece of reasoning, as it was written."""

    text: str


class Mark(NamedTuple):
    """What begins or ends reasoning, as it was written: no part of it, and no content."""

    text: str
    opens: bool


class ReasoningFormat(NamedTuple):
    """How a model's answers mark their reasoning.

    opening, closing: the marks. control_tokens: of these, those that may be control tokens. in_messages: whether it comes in
    messages of its own, which the format of calls reads.
    """

    opening: str
    closing: str
    control_tokens: tuple[str, ...]
    in_messages: bool = False

    def begun_by(self, prompt: str) -> bool:
        """Whether the answer begins within reasoning: templates of some models end the prompt with its opening mark."""
        return prompt.rstrip().endswith(self.opening.rstrip())

    def ended_by(self, prompt: str) -> bool:
        """Whether the prompt ends with the closing mark, as templates write it where reasoning is switched off."""
        return prompt.rstrip().endswith(self.closing.rstrip())

    def read(self, feed: TextFeed, *, begun: bool) -> Generator[str | Thought | Mark | None, None, None]:
        """The reasoning at the beginning of an answer; None where more text is needed.

        begun: whether the prompt has the opening mark; some models write it once more. Without a mark at the beginning there is
        none. The first closing mark ends it; what ends within reasoning is reasoning as a whole.
        """
        if self.in_messages:
            return
        space = yield from feed.space()
        opening = yield from feed.optional(self.opening)
        if opening:
            yield Mark(space + opening, True)
        elif begun:
            yield Thought(space)
        else:
            yield space
            return
        while not (yield from feed.done()):
            if closing := (yield from feed.optional(self.closing)):
                yield Mark(closing, False)
                return
            yield Thought(feed.plain((self.closing,)))


def _tokens(opening: str, closing: str) -> ReasoningFormat:
    return ReasoningFormat(opening, closing, (opening, closing))


THINK = _tokens("<think>", "</think>")
_KINDS = (
    ReasoningFormat("<|channel|>analysis<|message|>", "<|end|>", ("<|channel|>", "<|message|>", "<|end|>"), in_messages=True),
    _tokens("<seed:think>", "</seed:think>"),
    _tokens("<mm:think>", "</mm:think>"),
    _tokens("[THINK]", "[/THINK]"),
    _tokens("◁think▷", "◁/think▷"),
    _tokens("<|STARTTHINKING|>", "<|ENDTHINKING|>"),
    ReasoningFormat("<|channel>thought\n", "<channel|>", ("<|channel>", "<channel|>")),
    THINK,
)


def find_reasoning(template: str) -> ReasoningFormat | None:
    """The reasoning of a chat template; None if it knows none."""
    return next((kind for kind in _KINDS if all(mark in template for mark in kind.control_tokens)), None)
