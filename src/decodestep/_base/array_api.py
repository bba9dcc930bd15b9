"""What processors and stopping criteria need beyond the array API standard, for NumPy and torch.

Every function takes the namespace `xp` of its arrays first (`namespace`). Elementwise arithmetic runs in the dtype of the
scores, as in transformers, so float16 and bfloat16 round after each operation. Sums, and products with a Python number, run in
float32 or wider and round once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import numpy as np
from array_api_compat import array_namespace, device
from ml_dtypes import finfo as low_precision_finfo

from decodestep._base import arrays
from decodestep._base.arrays import Array, ArrayT
from decodestep._base.checks import refuse

NEGATIVE_INFINITY = -math.inf

Namespace: TypeAlias = Any  # of the array API: a module, whose functions have no types


def namespace(*values: Array) -> Namespace:
    """The array API namespace of the arrays: array_api_compat's wrapper of NumPy or of torch."""
    return array_namespace(*values)


def quiet() -> AbstractContextManager[None]:
    """Suppresses NumPy's warnings: infinities, and the NaN that they lead to, are ordinary scores."""
    return np.errstate(invalid="ignore", divide="ignore", over="ignore", under="ignore")


def constant(xp: Namespace, value: float, like: ArrayT) -> ArrayT:
    """A 0-d array of the dtype and device of `like`."""
    return xp.full((), value, dtype=like.dtype, device=device(like))


def full(xp: Namespace, like: ArrayT, value: float) -> ArrayT:
    return xp.full(like.shape, value, dtype=like.dtype, device=device(like))


def fill(xp: Namespace, scores: ArrayT, mask: Array, value: float = NEGATIVE_INFINITY) -> ArrayT:
    """`scores` with `value` where `mask` is true."""
    return xp.where(mask, constant(xp, value, scores), scores)


def copy(xp: Namespace, array: ArrayT) -> ArrayT:
    return xp.asarray(array, copy=True)


