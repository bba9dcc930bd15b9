"""mla_attention on a GPU: flash decoding over splits of the keys, and their merge.

A split's length follows from its token's length alone, and a token's splits are added in their order, so that its bits do not
depend on the other tokens. `Workspace` holds everything that the kernels write; `launch` neither allocates nor waits, and can
be captured into a CUDA graph.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from decodestep._base.checks import require
from decodestep._base.devices import to_device_together
from decodestep.ops.mla_attention.arguments import OP, Call, Problem
from decodestep.ops.mla_attention.triton.kernels import attend, merge
from decodestep.ops.mla_attention.triton.tiles import LEAST, MOST, power, tiles_for
from decodestep.ops.mla_prolog.scenarios import TILE
from decodestep.weights.nz import fractal_width

_EXACT_IN_TF32 = torch.bfloat16, torch.float16
_MERGED = 128  # columns of a program


class Workspace:
    """The memory that calls of up to `tokens` tokens write, with lengths of up to `longest`. width: Hckv / groups.

    out: (tokens, heads, width) of `dtype`, the results of the last call; lse: (tokens, heads), float32, what goes with them.
    """

    def __init__(
        self, tokens: int, heads: int, width: int, longest: int, device: torch.device | str, dtype: torch.dtype
    ) -> None:
        self.longest = longest
        self.splits = max(1, min(MOST, -(-longest // LEAST)))
        self.partial = torch.empty((tokens, self.splits, heads, width), dtype=torch.float32, device=device)
        self.states = torch.empty((tokens, self.splits, heads, 2), dtype=torch.float32, device=device)
        self.out = torch.empty((tokens, heads, width), dtype=dtype, device=device)
        self.lse = torch.empty((tokens, heads), dtype=torch.float32, device=device)


def launch(
    query: torch.Tensor | None,
    query_rope: torch.Tensor,
    kv_cache: torch.Tensor,
    kr_cache: torch.Tensor,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
    sequence: torch.Tensor,
    work: Workspace,
    *,
    scale: float,
    groups: int = 1,
    kv_scale: torch.Tensor | None = None,
    kr_scale: torch.Tensor | None = None,
    kv_tiles: torch.Tensor | None = None,
    nz: bool = False,
) -> torch.Tensor:
    """The results, in work.out.

    Tensors as in `mla_attention`, on one device: queries and indexes packed, indexes int64 or int32. kv_scale, kr_scale:
    float32, one number for each column of an int8 cache. kv_tiles: float32, a factor for each 128 columns of each row of
    kv_cache, which is then int8, or uint8, the bits of float8_e4m3fn. nz: the caches' blocks are in NZ order. Checks nothing,
    allocates nothing and does not wait for the device. Keys beyond work.longest are not read, nor are blocks that do not exist.
    """
    tokens, heads, rope = query_rope.shape
    blocks, block_size, _, latent = kv_cache.shape
    width = latent // groups
    out = work.out[:tokens]
    if not tokens:
        return out
    operands = (query_rope.dtype, kv_cache.dtype, kr_cache.dtype)
    narrow = operands == (torch.bfloat16,) * 3
    tiles = tiles_for(query_rope.device, heads, latent, rope, narrow=narrow)
    longest = min(work.longest, block_table.shape[1] * block_size)
    cut = {"LEAST": LEAST, "MOST": MOST, "KEYS": tiles.keys}
    attend[(tokens * -(-heads // tiles.heads), work.splits)](
        query_rope if query is None else query, query_rope, kv_cache, kr_cache,
        work.states if kv_scale is None else kv_scale, work.states if kr_scale is None else kr_scale,
        work.states if kv_tiles is None else kv_tiles,
        block_table, sequence, lengths, work.partial, work.states, scale * math.log2(math.e), heads, latent, rope,
        blocks, block_size, *block_table.shape, longest, work.splits,
        kv_cache.stride(0), kv_cache.stride(1), kv_cache.stride(3), kr_cache.stride(0), kr_cache.stride(1), kr_cache.stride(3),
        *(kv_tiles.stride()[:2] if kv_tiles is not None else (0, 0)), width, heads // groups,
        TILE=TILE if kv_tiles is not None else 0,
        HAS_QUERY=query is not None, KV_SCALED=kv_scale is not None, KR_SCALED=kr_scale is not None,
        KV_NZ=fractal_width(kv_cache.element_size()) if nz else 0, KR_NZ=fractal_width(kr_cache.element_size()) if nz else 0,
        NARROW=narrow, PRECISION="tf32" if all(dtype in _EXACT_IN_TF32 for dtype in operands) else "ieee",
        WHOLE=block_size % tiles.keys == 0, FAR=_is_far(kv_cache, nz) or _is_far(kr_cache, nz),
        HEADS=tiles.heads, LATENT=power(latent), WIDTH=power(rope), **cut,
        num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    merge[(tokens * heads, -(-width // _MERGED))](
        work.partial, work.states, lengths, out, work.lse, longest, work.splits, heads, width, COLUMNS=_MERGED, **cut
    )
    return out


def _is_far(cache: torch.Tensor, nz: bool) -> bool:
    """Whether rows of a block, or values of a row, lie farther apart than an int32 holds, or it does not number a block's."""
    apart = any((cache.shape[axis] - 1) * cache.stride(axis) >= 2**31 for axis in (1, 3))
    return apart or (nz and cache.shape[1] * cache.shape[3] >= 2**31)


