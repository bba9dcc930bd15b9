"""mla_prolog on a GPU: products, norms, the queries, and the rows of the caches, each a launch.

Values between the stages are float32, rounded where the specification rounds. Products of bfloat16 values go through TF32,
which holds them exactly; those of int8 are sums of int32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton

from decodestep._base.devices import to_device
from decodestep._base.triton import LAUNCH
from decodestep.ops.mla_prolog.problem import CACHE_SCALES, Problem, Results
from decodestep.ops.mla_prolog.scenarios import TILE
from decodestep.ops.mla_prolog.triton.kernels import (
    absorb,
    multiply,
    norm_rows,
    quantise_heads,
    turn_queries,
    write_rows,
)
from decodestep.weights.nz import fractal_width

_FLT_EPSILON = 2.0**-23
_ROWS, _COLUMNS, _DEPTH = 16, 32, 64


def prolog(p: Problem, call: Any) -> Results:
    """p: the checked call, of outlines. call: the `Call` with its tensors."""
    s, (heads, nope, latent), rope = p.scenario, p.w_uk.shape, p.sin.shape[1]
    x = call.token_x.detach()
    device, tokens = x.device, p.x.shape[0]
    x = x.reshape(tokens, x.shape[-1])
    sin, cos = (a.detach().reshape(tokens, rope).contiguous() for a in (call.rope_sin, call.rope_cos))
    short = call.weight_uk.dtype == torch.bfloat16
    size = {"BFLOAT16": short, **LAUNCH}
    scales = {name: getattr(call, name).detach().reshape(-1).contiguous() for name in p.scales}
    width = p.query_width
    query_columns = heads * (nope + rope // p.rope_groups)

    def new(*shape: int, dtype: Any = torch.float32) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    x_scale = scales.get("dequant_scale_x")
    real = call.weight_uk.dtype
    query_rope = new(tokens, heads, rope)
    query = torch.zeros((tokens, heads, latent), dtype=torch.float32, device=device) if p.need_query else None
    cq = new(tokens, width, dtype=torch.int8 if s.partial else torch.float32)
    cq_scale = new(tokens)
    query_scale = query_int8 = None
    if tokens:
        raw = x if p.w_dq is None else _product(x, call.weight_dq, width, x_scale, scales.get("dequant_scale_w_dq"), short)
        gamma, smooth = call.rmsnorm_gamma_cq, scales.get("smooth_scales_cq")
        norm_rows[(tokens,)](
            raw, raw.stride(0), raw.stride(1), _or(gamma, raw), _or(smooth, raw), cq, cq_scale, width, 1.0 / width, p.eps_cq,
            _factor(p.alpha_cq), HAS_GAMMA=gamma is not None, HAS_SMOOTH=smooth is not None, INT8=s.partial,
            WIDTH=triton.next_power_of_2(width), **size,
        )  # fmt: skip
        q = _product(
            cq, call.weight_uq_qr, query_columns, cq_scale if s.partial else None, scales.get("dequant_scale_w_uq_qr"), short
        )
        turn_queries[(tokens, heads)](
            q, sin, cos, query_rope, heads, nope, rope, p.rope_groups, HALF=triton.next_power_of_2(rope // 2), **size
        )
        if query is not None and nope:
            w = call.weight_uk.detach()
            absorb[(heads, triton.cdiv(tokens, _ROWS), triton.cdiv(latent, _COLUMNS))](
                q, w, query, tokens, heads, nope, latent, query_columns, nope + rope // p.rope_groups, *w.stride(),
                ROWS=_ROWS, COLUMNS=_COLUMNS, DEPTH=_DEPTH, **size,
            )  # fmt: skip
        if query is not None and s.query_int8:
            query_int8, query_scale = new(tokens, heads, latent, dtype=torch.int8), new(tokens, heads, 1)
            quantise_heads[(tokens * heads,)](
                query, query_int8, query_scale, query_rope, scales["quant_scale_ckv"], latent, rope,
                AWAY=p.rounding == "half_away", WIDTH=triton.next_power_of_2(latent), ROPE=triton.next_power_of_2(rope), **size,
            )  # fmt: skip
        if p.kv_cache.shape[0]:
            _write_caches(p, call, x, sin, cos, scales, short)
    elif s.query_int8:
        query_int8, query_scale = new(0, heads, latent, dtype=torch.int8), new(0, heads, 1)
    wanted = query_int8 if s.query_int8 else query if query is None else query.to(real)
    norm = (cq if s.partial else cq.to(real)) if p.query_norm else None
    return Results(wanted, query_rope.to(real), query_scale, norm, cq_scale[:, None] if p.query_norm and s.partial else None)


def _or(tensor: torch.Tensor | None, other: torch.Tensor) -> torch.Tensor:
    return other if tensor is None else tensor.detach().contiguous()


def _factor(alpha: float) -> float:
    return alpha if abs(alpha - 1.0) >= _FLT_EPSILON else 1.0


def _product(
    x: torch.Tensor,
    weight: Any,
    columns: int,
    row_scale: torch.Tensor | None,
    column_scale: torch.Tensor | None,
    short: bool,
) -> torch.Tensor:
    """float32 (T, columns): x times a weight (K, columns), an array or NZ storage. A product of int8 takes its scales."""
    w = weight.detach()
    nz = w.ndim == 4
    if nz:
        w = w.contiguous()
        strides = (w.shape[1] * w.shape[2] * w.shape[3], w.shape[3])
    else:
        strides = w.stride()
    out = torch.empty((x.shape[0], columns), dtype=torch.float32, device=x.device)
    integers = w.dtype == torch.int8
    multiply[(triton.cdiv(x.shape[0], _ROWS), triton.cdiv(columns, _COLUMNS))](
        x, w, out, out if row_scale is None else row_scale, out if column_scale is None else column_scale,
        x.shape[0], x.shape[1], columns, *x.stride(), *strides,
        NZ=fractal_width(w.element_size()) if nz else 0, INT8=integers, PRECISION="tf32" if short else "ieee",
        ROUND=short and not integers, ROWS=_ROWS, COLUMNS=_COLUMNS, DEPTH=_DEPTH, **LAUNCH,
    )  # fmt: skip
    return out


def _write_caches(
    p: Problem, call: Any, x: torch.Tensor, sin: torch.Tensor, cos: torch.Tensor, scales: dict[str, torch.Tensor], short: bool
) -> None:
    latent, rope = p.w_uk.shape[2], p.sin.shape[1]
    rows = _product(
        x, call.weight_dkv_kr, latent + rope, scales.get("dequant_scale_x"), scales.get("dequant_scale_w_dkv_kr"), short
    )
    # Of several tokens with one slot the last is kept.
    at, last = np.unique(p.slots[::-1], return_index=True)
    slots = np.full(len(p.slots), -1)
    slots[len(p.slots) - 1 - last] = at
    kv, kr = (cache.detach()[None] if call.cache_mode == "TND" else cache.detach() for cache in (call.kv_cache, call.kr_cache))
    tile = p.scenario.kv == "tile"
    kv, kr = (cache.view(torch.int16) if cache.dtype == torch.bfloat16 else cache for cache in (kv, kv if tile else kr))
    gamma = call.rmsnorm_gamma_ckv
    ckv_scale = scales.get("k_nope_clip_alpha" if tile else "quant_scale_ckv", rows)
    write_rows[(x.shape[0],)](
        rows, _or(gamma, rows), sin, cos, to_device(slots, x.device), kv, kr, ckv_scale, scales.get("quant_scale_ckr", rows),
        latent, rope, 1.0 / latent, p.eps_ckv, _factor(p.alpha_ckv), kv.shape[0], kv.shape[1],
        kv.stride(0), kv.stride(1), kv.stride(3), kr.stride(0), kr.stride(1), kr.stride(3),
        KIND=CACHE_SCALES[p.scenario.kv], HAS_GAMMA=gamma is not None, KV_NZ=fractal_width(kv.element_size()) if p.nz else 0,
        KR_NZ=fractal_width(kr.element_size()) if p.nz else 0, LATENT=max(TILE, triton.next_power_of_2(latent)),
        HALF=triton.next_power_of_2(rope // 2), TILE=TILE, BFLOAT16=short, **LAUNCH,
    )  # fmt: skip
