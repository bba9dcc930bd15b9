"""The paged caches of a model: blocks for every layer, and the block table that says whose they are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from decodestep._base.arrays import BFLOAT16
from decodestep._base.checks import require


class PagedCache:
    """The block table of a fixed set of sequences: `block_table` is (B, M), `blocks` how many there are in all.

    capacities: how many tokens each sequence can hold. `arrays` are a cache's parts, (layers, blocks, ...) each; memory that no
    token has been written to is not yet taken from the system.
    """

    arrays: tuple[np.ndarray, ...]

    def __init__(self, capacities: Sequence[int], block_size: int) -> None:
        require(all(c >= 0 for c in capacities), "PagedCache", "capacities", "numbers of tokens", str(list(capacities)))
        counts = [-(-capacity // block_size) for capacity in capacities]
        self.blocks = sum(counts)
        self.block_size = block_size
        self.capacity = max(capacities, default=0)
        self.block_table = np.full((len(counts), max(counts, default=0)), -1, np.int64)
        first = 0
        for row, count in enumerate(counts):
            self.block_table[row, :count] = np.arange(first, first + count)
            first += count


class LatentCache(PagedCache):
    """Latents and rotated keys in PA_BSND blocks, float32.

    layers, latent, rope: sizes of the model. `kv[layer]` is (BlockNum, BlockSize, 1, Hckv), `kr[layer]` the same with Dr.
    """

    def __init__(self, layers: int, latent: int, rope: int, capacities: Sequence[int], *, block_size: int = 16) -> None:
        super().__init__(capacities, block_size)
        self.kv = np.zeros((layers, self.blocks, block_size, 1, latent), np.float32)
        self.kr = np.zeros((layers, self.blocks, block_size, 1, rope), np.float32)
        self.arrays = self.kv, self.kr

    def slots(self, sequence: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """The flat slot of each token: block * BlockSize + row."""
        blocks = self.block_table[sequence, positions // self.block_size]
        return blocks * self.block_size + positions % self.block_size


class GroupCache(PagedCache):
    """Keys and values of every group of heads, bfloat16, as the native step reads them.

    layers, groups, width: sizes of the model. A block is 16 positions: `keys[layer]` is (groups, BlockNum, width / 2, 16, 2),
    pairs of columns of each position, `values[layer]` (groups, BlockNum, 8, width, 2), pairs of positions of each column.
    """

    def __init__(self, layers: int, groups: int, width: int, capacities: Sequence[int]) -> None:
        super().__init__(capacities, 16)
        self.keys = np.zeros((layers, groups, self.blocks, width // 2, 16, 2), BFLOAT16)
        self.values = np.zeros((layers, groups, self.blocks, 8, width, 2), BFLOAT16)
        self.arrays = self.keys.swapaxes(1, 2), self.values.swapaxes(1, 2)
