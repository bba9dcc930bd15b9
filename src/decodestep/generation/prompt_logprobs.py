"""The log-probabilities of a prompt's own tokens, computed while the prompt runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from decodestep.models.sequence import CachedSequence
from decodestep.ops.decode_step import TokenLogprobs, decode_step, steps
from decodestep.sampling.row import Row

if TYPE_CHECKING:
    from decodestep.models import Model

_BLOCK = 64  # tokens of a forward pass whose logits are all wanted: 37 MiB of them with a vocabulary of 150,000


class PromptScoring:
    """Runs the prompts of rows with params.prompt_logprobs.

    Like `Prefill`, but prompt by prompt, in smaller blocks, and without reusing the cache, because the logits of every token
    are needed. Each block extends the row's `prompt_logprobs`. Equal prompts with equal prompt_logprobs run once.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._waiting: deque[tuple[int, Row, CachedSequence, list[int]]] = deque()

    def __len__(self) -> int:
        """The number of unfinished prompts."""
        return len(self._waiting)

    def add(self, key: int, row: Row, sequence: CachedSequence) -> None:
        """row: with only its prompt. sequence: empty."""
        sequence.expect(len(row.history.tokens))
        self._waiting.append((key, row, sequence, list(row.history.tokens)))

    def remove(self, key: int) -> None:
        """Drops a prompt that need not be finished."""
        self._waiting = deque(entry for entry in self._waiting if entry[0] != key)

    def run(self) -> dict[int, np.ndarray]:
        """Runs one block. Returns the logits (V,) of the last token of every prompt that it completes."""
        _, row, sequence, tokens = self._waiting[0]
        start = len(sequence)
        logits = self._model.forward([(sequence, tokens[start : start + _BLOCK])], every=True)
        following = tokens[start + 1 : start + 1 + _BLOCK]
        row.prompt_logprobs += [] if start else [None]
        row.prompt_logprobs += _logprobs(logits[: len(following)], following, row.params.prompt_logprobs or 0)
        if len(sequence) < len(tokens):
            return {}
        asked = row.params.prompt_logprobs
        done = [entry for entry in self._waiting if entry[3] == tokens and entry[1].params.prompt_logprobs == asked]
        for key, other, fork, _ in done:
            fork.assign(sequence)
            other.prompt_logprobs = list(row.prompt_logprobs)
            self.remove(key)
        return {key: logits[-1] for key, *_ in done}


def _logprobs(logits: np.ndarray, tokens: Sequence[int], top: int) -> list[TokenLogprobs | None]:
    """Log-probabilities of tokens[t] and of the `top` most likely tokens under logits[t]; None if no logit is above -inf."""
    forced = [(steps.Force(np.array([token], np.int64)),) for token in tokens]
    found = decode_step(logits, forced, greedy=True, top_logprobs=[top] * len(tokens)).logprobs
    return [one and TokenLogprobs(one.raw, one.raw, one.top_raw, one.top_raw) for one in found]
