"""mla_attention: absorbed attention over the paged latent cache that `mla_prolog` fills."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, overload

import numpy as np

from decodestep._base import arrays, devices
from decodestep._base.arrays import FLOAT8, Array, ArrayT, Integers, IntegerTable
from decodestep._base.checks import require
from decodestep._base.devices import choose_triton
from decodestep._base.dispatch import choose
from decodestep._base.profiling import run
from decodestep.ops.mla_attention import cpu, reference
from decodestep.ops.mla_attention.arguments import OP, Call, Problem, bind
from decodestep.weights.linear_panels import LinearPanels
from decodestep.weights.packed import PackedWeight


@overload
def mla_attention(
    query: Array | None,
    query_rope: ArrayT,
    kv_cache: Array,
    kr_cache: Array | None,
    block_table: IntegerTable,
    lengths: Integers,
    *,
    scale: float,
    sequence: Integers | None = None,
    groups: int = 1,
    cache_mode: str = "PA_BSND",
    quant_scale_ckv: Array | None = None,
    quant_scale_ckr: Array | None = None,
    dequant_scale_q_nope: Array | None = None,
    w_uv: PackedWeight | LinearPanels | None = None,
    return_lse: Literal[False] = False,
    backend: str = "auto",
) -> ArrayT: ...


@overload
def mla_attention(
    query: Array | None,
    query_rope: ArrayT,
    kv_cache: Array,
    kr_cache: Array | None,
    block_table: IntegerTable,
    lengths: Integers,
    *,
    scale: float,
    sequence: Integers | None = None,
    groups: int = 1,
    cache_mode: str = "PA_BSND",
    quant_scale_ckv: Array | None = None,
    quant_scale_ckr: Array | None = None,
    dequant_scale_q_nope: Array | None = None,
    w_uv: PackedWeight | LinearPanels | None = None,
    return_lse: Literal[True],
    backend: str = "auto",
) -> tuple[ArrayT, ArrayT]: ...


def mla_attention(
    query: Array | None,
    query_rope: ArrayT,
    kv_cache: Array,
    kr_cache: Array | None,
    block_table: IntegerTable,
    lengths: Integers,
    *,
    scale: float,
    sequence: Integers | None = None,
    groups: int = 1,
    cache_mode: str = "PA_BSND",
    quant_scale_ckv: Array | None = None,
    quant_scale_ckr: Array | None = None,
    dequant_scale_q_nope: Array | None = None,
    w_uv: PackedWeight | LinearPanels | None = None,
    return_lse: bool = False,
    backend: str = "auto",
) -> ArrayT | tuple[ArrayT, ArrayT]:
    """Attends from every token to the first `lengths[t]` entries of its sequence, in the latent space.

        kv, kr = kv_cache / quant_scale_ckv and kr_cache / quant_scale_ckr as rows, in the order of block_table[sequence[t]]
        for every token t, head n, with g = n // (N / groups) and j in [0, lengths[t]):
            score[j] = scale * (query[t, n] . kv[j] + query_rope[t, n] . kr[j])
            out[t, n] = sum over j of softmax(score)[j] * kv[j, g * Hckv / groups : (g + 1) * Hckv / groups]
            lse[t, n] = log(sum over j of exp(score[j]))
            with w_uv: out[t, n] = out[t, n] @ w_uv[:, n * Dv : (n + 1) * Dv]

    Args:
        query: (T, N, Hckv), N and Hckv > 0; or None where the heads have no part without rotary embedding: its scores are then
            zero.
        query_rope: (T, N, Dr), Dr even. float32, float64 or bfloat16, and query of the same dtype.
        kv_cache: (BlockNum, BlockSize, 1, Hckv), latents; float32, float64, float16, bfloat16, int8 or float8_e4m3fn. Or, with
            kr_cache None, both as `mla_prolog_v3` writes them by tiles: (BlockNum, BlockSize, 1, Hckv + 2 * Dr + Hckv / 32),
            int8 or float8_e4m3fn, 656 bytes a row for 512 and 64: the quantised latent, the rope key in bfloat16, and a float32
            for each 128 of the latent, by which they are multiplied. Only with one group, in PA_BSND.
        kr_cache: (BlockNum, BlockSize, 1, Dr), the shared keys after their rope, of any of the dtypes of latents but float8; or
            None, or a cache without elements, beside rows that hold them.
        block_table: (B, M) integers: the blocks of each sequence in order. Entries after a sequence's length are not read.
        lengths: (T,) integers in [0, M * BlockSize]: the number of entries that a token attends to. In a causal prefill, its
            position + 1. With 0 a token pads the batch: its queries, and what it names, are not read.
        scale: factor of the scores, finite; 1 / sqrt(D + Dr) in DeepSeek, 1 / sqrt(d) in a converted model with heads of d.
        sequence: (T,) integers in [0, B): the row of block_table of each token; None for token t in row t.
        groups: G >= 1, of which N, Hckv and Dr / 2 are multiples. With more than one, the latent is G blocks of which a head
            reads its own, and query_rope[t, n] is zero but for pairs [g * Dr / 2G, (g + 1) * Dr / 2G) of each half: the form of
            a grouped-query model converted exactly. The zeros are not read.
        cache_mode: "PA_BSND", rows in their order, or "PA_NZ", each block of both caches in the order of `cache_to_nz`: the
            mode in which `mla_prolog` filled them. An array cannot tell: its shape and dtype are the same, and what is read in
            the other mode are other numbers. In PA_NZ Hckv and Dr are multiples of c0 = 32 / (bytes of a value of the cache).
        quant_scale_ckv: float32, one number or one for each of Hckv: what the values of an int8 or float8 kv_cache were
            multiplied by when they were stored, as `mla_prolog` does with the argument of this name. None without.
        quant_scale_ckr: the same of kr_cache, one number or one for each of Dr.
        dequant_scale_q_nope: float32 (T, N, 1), as `mla_prolog_v2` returns it with int8 tokens and an int8 kv_cache. query is
            then of kv_cache's dtype and query_rope already divided: they stand for query * dequant_scale_q_nope and
            query_rope * dequant_scale_q_nope / quant_scale_ckv, where quant_scale_ckv is one number.
        w_uv: (Hckv / groups, N * Dv), the value up-projection, as a GGUF file has attn_v_b: a `PackedWeight`, or a
            `LinearPanels` with Dv a multiple of 32, by which a product also quantises what it reads, as in `linear`. None
            without.
        return_lse: whether to return lse too, by which results over parts of the keys can be joined.
        backend: "auto", "cpu", "triton" or "reference"; "cpu" serves everything but float64 and caches that are not aligned or
            not in C order inside a block. "triton" takes tensors on a GPU, and serves everything but float64, w_uv and a
            float8 cache with quant_scale_ckv; block_table, lengths and sequence may be on the host.

    Returns:
        out, (T, N, Hckv / groups), or (T, N, Dv) with w_uv, in query_rope's dtype and kind; with return_lse (out, lse), lse
        (T, N), float32, or float64 with float64 queries. A token of length 0 has zeros and -inf.

    Raises:
        ValueError: for a dtype, shape, length, sequence or block outside the rules.

    Notes:
        Everything is float32 inside, float64 with float64 queries; bfloat16 results are rounded once, half to even.
        Except with "reference", a token's bits depend neither on the other tokens of the call nor on the thread count. NaN
        spreads to its token and head alone.

    Source:
        DeepSeek-V2 (2024), section 2.1, with W_UK absorbed into the query; the scales are those of Ascend MlaProlog (CANN
        ops-transformer, November 2025).
    """
    scales = quant_scale_ckv, quant_scale_ckr, dequant_scale_q_nope
    caches = kv_cache, kr_cache
    call = Call(query, query_rope, *caches, block_table, lengths, scale, sequence, groups, cache_mode, *scales, w_uv)
    require(isinstance(return_lse, bool), OP, "return_lse", "a bool", return_lse)
    if devices.goes_to_triton(backend, query_rope):
        made, lse = _on_device(call, backend)
        return (made, lse) if return_lse else made
    problem = bind(call)
    backend = choose(OP, backend, {"cpu": cpu.obstacle(problem), "reference": None})
    out, lse = run(OP, backend, _on_host, problem.in_floats(), (cpu if backend == "cpu" else reference).attention)
    made = arrays.like(query_rope, out.astype(problem.query_rope.dtype, copy=False))
    return (made, arrays.like(query_rope, lse)) if return_lse else made


def _on_host(p: Problem, attention: Callable[[Problem], tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """With zeros and -inf for the tokens that attend to nothing, which `attention` does not get."""
    seen = p.seen
    if seen.all():
        return attention(p)
    made, its_lse = attention(p.part(seen))
    out, lse = (
        np.zeros((len(seen), *made.shape[1:]), made.dtype),
        np.full((len(seen), its_lse.shape[1]), -np.inf, its_lse.dtype),
    )
    out[seen], lse[seen] = made, its_lse
    return out, lse


_INDEXES = ("block_table", "lengths", "sequence")  # whose values are checked, and so read on the host


def _on_device(call: Call, backend: str) -> Any:
    rope = call.query_rope
    choose_triton(OP, backend, rope, None if call.w_uv is None else "has no value up-projection: its weights are on the host")
    from decodestep.ops.mla_attention import triton

    tensors = [name for name in Call._fields if name not in (*_INDEXES, "scale", "groups", "cache_mode", "w_uv")]
    bound: dict[str, Any] = {name: devices.optional_outline(OP, name, getattr(call, name), rope.device) for name in tensors}
    bound |= {name: devices.to_host(getattr(call, name)) for name in _INDEXES}
    problem = bind(call._replace(**bound), outlined=True)
    of_one_scale = problem.joined is None and problem.kv_cache.rows.dtype == FLOAT8
    why = "has no float8 cache of one scale" if of_one_scale else "has no float64" if problem.has_float64 else None
    choose_triton(OP, "triton", rope, why)
    out, lse = devices.run_there(OP, rope.device, triton.attention, problem, call)
    return out.to(rope.dtype), lse