def repeat_rows(xp: Namespace, x: ArrayT, times: int) -> ArrayT:
    """Each row of `x`, `times` times, one after the other: from batch items to the rows of their beams."""
    return x[xp.arange(x.shape[0] * times, device=device(x)) // times]


def largest(xp: Namespace, like: Array) -> float:
    """The largest finite number of the dtype."""
    if arrays.is_torch(like):
        return float(xp.finfo(like.dtype).max)
    return float(low_precision_finfo(like.dtype).max)


def widen(xp: Namespace, x: ArrayT) -> ArrayT:
    """float16 and bfloat16 as float32; wider arrays unchanged."""
    return x if x.dtype in (xp.float32, xp.float64) else xp.astype(x, xp.float32)


def narrow(xp: Namespace, x: Any, like: ArrayT) -> ArrayT:
    """`x` in the dtype of `like`."""
    if x.dtype == like.dtype:
        return x
    with quiet():
        return xp.astype(x, like.dtype)


def times(xp: Namespace, x: ArrayT, factor: float) -> ArrayT:
    """x * factor, rounded once; the factor is not rounded to the dtype of x first."""
    with quiet():
        return narrow(xp, widen(xp, x) * float(factor), x)


def divide(xp: Namespace, x: ArrayT, divisor: float) -> ArrayT:
    """x / divisor, rounded once."""
    with quiet():
        return narrow(xp, widen(xp, x) / float(divisor), x)


def total(xp: Namespace, x: ArrayT) -> ArrayT:
    """The sum over the last axis, kept as an axis of length 1."""
    return narrow(xp, xp.sum(widen(xp, x), axis=-1, keepdims=True), x)


def running_sum(xp: Namespace, x: ArrayT) -> ArrayT:
    """The cumulative sum over the last axis, in float64, each element rounded once."""
    return narrow(xp, xp.cumulative_sum(xp.astype(x, xp.float64), axis=-1), x)


def softmax(xp: Namespace, x: ArrayT) -> ArrayT:
    if hasattr(xp, "softmax"):
        return xp.softmax(x, -1)
    with quiet():
        powers = xp.exp(widen(xp, x) - widen(xp, xp.max(x, axis=-1, keepdims=True)))
        return narrow(xp, powers / xp.sum(powers, axis=-1, keepdims=True), x)


def log_softmax(xp: Namespace, x: ArrayT) -> ArrayT:
    if hasattr(xp, "log_softmax"):
        return xp.log_softmax(x, -1)
    with quiet():
        shifted = widen(xp, x) - widen(xp, xp.max(x, axis=-1, keepdims=True))
        return narrow(xp, shifted - xp.log(xp.sum(xp.exp(shifted), axis=-1, keepdims=True)), x)


def log_sum_exp(xp: Namespace, x: ArrayT) -> ArrayT:
    """log(sum(exp(x))) over the last axis, kept as an axis of length 1; -inf for a row of -inf or of nothing, inf for one with
    inf."""
    if hasattr(xp, "logsumexp"):
        return xp.logsumexp(x, -1, keepdim=True)
    if x.shape[-1] == 0:
        return xp.full((*x.shape[:-1], 1), NEGATIVE_INFINITY, dtype=x.dtype, device=device(x))
    wide = widen(xp, x)
    top = xp.max(wide, axis=-1, keepdims=True)
    top = xp.where(xp.isinf(top), constant(xp, 0.0, top), top)
    with quiet():
        return narrow(xp, xp.log(xp.sum(xp.exp(wide - top), axis=-1, keepdims=True)) + top, x)


def kth_largest(xp: Namespace, x: ArrayT, k: int) -> ArrayT:
    """The k-th largest of each row, kept as an axis of length 1. NaN counts as the largest of all."""
    if hasattr(xp, "topk"):
        return xp.topk(x, k, dim=-1)[0][..., -1:]
    place, wide = x.shape[-1] - k, widen(xp, x)  # NumPy does not sort NaN to the end in bfloat16
    ordered = xp.partition(wide, place, axis=-1) if hasattr(xp, "partition") else xp.sort(wide, axis=-1)
    return narrow(xp, ordered[..., place : place + 1], x)


def highest(xp: Namespace, x: ArrayT, lowest: Array, count: int | Array) -> ArrayT:
    """The mask of each row's `count` highest entries. `lowest` is the smallest of them; of its ties the lowest ids are kept.
    NaN counts as the largest of all, as in `kth_largest`."""
    unordered, all_unordered = xp.isnan(x), xp.isnan(lowest)
    above, level = (x > lowest) | (unordered & ~all_unordered), (x == lowest) | (unordered & all_unordered)
    room = count - xp.count_nonzero(above, axis=-1, keepdims=True)
    return above | (level & (xp.cumulative_sum(level, axis=-1, dtype=xp.int32) <= room))


def columns(xp: Namespace, ids: Iterable[int], like: ArrayT) -> ArrayT:
    """The [vocab] mask of these ids; ids outside the vocabulary are ignored."""
    vocab = like.shape[-1]
    mask = xp.zeros((vocab,), dtype=xp.bool, device=device(like))
    inside = [int(i) for i in ids if i == int(i) and 0 <= i < vocab]
    mask[xp.asarray(inside, dtype=xp.int64, device=device(like))] = True
    return mask


def force_tokens(xp: Namespace, scores: ArrayT, ids: Array | list[int]) -> ArrayT:
    """0 for these ids, -inf for all others; IndexError for an id outside the vocabulary."""
    result = full(xp, scores, NEGATIVE_INFINITY)
    result[:, ids] = 0.0
    return result


def occurring(xp: Namespace, op: str, ids: Array, scores: ArrayT, where: Array | None = None) -> ArrayT:
    """The [batch, vocab] mask of the ids that occur in each row of `ids`, where the mask `where`, if given, is true.

    Ids >= vocab are ignored. Raises ValueError for a negative id, which would otherwise count from the end.
    """
    batch, vocab = scores.shape[0], scores.shape[-1]
    ids = xp.astype(ids, xp.int64)
    if where is not None:
        ids = xp.where(where, ids, constant(xp, vocab, ids))
    if ids.shape[0] and ids.shape[1] and bool(xp.any(ids < 0)):
        refuse(op, "input_ids", "non-negative", int(xp.min(ids)))
    mask = xp.zeros((batch, vocab + 1), dtype=xp.bool, device=device(scores))
    rows = xp.arange(ids.shape[0], device=device(scores))
    mask[rows[:, None], xp.where(ids > vocab, constant(xp, vocab, ids), ids)] = True
    return mask[:, :vocab]
