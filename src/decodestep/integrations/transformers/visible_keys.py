"""Which cached positions each query sees, in the form for `mla_attention`: from a mask, once for all layers of a step."""

from __future__ import annotations

import threading
import weakref
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from decodestep.integrations.transformers.borrowed import borrow


class VisibleKeys(NamedTuple):
    """Which of the T positions of their rows the B * Q queries of a call see.

    positions: int64 (S, T), the positions in the order in which sequence s reads them; None if all queries of a row see its
        first positions; S is then B. rows: int64 (S,), the row of each sequence.
    sequence, lengths: int64 (B * Q,): the sequence of a query, and how many of its first positions it sees, at least 1.
    blind: the queries that see no position.
    """

    positions: np.ndarray | None
    rows: np.ndarray
    sequence: np.ndarray
    lengths: np.ndarray
    blind: np.ndarray


def keys_without_mask(batch: int, queries: int, keys: int, causal: bool) -> VisibleKeys:
    """Without a mask: causal from the first position, as in torch's attention, or everything."""
    lengths = np.minimum(np.arange(queries) + 1, keys) if causal else np.full(queries, keys)
    rows = np.arange(batch)
    return VisibleKeys(None, rows, rows.repeat(queries), np.tile(lengths, batch), np.empty(0, np.int64))


def keys_of_mask(mask: Tensor) -> VisibleKeys:
    """For a bool mask (B, Q, T), which is copied to the host if it is on a device."""
    seen = borrow(mask.cpu())
    batch, queries, keys = seen.shape
    lengths, ahead = seen.sum(2), np.arange(keys)
    if (seen == (ahead < lengths[:, :, None])).all():
        rows = np.arange(batch)
        return _visible_keys(None, rows, rows.repeat(queries), lengths)
    # The queries of a row can share a sequence if each sees a prefix of the positions that any of them sees.
    order = np.argsort(~seen.any(1), axis=1, kind="stable")
    if (np.take_along_axis(seen, order[:, None], 2) == (ahead < lengths[:, :, None])).all():
        rows = np.arange(batch)
        return _visible_keys(order, rows, rows.repeat(queries), lengths)
    order = np.argsort(~seen, axis=2, kind="stable").reshape(-1, keys)
    return _visible_keys(order, np.arange(batch).repeat(queries), np.arange(batch * queries), lengths)


def _visible_keys(positions: np.ndarray | None, rows: np.ndarray, sequence: np.ndarray, lengths: np.ndarray) -> VisibleKeys:
    flat = lengths.reshape(-1)
    longest = max(int(flat.max(initial=1)), 1)
    if positions is not None:
        positions = positions[:, :longest]
    return VisibleKeys(positions, rows, sequence, np.maximum(flat, 1), np.flatnonzero(flat == 0))


class _Last(threading.local):
    """The last mask that this thread converted to `VisibleKeys`: every layer of a step receives the same tensor."""

    mask: weakref.ref[Tensor] | None = None
    version = -1
    keys: VisibleKeys | None = None
    first = model = -1  # for whom it was converted


_last = _Last()


def of_mask(mask: Tensor, reader: int, model: int) -> VisibleKeys:
    """`keys_of_mask` of a (B, 1, Q, T) mask, cached for the other readers of a step as long as it is not written to.

    reader, model: the ids of the layer that reads it and of its config. When the first layer reads it again, or another model
        does, another step has begun, before which the mask may have been written to through NumPy or `Tensor.data`, which
        leave no trace.
    Inference tensors have no version counter, so they are not cached.
    """
    if mask.is_inference():
        return keys_of_mask(mask[:, 0])
    known, version = _last.keys, mask._version
    is_read = _last.mask is not None and _last.mask() is mask and _last.version == version
    if known is None or not is_read or model != _last.model or reader == _last.first:
        known = keys_of_mask(mask[:, 0])
        _last.keys, _last.mask, _last.version, _last.first, _last.model = known, weakref.ref(mask), version, reader, model
    return known


def as_bool(mask: Tensor, query: Tensor) -> Tensor | None:
    """An additive mask as a bool mask; None if it does more than keep or remove positions, or if sdpa refuses its dtype."""
    if mask.dtype == torch.bool:
        return mask
    if mask.dtype not in (torch.float32, query.dtype):
        return None
    seen = mask == 0
    only_masks = bool((seen | (mask <= torch.finfo(mask.dtype).min)).all())
    # A row without visible positions gives the mean of all values with an additive mask, and zero with a bool mask.
    return seen if only_masks and bool(seen.any(-1).all()) else None
