"""The storage of a model's keys and values: numbered pages of `PAGE` positions, for every layer."""

from __future__ import annotations

import math
import mmap
from abc import ABC, abstractmethod

import numpy as np

from decodestep._base.arrays import BFLOAT16
from decodestep.ops.decoder_forward.arguments import PAGE as PAGE
from decodestep.ops.decoder_forward.arguments import SCALE_BYTES
from decodestep.ops.decoder_forward.group_cache import page_shapes

SLAB_BYTES = 2**24
HUGE_PAGE = 2**21


class Pages(ABC):
    """Pages 0 to count - 1. Memory is allocated only when pages are written, or by `prepare`.

    count: the number of pages. page_bytes: the size of one, over all layers.
    """

    count: int
    page_bytes: int

    @abstractmethod
    def copy(self, source: int, target: int) -> None:
        """Copies page `source` to page `target`."""

    def prepare(self, fresh: int, slabs: int = 1) -> bool:
        """Allocates a little of the memory that the unwritten pages from `fresh` on will need next; False if nothing is left.

        slabs: how far ahead, in slabs of pages.
        Otherwise the pass that first writes there would wait for the system to clear all of it.
        """
        return False


class LatentPages(Pages):
    """Latents and rotated keys, float32, in the layout PA_BSND of `mla_prolog` and `mla_attention`.

    layers, latent, rope: sizes of the model.
    kv[layer]: (BlockNum, BlockSize, 1, Hckv). kr[layer]: (BlockNum, BlockSize, 1, Dr).
    """

    def __init__(self, layers: int, latent: int, rope: int, count: int) -> None:
        self.count = count
        self.page_bytes = self.bytes_of_a_page(layers, latent, rope)
        self.kv = _untouched_zeros((layers, count, PAGE, 1, latent), np.dtype(np.float32), huge_pages=False)
        self.kr = _untouched_zeros((layers, count, PAGE, 1, rope), np.dtype(np.float32), huge_pages=False)

    @staticmethod
    def bytes_of_a_page(layers: int, latent: int, rope: int) -> int:
        return 4 * layers * PAGE * (latent + rope)

    def copy(self, source: int, target: int) -> None:
        for part in (self.kv, self.kr):
            part[:, target] = part[:, source]


class SlabPages(Pages):
    """Keys and values in the layout that `decoder_forward` reads, in slabs.

    axes: the axes before those of a page, layers and key/value heads. key, value: the shape of a page in each. dtypes: of
    keys and of values.
    keys: (slabs, *axes, pages of a slab, *key). values: (slabs, *axes, pages of a slab, *value).
    The pages of a slab are allocated together, in huge pages, which makes reading long contexts 5 to 10 % faster.
    """

    def __init__(
        self,
        axes: tuple[int, ...],
        key: tuple[int, ...],
        value: tuple[int, ...],
        count: int,
        dtypes: tuple[np.dtype, np.dtype] = (BFLOAT16, BFLOAT16),
    ) -> None:
        self.page_bytes = math.prod(axes) * sum(
            dtype.itemsize * math.prod(page) for dtype, page in zip(dtypes, (key, value), strict=True)
        )
        self._slab = max(1, min(count, SLAB_BYTES // self.page_bytes))
        slabs = count // self._slab
        self.count = slabs * self._slab
        self.keys = _untouched_zeros((slabs, *axes, self._slab, *key), dtypes[0], huge_pages=True)
        self.values = _untouched_zeros((slabs, *axes, self._slab, *value), dtypes[1], huge_pages=True)
        self._axis = len(axes)  # of the pages inside a slab
        self._prepared = 0  # slabs before this one have their memory, or users
        self._untouched: list[np.ndarray] = []  # a byte of each of its huge pages that have not been touched; empty: of all

    def prepare(self, fresh: int, slabs: int = 1) -> bool:
        """Allocates one more huge page (2 MB) per call, in the first slabs of which no page is in use."""
        first = -(-fresh // self._slab)
        if first > self._prepared:
            self._prepared, self._untouched = first, []
        if self._prepared >= min(first + slabs, len(self.keys)):
            return False
        if not self._untouched:
            parts = (part[self._prepared].reshape(-1).view(np.uint8) for part in (self.values, self.keys))
            self._untouched = [byte for part in parts for byte in _bytes_of_huge_pages(part)]
        self._untouched.pop()[:] = 0  # as it was
        self._prepared += not self._untouched
        return True

    def copy(self, source: int, target: int) -> None:
        to, slot = divmod(target, self._slab)
        origin, place = divmod(source, self._slab)
        for part in (self.keys, self.values):
            np.moveaxis(part[to], self._axis, 0)[slot] = np.moveaxis(part[origin], self._axis, 0)[place]


class GroupPages(SlabPages):
    """Keys and values of every key/value head.

    layers, groups, width: layers, key/value heads and head size of the model. dtype: bfloat16, float16 or int8.
    keys, values: (slabs, layers, groups, pages of a slab, *a page), a page as `page_shapes` of decoder_forward has it.
    """

    def __init__(self, layers: int, groups: int, width: int, count: int, dtype: np.dtype = BFLOAT16) -> None:
        super().__init__((layers, groups), *page_shapes(dtype, width), count, (dtype, dtype))

    @staticmethod
    def bytes_of_a_page(layers: int, groups: int, width: int, dtype: np.dtype = BFLOAT16) -> int:
        return layers * groups * dtype.itemsize * sum(map(math.prod, page_shapes(dtype, width)))


class CompressedPages(SlabPages):
    """Latents and rotated keys, bfloat16: `values` (slabs, layers, pages of a slab, 16, Hckv), `keys` the same of Dr.

    in_bytes: latents are int8, in rows of Hckv and the four bytes of a scale.
    """

    def __init__(self, layers: int, latent: int, rope: int, count: int, *, in_bytes: bool = False) -> None:
        if in_bytes:
            super().__init__((layers,), (PAGE, rope), (PAGE, latent + SCALE_BYTES), count, (BFLOAT16, np.dtype(np.int8)))
        else:
            super().__init__((layers,), (PAGE, rope), (PAGE, latent), count)

    @staticmethod
    def bytes_of_a_page(layers: int, latent: int, rope: int, *, in_bytes: bool = False) -> int:
        return layers * PAGE * (2 * rope + (latent + SCALE_BYTES if in_bytes else 2 * latent))


def _bytes_of_huge_pages(memory: np.ndarray) -> list[np.ndarray]:
    """The first byte in `memory` of every huge page that it has a part of; it need not begin or end at the edge of one."""
    edge = -memory.ctypes.data % HUGE_PAGE or HUGE_PAGE
    return [memory[at : at + 1] for at in (0, *range(edge, memory.size, HUGE_PAGE)) if at < memory.size]


def _untouched_zeros(shape: tuple[int, ...], dtype: np.dtype, *, huge_pages: bool) -> np.ndarray:
    """Zeros without memory: the system allocates it on write, 4 KB or 2 MB at a time.

    Huge pages are for arrays whose neighbours are written soon after: one touched byte takes all of 2 MB.
    """
    size = max(1, math.prod(shape) * dtype.itemsize)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000))
    advice = getattr(mmap, "MADV_HUGEPAGE" if huge_pages else "MADV_NOHUGEPAGE", None)
    if advice is not None:
        memory.madvise(advice)
    return np.frombuffer(memory, np.uint8, math.prod(shape) * dtype.itemsize).view(dtype).reshape(shape)