def attention(p: Problem, call: Call) -> tuple[torch.Tensor, torch.Tensor]:
    """(T, N, Hckv / groups) in query_rope's dtype, and lse. p: the call, checked by its outlines."""
    query, query_rope = _queries(call)
    kv_cache, kr_cache, kv_tiles = _caches(p, call)
    tokens, heads, _ = query_rope.shape
    longest, dtype = int(p.lengths.max(initial=1)), _tensor(call.query_rope).dtype
    table, lengths, sequence = to_device_together([p.block_table, p.lengths, p.sequence], query_rope.device)
    work = Workspace(tokens, heads, kv_cache.shape[3] // p.groups, longest, query_rope.device, dtype)
    out = launch(
        query,
        query_rope,
        kv_cache,
        kr_cache,
        table,
        lengths,
        sequence,
        work,
        scale=p.scale,
        groups=p.groups,
        kv_scale=_by_column(call.quant_scale_ckv, kv_cache),
        kr_scale=_by_column(call.quant_scale_ckr, kr_cache),
        kv_tiles=kv_tiles,
        nz=p.kv_cache.nz,
    )
    return out, work.lse


def _caches(p: Problem, call: Call) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The latents, the rope keys, and the factors of the latents' tiles."""
    rows = _tensor(call.kv_cache)
    if p.joined is None:
        return rows, _tensor(call.kr_cache), None
    in_words = rows.stride(3) == 1 and not any(place % 4 for place in (rows.data_ptr(), rows.stride(0), rows.stride(1)))
    require(in_words, OP, "kv_cache", "of rows aligned to words, whose bytes follow each other", call.kv_cache)
    latent, end = p.kv_cache.rows.shape[3], rows.shape[3] - 4 * p.kv_cache.rows.shape[3] // TILE
    stored = torch.uint8 if rows.dtype == torch.float8_e4m3fn else torch.int8
    return rows.view(stored)[..., :latent], rows[..., latent:end].view(torch.bfloat16), rows[..., end:].view(torch.float32)


def _tensor(value: Any) -> torch.Tensor:
    tensor: torch.Tensor = value.detach()
    return tensor


def _queries(call: Call) -> tuple[torch.Tensor | None, torch.Tensor]:
    """The queries, packed; with dequant_scale_q_nope the float32 ones that they stand for."""
    query, rope = None if call.query is None else _tensor(call.query), _tensor(call.query_rope)
    if call.dequant_scale_q_nope is not None:
        assert query is not None
        factor = _tensor(call.dequant_scale_q_nope)
        query, rope = query * factor, rope.float() * factor / _tensor(call.quant_scale_ckv).reshape(())
    return None if query is None else query.contiguous(), rope.contiguous()


def _by_column(scale: object, cache: torch.Tensor) -> torch.Tensor | None:
    return None if scale is None else _tensor(scale).reshape(-1).expand(cache.shape[3]).contiguous()
