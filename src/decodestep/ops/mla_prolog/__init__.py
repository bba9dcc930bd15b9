"""MlaProlog: what one step of DeepSeek's MLA does before the attention itself, with the paged caches."""

from __future__ import annotations

from typing import Any

from decodestep._base import arrays
from decodestep._base.checks import is_real, require, require_choice
from decodestep._base.dispatch import choose, run
from decodestep.ops.mla_prolog import cpu, reference
from decodestep.ops.mla_prolog.arguments import Attributes, Problem, attributes_of_call, bind
from decodestep.ops.mla_prolog.layouts import cache_from_nz as cache_from_nz
from decodestep.ops.mla_prolog.layouts import cache_to_nz as cache_to_nz
from decodestep.ops.mla_prolog.layouts import from_nz as from_nz
from decodestep.ops.mla_prolog.layouts import gather_cache as gather_cache
from decodestep.ops.mla_prolog.layouts import slots_from_block_table as slots_from_block_table
from decodestep.ops.mla_prolog.layouts import to_nz as to_nz
from decodestep.ops.mla_prolog.limits import PAGED_MODES, profile
from decodestep.ops.mla_prolog.plan import MlaPrologPlan as MlaPrologPlan
from decodestep.ops.mla_prolog.plan import mla_prolog_plan as mla_prolog_plan
from decodestep.ops.mla_prolog.results import MlaPrologResult, MlaPrologV2Result, MlaPrologV3Result
from decodestep.ops.mla_prolog.tiling_key import MlaPrologTilingKey as MlaPrologTilingKey
from decodestep.weights.prolog_panels import PanelWeight as PanelWeight

_INFINITY = float("inf")
_ROUNDINGS = ("half_even", "half_away")


