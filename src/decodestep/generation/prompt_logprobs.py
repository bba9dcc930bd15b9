"""The log-probabilities of a prompt's own tokens, computed while the prompt runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from decodestep.decoding.prefill import Budget, Piece
from decodestep.decoding.sequence import CachedSequence
from decodestep.ops.decode_step import TokenLogprobs, decode_step, steps
from decodestep.sampling.row import Row

_BLOCK = 64  # tokens of a forward pass whose logits are all wanted: 37 MiB of them with a vocabulary of 150,000


class _Scored(NamedTuple):
    """A prompt in the queue. tokens: all of it; the sequence holds those that have been run."""

    key: int
    row: Row
    sequence: CachedSequence
    tokens: list[int]

    @property
    def tokens_left(self) -> int:
        return len(self.tokens) - len(self.sequence)


class PromptScoring:
    """A queue of the prompts of rows with params.prompt_logprobs.

    Like `Prefill`, but a piece of one prompt at a time, and without reusing the cache, because the logits of every token are
    needed. The oldest prompt and the one with the fewest tokens left take turns. Each piece extends the row's
    `prompt_logprobs`. Equal prompts with equal prompt_logprobs run once.
    """

    def __init__(self) -> None:
        self._waiting: list[_Scored] = []
        self._taken = -1  # the key of the prompt that has the turn
        self._oldest = False  # whether that was the oldest's turn

    def __len__(self) -> int:
        """The number of unfinished prompts."""
        return len(self._waiting)

    @property
    def tokens_left(self) -> int:
        return sum(prompt.tokens_left for prompt in self._waiting)

    def add(self, key: int, row: Row, sequence: CachedSequence) -> None:
        """row: with only its prompt. sequence: empty."""
        sequence.expect(len(row.history.tokens))
        self._waiting.append(_Scored(key, row, sequence, list(row.history.tokens)))

    def remove(self, key: int) -> None:
        """Drops a prompt that need not be finished."""
        self._waiting = [prompt for prompt in self._waiting if prompt.key != key]

    def take(self, budget: Budget) -> Piece:
        """The next piece for `Model.forward`, whose logits are all wanted: as much as the budget allows, at least a token."""
        self._oldest = not self._oldest
        prompt = self._waiting[0] if self._oldest else min(self._waiting, key=lambda each: each.tokens_left)
        self._taken, sequence, tokens = prompt.key, prompt.sequence, prompt.tokens
        start = len(sequence)
        return sequence, tuple(tokens[start : start + max(1, min(_BLOCK, budget.fitting(start)))])

    def finish(self, logits: np.ndarray) -> dict[int, np.ndarray]:
        """After the piece has been run: returns the logits (V,) of the last token of every prompt that it completes.

        logits: of each of its tokens.
        """
        taken = next(prompt for prompt in self._waiting if prompt.key == self._taken)
        row, sequence, tokens = taken.row, taken.sequence, taken.tokens
        start = len(sequence) - len(logits)
        following = tokens[start + 1 : len(sequence) + 1]
        row.prompt_logprobs += [] if start else [None]
        asked = row.params.prompt_logprobs
        row.prompt_logprobs += _logprobs(logits[: len(following)], following, asked or 0)
        if len(sequence) < len(tokens):
            return {}
        done = [each for each in self._waiting if each.tokens == tokens and each.row.params.prompt_logprobs == asked]
        for prompt in done:
            prompt.sequence.assign(sequence)
            prompt.row.prompt_logprobs = list(row.prompt_logprobs)
            self.remove(prompt.key)
        return {prompt.key: logits[-1] for prompt in done}


def _logprobs(logits: np.ndarray, tokens: Sequence[int], top: int) -> list[TokenLogprobs | None]:
    """Log-probabilities of tokens[t] and of the `top` most likely tokens under logits[t]; None if no logit is above -inf."""
    forced = [(steps.Force(np.array([token], np.int64)),) for token in tokens]
    found = decode_step(logits, forced, greedy=True, top_logprobs=[top] * len(tokens)).logprobs
    return [one and TokenLogprobs(one.raw, one.raw, one.top_raw, one.top_raw) for one in found]
