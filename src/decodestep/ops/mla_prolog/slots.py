"""cache_index in each cache mode, checked and turned into one slot for each token."""

from __future__ import annotations

import numpy as np

from decodestep._base.arrays import Array, view
from decodestep._base.checks import refuse, require
from decodestep.ops.mla_prolog.cache_layouts import slots_of_blocks

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
    """(tokens,) int64: block * block_size + row, negative for a token that is not cached."""
    by_block = cache_mode.startswith("PA_BLK")
    if actual_seq_len is not None and not (by_block and len(axes) == 1):
        refuse(op, "actual_seq_len", "None but for merged tokens with blocks of a sequence", actual_seq_len)
    if not cache_mode.startswith("PA"):
        if index is not None:
            refuse(op, "cache_index", f"None in cache mode {cache_mode}", index)
        return np.arange(tokens)
    ids = view(op, "cache_index", index)
    ends = None
    shape = axes
    if by_block:
        if len(axes) == 2:
            ends = np.arange(1, axes[0] + 1) * axes[1]
            shape = (axes[0], -(-axes[1] // block_size))
        else:
            ends = _ends(op, actual_seq_len, tokens)
            shape = (int((-(-np.diff(ends, prepend=0) // block_size)).sum()),)
    if ids.dtype != _INT64 or ids.shape != shape:
        refuse(op, "cache_index", f"int64 of shape {'x'.join(map(str, shape))}", ids)
    limit = blocks if by_block else blocks * block_size
    # Without a cache or tokens nothing is written, so the ids are not checked.
    if limit == 0 or tokens == 0:
        return np.full(tokens, -1)
    highest = max(ids.ravel().tolist()) if tokens <= 32 else int(ids.max())  # a few in Python cost less than one NumPy call
    if highest >= limit:
        refuse(op, "cache_index", f"below {limit}, the number of cache {'blocks' if by_block else 'rows'}", str(highest))
    return ids.reshape(-1) if ends is None else slots_of_blocks(ids.reshape(-1), ends, block_size)


def _ends(op: str, actual_seq_len: Array | None, tokens: int) -> np.ndarray:
    if actual_seq_len is None:
        refuse(op, "actual_seq_len", "given for merged tokens with blocks of a sequence", "None")
    given = view(op, "actual_seq_len", actual_seq_len)
    require(given.dtype == np.int32 and given.ndim == 1, op, "actual_seq_len", "int32 of shape (B,)", given)
    ends = given.astype(np.int64)
    require(
        bool((np.diff(ends, prepend=0) >= 0).all()) and (ends[-1] if ends.size else 0) == tokens,
        op,
        "actual_seq_len",
        f"non-decreasing from 0 on and end with T = {tokens}",
        str(ends.tolist()),
    )
    return ends