def mla_prolog(
    token_x: Any,
    weight_dq: Any,
    weight_uq_qr: Any,
    weight_uk: Any,
    weight_dkv_kr: Any,
    rmsnorm_gamma_cq: Any,
    rmsnorm_gamma_ckv: Any,
    rope_sin: Any,
    rope_cos: Any,
    cache_index: Any,
    kv_cache: Any,
    kr_cache: Any,
    *,
    dequant_scale_x: Any = None,
    dequant_scale_w_dq: Any = None,
    dequant_scale_w_uq_qr: Any = None,
    dequant_scale_w_dkv_kr: Any = None,
    quant_scale_ckv: Any = None,
    quant_scale_ckr: Any = None,
    smooth_scales_cq: Any = None,
    rmsnorm_epsilon_cq: float = 1e-05,
    rmsnorm_epsilon_ckv: float = 1e-05,
    cache_mode: str = "PA_BSND",
    limits: str | None = None,
    rope_groups: int = 1,
    need_query: bool = True,
    backend: str = "auto",
) -> MlaPrologResult:
    """Makes the absorbed query, the rope query, the latent and the rope key of every token, and caches the last two.

        for every token t:
            c = rms_norm(x[t] @ weight_dq, rmsnorm_gamma_cq)
            for every head n:
                nope, rope = split((c @ weight_uq_qr)[n * (D + Dr) : (n + 1) * (D + Dr)], D)
                query[t, n] = nope @ weight_uk[n]
                query_rope[t, n] = ROPE(rope, t)
            latent, key = split(x[t] @ weight_dkv_kr, Hckv)
            kv_cache[slot(t)] = rms_norm(latent, rmsnorm_gamma_ckv)
            kr_cache[slot(t)] = ROPE(key, t)
        rms_norm(x, gamma) = x / sqrt(mean(x^2) + epsilon) * gamma
        ROPE(x, t)[j], [Dr/2 + j] = x[2j] * cos[t, j] - x[2j+1] * sin[t, j],
                                    x[2j+1] * cos[t, Dr/2 + j] + x[2j] * sin[t, Dr/2 + j]      interleaved in, halves out

    token_x: (T, He) or (B, S, He); everything of a token has the same leading axes. bfloat16.
    weight_dq: (He, Hcq). weight_uq_qr: (Hcq, N * (D + Dr)). weight_dkv_kr: (He, Hckv + Dr). Plain, or the NZ storage that
        `to_nz` makes, (columns / c0, rows / 16, 16, c0), c0 = 16 (int8: 32), or a `PanelWeight` or `PackedWeight`. bfloat16.
    weight_uk: (N, D, Hckv), plain or a `PanelWeight`. rmsnorm_gamma_cq: (Hcq,). rmsnorm_gamma_ckv: (Hckv,). bfloat16.
    rope_sin, rope_cos: (..., Dr), the rows of the tokens' positions, Dr even; bfloat16.
    cache_index: int64 (...): block * block size + row of each token; below the number of rows; a negative one: the token is
        not cached. The same slot twice keeps the later token.
    kv_cache, kr_cache: (blocks, block size, 1, Hckv) and (..., Dr), bfloat16, any strides, no memory in common with another
        argument. Updated in place; rows that no token names keep their bits. With blocks = 0 nothing is cached.
    dequant_scale_w_uq_qr: float32 (1, N * (D + Dr)), with an int8 weight_uq_qr (scenario PARTIAL), and smooth_scales_cq,
        float32 (1, Hcq), if wanted; then quant_scale_ckv (1, Hckv) and quant_scale_ckr (1, Dr) with int8 caches
        (PARTIAL_KV). The other scales are V2's. A scale that the scenario does not have must be None.
    rmsnorm_epsilon_cq, rmsnorm_epsilon_ckv: >= 0.
    cache_mode: "PA_BSND", rows in their order, or "PA_NZ", each block as `cache_to_nz` orders it.
    limits: None takes any size; "design-note", "nov2025" and "latest" refuse the sizes that the device refuses.
    backend: "auto", "cpu" or "reference". "cpu" serves everything but float64, several times faster for few tokens with each
        weight a `PanelWeight`; "auto" takes "reference" for that.

    Four extensions: float32 (or float64) in the place of bfloat16 throughout; weight_dq=None: c = rms_norm(x), gamma of
        length He; a gamma None: no norm; D = 0: query is zeros, and need_query=False returns None for it. rope_groups = G,
        a divisor of N and Dr / 2: head n's rope part is zero but for columns [g * Dr/G, (g + 1) * Dr/G), g = n // (N / G),
        which alone weight_uq_qr holds, so that it has N * (D + Dr / G) columns. query_rope has its full width.

    Returns (query (..., N, Hckv), query_rope (..., N, Dr), kv_cache, kr_cache), in token_x's kind, the caches as passed.
    Raises ValueError, before anything is written, for a dtype, shape, size, slot or scale outside the rules above.

    Notes: sums and elementwise work are float32. bfloat16 results of x @ weight_dq, c, c @ weight_uq_qr, query, query_rope,
    x @ weight_dkv_kr and the cached rows are rounded half to even; float32 tensors are never rounded so. PARTIAL: c is not
    rounded but quantised by row, z = c * smooth, s = max |z| / 127, q = round(z * 127 / max |z|), a row of zeros to zeros;
    the product is exact, then * s * dequant_scale, and its rope part enters ROPE unrounded. smooth is not undone: weights
    have been divided by it. Cached int8 is clamp(round(value * quant_scale), -128, 127): the scale multiplies; the rope key
    is rounded to bfloat16 before. Values are never looked at: infinities and NaN go through, NaN becomes int8 0. "cpu" has the
    same bits for any thread count, any other tokens of the call, and plain, NZ and `PanelWeight` weights; where the CPU has
    bfloat16 dot products, products and sums that are subnormal, and subnormal bfloat16 operands, count as zeros.
    Source: Ascend MlaProlog V1 (CANN ops-transformer, November 2025).
    """
    problem = bind(
        "mla_prolog",
        PAGED_MODES,
        (
            token_x,
            weight_dq,
            weight_uq_qr,
            weight_uk,
            weight_dkv_kr,
            rmsnorm_gamma_cq,
            rmsnorm_gamma_ckv,
            rope_sin,
            rope_cos,
            cache_index,
            kv_cache,
            kr_cache,
        ),
        (
            dequant_scale_x,
            dequant_scale_w_dq,
            dequant_scale_w_uq_qr,
            dequant_scale_w_dkv_kr,
            quant_scale_ckv,
            quant_scale_ckr,
            smooth_scales_cq,
        ),
        (rmsnorm_epsilon_cq, rmsnorm_epsilon_ckv),
        cache_mode,
        limits,
        rope_groups,
        need_query,
    )
    made = _run(problem, backend)
    return MlaPrologResult(_shaped(made.query, token_x), _shaped(made.query_rope, token_x), kv_cache, kr_cache)


