"""Absorbed attention on cached latents: kv_b_proj is applied to the query and the output instead of the keys and values."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from decodestep._base import devices
from decodestep._base.profiling import run
from decodestep.integrations.transformers.borrowed import borrow, borrow_rows
from decodestep.integrations.transformers.few_rows import FORMATS, MOST_ROWS
from decodestep.integrations.transformers.visible_keys import VisibleKeys
from decodestep.ops.linear.cpu import head_products
from decodestep.ops.mla_attention import cpu, mla_attention
from decodestep.ops.mla_attention.arguments import OP, Problem
from decodestep.ops.mla_attention.caches import Cache


def attend_absorbed(
    module: torch.nn.Module,
    query: Tensor,
    latents: Tensor,
    rope_keys: Tensor,
    keys: VisibleKeys,
    scale: float,
    backend: str,
) -> Tensor:
    """Attention on the latents: kv_b_proj's key part multiplies the query, its value part the weighted sum. Everything except
    the indices in `keys` stays on the query's device.

    query (B, H, Q, nope + rope) -> (B, Q, H, v_head_dim), in no particular memory order
    """
    batch, heads, queries, _ = query.shape
    each = query.detach().float().transpose(1, 2).reshape(batch * queries, heads, -1)
    nope, width, weight = module.qk_nope_head_dim, module.v_head_dim, module.kv_b_proj.weight.detach()
    kv, kr, table = as_pages(latents.detach(), rope_keys.detach(), keys)
    native = query.is_cpu and not devices.goes_to_triton(backend, query)
    if native and len(each) <= MOST_ROWS and weight.stride(1) == 1:
        # The weight is read in place, on every thread. torch would multiply a few rows on one thread, or leave OpenMP threads
        # spinning, which would slow down ours.
        few, rows = borrow(each), (borrow_rows(weight), FORMATS[weight.dtype], weight.shape[1])
        in_latents = head_products(few[..., :nope], *rows, 0, nope, transposed=True)
        sums = attend_pages(in_latents, few[..., nope:], kv, kr, table, keys, scale)
        values = torch.from_numpy(head_products(sums, *rows, nope, width, transposed=False))
    else:
        # In float32, which is several times faster than torch's bfloat16 on CPUs without bfloat16 instructions; one half of
        # the weight in float32 fits the caches.
        of_keys, of_values = weight.view(heads, nope + width, -1).split([nope, width], 1)
        query_there = torch.bmm(each[..., :nope].transpose(0, 1), of_keys.float()).transpose(0, 1)
        given = query_there, each[..., nope:], kv, kr
        query_there, rope, kv, kr = map(borrow, given) if native else given
        options: dict[str, Any] = {"scale": scale, "sequence": keys.sequence, "backend": backend}
        out: Any = mla_attention(query_there, rope, kv, kr, table, keys.lengths, **options)
        out = torch.from_numpy(out) if native else out
        if keys.blind.size:
            out[torch.from_numpy(keys.blind).to(out.device)] = 0.0
        # The weight first: for one query torch then reads it in memory order, which is a third faster.
        values = torch.bmm(of_values.float(), out.permute(1, 2, 0)).permute(2, 0, 1)
    return values.to(query.dtype).view(batch, queries, heads, width)


def attend_pages(
    query: np.ndarray | None, rope: np.ndarray, kv: Tensor, kr: Tensor, table: np.ndarray, keys: VisibleKeys, scale: float
) -> np.ndarray:
    """`mla_attention` on the CPU without its checks, which can take longer than the call: these arguments are valid. Caches and
    table are as of `as_pages`."""
    caches = borrow(kv), borrow(kr)
    latents, ropes = (Cache(each, None) for each in caches)
    problem = Problem(query, rope, latents, ropes, table, keys.sequence, keys.lengths, scale, 1, None)
    if cpu.obstacle(problem) is None:
        out, _ = run(OP, "cpu", cpu.attention, problem)
    else:
        out = mla_attention(query, rope, *caches, table, keys.lengths, scale=scale, sequence=keys.sequence)
    out[keys.blind] = 0.0
    return out


def as_pages(latents: Tensor, rope_keys: Tensor, keys: VisibleKeys) -> tuple[Tensor, Tensor, np.ndarray]:
    """The caches and the block table: a block is a whole row, or one position if not all are read in order."""
    if keys.positions is None:
        return latents.transpose(1, 2), rope_keys.transpose(1, 2), np.arange(len(keys.rows))[:, None]
    between = _positions_a_row(latents)
    if between is None or (rope_keys.shape[3] and _positions_a_row(rope_keys) != between):
        latents, rope_keys = latents.contiguous(), rope_keys.contiguous()
        between = latents.shape[2]
    return _single(latents, between), _single(rope_keys, between), keys.positions + keys.rows[:, None] * between


def _positions_a_row(cache: Tensor) -> int | None:
    """The distance between rows in positions; None if it is not an integer."""
    row, position = cache.stride(0), cache.stride(2)
    if cache.stride(3) != 1 or position <= 0:
        return None
    return cache.shape[2] if cache.shape[0] == 1 else None if row % position or row <= 0 else row // position


def _single(cache: Tensor, between: int) -> Tensor:
    """(B, 1, T, width), rows `between` positions apart, as blocks of one position each."""
    batch, _, length, width = cache.shape
    step = cache.stride(2) if width else 0
    return cache.as_strided(((batch - 1) * between + length, 1, 1, width), (step, step, step, 1))
