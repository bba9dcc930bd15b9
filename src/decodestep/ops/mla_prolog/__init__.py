"""MlaProlog: the part of DeepSeek's MLA before the attention itself, including the paged caches."""

from __future__ import annotations

from decodestep._base.arrays import Array
from decodestep.ops.mla_prolog.backends import run_call
from decodestep.ops.mla_prolog.cache_layouts import cache_from_nz as cache_from_nz
from decodestep.ops.mla_prolog.cache_layouts import cache_to_nz as cache_to_nz
from decodestep.ops.mla_prolog.call import Call, ProjectionWeight
from decodestep.ops.mla_prolog.gather import gather_cache as gather_cache
from decodestep.ops.mla_prolog.plan import MlaPrologPlan as MlaPrologPlan
from decodestep.ops.mla_prolog.plan import mla_prolog_plan as mla_prolog_plan
from decodestep.ops.mla_prolog.results import MlaPrologResult, MlaPrologV2Result, MlaPrologV3Result
from decodestep.ops.mla_prolog.slots import slots_from_block_table as slots_from_block_table
from decodestep.ops.mla_prolog.tiling_key import MlaPrologTilingKey as MlaPrologTilingKey
from decodestep.weights.nz import from_nz as from_nz
from decodestep.weights.nz import to_nz as to_nz
from decodestep.weights.panel_weight import PanelWeight as PanelWeight