def mla_prolog_v2(
    token_x: Any,
    weight_dq: Any,
    weight_uq_qr: Any,
    weight_uk: Any,
    weight_dkv_kr: Any,
    rmsnorm_gamma_cq: Any,
    rmsnorm_gamma_ckv: Any,
    rope_sin: Any,
    rope_cos: Any,
    cache_index: Any,
    kv_cache: Any,
    kr_cache: Any,
    *,
    dequant_scale_x: Any = None,
    dequant_scale_w_dq: Any = None,
    dequant_scale_w_uq_qr: Any = None,
    dequant_scale_w_dkv_kr: Any = None,
    quant_scale_ckv: Any = None,
    quant_scale_ckr: Any = None,
    smooth_scales_cq: Any = None,
    rmsnorm_epsilon_cq: float = 1e-05,
    rmsnorm_epsilon_ckv: float = 1e-05,
    cache_mode: str = "PA_BSND",
    limits: str | None = None,
    rope_groups: int = 1,
    need_query: bool = True,
    rounding: str = "half_even",
    backend: str = "auto",
) -> MlaPrologV2Result:
    """`mla_prolog` that also takes int8 tokens.

    With int8 token_x, weight_dq, weight_uq_qr and weight_dkv_kr the scenario is FULL: dequant_scale_x (T, 1),
    dequant_scale_w_dq (1, Hcq), dequant_scale_w_uq_qr (1, N * (D + Dr)) and dequant_scale_w_dkv_kr (1, Hckv + Dr) are given,
    smooth_scales_cq may be. A product of int8 is exact, then * the token's scale * the column's, and is not rounded.

    With an int8 kv_cache beside (FULL_KV), kr_cache stays bfloat16 and quant_scale_ckv is one number: the first element of
    a (1,), (1, 1) or (1, Hckv) array. The bfloat16 query is then quantised by head,

        dequant_scale_q_nope[t, n] = max |query[t, n]| / 127
        query[t, n] = round(query[t, n] * 127 / max |query[t, n]|)
        query_rope[t, n] = query_rope[t, n] * quant_scale_ckv / dequant_scale_q_nope[t, n]

    so that the attention score is dequant_scale_q_nope / quant_scale_ckv * (query . kv row + query_rope . kr row).

    rounding: of that query. "half_even", or "half_away": to float16, then to an integer, ties away from zero both times, as
        the device does; it may lie one off the former even where there is no tie.

    Returns (query, query_rope, kv_cache, kr_cache, dequant_scale_q_nope), the last (T, N, 1) float32 in FULL_KV, else None.
    Raises as `mla_prolog` does; its other arguments, extensions and notes hold, weight_dq=None with int8 tokens excepted.
    Notes: in FULL_KV a head that is zero has scale 0, query 0, and in query_rope x / 0, but 0 where x is 0.
    Source: Ascend MlaProlog V2 (CANN ops-transformer, November 2025).
    """
    require_choice("mla_prolog_v2", "rounding", rounding, _ROUNDINGS)
    problem = bind(
        "mla_prolog_v2",
        PAGED_MODES,
        (
            token_x,
            weight_dq,
            weight_uq_qr,
            weight_uk,
            weight_dkv_kr,
            rmsnorm_gamma_cq,
            rmsnorm_gamma_ckv,
            rope_sin,
            rope_cos,
            cache_index,
            kv_cache,
            kr_cache,
        ),
        (
            dequant_scale_x,
            dequant_scale_w_dq,
            dequant_scale_w_uq_qr,
            dequant_scale_w_dkv_kr,
            quant_scale_ckv,
            quant_scale_ckr,
            smooth_scales_cq,
        ),
        (rmsnorm_epsilon_cq, rmsnorm_epsilon_ckv),
        cache_mode,
        limits,
        rope_groups,
        need_query,
        rounding=rounding,
    )
    made = _run(problem, backend)
    return MlaPrologV2Result(
        _shaped(made.query, token_x),
        _shaped(made.query_rope, token_x),
        kv_cache,
        kr_cache,
        _merged(made.dequant_scale_q_nope, token_x),
    )


