"""lightning_indexer on a GPU: a kernel for the scores, and torch's stable sort."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from decodestep._base.devices import detached, to_device_together
from decodestep._base.triton import LAUNCH, as_float32
from decodestep.ops.lightning_indexer.arguments import Call, Problem, in_rows

_KEYS, _HEADS = 64, 16  # of a program's tile
_NAN, _UNSEEN = -(2**33), -(2**34)  # ranks below those of all numbers


def select(p: Problem, call: Call) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The selected positions (T, count), and their scores if those are asked for. p: the call, checked by its outlines."""
    tensors = detached((call.query, call.key, call.weights, call.query_dequant_scale, call.key_dequant_scale))
    given: Any = in_rows(call.layout, *tensors)
    device = given.query.device
    table, sequence, seen = to_device_together([p.table, p.sequence, p.visible], device)
    scores = torch.zeros((len(p.sequence), int(p.visible.max(initial=0))), dtype=torch.float32, device=device)
    if scores.numel():
        _launch(given, table, sequence, seen, scores)
    column = torch.arange(scores.shape[1], device=device)
    bits = (scores + 0.0).view(torch.int32).to(torch.int64)
    ranks = torch.where(bits < 0, -(2**31) - 1 - bits, bits)
    ranks = torch.where(torch.isnan(scores), _NAN, ranks)
    ranks = torch.where(column < seen[:, None], ranks, _UNSEEN)
    found = torch.sort(ranks, dim=1, descending=True, stable=True).indices[:, : p.most]
    is_found = torch.arange(found.shape[1], device=device) < seen[:, None]
    if not p.ordered:
        far = scores.shape[1]
        found = torch.sort(torch.where(is_found, found, far), dim=1).values
        found = torch.where(is_found, found, 0)
    fill = (0, p.most - found.shape[1])
    selected = torch.nn.functional.pad(torch.where(is_found, found, -1), fill, value=-1).to(torch.int32)
    if not p.with_values:
        return selected, None
    values = torch.where(is_found, scores.gather(1, found), -torch.inf)
    return selected, torch.nn.functional.pad(values, fill, value=-torch.inf)


def _launch(given: Any, table: torch.Tensor, sequence: torch.Tensor, seen: torch.Tensor, scores: torch.Tensor) -> None:
    query, keys, weights, query_scale, key_scale = given
    in_bytes = query_scale is not None
    by_head = weights.float() * (query_scale.float() if in_bytes else 1)
    tokens, heads, width = query.shape
    _score[(tokens, triton.cdiv(scores.shape[1], _KEYS))](
        query.contiguous(), keys, by_head.contiguous(), key_scale if in_bytes else by_head, table, sequence, seen, scores,
        heads, width, keys.shape[0], keys.shape[1], table.shape[1], scores.shape[1], keys.stride(0), keys.stride(1),
        keys.stride(3), *(key_scale.stride() if in_bytes else (0, 0)), IN_BYTES=in_bytes, KEYS=_KEYS, HEADS=_HEADS,
        WIDTH=max(16, triton.next_power_of_2(width)), **LAUNCH,
    )  # fmt: skip


@triton.jit
def _score(
    query, keys, weights, key_scale, table, sequence, seen, scores, heads, width, blocks, block_size, table_width, room,
    key_block, key_row, key_item, scale_block, scale_row,
    IN_BYTES: tl.constexpr, KEYS: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Program (token, keys)."""
    t = tl.program_id(0).to(tl.int64)
    j = tl.program_id(1) * KEYS + tl.arange(0, KEYS)
    is_key = j < tl.load(seen + t)
    block = tl.load(table + tl.load(sequence + t) * table_width + j // block_size, mask=is_key, other=-1).to(tl.int64)
    line = (j % block_size).to(tl.int64)
    is_key = is_key & (block >= 0) & (block < blocks)
    column = tl.arange(0, WIDTH)
    is_column = column < width
    at = (block * key_block + line * key_row)[:, None] + (column * key_item)[None, :]
    k = tl.load(keys + at, mask=is_key[:, None] & is_column[None, :], other=0)
    if not IN_BYTES:
        k = as_float32(k)
    total = tl.zeros([KEYS], tl.float32)
    for first in range(0, heads, HEADS):
        head = first + tl.arange(0, HEADS)
        is_head = head < heads
        row = t * heads + head
        q = tl.load(query + row[:, None] * width + column[None, :], mask=is_head[:, None] & is_column[None, :], other=0)
        if IN_BYTES:
            product = tl.dot(q, tl.trans(k), out_dtype=tl.int32).to(tl.float32)
        else:
            product = tl.dot(as_float32(q), tl.trans(k), input_precision="ieee")
        weight = tl.load(weights + row, mask=is_head, other=0.0)
        positive = tl.where((product < 0) | (is_head[:, None] == 0), 0.0, product)  # NaN stays
        total += tl.sum(positive * weight[:, None], axis=0)
    if IN_BYTES:
        total *= as_float32(tl.load(key_scale + block * scale_block + line * scale_row, mask=is_key, other=0))
    tl.store(scores + t * room + j, total, mask=j < room)