def mla_prolog(
    token_x: Array,
    weight_dq: ProjectionWeight,
    weight_uq_qr: ProjectionWeight,
    weight_uk: Array | PanelWeight,
    weight_dkv_kr: ProjectionWeight,
    rmsnorm_gamma_cq: Array,
    rmsnorm_gamma_ckv: Array,
    rope_sin: Array,
    rope_cos: Array,
    cache_index: Array | None,
    kv_cache: Array,
    kr_cache: Array,
    *,
    dequant_scale_x: Array | None = None,
    dequant_scale_w_dq: Array | None = None,
    dequant_scale_w_uq_qr: Array | None = None,
    dequant_scale_w_dkv_kr: Array | None = None,
    quant_scale_ckv: Array | None = None,
    quant_scale_ckr: Array | None = None,
    smooth_scales_cq: Array | None = None,
    rmsnorm_epsilon_cq: float = 1e-05,
    rmsnorm_epsilon_ckv: float = 1e-05,
    cache_mode: str = "PA_BSND",
    limits: str | None = None,
    backend: str = "auto",
) -> MlaPrologResult:
    """Computes each token's absorbed query, rope query, latent and rope key, and writes the last two to the caches.

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

    Extensions of the specification: float32 (or float64) instead of bfloat16 throughout; GGUF blocks as weights; `limits`. With
    D = 0 query is zeros.

    Args:
        token_x: bfloat16 (T, He) or (B, S, He). In the shapes below (...) stands for the same leading axes.
        weight_dq: bfloat16 (He, Hcq), in one of these forms: an array; the NZ storage (columns / c0, rows / 16, 16, c0) that
            `to_nz` makes, c0 = 16 (int8: 32); a `PanelWeight`; or, where the scenario has no int8 weight, GGUF blocks in rows,
            a `PackedWeight`, or in panels, a `LinearPanels` (docs/ops/linear.md).
        weight_uq_qr: bfloat16 (Hcq, N * (D + Dr)), in one of the forms of weight_dq.
        weight_uk: bfloat16 (N, D, Hckv), an array or a `PanelWeight`.
        weight_dkv_kr: bfloat16 (He, Hckv + Dr), in one of the forms of weight_dq.
        rmsnorm_gamma_cq: bfloat16 (Hcq,).
        rmsnorm_gamma_ckv: bfloat16 (Hckv,).
        rope_sin: bfloat16 (..., Dr), the rows of the tokens' positions; Dr is even.
        rope_cos: likewise.
        cache_index: int64 (...), the slot of each token: block * block size + row, less than the number of rows. A token with a
            negative slot is not cached. Of several tokens with one slot the last is kept.
        kv_cache: bfloat16 (blocks, block size, 1, Hckv), of any strides, but no element in the memory of another or of another
            argument. Updated in place; rows that no token names keep their bits. With 0 blocks nothing is cached.
        kr_cache: bfloat16 (blocks, block size, 1, Dr), likewise.
        dequant_scale_x: a scale of V2. One that the scenario does not have must be None, here and below.
        dequant_scale_w_dq: a scale of V2.
        dequant_scale_w_uq_qr: float32 (1, N * (D + Dr)), with an int8 weight_uq_qr (scenario PARTIAL).
        dequant_scale_w_dkv_kr: a scale of V2.
        quant_scale_ckv: float32 (1, Hckv), with an int8 weight_uq_qr and int8 caches (PARTIAL_KV).
        quant_scale_ckr: float32 (1, Dr), likewise.
        smooth_scales_cq: float32 (1, Hcq), optional with an int8 weight_uq_qr.
        rmsnorm_epsilon_cq: finite, >= 0.
        rmsnorm_epsilon_ckv: finite, >= 0.
        cache_mode: "PA_BSND", rows in their order, or "PA_NZ", each block in the order of `cache_to_nz`.
        limits: None accepts any size; "design-note", "nov2025" and "2026" refuse the sizes that the device refuses. "latest" is
            "2026".
        backend: "cpu", "triton", "reference", or "auto": "cpu" where it can serve the call, else "reference"; "triton" for
            tensors on a GPU, with weights as arrays or NZ storage. "cpu" and "triton" have no float64, and no int8 weights of
            2^17 inputs or more. For few tokens "cpu" is several times faster on `PanelWeight`s than on arrays.

    Returns:
        (query (..., N, Hckv), query_rope (..., N, Dr), kv_cache, kr_cache), the first two in token_x's kind, the caches as
        passed.

    Raises:
        ValueError: before anything is written, for a dtype, shape, size, slot or scale outside the rules above.

    Notes:
        Sums and elementwise work are float32. With bfloat16 tensors, x @ weight_dq, c, c @ weight_uq_qr, query, query_rope,
        x @ weight_dkv_kr and the cached rows are rounded to bfloat16, half to even; with float32 tensors nothing is rounded.
        PARTIAL: c is quantised by row instead, z = c * smooth, s = max |z| / 127, q = round(z * (127 / max |z|)), zeros to
        zeros; the product is exact, then * s * dequant_scale, and its rope part enters ROPE unrounded. Nothing divides by
        smooth again: the weight has been divided by it. Cached int8 is clamp(round(value * quant_scale), -128, 127): the scale
        multiplies; the rope key is rounded to bfloat16 first. A product with a `LinearPanels` of blocks rounds x or c to
        integers, 32 to a scale, as `linear` does. Infinities and NaN are not refused and propagate; NaN becomes int8 0. "cpu"
        gives the same bits for any thread count, whatever other tokens the call has, and for arrays, NZ storage and
        `PanelWeight`s; on CPUs with bfloat16 dot products, subnormal products, sums and bfloat16 operands count as zeros.

    Source:
        Ascend MlaProlog V1 (CANN ops-transformer, November 2025).
    """
    made = run_call(
        Call(
            op="mla_prolog",
            token_x=token_x,
            weight_dq=weight_dq,
            weight_uq_qr=weight_uq_qr,
            weight_uk=weight_uk,
            weight_dkv_kr=weight_dkv_kr,
            rmsnorm_gamma_cq=rmsnorm_gamma_cq,
            rmsnorm_gamma_ckv=rmsnorm_gamma_ckv,
            rope_sin=rope_sin,
            rope_cos=rope_cos,
            cache_index=cache_index,
            kv_cache=kv_cache,
            kr_cache=kr_cache,
            dequant_scale_x=dequant_scale_x,
            dequant_scale_w_dq=dequant_scale_w_dq,
            dequant_scale_w_uq_qr=dequant_scale_w_uq_qr,
            dequant_scale_w_dkv_kr=dequant_scale_w_dkv_kr,
            quant_scale_ckv=quant_scale_ckv,
            quant_scale_ckr=quant_scale_ckr,
            smooth_scales_cq=smooth_scales_cq,
            rmsnorm_epsilon_cq=rmsnorm_epsilon_cq,
            rmsnorm_epsilon_ckv=rmsnorm_epsilon_ckv,
            cache_mode=cache_mode,
            limits=limits,
            backend=backend,
        )
    )
    return MlaPrologResult(made.query, made.query_rope, kv_cache, kr_cache)


