"""What a decoder does: runs tokens of several sequences, appends them to a cache, and returns logits of some of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np

from decodestep.models.config import Config
from decodestep.models.kv_cache import PagedCache

PREFILL_BLOCK = 512  # tokens of one forward pass: enough to share the reading of a weight, few enough to need little memory


class Decoder(ABC):
    """Runs a model's layers over a paged cache. The logits of a token depend on its own sequence alone, to the bit.

    config: the model's sizes. description: how the model is run, in words.
    """

    config: Config
    description: str

    @abstractmethod
    def new_cache(self, capacities: list[int]) -> PagedCache:
        """An empty cache for len(capacities) sequences; sequence i can hold capacities[i] tokens."""

    @abstractmethod
    def logits(
        self, tokens: np.ndarray, sequence: np.ndarray, positions: np.ndarray, cache: PagedCache, wanted: np.ndarray
    ) -> np.ndarray:
        """Runs T tokens and appends them to the cache; returns float32 logits (len(wanted), V).

        tokens, sequence, positions: integers (T,). Token t is tokens[t], at positions[t] of sequence[t].
        cache: made by `new_cache`. The tokens at earlier positions of a sequence must be in it, or earlier in the same call.
        wanted: which of the T tokens to return logits of, ascending indices; may be empty.
        """

    def in_blocks(
        self, tokens: np.ndarray, sequence: np.ndarray, positions: np.ndarray, cache: PagedCache, wanted: np.ndarray
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """As `logits`, but for any number of tokens, run `PREFILL_BLOCK` at a time.

        Yields after each block (rows, logits): which rows of `wanted` lie in the block, and their logits.
        """
        for start in range(0, len(tokens), PREFILL_BLOCK):
            block = slice(start, start + PREFILL_BLOCK)
            rows = np.flatnonzero((wanted >= start) & (wanted < start + PREFILL_BLOCK))
            yield rows, self.logits(tokens[block], sequence[block], positions[block], cache, wanted[rows] - start)
