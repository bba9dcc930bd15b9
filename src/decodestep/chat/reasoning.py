"""Reasoning: the text with which many models begin an answer, between marks, and in which nothing is a call."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator
from typing import NamedTuple, TypeVar

from decodestep.chat.text_feed import Reading, TextFeed

T = TypeVar("T")


class Thought(NamedTuple):
    """A piece of reasoning, as it was written."""

    text: str


class Mark(NamedTuple):
    """What begins or ends reasoning or the answer after it, as it was written: no part of either.

    opens: whether reasoning begins here.
    """

    text: str
    opens: bool


class ReasoningFormat(NamedTuple):
    """How a model's answers mark their reasoning.

    opening, closing: its marks. control_tokens: what may be control tokens in all marks. repeats: whether several parts may
    follow each other. in_messages: whether it comes in messages of its own, which the format of calls reads. note: what may
    follow the opening mark in a prompt. answer, answer_ends: the marks before and after the text that follows the reasoning,
    each of which may be missing; `answer_ends` only count after one of `answer`.
    """

    opening: str
    closing: str
    control_tokens: tuple[str, ...]
    repeats: bool = False
    in_messages: bool = False
    note: str = ""
    answer: tuple[str, ...] = ()
    answer_ends: tuple[str, ...] = ()

    def begun_by(self, prompt: str) -> bool:
        """Whether the answer begins within reasoning: templates of many models end the prompt with its opening mark."""
        _, opening, rest = prompt.rpartition(self.opening.rstrip())
        return bool(opening) and rest.strip() in ("", self.note)

    def ended_by(self, prompt: str) -> bool:
        """Whether the prompt ends with a mark after which the answer begins, as it does where reasoning is switched off."""
        return prompt.rstrip().endswith((self.closing.rstrip(), *self.answer[-1:]))

    def read(
        self, feed: TextFeed, *, begun: bool, ended: bool = False
    ) -> Generator[str | Thought | Mark | None, None, tuple[str, ...]]:
        """The reasoning at the beginning of an answer, and the marks before the text after it; None where more text is needed.

        begun: whether the prompt has the opening mark; some models write it once more. Without a mark at the beginning there is
        none. The first closing mark ends it; what ends within reasoning is reasoning as a whole. ended: as `ended_by` says:
        then there is none, whatever the text begins with.

        Returns the marks that may end the text.
        """
        if self.in_messages and not begun:
            return ()
        space = yield from feed.space()
        opening = "" if ended else (yield from _mark(feed, self.opening))
        if opening:
            yield Mark(space + opening, True)
        elif begun:
            yield Thought(space)
        if opening or begun:
            yield from self._thoughts(feed)
            space = yield from feed.space()
        while self.repeats and not ended and (opening := (yield from _mark(feed, self.opening))):
            yield Mark(space + opening, True)
            yield from self._thoughts(feed)
            space = yield from feed.space()
        ends = self.answer_ends if ended else ()
        for mark in self.answer:
            if (yield from _mark(feed, mark)):
                yield Mark(space + mark, False)
                ends, space = self.answer_ends, (yield from feed.space())
        yield space
        return ends

    def _thoughts(self, feed: TextFeed) -> Iterator[Thought | Mark | None]:
        """The text up to the first closing mark, with that."""
        while not (yield from feed.done()):
            if closing := (yield from _mark(feed, self.closing)):
                yield Mark(closing, False)
                return
            yield Thought(feed.plain((self.closing,)))


def _mark(feed: TextFeed, mark: str) -> Reading[str]:
    """Reads the mark if it comes next."""
    return feed.take(len((yield from feed.mark(mark))))


def without_ends(events: Iterable[T], ends: tuple[str, ...]) -> Iterator[T | str | Mark]:
    """The parts of an answer, of whose text these marks are no part: the first that comes of each, in order."""
    held = ""  # text that may be the beginning of a mark
    for event in events:
        if not isinstance(event, str):
            if event is not None:
                yield held
                held = ""
            yield event
            continue
        held += event
        while ends and (places := [(at, end) for end in ends if (at := held.find(end)) >= 0]):
            at, end = min(places)
            yield held[:at]
            yield Mark(end, False)
            held, ends = held[at + len(end) :], ends[ends.index(end) + 1 :]
        keep = max((n for end in ends for n in range(len(end)) if held.endswith(end[:n])), default=0)
        yield held[: len(held) - keep]
        held = held[len(held) - keep :]
    yield held


def _between(opening: str, closing: str) -> ReasoningFormat:
    return ReasoningFormat(opening, closing, (opening, closing))


THINK = _between("<think>", "</think>")
_HARMONY = ReasoningFormat(
    "<|channel|>analysis<|message|>", "<|end|>", ("<|channel|>", "<|message|>", "<|end|>"), in_messages=True
)
_SOLAR = ReasoningFormat(
    "<|think|>", "<|end|>", ("<|think|>", "<|end|>", "<|begin|>", "<|content|>"), answer=("<|begin|>assistant", "<|content|>")
)
_KIMI_K3 = ReasoningFormat(
    "<|open|>think<|sep|>",
    "<|close|>think<|sep|>",
    ("<|open|>", "<|close|>", "<|sep|>"),
    answer=("<|open|>response<|sep|>",),
    answer_ends=("<|close|>response<|sep|>", "<|close|>message<|sep|>"),
)
_COMMAND = ReasoningFormat(
    "<|START_THINKING|>",
    "<|END_THINKING|>",
    ("<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    answer=("<|START_RESPONSE|>",),
    answer_ends=("<|END_RESPONSE|>",),
)
_GEMMA = ReasoningFormat("<|channel>thought\n", "<channel|>", ("<|channel>", "<channel|>"), repeats=True)
_GRANITE = THINK._replace(answer=("<response>",), answer_ends=("</response>",))
_SEED = _between("<seed:think>", "</seed:think>")._replace(note="<seed:cot_budget_reflect>")

# A template has the first format all of whose words it contains.
_FORMATS: tuple[tuple[tuple[str, ...], ReasoningFormat], ...] = (
    (("<|channel|>", "analysis"), _HARMONY),
    (("<|begin|>", "<|think|>"), _SOLAR),
    (("<|open|>", "<|sep|>", "think"), _KIMI_K3),
    (("<|START_THINKING|>",), _COMMAND),
    (("<|channel>",), _GEMMA),
    (("</seed:think>",), _SEED),
    (("</mm:think>",), _between("<mm:think>", "</mm:think>")),
    (("[/THINK]",), _between("[THINK]", "[/THINK]")),
    (("</think:opensource>",), _between("<think:opensource>", "</think:opensource>")),
    (("◁/think▷",), _between("◁think▷", "◁/think▷")),
    (("</think>", "<response>"), _GRANITE),
    (("</think>",), THINK),
)


def find_reasoning(template: str) -> ReasoningFormat | None:
    """The reasoning of a chat template; None if it knows none."""
    return next((kind for words, kind in _FORMATS if all(word in template for word in words)), None)


def reasoning_of_tokens(names: Collection[str]) -> ReasoningFormat | None:
    """The reasoning whose marks are among the names of control tokens; None if there is none."""
    return next((kind for _, kind in reversed(_FORMATS) if kind.opening in names and kind.closing in names), None)
