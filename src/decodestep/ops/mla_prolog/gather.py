"""Reading the rows of a cache back, in any cache mode."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from decodestep._base import arrays
from decodestep._base.arrays import ArrayT, Integers
from decodestep._base.checks import require, require_choice, require_within
from decodestep.ops.mla_prolog.cache_layouts import require_whole_fractals, row_index
from decodestep.ops.mla_prolog.size_limits import ALL_MODES
from decodestep.ops.mla_prolog.slots import slots_of_blocks


def gather_cache(
    cache: ArrayT, index: Integers | None = None, lengths: Integers | None = None, *, cache_mode: str = "PA_BSND"
) -> ArrayT | list[ArrayT]:
    """Reads rows of a cache in any cache mode: single rows by slot, or whole sequences.

    Args:
        cache: (blocks, block size, 1, H); in TND (T, 1, H).
        index: without lengths, slots, integers of any shape, in PA_BSND and PA_NZ only. With lengths, in the PA modes a block
            table (B, blocks), or one array with the block ids of all sequences in order; None in BSND, where sequence b is
            cache[b], and in TND, where the sequences follow each other.
        lengths: (B,) integers: rows 0 to lengths[b] - 1 of every sequence b are read. None for single rows.
        cache_mode: that of the cache.

    Returns:
        Copies in cache's kind: (*index.shape, H) without lengths, else a list of B arrays (lengths[b], H).

    Raises:
        ValueError: for a slot, block id or length outside the cache.
    """
    op = "gather_cache"
    require_choice(op, "cache_mode", cache_mode, ALL_MODES)
    a = arrays.view(op, "cache", cache)
    wanted = 3 if cache_mode == "TND" else 4
    require(
        a.ndim == wanted and a.shape[-2] == 1,
        op,
        "cache",
        "of shape (T, 1, H)" if wanted == 3 else "of shape (blocks, block size, 1, H)",
        a,
    )
    if lengths is None:
        require(cache_mode in ("PA_BSND", "PA_NZ"), op, "lengths", f"given in cache mode {cache_mode}", None)
        slots = arrays.integers(op, "index", index)
        return arrays.like(cache, _rows(op, a, slots.reshape(-1), cache_mode).reshape(*slots.shape, a.shape[3]))
    sizes = arrays.integers(op, "lengths", lengths)
    require(sizes.ndim == 1 and not (sizes < 0).any(), op, "lengths", "of shape (B,) and >= 0", sizes)
    return [arrays.like(cache, part) for part in _sequences(op, a, index, sizes, cache_mode)]


def _sequences(op: str, a: np.ndarray, index: Integers | None, sizes: np.ndarray, cache_mode: str) -> Iterable[np.ndarray]:
    ends = np.cumsum(sizes)
    if not cache_mode.startswith("PA"):
        require(index is None, op, "index", f"None in cache mode {cache_mode}", index)
        if cache_mode == "TND":
            require(_total(sizes) == len(a), op, "lengths", f"{len(a)} together", sizes.tolist())
            return (a[end - size : end, 0].copy() for end, size in zip(ends, sizes, strict=True))
        require(
            len(sizes) == len(a) and not (sizes > a.shape[1]).any(),
            op,
            "lengths",
            f"{len(a)} of at most {a.shape[1]} rows",
            sizes.tolist(),
        )
        return (a[b, :size, 0].copy() for b, size in enumerate(sizes))
    ids, block_size = arrays.integers(op, "index", index), a.shape[1]
    require(block_size > 0, op, "cache", "of a block size > 0", a)
    owned = -(-sizes // block_size)
    if ids.ndim == 2:
        require(
            len(ids) == len(sizes) and not (owned > ids.shape[1]).any(),
            op,
            "index",
            f"a block table of {len(sizes)} rows, long enough for lengths",
            ids,
        )
        ids = ids[np.arange(ids.shape[1])[None] < owned[:, None]]
    blocks = _total(owned)
    require(ids.shape == (blocks,), op, "index", f"{blocks} block ids, or a block table", ids)
    require_within(op, "index", ids, len(a), "block ids")
    rows = _rows(op, a, slots_of_blocks(ids, ends, block_size), cache_mode)
    return (rows[end - size : end] for end, size in zip(ends, sizes, strict=True))


def _total(sizes: np.ndarray) -> int:
    """The sum of int64 values, which int64 need not hold."""
    return sum(sizes.tolist())


def _rows(op: str, a: np.ndarray, slots: np.ndarray, cache_mode: str) -> np.ndarray:
    end = a.shape[0] * a.shape[1]
    require_within(op, "index", slots, end, "slots")
    nz = cache_mode.endswith("NZ")
    if nz:
        require_whole_fractals(op, "cache", a)
    if end == 0:
        return np.empty((0, a.shape[3]), a.dtype)
    rows: np.ndarray = a[row_index(slots, a, nz)]
    return rows
