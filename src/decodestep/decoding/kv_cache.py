"""The storage of a model's keys and values: numbered pages of `PAGE` positions, for every layer."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from decodestep._base.arrays import BFLOAT16
from decodestep._base.memory import HUGE_PAGE, untouched_zeros
from decodestep.ops.decoder_forward.arguments import PAGE as PAGE
from decodestep.ops.decoder_forward.group_cache import page_shapes
from decodestep.ops.decoder_forward.latent_cache import latent_page_shapes, rope_key_dtype

SLAB_BYTES = 2**24


class Pages(ABC):
    """Pages 0 to count - 1. Memory is allocated only when pages are written, or by `prepare`.

    count: the number of pages. page_bytes: the size of one, over all layers. states: float32 (rows, values of a row), the
    recurrent states of sequences; None for a model without.
    """

    count: int
    page_bytes: int
    states: np.ndarray | None = None

    @abstractmethod
    def parts(self, number: int) -> list[np.ndarray]:
        """The values of a page, as views."""

    def copy(self, source: int, target: int) -> None:
        """Copies page `source` to page `target`."""
        for to, origin in zip(self.parts(target), self.parts(source), strict=True):
            to[...] = origin

    def prepare(self, fresh: int, slabs: int = 1) -> bool:
        """Allocates a little of the memory that the unwritten pages from `fresh` on will need next; False if nothing is left.

        slabs: how far ahead, in slabs of pages.
        Otherwise the forward pass that first writes there would wait for the system to clear all of it.
        """
        return False


@dataclass(frozen=True)
class PageLayout:
    """What a page holds over all layers.

    axes: layers, and key/value heads if each has a part of its own. key, value: the shape of such a part of keys and of values.
    index: of index keys, layers first; (): there are none. index_dtype: theirs.
    """

    axes: tuple[int, ...]
    key: tuple[int, ...]
    value: tuple[int, ...]
    key_dtype: np.dtype
    value_dtype: np.dtype
    index: tuple[int, ...] = ()
    index_dtype: np.dtype = BFLOAT16

    @property
    def page_bytes(self) -> int:
        key, value = self.key_dtype.itemsize * math.prod(self.key), self.value_dtype.itemsize * math.prod(self.value)
        index = self.index_dtype.itemsize * math.prod(self.index) if self.index else 0
        return math.prod(self.axes) * (key + value) + index


def grouped_layout(layers: int, kv_heads: int, head_dim: int, dtype: np.dtype) -> PageLayout:
    """Of keys and values as `page_shapes` of decoder_forward has them. dtype: bfloat16, float16 or int8."""
    return PageLayout((layers, kv_heads), *page_shapes(dtype, head_dim), dtype, dtype)


def latent_layout(layers: int, latent_dim: int, rope_dim: int, dtype: np.dtype) -> PageLayout:
    """Of latents as values, and rope keys.

    dtype: of both, bfloat16 or float16; or int8, of latents in rows that end with the four bytes of a scale, beside keys in
    bfloat16.
    """
    return PageLayout((layers,), *latent_page_shapes(dtype, latent_dim, rope_dim), rope_key_dtype(dtype), dtype)


def float32_layout(layers: int, latent_dim: int, rope_dim: int, index: tuple[int, ...] = ()) -> PageLayout:
    """Of latents as values and rope keys in the layout PA_BSND of `mla_prolog` and `mla_attention`.

    index: how many layers have index keys, and the width of these; (): there are none.
    """
    dtype = np.dtype(np.float32)
    of_index = (index[0], PAGE, 1, index[1]) if index else ()
    return PageLayout((layers,), (PAGE, 1, rope_dim), (PAGE, 1, latent_dim), dtype, dtype, of_index, dtype)


class LatentPages(Pages):
    """Latents and rope keys in a layout of `float32_layout`.

    kv[layer]: (BlockNum, BlockSize, 1, Hckv). kr[layer]: (BlockNum, BlockSize, 1, Dr). index[layer]: of layers with
    an indexer, (BlockNum, BlockSize, 1, Di).
    """

    def __init__(self, layout: PageLayout, count: int) -> None:
        self.count, self.page_bytes = count, layout.page_bytes
        self.kv = untouched_zeros((*layout.axes, count, *layout.value), layout.value_dtype, huge_pages=False)
        self.kr = untouched_zeros((*layout.axes, count, *layout.key), layout.key_dtype, huge_pages=False)
        layers, *page = layout.index or (0, 0)
        self.index = untouched_zeros((layers, count, *page), layout.index_dtype, huge_pages=False)

    def parts(self, number: int) -> list[np.ndarray]:
        return [self.kv[:, number], self.kr[:, number], self.index[:, number]]

    def copy(self, source: int, target: int, slots: int = PAGE) -> None:
        """slots: how many positions of the page, the first ones."""
        for to, origin in zip(self.parts(target), self.parts(source), strict=True):
            to[:, :slots] = origin[:, :slots]


class PairedPages(Pages):
    """A model's pages, and those of its layers for next-token prediction under the same numbers."""

    def __init__(self, model: Pages, next_tokens: LatentPages) -> None:
        self.model, self.next_tokens = model, next_tokens
        self.count, self.page_bytes = model.count, model.page_bytes + next_tokens.page_bytes
        self.states = model.states

    def parts(self, number: int) -> list[np.ndarray]:
        return [*self.model.parts(number), *self.next_tokens.parts(number)]

    def prepare(self, fresh: int, slabs: int = 1) -> bool:
        return self.model.prepare(fresh, slabs)


class SlabPages(Pages):
    """Keys and values in a layout that `decoder_forward` reads, in slabs.

    keys: (slabs, *axes, pages of a slab, *key). values: (slabs, *axes, pages of a slab, *value). index: (slabs,
    layers, pages of a slab, *the rest of index), or None.
    The pages of a slab are allocated together, in huge pages, which makes reading long contexts 5 to 10 % faster.
    """

    def __init__(self, layout: PageLayout, count: int) -> None:
        self.page_bytes = layout.page_bytes
        self._slab = max(1, min(count, SLAB_BYTES // self.page_bytes))
        slabs = count // self._slab
        self.count = slabs * self._slab
        self.keys = untouched_zeros((slabs, *layout.axes, self._slab, *layout.key), layout.key_dtype, huge_pages=True)
        self.values = untouched_zeros((slabs, *layout.axes, self._slab, *layout.value), layout.value_dtype, huge_pages=True)
        self.index = None
        if layout.index:
            layers, *page = layout.index
            self.index = untouched_zeros((slabs, layers, self._slab, *page), layout.index_dtype, huge_pages=True)
        self._parts = [part for part in (self.values, self.keys, self.index) if part is not None]
        self._axis = len(layout.axes)  # of the pages inside a slab
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
            parts = (part[self._prepared].reshape(-1).view(np.uint8) for part in self._parts)
            self._untouched = [byte for part in parts for byte in _bytes_of_huge_pages(part)]
        self._untouched.pop()[:] = 0  # as it was
        self._prepared += not self._untouched
        return True

    def parts(self, number: int) -> list[np.ndarray]:
        slab, place = divmod(number, self._slab)
        return [np.moveaxis(part[slab], self._axis, 0)[place] for part in self._parts]


def _bytes_of_huge_pages(memory: np.ndarray) -> list[np.ndarray]:
    """The first byte in `memory` of every huge page that it has a part of; it need not begin or end at the edge of one."""
    edge = -memory.ctypes.data % HUGE_PAGE or HUGE_PAGE
    return [memory[at : at + 1] for at in (0, *range(edge, memory.size, HUGE_PAGE))]
