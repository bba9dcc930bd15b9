"""mla_attention on a GPU: flash decoding over splits of fixed length, and their merge.

Program (token, heads, split) goes through the blocks of its split with a running maximum; `_merge` adds a token's splits in
their order. A split's length is fixed, so that a token's bits do not depend on the other tokens.

Products are float32 as the contract has it. Operands of at most eleven bits (bfloat16, float16, int8 without scales) are exact
in TF32, so that one pass of the tensor cores gives their exact products; the softmax's weights go through three.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from decodestep._base.devices import to_device
from decodestep._base.triton import MINUS_INFINITY, as_float32
from decodestep.ops.mla_attention.arguments import Call, Problem

_SPLIT = 1024  # keys
_KEYS = 64
_HEADS = 16
_SHORT = (torch.bfloat16, torch.float16, torch.int8)


def attention(p: Problem, call: Call, *, split: int = _SPLIT, keys: int = _KEYS) -> torch.Tensor:
    """float32 (T, N, Hckv / groups). p: the call, checked by its outlines."""
    query, query_rope = _queries(call)
    kv_cache, kr_cache = _tensor(call.kv_cache), _tensor(call.kr_cache)
    kv_scale, kr_scale = _by_column(call.quant_scale_ckv, kv_cache), _by_column(call.quant_scale_ckr, kr_cache)
    tokens, heads, width = query_rope.shape
    blocks, block_size, _, latent = kv_cache.shape
    device = query_rope.device
    out = torch.empty((tokens, heads, latent // p.groups), dtype=torch.float32, device=device)
    if not tokens or not heads:
        return out
    splits = triton.cdiv(int(p.lengths.max()), split)
    partial = torch.empty((tokens, splits, heads, latent // p.groups), dtype=torch.float32, device=device)
    states = torch.empty((tokens, splits, heads, 2), dtype=torch.float32, device=device)
    seen = to_device(p.lengths, device)
    exact = query_rope.dtype in _SHORT and all(
        cache.dtype in _SHORT and cache_scale is None for cache, cache_scale in ((kv_cache, kv_scale), (kr_cache, kr_scale))
    )
    _attend[(tokens, triton.cdiv(heads, _HEADS), splits)](
        query_rope if query is None else query, query_rope, kv_cache, kr_cache,
        seen if kv_scale is None else kv_scale, seen if kr_scale is None else kr_scale,
        to_device(p.block_table, device), to_device(p.sequence, device), seen, partial, states,
        p.scale, heads, latent, width, blocks, block_size, p.block_table.shape[1],
        kv_cache.stride(0), kv_cache.stride(1), kv_cache.stride(3), kr_cache.stride(0), kr_cache.stride(1), kr_cache.stride(3),
        latent // p.groups, heads // p.groups,
        HAS_QUERY=query is not None, KV_SCALED=kv_scale is not None, KR_SCALED=kr_scale is not None,
        PRECISION="tf32" if exact else "ieee", SPLIT=split, KEYS=keys, HEADS=_HEADS, LATENT=_power(latent), WIDTH=_power(width),
    )  # fmt: skip
    _merge[(tokens, heads)](
        partial, states, seen, out, splits, heads, latent // p.groups, SPLIT=split, WIDTH=_power(latent // p.groups)
    )
    return out


def _power(width: int) -> int:
    """The power of two that holds `width`, at least the 16 that a product needs."""
    return max(16, triton.next_power_of_2(width))


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


def _by_column(scale: Any, cache: torch.Tensor) -> torch.Tensor | None:
    return None if scale is None else _tensor(scale).reshape(-1).expand(cache.shape[3]).contiguous()


@triton.jit
def _attend(
    query, query_rope, kv_cache, kr_cache, kv_scale, kr_scale, table, sequence, lengths, partial, states,
    scale, heads, latent, width, blocks, block_size, table_width,
    kv_block, kv_row, kv_item, kr_block, kr_row, kr_item, out_width, heads_of_group,
    HAS_QUERY: tl.constexpr, KV_SCALED: tl.constexpr, KR_SCALED: tl.constexpr, PRECISION: tl.constexpr,
    SPLIT: tl.constexpr, KEYS: tl.constexpr, HEADS: tl.constexpr, LATENT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    t = tl.program_id(0).to(tl.int64)
    split = tl.program_id(2)
    length = tl.load(lengths + t)
    first = split * SPLIT
    if first < length:
        end = tl.minimum(length, first + SPLIT)
        head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
        column, turn = tl.arange(0, LATENT), tl.arange(0, WIDTH)
        is_column, is_turn, is_head = column < latent, turn < width, head < heads
        row = t * heads + head
        rope = load_rows(query_rope, row, turn, is_head, is_turn, width)
        if HAS_QUERY:
            q = load_rows(query, row, column, is_head, is_column, latent)
        table += tl.load(sequence + t) * table_width
        top = tl.full([HEADS], MINUS_INFINITY, tl.float32)
        weights = tl.zeros([HEADS], tl.float32)
        total = tl.zeros([HEADS, LATENT], tl.float32)
        for start in range(first, end, KEYS):
            j = start + tl.arange(0, KEYS)
            block = tl.load(table + j // block_size, mask=(j < end) & (j // block_size < table_width), other=-1)
            is_key = (j < end) & (block >= 0) & (block < blocks)
            at_kv, at_kr = block * kv_block + j % block_size * kv_row, block * kr_block + j % block_size * kr_row
            kv = load_keys(kv_cache, kv_scale, at_kv, column, is_key, is_column, kv_item, KV_SCALED)
            kr = load_keys(kr_cache, kr_scale, at_kr, turn, is_key, is_turn, kr_item, KR_SCALED)
            score = tl.dot(rope, tl.trans(kr), input_precision=PRECISION)
            if HAS_QUERY:
                score += tl.dot(q, tl.trans(kv), input_precision=PRECISION)
            score = tl.where(is_key[None, :], score * scale, MINUS_INFINITY)
            higher = tl.maximum(top, tl.max(score, axis=1))
            base = tl.where(higher == MINUS_INFINITY, 0.0, higher)  # while all scores are -inf
            weight = tl.exp(score - base[:, None])
            shrink = tl.exp(top - base)
            weights = weights * shrink + tl.sum(weight, axis=1)
            total = total * shrink[:, None] + tl.dot(weight, kv, input_precision="ieee" if PRECISION == "ieee" else "tf32x3")
            top = higher
        # Of the latent's blocks a head keeps its own.
        own = column[None, :] - (head // heads_of_group * out_width)[:, None]
        at = ((t * tl.num_programs(2) + split) * heads + head)[:, None]
        is_own = is_head[:, None] & is_column[None, :] & (own >= 0) & (own < out_width)
        tl.store(partial + at * out_width + own, total, mask=is_own)
        at = (t * tl.num_programs(2) + split) * heads + head
        tl.store(states + 2 * at, top, mask=is_head)
        tl.store(states + 2 * at + 1, weights, mask=is_head)


@triton.jit
def load_rows(rows, row, column, is_row, is_column, width):
    values = tl.load(rows + row[:, None] * width + column[None, :], mask=is_row[:, None] & is_column[None, :], other=0)
    return as_float32(values)


@triton.jit
def load_keys(cache, scale, row, column, is_key, is_column, by_item, SCALED: tl.constexpr):
    at = row[:, None] + (column * by_item)[None, :]
    keys = as_float32(tl.load(cache + at, mask=is_key[:, None] & is_column[None, :], other=0))
    if SCALED:
        stored = tl.load(scale + column, mask=is_column, other=1.0)
        keys = tl.div_rn(keys, tl.broadcast_to(stored[None, :], keys.shape))
    return keys


@triton.jit
def _merge(partial, states, lengths, out, splits, heads, width, SPLIT: tl.constexpr, WIDTH: tl.constexpr):
    t, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    own = tl.cdiv(tl.load(lengths + t), SPLIT)
    column = tl.arange(0, WIDTH)
    top = tl.full([], MINUS_INFINITY, tl.float32)
    for split in range(own):
        high = tl.load(states + 2 * ((t * splits + split) * heads + head))
        top = tl.where((high > top) | (high != high), high, top)
    base = tl.where(top == MINUS_INFINITY, 0.0, top)
    weights = tl.full([], 0.0, tl.float32)
    total = tl.zeros([WIDTH], tl.float32)
    for split in range(own):
        at = (t * splits + split) * heads + head
        factor = tl.exp(tl.load(states + 2 * at) - base)
        weights += factor * tl.load(states + 2 * at + 1)
        total += factor * tl.load(partial + at * width + column, mask=column < width, other=0.0)
    tl.store(out + (t * heads + head) * width + column, total / weights, mask=column < width)
