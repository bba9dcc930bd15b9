"""Ascend's samplers on a GPU, in Triton: results with the bits of the reference.

Cuts are thresholds, found by trying sixteen keys a sweep. A sort, torch's, runs only where the result is an order: for
survivors that are returned, and for given noise, which belongs to ranks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from decodestep._base.devices import to_device
from decodestep._base.triton import LAUNCH
from decodestep.ops.top_k_top_p_sample.rules import Rules, SeededNoise
from decodestep.ops.top_k_top_p_sample.triton.kernels import apply_cuts, choose, survive

_BLOCK = 1024
_WARPS = 16  # of the one program that has a row


def sample(
    logits: torch.Tensor, k: np.ndarray, p: np.ndarray, m: np.ndarray | None, q: torch.Tensor | None, rules: Rules
) -> tuple[Any, Any, Any, Any]:
    """The fields of `Outputs` as tensors.

    m: None by the rules of the first version. q: given noise; seeded noise is in the rules.
    """
    batch, vocab = logits.shape
    device = logits.device

    def new(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    kept, values = new(batch, vocab, dtype=torch.int8), new(batch, vocab, dtype=torch.float32)
    keys, counts = new(batch, vocab, dtype=torch.int64), new(batch, dtype=torch.int64)
    columns = [to_device(np.asarray(column, np.float32), device) for column in (p, np.zeros(batch) if m is None else m)]
    survive[(batch,)](
        logits, *logits.stride(), to_device(k, device), *columns, kept, values, keys, counts, vocab, rules.largest_k,
        FIRST=m is None, RAW=not rules.input_is_logits, TWICE=rules.kernel_exact, BLOCK=_BLOCK, num_warps=_WARPS, **LAUNCH,
    )  # fmt: skip
    masked = None
    if rules.need_logits:
        background = -torch.inf if rules.input_is_logits else 0.0
        masked = logits.float().masked_fill(kept == 0, background)
    order: Any = None
    if q is not None or rules.need_survivors:
        order = torch.sort(keys, dim=1, descending=True, stable=True).indices
    if rules.need_survivors:
        beyond = torch.arange(vocab, device=device) >= counts[:, None]
        return None, masked, order.masked_fill(beyond, 0), values.gather(1, order).masked_fill(beyond, 0.0)
    seeded = rules.noise if isinstance(rules.noise, SeededNoise) else None
    seeds, positions = counts, counts
    if seeded is not None:
        seeds, positions = (to_device(column.view(np.int64), device) for column in (seeded.seeds, seeded.positions))
    chosen = new(batch, dtype=torch.int64)
    choose[(batch,)](
        values, keys, keys if order is None else order, counts,
        values if q is None else q, *((0, 0) if q is None else q.stride()), seeds, positions, rules.eps, chosen, vocab,
        GIVEN=q is not None, SEEDED=seeded is not None, BLOCK=_BLOCK, num_warps=_WARPS, **LAUNCH,
    )  # fmt: skip
    return chosen, masked, None, None


def apply(logits: torch.Tensor, p: np.ndarray | None, k: np.ndarray | None) -> torch.Tensor:
    batch, vocab = logits.shape
    kept = torch.empty((batch, vocab), dtype=torch.int8, device=logits.device)
    columns = [
        kept if column is None else to_device(np.asarray(column, dtype), logits.device)
        for column, dtype in ((k, np.int32), (p, np.float32))
    ]
    apply_cuts[(batch,)](
        logits,
        *logits.stride(),
        *columns,
        kept,
        vocab,
        HAS_K=k is not None,
        HAS_P=p is not None,
        BLOCK=_BLOCK,
        num_warps=_WARPS,
        **LAUNCH,
    )
    return logits.masked_fill(kept == 0, -torch.inf)