def mla_prolog_v2(
    token_x: Array,
    weight_dq: ProjectionWeight,
    weight_uq_qr: ProjectionWeight,
    weight_uk: Array | PanelWeight,
    weight_dkv_kr: ProjectionWeight,
    rmsnorm_gamma_cq: Array,
    rmsnorm_gamma_ckv: Array,
    rope_sin: Array,
    rope_cos: Array,
    cache_index: Array | None,
    kv_cache: Array,
    kr_cache: Array,
    *,
    dequant_scale_x: Array | None = None,
    dequant_scale_w_dq: Array | None = None,
    dequant_scale_w_uq_qr: Array | None = None,
    dequant_scale_w_dkv_kr: Array | None = None,
    quant_scale_ckv: Array | None = None,
    quant_scale_ckr: Array | None = None,
    smooth_scales_cq: Array | None = None,
    rmsnorm_epsilon_cq: float = 1e-05,
    rmsnorm_epsilon_ckv: float = 1e-05,
    cache_mode: str = "PA_BSND",
    limits: str | None = None,
    rounding: str = "half_even",
    backend: str = "auto",
) -> MlaPrologV2Result:
    """`mla_prolog` that also accepts int8 tokens.

    The arguments that are not listed, the extensions and the notes are those of V1.

    With int8 token_x, weight_dq, weight_uq_qr and weight_dkv_kr the scenario is FULL: dequant_scale_x (T, 1),
    dequant_scale_w_dq (1, Hcq), dequant_scale_w_uq_qr (1, N * (D + Dr)) and dequant_scale_w_dkv_kr (1, Hckv + Dr) are required,
    smooth_scales_cq is optional. An int8 product is exact, then * the token's scale * the column's, and not rounded.

    With an int8 kv_cache too (FULL_KV), kr_cache stays bfloat16 and quant_scale_ckv is one number: the first element of a (1,),
    (1, 1) or (1, Hckv) array. The bfloat16 query is then quantised by head,

        dequant_scale_q_nope[t, n] = max |query[t, n]| / 127
        query[t, n] = round(query[t, n] * (127 / max |query[t, n]|))
        query_rope[t, n] = query_rope[t, n] * quant_scale_ckv / dequant_scale_q_nope[t, n]

    so that the attention score is dequant_scale_q_nope / quant_scale_ckv * (query . kv row + query_rope . kr row).

    Args:
        rounding: of that query. "half_even", or "half_away" as on the device: to float16, then to an integer, ties away from
            zero both times. The two may differ by one even where there is no tie.

    Returns:
        (query, query_rope, kv_cache, kr_cache, dequant_scale_q_nope), the last (T, N, 1) float32 in FULL_KV, else None.

    Raises:
        ValueError: as `mla_prolog` does.

    Notes:
        In FULL_KV a head of zeros has scale 0 and query 0; its query_rope is x / 0, or 0 where x is 0.

    Source:
        Ascend MlaProlog V2 (CANN ops-transformer, November 2025).
    """
    made = run_call(
        Call(
            op="mla_prolog_v2",
            token_x=token_x,
            weight_dq=weight_dq,
            weight_uq_qr=weight_uq_qr,
            weight_uk=weight_uk,
            weight_dkv_kr=weight_dkv_kr,
            rmsnorm_gamma_cq=rmsnorm_gamma_cq,
            rmsnorm_gamma_ckv=rmsnorm_gamma_ckv,
            rope_sin=rope_sin,
            rope_cos=rope_cos,
            cache_index=cache_index,
            kv_cache=kv_cache,
            kr_cache=kr_cache,
            dequant_scale_x=dequant_scale_x,
            dequant_scale_w_dq=dequant_scale_w_dq,
            dequant_scale_w_uq_qr=dequant_scale_w_uq_qr,
            dequant_scale_w_dkv_kr=dequant_scale_w_dkv_kr,
            quant_scale_ckv=quant_scale_ckv,
            quant_scale_ckr=quant_scale_ckr,
            smooth_scales_cq=smooth_scales_cq,
            rmsnorm_epsilon_cq=rmsnorm_epsilon_cq,
            rmsnorm_epsilon_ckv=rmsnorm_epsilon_ckv,
            cache_mode=cache_mode,
            limits=limits,
            rounding=rounding,
            backend=backend,
        )
    )
    return MlaPrologV2Result(made.query, made.query_rope, kv_cache, kr_cache, made.dequant_scale_q_nope)


