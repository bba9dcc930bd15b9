"""The page layouts of a grouped-query cache, by dtype: shapes, writing and reading.

Arrays of one layer: keys and values (slabs, G, pages of a slab, *a page); csrc/attention/group_cache.h has the same layouts.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.lib.stride_tricks import as_strided

from decodestep._base.arrays import BFLOAT16

PAGE = 16  # positions in a page: kPagePositions of csrc/attention/cache_type.h
FLOAT16, INT8 = np.dtype(np.float16), np.dtype(np.int8)
TYPES = (BFLOAT16, FLOAT16, INT8)
_COLUMNS = 16  # in a block of float16 or int8
_SCALES = 2  # rows of an int8 block before its values: sixteen bfloat16
_LEAST = np.float32(1e-30)  # of the largest magnitude of sixteen; below it they are zeros


def page_shapes(dtype: np.dtype, width: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of keys and of values, for one key-value head of `width` columns, a multiple of 16."""
    if dtype == BFLOAT16:
        return (width // 2, PAGE, 2), (PAGE // 2, width, 2)
    block = (width // _COLUMNS, PAGE + (_SCALES if dtype == INT8 else 0), _COLUMNS)
    return block, block


def of_layer(keys: np.ndarray, values: np.ndarray, heads: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Views of a layer's keys and values (slabs, G, pages, *a page) for `heads` of G heads of a smaller width, which lie at the
    beginning of a page's memory."""
    return tuple(
        as_strided(cache, (len(cache), heads, cache.shape[2], *page), (*cache.strides[:3], *_strides(page, cache.itemsize)))
        for cache, page in zip((keys, values), page_shapes(keys.dtype, width), strict=True)
    )  # type: ignore[return-value]


def _strides(shape: tuple[int, ...], item: int) -> tuple[int, ...]:
    return tuple(item * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def store(
    keys: np.ndarray, values: np.ndarray, places: tuple[np.ndarray, np.ndarray, np.ndarray], k: np.ndarray, v: np.ndarray
) -> None:
    """Writes k and v (T, G, D) at places: slab, page of the slab, and row of the page of each of T tokens."""
    slab, page, row = places
    if keys.dtype == BFLOAT16:
        values[slab, :, page, row // 2, :, row % 2] = v.astype(BFLOAT16)
        keys[slab, :, page, :, row] = k.reshape(*k.shape[:2], -1, 2).astype(BFLOAT16)
        return
    k, v = (x.reshape(*x.shape[:2], -1, _COLUMNS) for x in (k, v))  # (T, G, block, column)
    first = 0
    if keys.dtype == INT8:
        first = _SCALES
        k, v = (_quantise(cache, x, places) for cache, x in ((keys, k), (values, v)))
    keys[slab, :, page, :, first:, row] = k.astype(keys.dtype)
    values[slab, :, page, :, first + row] = v.astype(values.dtype)


def load(keys: np.ndarray, values: np.ndarray, slab: np.ndarray, page: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values (G, positions, D) of the pages of a sequence, float32."""
    k, v = (cache[slab, :, page] for cache in (keys, values))
    if keys.dtype == BFLOAT16:
        k = k.transpose(1, 0, 3, 2, 4)  # (key-value head, page, position, pair, column of the pair)
        v = v.transpose(1, 0, 2, 4, 3)  # (key-value head, page, pair, position of the pair, column)
    else:
        if keys.dtype == INT8:
            with np.errstate(invalid="ignore"):  # 0 times an infinite scale
                k = k[..., _SCALES:, :].astype(np.float32) * _scales(k)[..., None, :]
                v = v[..., _SCALES:, :].astype(np.float32) * _scales(v)[..., :, None]
        k = k.transpose(1, 0, 4, 2, 3)  # (key-value head, page, position, block, column)
        v = v.transpose(1, 0, 3, 2, 4)
    k, v = (np.ascontiguousarray(x, np.float32).reshape(len(x), PAGE * len(slab), -1) for x in (k, v))
    return k, v


def _quantise(cache: np.ndarray, x: np.ndarray, places: tuple[np.ndarray, np.ndarray, np.ndarray]) -> np.ndarray:
    """Integers of x (T, G, block, 16), each sixteen by a scale, which is written to the cache."""
    slab, page, row = places
    x = x.astype(np.float32)
    largest = np.abs(x).max(axis=-1, keepdims=True)
    largest = np.where(largest < _LEAST, np.float32(0), largest)
    scale = (largest / np.float32(127)).astype(BFLOAT16)
    flat = cache.reshape(*cache.shape[:-2], -1)  # a view: the bytes of a block
    for byte in range(2):
        flat[slab, :, page, :, 2 * row + byte] = scale.view(np.int8).reshape(*scale.shape[:3], 2)[..., byte]
    with np.errstate(divide="ignore", invalid="ignore"):
        whole = np.rint(x * np.where(largest == 0, np.float32(0), np.float32(1) / scale.astype(np.float32)))
    return np.clip(np.nan_to_num(whole, posinf=127, neginf=-128), -128, 127)


def _scales(pages: np.ndarray) -> np.ndarray:
    """(..., 16): of each block, for its positions."""
    rows = np.ascontiguousarray(pages[..., :_SCALES, :])
    return rows.reshape(*rows.shape[:-2], -1).view(BFLOAT16).astype(np.float32)
