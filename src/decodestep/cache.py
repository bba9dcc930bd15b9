"""The paged latent cache of a model: PA_BSND blocks for every layer, and the block table that says whose they are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from decodestep.checks import require


class LatentCache:
    """Latents and rotated keys of every layer for a fixed set of sequences.

    layers, latent, rope: sizes of the model. capacities: how many tokens each sequence can hold.
    `kv[layer]` is (BlockNum, BlockSize, 1, Hckv) and `kr[layer]` (BlockNum, BlockSize, 1, Dr), float32; `block_table` is
    (B, M). Memory that no token has been written to is not yet taken from the system.
    """

    def __init__(self, layers: int, latent: int, rope: int, capacities: Sequence[int], *, block_size: int = 16) -> None:
        require(all(c >= 0 for c in capacities), "LatentCache", "capacities", "numbers of tokens", str(list(capacities)))
        counts = [-(-capacity // block_size) for capacity in capacities]
        total = sum(counts)
        self.block_size = block_size
        self.kv = np.zeros((layers, total, block_size, 1, latent), np.float32)
        self.kr = np.zeros((layers, total, block_size, 1, rope), np.float32)
        self.block_table = np.full((len(counts), max(counts, default=0)), -1, np.int64)
        first = 0
        for row, count in enumerate(counts):
            self.block_table[row, :count] = np.arange(first, first + count)
            first += count

    def slots(self, sequence: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """The flat slot of each token: block * BlockSize + row."""
        blocks = self.block_table[sequence, positions // self.block_size]
        return blocks * self.block_size + positions % self.block_size
