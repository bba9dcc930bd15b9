"""What a decoder does: tokens of any sequences in, logits of some of them out, the cache longer by the tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np

from decodestep.models.convert import Config
from decodestep.models.kv_cache import PagedCache

PREFILL_BLOCK = 512  # tokens of a forward pass at most: enough to share each weight, little enough to keep the memory small


class Decoder(ABC):
    """A decoder of the MLA form. Each token's result depends on its own sequence alone, to the bit.

    config: the model's sizes. way: in words, how the model is run.
    """

    config: Config
    way: str

    @abstractmethod
    def new_cache(self, capacities: list[int]) -> PagedCache:
        """An empty cache for sequences of so many tokens."""

    @abstractmethod
    def logits(
        self, tokens: np.ndarray, sequence: np.ndarray, positions: np.ndarray, cache: PagedCache, wanted: np.ndarray
    ) -> np.ndarray:
        """Runs T tokens at `positions` of their sequences; logits (len(wanted), V) of the tokens numbered in `wanted`.

        What stands before a token in its sequence must be in the cache or come earlier in the same call.
        """

    def in_blocks(
        self, tokens: np.ndarray, sequence: np.ndarray, positions: np.ndarray, cache: PagedCache, wanted: np.ndarray
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Runs any number of tokens, some at a time; yields which of the ascending `wanted` those held, and their logits."""
        for start in range(0, len(tokens), PREFILL_BLOCK):
            block = slice(start, start + PREFILL_BLOCK)
            held = np.flatnonzero((wanted >= start) & (wanted < start + PREFILL_BLOCK))
            yield held, self.logits(tokens[block], sequence[block], positions[block], cache, wanted[held] - start)
