"""Prefill: the prompts of many sequences through the model, a block at a time, what they share only once."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from decodestep.models.forward import BLOCK
from decodestep.models.kv_cache import PAGE
from decodestep.models.sequence import CachedSequence

if TYPE_CHECKING:
    from decodestep.models import Model

Key = TypeVar("Key", bound=Hashable)


class Prefill(Generic[Key]):
    """Prompts that are to be run.

    `run` fills a block of up to 512 tokens with what is left of the prompts, in the order in which they were added, after it
    has reused what the cache holds by now. A prompt waits if one before it in the block is about to fill the page that it
    needs next, and finds that page in the cache when its turn comes. Of equal prompts one runs; the others become its forks.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._waiting: list[tuple[Key, CachedSequence, tuple[int, ...]]] = []

    def __len__(self) -> int:
        """How many prompts are not done."""
        return len(self._waiting)

    def add(self, key: Key, sequence: CachedSequence, tokens: Sequence[int]) -> None:
        """tokens: the whole prompt, of which the sequence may hold a beginning, but not all."""
        self._waiting.append((key, sequence, tuple(tokens)))

    def remove(self, key: Key) -> None:
        """Forgets a prompt that need not be run to its end."""
        self._waiting = [entry for entry in self._waiting if entry[0] != key]

    def run(self) -> dict[Key, np.ndarray]:
        """Runs one block. Returns the logits (V,) of the last token of every prompt that it completes."""
        batch: list[tuple[CachedSequence, tuple[int, ...]]] = []
        prompts: list[tuple[int, ...]] = []
        coming: set[Hashable] = set()  # the prompts of the block, and the first page that each will fill
        room = BLOCK
        for _, sequence, tokens in self._waiting:
            sequence.reuse(tokens[len(sequence) :])
            start = len(sequence)
            page = sequence.next_page(tokens[start : start + PAGE])
            if tokens in coming or page in coming:
                continue
            coming |= {tokens, page}
            batch.append((sequence, tokens[start : start + room]))
            prompts.append(tokens)
            room -= len(batch[-1][1])
            if room == 0:
                break
        logits = self._model.forward(batch)
        completed = {
            tokens: (sequence, row)
            for (sequence, _), tokens, row in zip(batch, prompts, logits, strict=True)
            if len(sequence) == len(tokens)
        }
        ready: dict[Key, np.ndarray] = {}
        for key, sequence, tokens in self._waiting:
            if tokens in completed:
                source, ready[key] = completed[tokens]
                sequence.assign(source)
        self._waiting = [entry for entry in self._waiting if entry[0] not in ready]
        return ready
