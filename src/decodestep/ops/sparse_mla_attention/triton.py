"""sparse_mla_attention on a GPU: the dense kernels, for which chosen rows of a cache are blocks of one row."""

from __future__ import annotations

from typing import Any

import torch

from decodestep._base.devices import detached, to_device_together
from decodestep.ops.mla_attention.triton import Workspace, launch
from decodestep.ops.sparse_mla_attention.arguments import Call, Problem, in_rows


def attend(p: Problem, call: Call) -> torch.Tensor:
    """(T, N, width) in query's dtype. p: the call, checked by its outlines."""
    given: Any = in_rows(call.layout, *detached((call.query, call.query_rope, call.key, call.key_rope)))
    query, query_rope, latents, rope_keys = given
    tokens, heads, width = query.shape
    each = torch.arange(tokens, device=query.device)
    slots, counts = to_device_together([p.slots, p.counts], query.device)
    work = Workspace(tokens, heads, width, int(p.counts.max(initial=1)), query.device, query.dtype)
    out = launch(query.contiguous(), query_rope.contiguous(), latents, rope_keys, slots, counts, each, work, scale=p.scale)
    return torch.where(counts[:, None, None] > 0, out, torch.zeros_like(out))
