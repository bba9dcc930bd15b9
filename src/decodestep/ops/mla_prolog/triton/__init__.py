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
    launches = _Launches(p, call)
    cq, cq_scale = launches.compress()
    query, query_rope, query_scale = launches.queries(cq, cq_scale)
    if len(p.x) and p.kv_cache.shape[0]:
        launches.write_caches()
    real, s = launches.real, p.scenario
    if query is not None and not s.query_int8:
        query = query.to(real)
    norm = (cq if s.partial else cq.to(real)) if p.query_norm else None
    return Results(query, query_rope.to(real), query_scale, norm, cq_scale[:, None] if p.query_norm and s.partial else None)


class _Launches:
    """The stages of one call, on its tensors with the tokens' axes merged. Without tokens nothing is launched."""

    def __init__(self, p: Problem, call: Any) -> None:
        tokens, rope = len(p.x), p.sin.shape[1]
        self.p, self.call = p, call
        self.x = call.token_x.detach().reshape(tokens, p.x.shape[1])
        self.sin, self.cos = (a.detach().reshape(tokens, rope).contiguous() for a in (call.rope_sin, call.rope_cos))
        self.scales = {name: getattr(call, name).detach().reshape(-1).contiguous() for name in p.scales}
        self.real = call.weight_uk.dtype
        self.short = self.real == torch.bfloat16
        self.size = {"BFLOAT16": self.short, **LAUNCH}

    def compress(self) -> tuple[torch.Tensor, torch.Tensor]:
        """c as weight_uq_qr multiplies it: float32, or int8 with the scales of its rows."""
        p, call, x, width, int8 = self.p, self.call, self.x, self.p.query_width, self.p.scenario.partial
        cq, cq_scale = self._new(len(x), width, dtype=torch.int8 if int8 else torch.float32), self._new(len(x))
        if len(x):
            raw = x if p.w_dq is None else self._from_tokens(call.weight_dq, width, "dequant_scale_w_dq")
            gamma, smooth = call.rmsnorm_gamma_cq, self.scales.get("smooth_scales_cq")
            norm_rows[(len(x),)](
                raw, raw.stride(0), raw.stride(1), _or(gamma, raw), _or(smooth, raw), cq, cq_scale, width, 1.0 / width,
                p.eps_cq, _factor(p.alpha_cq), HAS_GAMMA=gamma is not None, HAS_SMOOTH=smooth is not None, INT8=int8,
                WIDTH=triton.next_power_of_2(width), **self.size,
            )  # fmt: skip
        return cq, cq_scale

    def queries(
        self, cq: torch.Tensor, cq_scale: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor | None]:
        """query, query_rope and dequant_scale_q_nope; the first two are float32 unless the query is int8."""
        p, s, tokens = self.p, self.p.scenario, len(cq)
        (heads, nope, latent), rope = p.w_uk.shape, p.sin.shape[1]
        head = nope + rope // p.rope_groups
        query_rope = self._new(tokens, heads, rope)
        query = torch.zeros((tokens, heads, latent), dtype=torch.float32, device=cq.device) if p.need_query else None
        if tokens:
            q = _product(
                cq, self.call.weight_uq_qr, heads * head, cq_scale if s.partial else None,
                self.scales.get("dequant_scale_w_uq_qr"), self.short,
            )  # fmt: skip
            turn_queries[(tokens, heads)](
                q, self.sin, self.cos, query_rope, heads, nope, rope, p.rope_groups, HALF=triton.next_power_of_2(rope // 2),
                **self.size,
            )  # fmt: skip
            if query is not None and nope:
                w = self.call.weight_uk.detach()
                absorb[(heads, triton.cdiv(tokens, _ROWS), triton.cdiv(latent, _COLUMNS))](
                    q, w, query, tokens, heads, nope, latent, heads * head, head, *w.stride(),
                    ROWS=_ROWS, COLUMNS=_COLUMNS, DEPTH=_DEPTH, **self.size,
                )  # fmt: skip
        if query is None or not s.query_int8:
            return query, query_rope, None
        return self._quantise_query(query, query_rope)

    def write_caches(self) -> None:
        """Writes the tokens' rows to the slots of both caches."""
        p, call, scales = self.p, self.call, self.scales
        latent, rope = p.w_uk.shape[2], p.sin.shape[1]
        rows = self._from_tokens(call.weight_dkv_kr, latent + rope, "dequant_scale_w_dkv_kr")
        # Of several tokens with one slot the last is kept.
        at, last = np.unique(p.slots[::-1], return_index=True)
        slots = np.full(len(p.slots), -1)
        slots[len(p.slots) - 1 - last] = at
        kv, kr = (
            cache.detach()[None] if call.cache_mode == "TND" else cache.detach() for cache in (call.kv_cache, call.kr_cache)
        )
        tile = p.scenario.kv == "tile"
        kv, kr = (cache.view(torch.int16) if cache.dtype == torch.bfloat16 else cache for cache in (kv, kv if tile else kr))
        gamma = call.rmsnorm_gamma_ckv
        ckv_scale = scales.get("k_nope_clip_alpha" if tile else "quant_scale_ckv", rows)
        write_rows[(len(rows),)](
            rows, _or(gamma, rows), self.sin, self.cos, to_device(slots, rows.device), kv, kr,
            ckv_scale, scales.get("quant_scale_ckr", rows), latent, rope, 1.0 / latent, p.eps_ckv, _factor(p.alpha_ckv),
            kv.shape[0], kv.shape[1], kv.stride(0), kv.stride(1), kv.stride(3), kr.stride(0), kr.stride(1), kr.stride(3),
            KIND=CACHE_SCALES[p.scenario.kv], HAS_GAMMA=gamma is not None,
            KV_NZ=fractal_width(kv.element_size()) if p.nz else 0, KR_NZ=fractal_width(kr.element_size()) if p.nz else 0,
            LATENT=max(TILE, triton.next_power_of_2(latent)), HALF=triton.next_power_of_2(rope // 2), TILE=TILE, **self.size,
        )  # fmt: skip

    def _quantise_query(self, query: torch.Tensor, query_rope: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The query as int8, query_rope in its units, written over the given one, and the scales of its heads."""
        tokens, heads, latent = query.shape
        rope = query_rope.shape[2]
        out, scale = self._new(tokens, heads, latent, dtype=torch.int8), self._new(tokens, heads, 1)
        if tokens:
            quantise_heads[(tokens * heads,)](
                query, out, scale, query_rope, self.scales["quant_scale_ckv"], latent, rope,
                AWAY=self.p.rounding == "half_away", WIDTH=triton.next_power_of_2(latent), ROPE=triton.next_power_of_2(rope),
                **self.size,
            )  # fmt: skip
        return out, query_rope, scale

    def _from_tokens(self, weight: Any, columns: int, scale: str) -> torch.Tensor:
        return _product(self.x, weight, columns, self.scales.get("dequant_scale_x"), self.scales.get(scale), self.short)

    def _new(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=self.x.device)


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
