"""Layouts of paged caches: cache modes, slots, block tables, and reading rows back.

A cache is (blocks, block size, 1, H). A slot, block * block size + row, names one of its rows. In the modes with NZ each
block is stored as NZ stores a weight (weights/nz.py) whose rows are the block's rows and whose columns are H: value h of row
r is element (h // c0) * block size * c0 + r * c0 + h % c0 of the block. Its shape stays (block size, 1, H).

Source: the cache modes of MlaProlog V1 to V3 (CANN ops-transformer).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from decodestep._base import arrays
from decodestep._base.arrays import Array, ArrayT, Integers
from decodestep._base.checks import is_int, refuse, require, require_choice
from decodestep.ops.mla_prolog.size_limits import ALL_MODES
from decodestep.weights.nz import fractal_width


def _paged(op: str, cache: Array) -> np.ndarray:
    a = arrays.view(op, "cache", cache)
    require(a.ndim == 4 and a.shape[2] == 1, op, "cache", "of shape (blocks, block size, 1, H)", a)
    require(
        a.shape[3] % fractal_width(a.itemsize) == 0,
        op,
        "cache",
        f"of a width that is a multiple of {fractal_width(a.itemsize)}",
        a,
    )
    return a


def cache_to_nz(cache: ArrayT) -> ArrayT:
    """Copies a PA_BSND cache into the order of PA_NZ.

        block.reshape(-1)[(h // c0) * block size * c0 + r * c0 + h % c0] = row r's value h       for each block

    cache: (blocks, block size, 1, H), H a multiple of c0 = 32 / (bytes of a value).
    Returns an array of the same shape, dtype and kind. Raises ValueError for another shape or width.
    """
    a = _paged("cache_to_nz", cache)
    n, rows, _, width = a.shape
    c0 = fractal_width(a.itemsize)
    nz = a.reshape(n, rows, width // c0, c0).transpose(0, 2, 1, 3)
    return arrays.like(cache, np.array(nz, order="C").reshape(a.shape))


def cache_from_nz(cache: ArrayT) -> ArrayT:
    """Copies a PA_NZ cache into the order of PA_BSND, rows one after the other: the inverse of `cache_to_nz`.

    cache: (blocks, block size, 1, H), H a multiple of c0 = 32 / (bytes of a value).
    Returns an array of the same shape, dtype and kind. Raises ValueError for another shape or width.
    """
    a = _paged("cache_from_nz", cache)
    n, rows, _, width = a.shape
    c0 = fractal_width(a.itemsize)
    nd = a.reshape(n, width // c0, rows, c0).transpose(0, 2, 1, 3)
    return arrays.like(cache, np.array(nd, order="C").reshape(a.shape))


def row_index(slots: np.ndarray, cache: np.ndarray, nz: bool) -> tuple[np.ndarray, ...]:
    """The index with which cache[index] is the rows `slots`, (len(slots), H), of a paged cache of any strides."""
    _, block_size, _, width = cache.shape
    block, offset = np.divmod(slots, block_size)
    if not nz:
        return block, offset, np.zeros_like(offset)
    h, c0 = np.arange(width), fractal_width(cache.itemsize)
    inside = (h // c0) * (block_size * c0) + offset[:, None] * c0 + h % c0
    return block[:, None], inside // width, np.zeros_like(inside), inside % width


def slots_of_blocks(ids: np.ndarray, ends: np.ndarray, block_size: int) -> np.ndarray:
    """The slot of each token of merged sequences, which end at tokens `ends`.

    Each sequence owns the next ceil(length / block_size) of the block ids and starts at row 0 of its first block. A token in
    a block with a negative id has slot -1.
    """
    lengths = np.diff(ends, prepend=0)
    owned = -(-lengths // block_size)
    sequence = np.repeat(np.arange(len(ends)), lengths)
    t = np.arange(len(sequence)) - (ends - lengths)[sequence]
    block = ids[(np.cumsum(owned) - owned)[sequence] + t // block_size]
    return np.where(block < 0, -1, block * block_size + t % block_size)


def slots_from_block_table(
    block_table: Integers, positions: Integers, block_size: int, *, sequence: Integers | None = None
) -> Any:
    """The `cache_index` of tokens from their positions in their sequences and the sequences' blocks.

        slot = block_table[b, position // block_size] * block_size + position % block_size

    block_table: (B, blocks) integers, the blocks of each sequence in order.
    positions: integers, (B,) or (B, S) for row b of the table; with `sequence`, (T,) integers, for row sequence[t].
    Returns int64 of positions' shape, in block_table's kind; -1 where the position or the block id is negative.
    Raises ValueError for a position outside the table's blocks.
    """
    op = "slots_from_block_table"
    table, at = arrays.integers(op, "block_table", block_table), arrays.integers(op, "positions", positions)
    require(table.ndim == 2, op, "block_table", "of shape (B, blocks)", table)
    require(is_int(block_size) and block_size > 0, op, "block_size", "an integer > 0", repr(block_size))
    if sequence is None:
        require(
            at.ndim in (1, 2) and len(at) == len(table), op, "positions", f"of shape ({len(table)},) or ({len(table)}, S)", at
        )
        row = np.broadcast_to(np.arange(len(table)).reshape(-1, *(1,) * (at.ndim - 1)), at.shape)
    else:
        row = arrays.integers(op, "sequence", sequence)
        require(row.shape == at.shape, op, "sequence", "of positions' shape", row)
        require(not row.size or (row.min() >= 0 and row.max() < len(table)), op, "sequence", f"in [0, {len(table)})", row)
    rows = table.shape[1] * block_size
    require(not at.size or at.max() < rows, op, "positions", f"below {rows}, the rows of a sequence's blocks", at)
    slots = np.full(at.shape, -1, np.int64)
    known = at >= 0
    block = table[row[known], at[known] // block_size]
    slots[known] = np.where(block < 0, -1, block * block_size + at[known] % block_size)
    return arrays.like(block_table, slots)


def gather_cache(
    cache: ArrayT, index: Integers | None = None, lengths: Integers | None = None, *, cache_mode: str = "PA_BSND"
) -> ArrayT | list[ArrayT]:
    """Reads rows of a cache in any cache mode: single rows by slot, or whole sequences.

    cache: (blocks, block size, 1, H); in TND (T, 1, H).
    index, lengths: without lengths, index holds slots, integers of any shape, in PA_BSND and PA_NZ only.
        With lengths, (B,) integers, rows 0 to lengths[b] - 1 of every sequence b are read. In the PA modes index is then a
        block table (B, blocks), or one array with the block ids of all sequences in order. It is None in BSND, where
        sequence b is cache[b], and in TND, where the sequences follow each other.
    Returns copies in cache's kind: (*index.shape, H) without lengths, else a list of B arrays (lengths[b], H).
    Raises ValueError for a slot, block id or length outside the cache.
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
        require(cache_mode in ("PA_BSND", "PA_NZ"), op, "lengths", f"given in cache mode {cache_mode}", "None")
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
            require(int(sizes.sum()) == len(a), op, "lengths", f"{len(a)} together", str(sizes.tolist()))
            return (a[end - size : end, 0].copy() for end, size in zip(ends, sizes, strict=True))
        require(
            len(sizes) == len(a) and not (sizes > a.shape[1]).any(),
            op,
            "lengths",
            f"{len(a)} of at most {a.shape[1]} rows",
            str(sizes.tolist()),
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
    require(ids.shape == (int(owned.sum()),), op, "index", f"{int(owned.sum())} block ids, or a block table", ids)
    if ids.size and not (ids.min() >= 0 and ids.max() < len(a)):
        refuse(op, "index", f"block ids in [0, {len(a)})", f"{ids.min()} to {ids.max()}")
    rows = _rows(op, a, slots_of_blocks(ids, ends, block_size), cache_mode)
    return (rows[end - size : end] for end, size in zip(ends, sizes, strict=True))


def _rows(op: str, a: np.ndarray, slots: np.ndarray, cache_mode: str) -> np.ndarray:
    end = a.shape[0] * a.shape[1]
    if slots.size and not (slots.min() >= 0 and slots.max() < end):
        refuse(op, "index", f"slots in [0, {end})", f"{slots.min()} to {slots.max()}")
    nz = cache_mode.endswith("NZ")
    c0 = fractal_width(a.itemsize)
    require(not nz or a.shape[3] % c0 == 0, op, "cache", f"of a width that is a multiple of {c0}", a)
    if end == 0:
        return np.empty((0, a.shape[3]), a.dtype)
    rows: np.ndarray = a[row_index(slots, a, nz)]
    return rows
