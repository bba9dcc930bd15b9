"""mla_attention: absorbed attention over the paged latent cache that `mla_prolog` fills."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from decodestep import arrays
from decodestep.checks import is_int, is_real, refuse, require, require_dtype, require_shape
from decodestep.dispatch import choose, run
from decodestep.ops.mla_attention import cpu, reference

_OP = "mla_attention"


def mla_attention(
    query: Any,
    query_rope: Any,
    kv_cache: Any,
    kr_cache: Any,
    block_table: Any,
    lengths: Any,
    *,
    scale: float,
    sequence: Any = None,
    groups: int = 1,
    backend: str = "auto",
) -> Any:
    """Attends from every token to the first `lengths[t]` entries of its sequence, in the latent space.

        kv, kr = kv_cache and kr_cache as rows, in the order of block_table[sequence[t]]
        for every token t, head n, with g = n // (N / groups) and j in [0, lengths[t]):
            score[j] = scale * (query[t, n] . kv[j] + query_rope[t, n] . kr[j])
            out[t, n] = sum over j of softmax(score)[j] * kv[j, g * Hckv / groups : (g + 1) * Hckv / groups]

    query: (T, N, Hckv), or None where the heads have no part without rotary embedding: its scores are then zero.
    query_rope: (T, N, Dr). float32 or float64, as are query and both caches, all of one dtype.
    kv_cache: (BlockNum, BlockSize, 1, Hckv), latents. kr_cache: (BlockNum, BlockSize, 1, Dr), rotated shared keys.
    block_table: (B, M) integers: the blocks of each sequence in order. Entries behind a sequence's length are not read.
    lengths: (T,) integers in [1, M * BlockSize]: how many entries a token sees. In a causal prefill, its position + 1.
    scale: factor of the scores, finite; 1 / sqrt(D + Dr) in DeepSeek, 1 / sqrt(d) in a converted model with heads of d.
    sequence: (T,) integers in [0, B): the row of block_table of each token; None for token t in row t.
    groups: G >= 1, of which N, Hckv and Dr / 2 are multiples. With more than one, the latent is G blocks of which a head
        reads its own, and query_rope[t, n] is zero but for pairs [g * Dr / 2G, (g + 1) * Dr / 2G) of each half: the form of
        a grouped-query model converted exactly. The zeros are not read.
    backend: "auto", "cpu" or "reference"; "cpu" serves float32.

    Returns out, (T, N, Hckv / groups), in query_rope's dtype and kind.
    Raises ValueError for a dtype, shape, length, sequence or block outside the rules.

    Notes: a token's bits depend neither on the other tokens of the call nor on the thread count. NaN spreads to its token and
    head alone. Source: DeepSeek-V2 (2024), section 2.1, with W_UK absorbed into the query.
    """
    q = arrays.optional_view(_OP, "query", query)
    rope = arrays.view(_OP, "query_rope", query_rope)
    kv, kr = arrays.view(_OP, "kv_cache", kv_cache), arrays.view(_OP, "kr_cache", kr_cache)
    require_dtype(_OP, "query_rope", rope, (np.float32, np.float64))
    require(rope.ndim == 3, _OP, "query_rope", "of shape (T, N, Dr)", rope)
    require(kv.ndim == 4 and kv.shape[2] == 1, _OP, "kv_cache", "of shape (BlockNum, BlockSize, 1, Hckv)", kv)
    tokens, heads, width = rope.shape
    require_shape(_OP, "kr_cache", kr, (*kv.shape[:2], 1, width))
    for name, array in (("query", q), ("kv_cache", kv), ("kr_cache", kr)):
        require(array is None or array.dtype == rope.dtype, _OP, name, f"of query_rope's dtype {rope.dtype}", array)
    if q is not None:
        require_shape(_OP, "query", q, (tokens, heads, kv.shape[3]))
    require(is_real(scale) and math.isfinite(scale), _OP, "scale", "a finite number", scale)
    require(
        is_int(groups) and groups >= 1 and not (heads % groups or kv.shape[3] % groups or width % (2 * groups)),
        _OP,
        "groups",
        f"a divisor of N {heads}, Hckv {kv.shape[3]} and Dr / 2 = {width / 2:g}",
        groups,
    )
    table, rows, seen = _paging(block_table, sequence, lengths, tokens, kv.shape)
    backend = choose(_OP, backend, {"cpu": cpu.obstacle(kv, kr), "reference": None})
    attend = (cpu if backend == "cpu" else reference).attention
    out = run(_OP, backend, attend, q, rope, kv, kr, table, rows, seen, float(scale), int(groups))
    return arrays.like(query_rope, out)


def _paging(
    block_table: Any, sequence: Any, lengths: Any, tokens: int, cache: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    table = _integers("block_table", block_table, 2)
    rows = np.arange(tokens) if sequence is None else _integers("sequence", sequence, 1)
    seen = _integers("lengths", lengths, 1)
    require_shape(_OP, "lengths", seen, (tokens,))
    require_shape(_OP, "sequence", rows, (tokens,))
    if tokens == 0:
        return table, rows, seen
    room = table.shape[1] * cache[1]
    require(
        rows.min() >= 0 and rows.max() < table.shape[0],
        _OP,
        "sequence",
        f"in [0, {table.shape[0]})",
        f"{rows.min()} to {rows.max()}",
    )
    require(seen.min() >= 1 and seen.max() <= room, _OP, "lengths", f"in [1, {room}]", f"{seen.min()} to {seen.max()}")
    longest = np.zeros(table.shape[0], np.int64)
    np.maximum.at(longest, rows, seen)
    read = np.arange(table.shape[1]) * cache[1] < longest[:, None]
    if ((table < 0) | (table >= cache[0]))[read].any():
        refuse(_OP, "block_table", f"in [0, {cache[0]}) where it is read", table)
    return table, rows, seen


def _integers(name: str, value: Any, rank: int) -> np.ndarray:
    array = arrays.as_array(_OP, name, value)
    require(array.ndim == rank and (array.dtype.kind in "iu" or array.size == 0), _OP, name, f"integers of rank {rank}", array)
    return np.ascontiguousarray(array, np.int64)
