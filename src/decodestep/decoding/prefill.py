"""Prefill: runs the prompts of many sequences in blocks; a common prefix runs once."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from decodestep.chat.user_mark import count_common
from decodestep.decoding.forward import BLOCK
from decodestep.decoding.kv_cache import PAGE
from decodestep.decoding.sequence import CachedSequence

Key = TypeVar("Key", bound=Hashable)
Piece = tuple[CachedSequence, tuple[int, ...]]  # tokens that continue a sequence


class Runner(Protocol):
    """What runs the pieces of a block: a `Model`."""

    def forward(self, batch: Sequence[Piece], *, wanted: Sequence[bool]) -> np.ndarray: ...


@dataclass(frozen=True)
class _Prompt(Generic[Key]):
    """A prompt in the queue. tokens: all of it; the sequence holds those that have been run."""

    key: Key
    sequence: CachedSequence
    tokens: tuple[int, ...]

    @property
    def tokens_left(self) -> int:
        return len(self.tokens) - len(self.sequence)


@dataclass
class Budget:
    """What is left of the limits of a block: a number of tokens, and a cost in any unit.

    token: the cost of a token. key: the cost of each key that a token attends to, its own included.
    """

    tokens: int = BLOCK
    cost: float = math.inf
    token: float = 1.0
    key: float = 0.0

    def fitting(self, position: int, share: float = 1.0) -> int:
        """The number of tokens of a prompt, from this position on, that fit into a share of the budget."""
        tokens = math.ceil(self.tokens * share)
        cost = self.cost * share
        if cost >= self._cost(position, tokens):
            return tokens
        first = self.token + self.key * (position + 0.5)  # n tokens cost first * n + key / 2 * n ** 2
        return max(0, int(2 * cost / (first + math.sqrt(max(0.0, first * first + 2 * self.key * cost)))))

    def use(self, position: int, tokens: int) -> None:
        """Takes the tokens of a prompt, from this position on, from the budget."""
        self.tokens -= tokens
        self.cost -= self._cost(position, tokens)

    def _cost(self, position: int, tokens: int) -> float:
        return self.token * tokens + self.key * count_keys(position, tokens)


def count_keys(position: int, tokens: int) -> int:
    """The total number of keys that these tokens, from this position on, attend to."""
    return tokens * position + tokens * (tokens + 1) // 2


class Prefill(Generic[Key]):
    """A queue of prompts.

    fair: False: prompts run in the order in which they were added. True: half of a block goes to the oldest prompt, the rest to
        those with the fewest tokens left, so that a short prompt does not wait for a long one, and a long one is not starved.

    `take` fills a block from the prompts, after reusing what the cache holds by now. A prompt waits if an earlier one in the
    block is about to fill the page that it needs next, and later finds that page in the cache. Of equal prompts one runs; the
    others become its forks. After the block has been run, `finish` takes out the prompts that are done; `run` does all three.
    """

    def __init__(self, model: Runner, *, fair: bool = False) -> None:
        self._model = model
        self._fair = fair
        self._waiting: list[_Prompt[Key]] = []
        self._taken: list[tuple[CachedSequence, tuple[int, ...], tuple[int, ...]]] = []  # each piece, and its whole prompt

    def __len__(self) -> int:
        """The number of unfinished prompts."""
        return len(self._waiting)

    @property
    def tokens_left(self) -> int:
        return sum(prompt.tokens_left for prompt in self._waiting)

    def add(self, key: Key, sequence: CachedSequence, tokens: Sequence[int]) -> None:
        """tokens: the whole prompt; the sequence may hold a part of its beginning, but not all."""
        self._waiting.append(_Prompt(key, sequence, tuple(tokens)))

    def remove(self, key: Key) -> None:
        """Drops a prompt that need not be finished."""
        self._waiting = [prompt for prompt in self._waiting if prompt.key != key]

    def run(self) -> dict[Key, np.ndarray]:
        """Runs one block. Returns the logits (V,) of the last token of every prompt that it completes."""
        pieces = self.take()
        return self.finish(self._model.forward(pieces, wanted=self.completing()))

    def take(self, budget: Budget | None = None) -> list[Piece]:
        """The pieces of the next block for `Model.forward`: as much as the budget allows, at least one token."""
        budget = budget or Budget()
        taken: list[tuple[_Prompt[Key], int]] = []  # the prompts of the block, with how many of their tokens
        prompts: set[tuple[int, ...]] = set()
        pages: dict[Hashable, _Prompt[Key]] = {}  # the first page that each of them fills
        for prompt, share in self._in_turn():
            sequence, tokens = prompt.sequence, prompt.tokens
            sequence.reuse(tokens[len(sequence) :])
            start = len(sequence)
            page = sequence.next_page(tokens[start : start + PAGE])
            if tokens in prompts:
                continue
            if page in pages:
                other = pages[page]
                other.sequence.part_at(count_common(other.tokens, tokens))
                continue
            fitting = budget.fitting(start, share)
            if taken and fitting == 0:
                break
            prompts.add(tokens)
            pages[page] = prompt
            taken.append((prompt, min(max(1, fitting), len(tokens) - start)))
            budget.use(start, taken[-1][1])
        self._taken = [(prompt.sequence, _piece(prompt, count), prompt.tokens) for prompt, count in taken]
        return [(sequence, piece) for sequence, piece, _ in self._taken]

    def completing(self) -> list[bool]:
        """For each piece returned by `take`, whether it completes its prompt, so that its logits are needed."""
        return [len(sequence) + len(piece) == len(tokens) for sequence, piece, tokens in self._taken]

    def finish(self, logits: np.ndarray) -> dict[Key, np.ndarray]:
        """Takes out the prompts that the block has finished; returns the logits (V,) of the last token of each.

        logits: their rows, in the order of the pieces.
        """
        done = [(sequence, tokens) for sequence, _, tokens in self._taken if len(sequence) == len(tokens)]
        finished = {tokens: (sequence, row) for (sequence, tokens), row in zip(done, logits, strict=True)}
        ready: dict[Key, np.ndarray] = {}
        for prompt in self._waiting if finished else ():
            if prompt.tokens in finished:
                source, ready[prompt.key] = finished[prompt.tokens]
                prompt.sequence.assign(source)
        self._waiting = [prompt for prompt in self._waiting if prompt.key not in ready]
        return ready

    def _in_turn(self) -> list[tuple[_Prompt[Key], float]]:
        """The prompts in the order in which a block takes them, each with its share of the remaining budget."""
        if not self._fair or len(self._waiting) < 2:
            return [(prompt, 1.0) for prompt in self._waiting]
        oldest, *others = self._waiting
        others.sort(key=lambda prompt: prompt.tokens_left)
        return [(oldest, 0.5), *((prompt, 1.0) for prompt in others)]


def _piece(prompt: _Prompt[Key], count: int) -> tuple[int, ...]:
    """The next of a prompt's tokens, at most `count`."""
    start = len(prompt.sequence)
    ends = start + count == len(prompt.tokens)
    return prompt.tokens[start : start + prompt.sequence.pass_length(start, count, ends=ends)]
