"""The call into the native core."""

from __future__ import annotations

import numpy as np

from decodestep import _native
from decodestep._base.arrays import bits, contiguous
from decodestep._base.threads import threads
from decodestep.ops.lightning_indexer.arguments import Problem
from decodestep.ops.mla_attention.cpu import packed_blocks

_GROUP = 4  # bytes that are multiplied at once


def obstacle(p: Problem) -> str | None:
    """Why the native kernel cannot serve a call, or None."""
    given = p.arrays
    if p.has_float64:
        return "has no float64"
    if p.rounding is not None:
        return "has no roundings of devices"
    if p.in_bytes and given.keys.shape[3] % _GROUP:
        return "needs int8 keys of a width that is a multiple of 4"
    if not (given.keys.flags.aligned and packed_blocks(given.keys)):
        return "needs aligned keys whose values lie in C order inside a block"
    return None


def select(p: Problem) -> tuple[np.ndarray, np.ndarray | None]:
    """The selected positions (T, count), and their scores if those are asked for."""
    query, keys, weights, query_scale, key_scale = p.arrays
    tokens = len(p.sequence)
    weights = weights.astype(np.float32, copy=False)
    if query_scale is not None:
        with np.errstate(all="ignore"):  # infinities and NaN propagate as in IEEE arithmetic
            weights = weights * query_scale.astype(np.float32, copy=False)
    selected = np.empty((tokens, p.most), np.int32)
    values = np.empty((tokens, p.most), np.float32) if p.with_values else None
    _native.lightning_indexer(
        query=contiguous(query if p.in_bytes else query.astype(np.float32, copy=False)),
        weights=contiguous(weights),
        keys=bits(keys),
        key_scales=None if key_scale is None else contiguous(key_scale.astype(np.float32, copy=False)),
        block_table=contiguous(p.table),
        sequence=contiguous(p.sequence),
        visible=contiguous(p.visible),
        ordered=p.ordered,
        selected=selected,
        values=values,
        threads=threads(),
    )
    return selected, values
