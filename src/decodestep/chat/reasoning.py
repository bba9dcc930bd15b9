"""Reasoning: the text with which many models begin an answer, between marks, and in which nothing is a call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from decodestep.chat.text_feed import TextFeed


class Reasoning(NamedTuple):
    """The marks around a model's reasoning. control_tokens: of these, those that may be control tokens."""

    opening: str
    closing: str
    control_tokens: tuple[str, ...]

    def begun_by(self, prompt: str) -> bool:
        """Whether the answer begins within reasoning: templates of some models end the prompt with its opening mark."""
        return prompt.rstrip().endswith(self.opening.rstrip())

    def read(self, feed: TextFeed, *, begun: bool) -> Iterator[str | None]:
        """The text of the reasoning at the beginning of an answer, with its marks; None where more text is needed.

        begun: whether the prompt has the opening mark. What ends within reasoning is reasoning as a whole.
        """
        if not begun:
            yield (yield from feed.space())
            opening = yield from feed.optional(self.opening)
            yield opening
            begun = bool(opening)
        while begun and not (yield from feed.done()):
            closing = yield from feed.optional(self.closing)
            yield closing or feed.plain((self.closing,))
            begun = not closing


def _tokens(opening: str, closing: str) -> Reasoning:
    return Reasoning(opening, closing, (opening, closing))


THINK = _tokens("<think>", "</think>")
_KINDS = (
    _tokens("<seed:think>", "</seed:think>"),
    _tokens("<mm:think>", "</mm:think>"),
    _tokens("[THINK]", "[/THINK]"),
    _tokens("◁think▷", "◁/think▷"),
    _tokens("<|STARTTHINKING|>", "<|ENDTHINKING|>"),
    Reasoning("<|channel>thought\n", "<channel|>", ("<|channel>", "<channel|>")),
)


def reasoning_of(template: str) -> Reasoning:
    """The reasoning of a chat template: models of many write `<think>` too, though the template does not."""
    return next((kind for kind in _KINDS if kind.closing in template), THINK)
