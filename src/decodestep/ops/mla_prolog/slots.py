"""Slots: block * block size + row, the number of a row in a paged cache; a negative one names none."""

from __future__ import annotations

from typing import Any

import numpy as np

from decodestep._base import arrays
from decodestep._base.arrays import Array, Integers, IntegerTable, view
from decodestep._base.checks import is_int, refuse, require, require_within, shape_text

_INT64 = np.dtype(np.int64)


def token_slots(
    op: str,
    cache_mode: str,
    index: Array | None,
    actual_seq_len: Array | None,
    axes: tuple[int, ...],
    tokens: int,
    blocks: int,
    block_size: int,
) -> np.ndarray:
    """(tokens,) int64: cache_index in any cache mode, checked, as one slot for each token."""
    by_block = cache_mode.startswith("PA_BLK")
    if actual_seq_len is not None and not (by_block and len(axes) == 1):
        refuse(op, "actual_seq_len", "None but for merged tokens with blocks of a sequence", actual_seq_len)
    if not cache_mode.startswith("PA"):
        if index is not None:
            refuse(op, "cache_index", f"None in cache mode {cache_mode}", index)
        return np.arange(tokens)
    ids = view(op, "cache_index", index)
    ends, shape = None, axes
    if by_block and len(axes) == 2:
        ends, shape = np.arange(1, axes[0] + 1) * axes[1], (axes[0], -(-axes[1] // block_size))
    elif by_block:
        ends = _ends(op, actual_seq_len, tokens)
        shape = (int((-(-np.diff(ends, prepend=0) // block_size)).sum()),)
    if ids.dtype != _INT64 or ids.shape != shape:
        refuse(op, "cache_index", f"int64 of shape {shape_text(shape)}", ids)
    limit = blocks if by_block else blocks * block_size
    # Without a cache or tokens nothing is written, so the ids are not checked.
    if limit == 0 or tokens == 0:
        return np.full(tokens, -1)
    highest = max(ids.ravel().tolist()) if tokens <= 32 else int(ids.max())  # a few in Python cost less than one NumPy call
    if highest >= limit:
        refuse(op, "cache_index", f"below {limit}, the number of cache {'blocks' if by_block else 'rows'}", highest)
    return ids.reshape(-1) if ends is None else slots_of_blocks(ids.reshape(-1), ends, block_size)


def _ends(op: str, actual_seq_len: Array | None, tokens: int) -> np.ndarray:
    if actual_seq_len is None:
        refuse(op, "actual_seq_len", "given for merged tokens with blocks of a sequence", None)
    given = view(op, "actual_seq_len", actual_seq_len)
    require(given.dtype == np.int32 and given.ndim == 1, op, "actual_seq_len", "int32 of shape (B,)", given)
    ends = given.astype(np.int64)
    require(
        bool((np.diff(ends, prepend=0) >= 0).all()) and (ends[-1] if ends.size else 0) == tokens,
        op,
        "actual_seq_len",
        f"non-decreasing from 0 on and end with T = {tokens}",
        ends.tolist(),
    )
    return ends


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
    block_table: IntegerTable, positions: Integers, block_size: int, *, sequence: Integers | None = None
) -> Any:
    """The `cache_index` of tokens from their positions in their sequences and the sequences' blocks.

        slot = block_table[b, position // block_size] * block_size + position % block_size

    Args:
        block_table: (B, blocks) integers, the blocks of each sequence in order.
        positions: integers, (B,) or (B, S) for row b of the table; with `sequence`, (T,) integers, for row sequence[t].
        block_size: the rows of a block, an integer >= 1.
        sequence: (T,) integers in [0, B), or None.

    Returns:
        int64 of positions' shape, in block_table's kind; -1 where the position or the block id is negative.

    Raises:
        ValueError: for a position outside the table's blocks.
    """
    op = "slots_from_block_table"
    table, at = arrays.integers(op, "block_table", block_table), arrays.integers(op, "positions", positions)
    require(table.ndim == 2, op, "block_table", "of shape (B, blocks)", table)
    rule = "an integer in [1, 2^63), such that the slots of the last block are below 2^63"
    last = int(table.max(initial=0))
    ok = is_int(block_size) and 0 < block_size < 2**63 and (last + 1) * int(block_size) <= 2**63
    require(ok, op, "block_size", rule, block_size)
    if sequence is None:
        require(
            at.ndim in (1, 2) and len(at) == len(table), op, "positions", f"of shape ({len(table)},) or ({len(table)}, S)", at
        )
        row = np.broadcast_to(np.arange(len(table)).reshape(-1, *(1,) * (at.ndim - 1)), at.shape)
    else:
        row = arrays.integers(op, "sequence", sequence)
        require(row.shape == at.shape, op, "sequence", "of positions' shape", row)
        require_within(op, "sequence", row, len(table))
    rows = table.shape[1] * block_size
    highest = int(at.max(initial=-1))
    require(highest < rows, op, "positions", f"below {rows}, the rows of a sequence's blocks", highest)
    slots = np.full(at.shape, -1, np.int64)
    known = at >= 0
    block = table[row[known], at[known] // block_size]
    slots[known] = np.where(block < 0, -1, block * block_size + at[known] % block_size)
    return arrays.like(block_table, slots)