def mla_prolog_v3(
    token_x: Any,
    weight_dq: Any,
    weight_uq_qr: Any,
    weight_uk: Any,
    weight_dkv_kr: Any,
    rmsnorm_gamma_cq: Any,
    rmsnorm_gamma_ckv: Any,
    rope_sin: Any,
    rope_cos: Any,
    kv_cache: Any,
    kr_cache: Any,
    *,
    cache_index: Any = None,
    dequant_scale_x: Any = None,
    dequant_scale_w_dq: Any = None,
    dequant_scale_w_uq_qr: Any = None,
    dequant_scale_w_dkv_kr: Any = None,
    quant_scale_ckv: Any = None,
    quant_scale_ckr: Any = None,
    smooth_scales_cq: Any = None,
    actual_seq_len: Any = None,
    k_nope_clip_alpha: Any = None,
    rmsnorm_epsilon_cq: float = 1e-05,
    rmsnorm_epsilon_ckv: float = 1e-05,
    cache_mode: str = "PA_BSND",
    query_norm_flag: bool = False,
    weight_quant_mode: int = 0,
    kv_cache_quant_mode: int = 0,
    query_quant_mode: int = 0,
    ckvkr_repo_mode: int = 0,
    quant_scale_repo_mode: int = 0,
    tile_size: int = 128,
    qc_qr_scale: float = 1.0,
    kc_scale: float = 1.0,
    limits: str | None = None,
    rope_groups: int = 1,
    need_query: bool = True,
    rounding: str = "half_even",
    backend: str = "auto",
) -> MlaPrologV3Result:
    """`mla_prolog_v2` with more cache modes, caches quantised by tiles, and two factors: c * qc_qr_scale and latent * kc_scale.

    weight_quant_mode, kv_cache_quant_mode, query_quant_mode: the scenario, to which the dtypes must agree: (0, 0, 0)
        NO_QUANT, (1, 0, 0) PARTIAL, (1, 2, 0) PARTIAL_KV, (2, 0, 0) FULL, (2, 1, 1) FULL_KV, (1, 3, 0) and (2, 3, 0) PARTIAL
        and FULL with tiles. Under limits="nov2025" they, and the other later attributes, keep their defaults, and the
        dtypes name the scenario as in V2.
    ckvkr_repo_mode, quant_scale_repo_mode: 1 with tiles, else 0. tile_size: 128.
    k_nope_clip_alpha: float32 (1,), with tiles. kv_cache is then int8 (..., 1, Hckv + 2 * Dr + Hckv / 32), 656 bytes a row
        for 512 and 64: the latent as int8, the rope key as bfloat16, one float32 scale for every 128 latent values; and
        kr_cache is empty. For each tile, bound = alpha * max |value|, scale = bound / 127,
        q = round(clip(value, -bound, bound) / scale), zeros to zeros. PA_BSND, BSND and TND alone.
    cache_mode: "PA_BSND" and "PA_NZ" as in V1. "PA_BLK_BSND" and "PA_BLK_NZ": cache_index holds int64 block ids, below the
        number of blocks, (B, ceil(S / block size)), or for merged tokens ceil(length / block size) of each sequence in a
        row; every sequence starts at row 0 of its first block; a block with a negative id is not written. "BSND" and "TND":
        kv_cache is (B, S, 1, H) and (T, 1, H), a row for each token; cache_index is None.
    actual_seq_len: int32 (B,), where each sequence of merged tokens ends, the last one at T; with blocks alone.
    query_norm_flag: whether to return what is multiplied by weight_uq_qr.
    qc_qr_scale, kc_scale: finite numbers; they multiply behind the norms, the rope key by neither.

    Returns (query, query_rope, dequant_scale_q_nope, query_norm, dequant_scale_q_norm). With query_norm_flag, query_norm is
    (..., Hcq), bfloat16, or int8 with an int8 weight_uq_qr, where dequant_scale_q_norm is its float32 scales (T, 1).
    What a call does not produce is None. The caches are updated in place.
    Raises as `mla_prolog_v2` does; its other arguments and notes hold.
    Source: Ascend MlaProlog V3 (CANN ops-transformer; November 2025 and later).
    """
    op = "mla_prolog_v3"
    modes = profile(op, limits).cache_modes
    require_choice(op, "rounding", rounding, _ROUNDINGS)
    attributes = attributes_of_call(
        op,
        limits,
        Attributes(
            query_norm_flag,
            weight_quant_mode,
            kv_cache_quant_mode,
            query_quant_mode,
            ckvkr_repo_mode,
            quant_scale_repo_mode,
            tile_size,
        ),
    )
    for name, factor in (("qc_qr_scale", qc_qr_scale), ("kc_scale", kc_scale)):
        require(is_real(factor) and -_INFINITY < factor < _INFINITY, op, name, "a finite number", repr(factor))
    problem = bind(
        op,
        modes,
        (
            token_x,
            weight_dq,
            weight_uq_qr,
            weight_uk,
            weight_dkv_kr,
            rmsnorm_gamma_cq,
            rmsnorm_gamma_ckv,
            rope_sin,
            rope_cos,
            cache_index,
            kv_cache,
            kr_cache,
        ),
        (
            dequant_scale_x,
            dequant_scale_w_dq,
            dequant_scale_w_uq_qr,
            dequant_scale_w_dkv_kr,
            quant_scale_ckv,
            quant_scale_ckr,
            smooth_scales_cq,
            k_nope_clip_alpha,
        ),
        (rmsnorm_epsilon_cq, rmsnorm_epsilon_ckv),
        cache_mode,
        limits,
        rope_groups,
        need_query,
        (qc_qr_scale, kc_scale),
        rounding,
        attributes,
        actual_seq_len,
    )
    made = _run(problem, backend)
    return MlaPrologV3Result(
        _shaped(made.query, token_x),
        _shaped(made.query_rope, token_x),
        _merged(made.dequant_scale_q_nope, token_x),
        _shaped(made.query_norm, token_x),
        _merged(made.dequant_scale_q_norm, token_x),
    )


def _run(problem: Problem, backend: str) -> reference.Results:
    backend = choose(problem.op, backend, {"cpu": cpu.obstacle(problem), "reference": None})
    function = cpu.prolog if backend == "cpu" else reference.prolog
    return run(problem.op, backend, function, problem)


def _shaped(result: Any, token_x: Any) -> Any:
    """A result of merged tokens with token_x's own axes, in its kind."""
    if result is None:
        return None
    if len(token_x.shape) == 3:
        result = result.reshape(*token_x.shape[:2], *result.shape[1:])
    return arrays.like(token_x, result)


def _merged(result: Any, token_x: Any) -> Any:
    return None if result is None else arrays.like(token_x, result)