def mla_prolog_v3(
    token_x: Array,
    weight_dq: ProjectionWeight,
    weight_uq_qr: ProjectionWeight,
    weight_uk: Array | PanelWeight,
    weight_dkv_kr: ProjectionWeight,
    rmsnorm_gamma_cq: Array,
    rmsnorm_gamma_ckv: Array,
    rope_sin: Array,
    rope_cos: Array,
    kv_cache: Array,
    kr_cache: Array,
    *,
    cache_index: Array | None = None,
    dequant_scale_x: Array | None = None,
    dequant_scale_w_dq: Array | None = None,
    dequant_scale_w_uq_qr: Array | None = None,
    dequant_scale_w_dkv_kr: Array | None = None,
    quant_scale_ckv: Array | None = None,
    quant_scale_ckr: Array | None = None,
    smooth_scales_cq: Array | None = None,
    actual_seq_len: Array | None = None,
    k_nope_clip_alpha: Array | None = None,
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
    token_x_dtype: int | None = None,
    weight_dq_dtype: int | None = None,
    weight_uq_qr_dtype: int | None = None,
    weight_dkv_kr_dtype: int | None = None,
    kv_cache_dtype: int | None = None,
    limits: str | None = None,
    rounding: str = "half_even",
    backend: str = "auto",
) -> MlaPrologV3Result:
    """`mla_prolog_v2` with more cache modes, caches quantised by tiles, eight-bit floats, and two factors: c * qc_qr_scale and
    latent * kc_scale.

    The arguments that are not listed and the notes are those of V2.

    Args:
        actual_seq_len: int32 (B,), the end of each sequence of (T, He) tokens, non-decreasing, the last one T; only with block
            ids.
        k_nope_clip_alpha: float32 (1,), with tiles. kv_cache is then int8 (..., 1, Hckv + 2 * Dr + Hckv / 32), 656 bytes a row
            for 512 and 64: the latent as int8, the rope key as bfloat16, one float32 scale for every 128 latent values; and
            kr_cache is empty. For each tile, bound = alpha * max |value|, scale = bound / 127, q = round(clip(value, -bound,
            bound) / scale), zeros to zeros. Only in PA_BSND, BSND and TND. With eight-bit floats no tile is clipped: None in
            MXFP8_TILE, without effect in FP8_TILE.
        cache_mode: "PA_BSND" and "PA_NZ" as in V1. "PA_BLK_BSND" and "PA_BLK_NZ": cache_index holds int64 block ids, less than
            the number of blocks: (B, ceil(S / block size)), or for (T, He) tokens the ceil(length / block size) ids of each
            sequence, one sequence after the other. Every sequence starts at row 0 of its first block; a block with a negative
            id is not written. "BSND" and "TND": the caches are (B, S, 1, H) and (T, 1, H), a row for each token; cache_index is
            None.
        query_norm_flag: whether to return c as it is multiplied by weight_uq_qr.
        weight_quant_mode: with kv_cache_quant_mode and query_quant_mode the scenario, with which the dtypes must agree:
            (0, 0, 0) NO_QUANT, (1, 0, 0) PARTIAL, (1, 2, 0) PARTIAL_KV, (2, 0, 0) FULL, (2, 1, 1) FULL_KV, (1, 3, 0) and
            (2, 3, 0) PARTIAL and FULL with tiles; (3, 0, 0), (3, 1, 1) and (3, 3, 0) MXFP8 likewise, and with 4 FP8: see below.
            5, HiFloat8, is refused: its format is not published. Under limits="nov2025" these and the other attributes from
            query_norm_flag to tile_size must keep their defaults, and the dtypes select the scenario as in V2.
        kv_cache_quant_mode: see weight_quant_mode.
        query_quant_mode: see weight_quant_mode.
        ckvkr_repo_mode: 1 with tiles, else 0.
        quant_scale_repo_mode: likewise.
        tile_size: 128.
        qc_qr_scale: a finite factor applied after the norm of c.
        kc_scale: a finite factor applied after the norm of the latent; the rope key has none.
        token_x_dtype: None, or 292, torch_npu's number of float8_e4m3fn, as which the bytes of a uint8 token_x are then read.
            290, HiFloat8, is refused.
        weight_dq_dtype: likewise, and so for the next three.
        weight_uq_qr_dtype: see token_x_dtype.
        weight_dkv_kr_dtype: see token_x_dtype.
        kv_cache_dtype: see token_x_dtype.

    Returns:
        (query, query_rope, dequant_scale_q_nope, query_norm, dequant_scale_q_norm). With query_norm_flag, query_norm is
        (..., Hcq), bfloat16, or of the dtype of a quantised weight_uq_qr, where dequant_scale_q_norm is its float32 scales
        (T, 1), in MXFP8 its float8_e8m0fnu ones (T, Hcq / 32). What a call does not produce is None. The caches are updated in
        place.

    Raises:
        ValueError: as `mla_prolog_v2` does.

    Notes:
        In FP8, token_x, the projections' weights, arrays or NZ storage, and a quantised cache and query are float8_e4m3fn; the
        scales are those of FULL, and 448 stands in the place of 127, with a quotient: scale = max |z| * (1 / 448), q = z /
        scale. In MXFP8 the four scales are float8_e8m0fnu, one for 32 inputs: dequant_scale_x (T, He / 32),
        dequant_scale_w_dq (Hcq, He / 32), dequant_scale_w_uq_qr (N * (D + Dr), Hcq / 32), dequant_scale_w_dkv_kr (Hckv + Dr,
        He / 32); a product is the sum of (x * its scale) * (w * its scale); smooth_scales_cq is None; and c is rounded to
        bfloat16, then each 32 values share 2^(floor(log2(max |c|)) - 8), as in the OCP's format. A float8 tile has max |value|
        of at least 1e-4 and scale = max |value| * (1 / 448). Queries and scales of the KV scenarios are as in FULL_KV.
        The documents do not say how a value becomes a float8, how a block's power of two is chosen, or what k_nope_clip_alpha
        does there: that it saturates at 448, half to even, that a block of zeros has scale 2^-127 and zeros, one with an
        infinity or NaN NaN throughout, and that nothing is clipped are proposals, made after the device's published kernels.
        "cpu" and "triton" multiply float8 as bfloat16, with a value's scale in MXFP8; sums are float32.

    Source:
        Ascend MlaProlog V3 (CANN ops-transformer; November 2025 and later, the eight-bit floats August 2026).
    """
    return run_call(
        Call(
            op="mla_prolog_v3",
            token_x=token_x,
            weight_dq=weight_dq,
            weight_uq_qr=weight_uq_qr,
            weight_uk=weight_uk,
            weight_dkv_kr=weight_dkv_kr,
            rmsnorm_gamma_cq=rmsnorm_gamma_cq,
            rmsnorm_gamma_ckv=rmsnorm_gamma_ckv,
            rope_sin=rope_sin,
            rope_cos=rope_cos,
            kv_cache=kv_cache,
            kr_cache=kr_cache,
            cache_index=cache_index,
            dequant_scale_x=dequant_scale_x,
            dequant_scale_w_dq=dequant_scale_w_dq,
            dequant_scale_w_uq_qr=dequant_scale_w_uq_qr,
            dequant_scale_w_dkv_kr=dequant_scale_w_dkv_kr,
            quant_scale_ckv=quant_scale_ckv,
            quant_scale_ckr=quant_scale_ckr,
            smooth_scales_cq=smooth_scales_cq,
            actual_seq_len=actual_seq_len,
            k_nope_clip_alpha=k_nope_clip_alpha,
            rmsnorm_epsilon_cq=rmsnorm_epsilon_cq,
            rmsnorm_epsilon_ckv=rmsnorm_epsilon_ckv,
            cache_mode=cache_mode,
            query_norm_flag=query_norm_flag,
            weight_quant_mode=weight_quant_mode,
            kv_cache_quant_mode=kv_cache_quant_mode,
            query_quant_mode=query_quant_mode,
            ckvkr_repo_mode=ckvkr_repo_mode,
            quant_scale_repo_mode=quant_scale_repo_mode,
            tile_size=tile_size,
            qc_qr_scale=qc_qr_scale,
            kc_scale=kc_scale,
            token_x_dtype=token_x_dtype,
            weight_dq_dtype=weight_dq_dtype,
            weight_uq_qr_dtype=weight_uq_qr_dtype,
            weight_dkv_kr_dtype=weight_dkv_kr_dtype,
            kv_cache_dtype=kv_cache_dtype,
            limits=limits,
            rounding=rounding,
            backend=backend,
        )
    )
