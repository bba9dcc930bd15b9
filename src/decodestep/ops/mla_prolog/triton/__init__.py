"""mla_prolog on a GPU, in four launches: the products of token_x, the rows made of them, the product by weight_uq_qr, and the
queries; a fifth rounds queries to eight bits. Eight-bit floats are uint8 to the kernels.

`Prolog` holds everything that they read and write, so that its `run` neither allocates nor waits and can be captured into a
CUDA graph.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
import triton

from decodestep._base import arrays, devices
from decodestep._base.triton import LAUNCH
from decodestep._base.triton_overlap import overlap
from decodestep.ops.mla_prolog.call import Call
from decodestep.ops.mla_prolog.problem import CACHE_SCALES, Problem, Results
from decodestep.ops.mla_prolog.scenarios import BLOCK, TILE
from decodestep.ops.mla_prolog.size_limits import PAGED_MODES
from decodestep.ops.mla_prolog.triton.binding import bind_on_device
from decodestep.ops.mla_prolog.triton.products import TILES, Product, Tiles
from decodestep.ops.mla_prolog.triton.queries import TURNED, finish_queries, quantise_heads
from decodestep.ops.mla_prolog.triton.rows import finish_rows
from decodestep.weights.nz import fractal_width

_FLT_EPSILON = 2.0**-23
_ROW_WARPS = 8  # of a program that norms a row
# One stage: loads ahead of a step would wait with it for the product before.
_ABSORB = {torch.bfloat16: Tiles(depth=128, stages=1), torch.float32: Tiles(depth=16, stages=1)}


def prolog(p: Problem, call: Call) -> Results:
    """p: the checked call, of outlines. call: the `Call` with its tensors."""
    return Prolog(p, call).run()


def prepare(operator: Callable[..., Any], /, *args: object, **kwargs: object) -> Prolog:
    """`operator`, one of the three versions, with its arguments checked and its memory allocated, but not run."""
    given = inspect.signature(operator).bind(*args, **kwargs)
    given.apply_defaults()
    call = Call(op=operator.__name__, **given.arguments)
    return Prolog(bind_on_device(call), call)


class Prolog:
    """A checked call with memory for its results, which every `run` writes anew.

    slots: int64 (T,), the tokens' slots on the device: cache_index itself if it lies there, is contiguous and holds slots.
    """

    def __init__(
        self,
        p: Problem,
        call: Any,
        tiles: Mapping[torch.dtype, Tiles] = TILES,
        absorb_tiles: Mapping[torch.dtype, Tiles] = _ABSORB,
    ) -> None:
        s, tokens, rope = p.scenario, len(p.x), p.sin.shape[1]
        heads, nope, latent = p.w_uk.shape
        self.p, self.call = p, call
        self.x = self._stored(call.token_x).reshape(tokens, p.x.shape[1])
        self.sin, self.cos = (a.detach().reshape(tokens, rope).contiguous() for a in (call.rope_sin, call.rope_cos))
        self.gamma_cq, self.gamma_ckv = (g.detach().contiguous() for g in (call.rmsnorm_gamma_cq, call.rmsnorm_gamma_ckv))
        self.scales = {name: self._stored(getattr(call, name)).reshape(-1).contiguous() for name in p.scales}
        self.real = call.weight_uk.dtype
        self.size = {"BFLOAT16": self.real == torch.bfloat16, **LAUNCH}
        self.caches = bool(tokens and p.kv_cache.shape[0])
        self.slots = _slots(p, call, self.x.device)
        self.absorb_tiles, self.absorbs = absorb_tiles[self.real], nope > 0

        codes = torch.int8 if s.code == "int8" else torch.uint8
        self.cq = self._new(tokens, p.query_width, dtype=codes if s.partial else self.real)
        blocks = p.query_width // BLOCK
        self.cq_scale = self._new(tokens, blocks, dtype=codes) if s.blocks else self._new(tokens, 1, dtype=torch.float32)
        self.query = torch.zeros((tokens, heads, latent), dtype=self.real, device=self.x.device)
        self.query_rope = self._new(tokens, heads, rope)
        self.byte_query = self._new(tokens, heads, latent, dtype=codes) if s.query_quantised else None
        self.query_scale = self._new(tokens, heads, 1, dtype=torch.float32) if s.query_quantised else None

        of_x = [(self._stored(call.weight_dq), p.query_width)]
        of_x += [(self._stored(call.weight_dkv_kr), latent + rope)] if self.caches else []
        of_cq = [(self._stored(call.weight_uq_qr), heads * (nope + rope))]
        x_blocks: list[torch.Tensor] = []
        cq_blocks: list[torch.Tensor] = []
        if s.blocks:
            names = ("x", "w_dq", "w_dkv_kr")[: 1 + len(of_x)]
            x_blocks = [self.scales[f"dequant_scale_{name}"] for name in names]
            cq_blocks = [self.cq_scale, self.scales["dequant_scale_w_uq_qr"]]
        self.of_x = Product(self.x, of_x, self.real, tiles[self.x.dtype], True, x_blocks)
        self.of_cq = Product(self.cq, of_cq, self.real, tiles[self.cq.dtype], False, cq_blocks)

    def run(self) -> Results:
        """Launches the kernels, without waiting for them."""
        if len(self.x):
            self.of_x.launch()
            self._finish_rows()
            self.of_cq.launch()
            self._finish_queries()
            if self.byte_query is not None:
                self._quantise_heads()
        byte_norm = self.p.query_norm and self.p.scenario.partial
        return Results(
            self.query if self.byte_query is None else _as_floats(self.byte_query),
            self.query_rope,
            self.query_scale,
            _as_floats(self.cq) if self.p.query_norm else None,
            _as_floats(self.cq_scale, torch.float8_e8m0fnu) if byte_norm else None,
        )

    def _finish_rows(self) -> None:
        p, call, x = self.p, self.call, self.x
        latent, rope, tile = p.w_uk.shape[2], p.sin.shape[1], p.scenario.kv == "tile"
        x_scale = self.scales.get("dequant_scale_x")
        raw = rows = self.of_x.of(0, x_scale, self.scales.get("dequant_scale_w_dq"))
        if self.caches:
            rows = self.of_x.of(1, x_scale, self.scales.get("dequant_scale_w_dkv_kr"))
        kv, kr = (self._stored(cache) for cache in (call.kv_cache, call.kr_cache))
        kv, kr = (cache[None] if call.cache_mode == "TND" else cache for cache in (kv, kr))
        kr = kv if tile else kr
        finish_rows[(len(x), 1 + self.caches)](
            *raw[:6], self.gamma_cq, self.scales.get("smooth_scales_cq", x), self.cq, self.cq_scale, p.query_width,
            1.0 / p.query_width, p.eps_cq, _factor(p.alpha_cq), *rows[:6], self.gamma_ckv, self.sin, self.cos, self.slots,
            kv, kr, self.scales.get("k_nope_clip_alpha" if tile else "quant_scale_ckv", x),
            self.scales.get("quant_scale_ckr", x), len(x), latent, rope, 1.0 / latent, p.eps_ckv, _factor(p.alpha_ckv),
            *kv.shape[:2], kv.stride(0), kv.stride(1), kv.stride(3), kr.stride(0), kr.stride(1), kr.stride(3),
            RAW_PARTS=raw.number, RAW_SCALED=raw.scaled, HAS_SMOOTH="smooth_scales_cq" in self.scales,
            WIDTH=triton.next_power_of_2(p.query_width), PARTS=rows.number, SCALED=rows.scaled,
            KIND=CACHE_SCALES[p.scenario.kv],
            KV_NZ=fractal_width(kv.element_size()) if p.nz else 0, KR_NZ=fractal_width(kr.element_size()) if p.nz else 0,
            LATENT=max(TILE, triton.next_power_of_2(latent)), HALF=triton.next_power_of_2(rope // 2), TILE=TILE,
            num_warps=_ROW_WARPS, **overlap(x.device), **self.size,
        )  # fmt: skip

    def _finish_queries(self) -> None:
        p, w, tokens = self.p, self.call.weight_uk.detach(), len(self.x)
        (heads, nope, latent), rope = p.w_uk.shape, p.sin.shape[1]
        q = self.of_cq.of(0, self.cq_scale, self.scales.get("dequant_scale_w_uq_qr"))
        tiles = self.absorb_tiles
        rows, absorbing = tiles.rows(tokens), triton.cdiv(latent, tiles.columns) if self.absorbs else 0
        turning = rows // TURNED.value
        finish_queries[(triton.cdiv(tokens, rows), heads, absorbing + turning)](
            *q[:6], self.sin, self.cos, w, self.query, self.query_rope, tokens, heads, nope, latent, rope, *w.stride(),
            PARTS=q.number, SCALED=q.scaled, ROWS=rows, COLUMNS=tiles.columns, DEPTH=tiles.depth,
            HALF=triton.next_power_of_2(rope // 2), num_stages=tiles.stages, num_warps=tiles.warps, **overlap(w.device),
            **self.size,
        )  # fmt: skip

    def _quantise_heads(self) -> None:
        tokens, heads, rope = self.query_rope.shape
        latent = self.p.w_uk.shape[2]
        quantise_heads[(tokens * heads,)](
            self.query, self.byte_query, self.query_scale, self.query_rope, self.scales["quant_scale_ckv"], latent, rope,
            AWAY=self.p.rounding == "half_away", WIDTH=triton.next_power_of_2(latent), ROPE=triton.next_power_of_2(rope),
            **overlap(self.x.device), **LAUNCH,
        )  # fmt: skip

    def _stored(self, tensor: torch.Tensor) -> torch.Tensor:
        """As the kernels take it."""
        own = tensor.detach()
        return own.view(torch.uint8) if self.p.scenario.code != "int8" and own.element_size() == 1 else own

    def _new(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype or self.real, device=self.x.device)


def _as_floats(made: torch.Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> torch.Tensor:
    return made.view(dtype) if made.dtype == torch.uint8 else made


def _slots(p: Problem, call: Call, device: torch.device) -> torch.Tensor:
    index = call.cache_index
    if call.cache_mode in PAGED_MODES and arrays.is_torch(index) and index.device == device:
        return index.detach().reshape(-1).contiguous()
    return devices.to_device(p.slots, device)


def _factor(alpha: float) -> float:
    return alpha if abs(alpha - 1.0) >= _FLT_EPSILON else 1.0
