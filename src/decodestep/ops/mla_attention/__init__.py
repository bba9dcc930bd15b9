"""mla_attention: absorbed attention over the paged latent cache that `mla_prolog` fills."""

from __future__ import annotations

from typing import Any

import numpy as np

from decodestep._base import arrays, devices
from decodestep._base.arrays import BFLOAT16, Array, ArrayT, Integers
from decodestep._base.checks import is_finite, is_int, refuse, require, require_dtype, require_shape
from decodestep._base.devices import choose_triton
from decodestep._base.dispatch import choose
from decodestep._base.profiling import run
from decodestep.ops.mla_attention import cpu, reference
from decodestep.ops.mla_attention.arguments import OP, Cache, cache, check_value_up, paging
from decodestep.weights.linear_panels import LinearPanels
from decodestep.weights.packed import PackedWeight


def mla_attention(
    query: Array | None,
    query_rope: ArrayT,
    kv_cache: Array,
    kr_cache: Array,
    block_table: Integers,
    lengths: Integers,
    *,
    scale: float,
    sequence: Integers | None = None,
    groups: int = 1,
    quant_scale_ckv: Array | None = None,
    quant_scale_ckr: Array | None = None,
    dequant_scale_q_nope: Array | None = None,
    w_uv: PackedWeight | LinearPanels | None = None,
    backend: str = "auto",
) -> ArrayT:
    """Attends from every token to the first `lengths[t]` entries of its sequence, in the latent space.

        kv, kr = kv_cache / quant_scale_ckv and kr_cache / quant_scale_ckr as rows, in the order of block_table[sequence[t]]
        for every token t, head n, with g = n // (N / groups) and j in [0, lengths[t]):
            score[j] = scale * (query[t, n] . kv[j] + query_rope[t, n] . kr[j])
            out[t, n] = sum over j of softmax(score)[j] * kv[j, g * Hckv / groups : (g + 1) * Hckv / groups]
            with w_uv: out[t, n] = out[t, n] @ w_uv[:, n * Dv : (n + 1) * Dv]

    query: (T, N, Hckv), N and Hckv > 0; or None where the heads have no part without rotary embedding: its scores are then
        zero.
    query_rope: (T, N, Dr). float32, float64 or bfloat16, and query of the same dtype.
    kv_cache: (BlockNum, BlockSize, 1, Hckv), latents. kr_cache: (BlockNum, BlockSize, 1, Dr), rotated shared keys. Each
        float32, float64, float16, bfloat16 or int8.
    block_table: (B, M) integers: the blocks of each sequence in order. Entries after a sequence's length are not read.
    lengths: (T,) integers in [1, M * BlockSize]: the number of entries that a token attends to. In a causal prefill, its
        position + 1.
    scale: factor of the scores, finite; 1 / sqrt(D + Dr) in DeepSeek, 1 / sqrt(d) in a converted model with heads of d.
    sequence: (T,) integers in [0, B): the row of block_table of each token; None for token t in row t.
    groups: G >= 1, of which N, Hckv and Dr / 2 are multiples. With more than one, the latent is G blocks of which a head
        reads its own, and query_rope[t, n] is zero but for pairs [g * Dr / 2G, (g + 1) * Dr / 2G) of each half: the form of
        a grouped-query model converted exactly. The zeros are not read.
    quant_scale_ckv, quant_scale_ckr: float32, one number or one for each of Hckv and of Dr: what the values of an int8
        cache were multiplied by when they were stored, as `mla_prolog` does with arguments of these names. None without.
    dequant_scale_q_nope: float32 (T, N, 1), as `mla_prolog_v2` returns it with int8 tokens and an int8 kv_cache. query is
        then int8 and query_rope already divided: they stand for query * dequant_scale_q_nope and
        query_rope * dequant_scale_q_nope / quant_scale_ckv, where quant_scale_ckv is one number.
    w_uv: (Hckv / groups, N * Dv), the value up-projection, as a GGUF file has attn_v_b: a `PackedWeight`, or a `LinearPanels`
        with Dv a multiple of 32, by which a product also quantises what it reads, as in `linear`. None without.
    backend: "auto", "cpu", "triton" or "reference"; "cpu" serves everything but float64. "triton" takes tensors on a GPU, and
        serves everything but float64 and w_uv; block_table, lengths and sequence may be on the host.

    Returns out, (T, N, Hckv / groups), or (T, N, Dv) with w_uv, in query_rope's dtype and kind.
    Raises ValueError for a dtype, shape, length, sequence or block outside the rules.

    Notes: everything is float32 inside, float64 with float64 queries; bfloat16 results are rounded once, half to even. A
    token's bits depend neither on the other tokens of the call nor on the thread count. NaN spreads to its token and head
    alone. Source: DeepSeek-V2 (2024), section 2.1, with W_UK absorbed into the query; the scales are those of Ascend
    MlaProlog (CANN ops-transformer, November 2025).
    """
    if devices.goes_to_triton(backend, query_rope):
        return _on_device(**locals())
    q = arrays.optional_view(OP, "query", query)
    rope = arrays.view(OP, "query_rope", query_rope)
    kv = cache("kv_cache", kv_cache, "quant_scale_ckv", quant_scale_ckv)
    kr = cache("kr_cache", kr_cache, "quant_scale_ckr", quant_scale_ckr)
    real = rope.dtype
    paged = _checked(q, rope, kv, kr, block_table, lengths, scale, sequence, groups, dequant_scale_q_nope is not None)
    math_type = np.float64 if real == np.float64 else np.float32
    rope = rope.astype(math_type, copy=False)
    if dequant_scale_q_nope is not None:
        q, rope = _dequantised(q, rope, dequant_scale_q_nope, quant_scale_ckv)
    elif q is not None:
        q = q.astype(math_type, copy=False)
    if w_uv is not None:
        check_value_up(w_uv, rope.shape[1], kv.rows.shape[3] // groups)
    backend = choose(OP, backend, {"cpu": cpu.obstacle(rope, kv, kr), "reference": None})
    attend = (cpu if backend == "cpu" else reference).attention
    out = run(OP, backend, attend, q, rope, kv, kr, *paged, float(scale), int(groups), w_uv)
    return arrays.like(query_rope, out.astype(real, copy=False))


def _checked(
    q: np.ndarray | None,
    rope: np.ndarray,
    kv: Cache,
    kr: Cache,
    block_table: Integers,
    lengths: Integers,
    scale: float,
    sequence: Integers | None,
    groups: int,
    dequantised: bool,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What `paging` returns, once everything else has been checked too."""
    require_dtype(OP, "query_rope", rope, (np.float32, np.float64, BFLOAT16))
    require(rope.ndim == 3 and rope.shape[1] > 0, OP, "query_rope", "of shape (T, N, Dr), N > 0", rope)
    tokens, heads, width = rope.shape
    blocks, block_size, _, latent = kv.rows.shape
    require(latent > 0, OP, "kv_cache", "of a width Hckv > 0", kv.rows)
    require_shape(OP, "kr_cache", kr.rows, (blocks, block_size, 1, width))
    if q is not None:
        require_dtype(OP, "query", q, (np.dtype(np.int8) if dequantised else rope.dtype,))
        require_shape(OP, "query", q, (tokens, heads, latent))
    require(is_finite(scale), OP, "scale", "a finite number", scale)
    require(
        is_int(groups) and groups >= 1 and not (heads % groups or latent % groups or width % (2 * groups)),
        OP,
        "groups",
        f"a divisor of N {heads}, Hckv {latent} and Dr / 2 = {width / 2:g}",
        groups,
    )
    return paging(block_table, sequence, lengths, tokens, blocks, block_size)


def _on_device(
    query: Any,
    query_rope: Any,
    kv_cache: Any,
    kr_cache: Any,
    block_table: Any,
    lengths: Any,
    scale: float,
    sequence: Any,
    groups: int,
    quant_scale_ckv: Any,
    quant_scale_ckr: Any,
    dequant_scale_q_nope: Any,
    w_uv: Any,
    backend: str,
) -> Any:
    choose_triton(OP, backend, query_rope, None if w_uv is None else "has no value up-projection: its weights are on the host")
    from decodestep.ops.mla_attention import triton

    device = query_rope.device

    def outline(name: str, value: Any) -> Any:
        return devices.optional_outline(OP, name, value, device)

    q, rope = outline("query", query), outline("query_rope", query_rope)
    scales = outline("quant_scale_ckv", quant_scale_ckv), outline("quant_scale_ckr", quant_scale_ckr)
    kv = cache("kv_cache", outline("kv_cache", kv_cache), "quant_scale_ckv", scales[0])
    kr = cache("kr_cache", outline("kr_cache", kr_cache), "quant_scale_ckr", scales[1])
    host = devices.to_host
    dequantised = dequant_scale_q_nope is not None
    paged = _checked(q, rope, kv, kr, host(block_table), host(lengths), scale, host(sequence), groups, dequantised)
    wide = any(a.dtype == np.float64 for a in (rope, kv.rows, kr.rows))
    choose_triton(OP, "triton", query_rope, "has no float64" if wide else None)
    nope, rope_part = query, query_rope
    if dequantised:
        _check_dequantised(q, rope, outline("dequant_scale_q_nope", dequant_scale_q_nope), scales[0])
        nope, rope_part = query * dequant_scale_q_nope, query_rope.float() * dequant_scale_q_nope / quant_scale_ckv.reshape(())
    factors = [
        None if stored is None else stored.detach().reshape(-1).expand(width).contiguous()
        for stored, width in ((quant_scale_ckv, kv.rows.shape[3]), (quant_scale_ckr, kr.rows.shape[3]))
    ]
    nope = None if nope is None else nope.detach().contiguous()
    caches = kv_cache.detach(), kr_cache.detach()
    rope_part = rope_part.detach().contiguous()
    out = run(OP, "triton", triton.attention, nope, rope_part, *caches, *factors, *paged, float(scale), int(groups))
    return out.to(query_rope.dtype)


def _dequantised(
    query: np.ndarray | None, rope: np.ndarray, dequant_scale: Array, quant_scale: Array | None
) -> tuple[np.ndarray, np.ndarray]:
    factor = arrays.view(OP, "dequant_scale_q_nope", dequant_scale)
    stored = arrays.optional_view(OP, "quant_scale_ckv", quant_scale)
    query, stored = _check_dequantised(query, rope, factor, stored)
    factor = factor.astype(rope.dtype, copy=False)
    return query * factor, rope * factor / stored.reshape(()).astype(rope.dtype)


def _check_dequantised(
    query: np.ndarray | None, rope: np.ndarray, factor: np.ndarray, stored: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    require_dtype(OP, "dequant_scale_q_nope", factor, (np.float32,))
    require_shape(OP, "dequant_scale_q_nope", factor, (*rope.shape[:2], 1))
    if query is None:
        refuse(OP, "query", "given beside dequant_scale_q_nope", "None")
    if stored is None:
        refuse(OP, "quant_scale_ckv", "given beside dequant_scale_q_nope", "None")
    require(stored.size == 1, OP, "quant_scale_ckv", "one number beside dequant_scale_q_nope", stored)
    return query, stored
