"""The paged key/value caches of a model: blocks of positions for every layer, and the block table that assigns them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from decodestep._base.arrays import BFLOAT16
from decodestep._base.checks import require
from decodestep.ops.decoder_forward.arguments import PAGE


class PagedCache:
    """A cache for a fixed set of sequences, in blocks of `block_size` positions.

    capacities: how many tokens each sequence can hold, >= 0 each. Raises ValueError for a negative one.
    block_table: int64 (B, M), the blocks of each sequence in order, -1 past its last. blocks: how many there are in all.
    capacity: the longest sequence's. arrays: the parts of the cache, (layers, blocks, ...) each. The system commits memory only
    for blocks that have been written to.
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
    """Latents and rotated keys, float32, in the layout PA_BSND of `mla_prolog` and `mla_attention`.

    layers, latent, rope: sizes of the model.
    kv[layer]: (BlockNum, BlockSize, 1, Hckv). kr[layer]: (BlockNum, BlockSize, 1, Dr).
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
    """Keys and values of every key/value head, bfloat16, in the layout that the native step reads.

    layers, groups, width: layers, key/value heads and head size of the model. A block is a page of 16 positions.
    keys[layer]: (groups, BlockNum, width / 2, 16, 2); for each position, pairs of neighbouring columns.
    values[layer]: (groups, BlockNum, 8, width, 2); for each column, pairs of neighbouring positions.
    rope: sines and cosines, (P, width / 2) each, of at least as many positions as the cache has; the decoder sets it.
    """

    rope: tuple[np.ndarray, np.ndarray]

    def __init__(self, layers: int, groups: int, width: int, capacities: Sequence[int]) -> None:
        super().__init__(capacities, PAGE)
        self.keys = np.zeros((layers, groups, self.blocks, width // 2, PAGE, 2), BFLOAT16)
        self.values = np.zeros((layers, groups, self.blocks, PAGE // 2, width, 2), BFLOAT16)
        self.arrays = self.keys.swapaxes(1, 2), self.values.swapaxes(1, 2)
