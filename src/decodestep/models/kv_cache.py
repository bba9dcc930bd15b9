"""The storage of a model's keys and values: numbered pages of `PAGE` positions, in every layer."""

from __future__ import annotations

import math
import mmap
from abc import ABC, abstractmethod

import numpy as np

from decodestep._base.arrays import BFLOAT16
from decodestep.ops.decoder_forward.arguments import PAGE as PAGE


class Pages(ABC):
    """Pages 0 to count - 1. Memory is taken only where a page has been written.

    count: how many pages there are. page_bytes: the size of one, all layers together.
    """

    count: int
    page_bytes: int

    @abstractmethod
    def copy(self, source: int, target: int) -> None:
        """Makes page `target` hold what page `source` holds."""


class LatentPages(Pages):
    """Latents and rotated keys, float32, in the layout PA_BSND of `mla_prolog` and `mla_attention`.

    layers, latent, rope: sizes of the model.
    kv[layer]: (BlockNum, BlockSize, 1, Hckv). kr[layer]: (BlockNum, BlockSize, 1, Dr).
    """

    def __init__(self, layers: int, latent: int, rope: int, count: int) -> None:
        self.count = count
        self.page_bytes = self.bytes_of_a_page(layers, latent, rope)
        self.kv = _untouched_zeros((layers, count, PAGE, 1, latent), np.dtype(np.float32))
        self.kr = _untouched_zeros((layers, count, PAGE, 1, rope), np.dtype(np.float32))

    @staticmethod
    def bytes_of_a_page(layers: int, latent: int, rope: int) -> int:
        return 4 * layers * PAGE * (latent + rope)

    def copy(self, source: int, target: int) -> None:
        for part in (self.kv, self.kr):
            part[:, target] = part[:, source]


class GroupPages(Pages):
    """Keys and values of every key/value head, bfloat16, in the layout that `decoder_forward` reads.

    layers, groups, width: layers, key/value heads and head size of the model.
    keys[layer]: (groups, count, width / 2, 16, 2); for each position, pairs of neighbouring columns.
    values[layer]: (groups, count, 8, width, 2); for each column, pairs of neighbouring positions.
    """

    def __init__(self, layers: int, groups: int, width: int, count: int) -> None:
        self.count = count
        self.page_bytes = self.bytes_of_a_page(layers, groups, width)
        self.keys = _untouched_zeros((layers, groups, count, width // 2, PAGE, 2), BFLOAT16)
        self.values = _untouched_zeros((layers, groups, count, PAGE // 2, width, 2), BFLOAT16)

    @staticmethod
    def bytes_of_a_page(layers: int, groups: int, width: int) -> int:
        return 2 * 2 * layers * groups * PAGE * width

    def copy(self, source: int, target: int) -> None:
        for part in (self.keys, self.values):
            part[:, :, target] = part[:, :, source]


def _untouched_zeros(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Zeros that no memory is set aside for: the system gives it 4 KB at a time, where something is written.

    np.zeros asks for huge pages, of which one touched byte takes 2 MB: here a page of positions is spread over all layers.
    """
    size = max(1, math.prod(shape) * dtype.itemsize)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000))
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, np.uint8, math.prod(shape) * dtype.itemsize).view(dtype).reshape(shape)
