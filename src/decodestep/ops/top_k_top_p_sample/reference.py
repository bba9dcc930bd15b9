"""TopKTopPSample, TopKTopPSampleV2 and ApplyTopKTopP, row by row, as their specifications write them.

A row becomes a list of survivors: vocabulary ids and their values (probabilities, or raw inputs), in the order in which
the specification counts them. The samplers run in `dtype`: float32 as on the Ascend device, float64 to check it.

Every bit of the float32 results is defined. Weights, values and scores are float32 and rounded after each operation; exp is
that of `_base.exact_math`. The sum of a softmax is float64: the i-th term (by id in a whole row, by rank in a list) is added to
partial sum i mod 16, in order, these are folded in halves, and the result is rounded to float32. A running sum counts each
value in units of 2^-52, rounded up, so that float64 holds it exactly up to every possible cut and its order does not matter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from decodestep._base import exact_math
from decodestep.ops.top_k_top_p_sample.rules import Outputs, Rules

_UNITS = 2.0**52
_PARTS = 16

Survivors = tuple[np.ndarray, np.ndarray]

Real: TypeAlias = type[np.floating[Any]]  # the dtype that a reference calculates in


def sample_v1(logits: np.ndarray, k: np.ndarray, p: np.ndarray, rules: Rules, dtype: Real = np.float32) -> Outputs:
    p = p.astype(dtype)
    return _sample(logits, lambda b, x: _survivors_v1(x, int(k[b]), p[b], rules), rules, dtype)


def sample_v2(
    logits: np.ndarray, k: np.ndarray, p: np.ndarray, min_p: np.ndarray, rules: Rules, dtype: Real = np.float32
) -> Outputs:
    p, min_p = p.astype(dtype), min_p.astype(dtype)
    return _sample(logits, lambda b, x: _survivors_v2(x, int(k[b]), p[b], min_p[b], rules), rules, dtype)


def apply(logits: np.ndarray, p: np.ndarray | None, k: np.ndarray | None) -> np.ndarray:
    """ApplyTopKTopP: a copy with -inf for every token that top-k or top-p removes."""
    out = logits.copy()
    with np.errstate(all="ignore"):
        for b, row in enumerate(logits):
            x = row.astype(np.float32)
            ids = _reaching(x, int(k[b])) if k is not None and 0 < k[b] <= x.size else np.arange(x.size)
            if p is not None:
                left = np.full(x.size, -np.inf, np.float32)
                left[ids] = x[ids]
                ids = ids[np.lexsort((x[ids], ~np.isnan(x[ids])))]  # ascending and stable, NaN first
                removed = _running(_softmax(left)[ids]) <= np.float64(1 - p[b].astype(np.float32)) * _UNITS
                removed[-1] = False
                ids = ids[~removed]
            lost = np.ones(x.size, bool)
            lost[ids] = False
            out[b, lost] = -np.inf
    return out


def _sample(logits: np.ndarray, survivors: Callable[[int, np.ndarray], Survivors], rules: Rules, dtype: Real) -> Outputs:
    chosen = None if rules.need_survivors else np.empty(len(logits), np.int64)
    masked = np.full(logits.shape, -np.inf if rules.input_is_logits else 0, np.float32) if rules.need_logits else None
    all_ids = np.zeros(logits.shape, np.int64) if rules.need_survivors else None
    all_values = np.zeros(logits.shape, dtype) if rules.need_survivors else None
    with np.errstate(all="ignore"):  # infinities and NaN have their stated meanings here
        for b, row in enumerate(logits):
            x = np.ascontiguousarray(row, dtype)
            ids, values = survivors(b, x)
            if masked is not None:
                masked[b, ids] = x[ids]
            if chosen is not None:
                score = values
                if rules.noise is not None:
                    score = values / (rules.noise(b, ids).astype(dtype) + dtype(rules.eps))
                chosen[b] = ids[np.where(np.isnan(score), -np.inf, score).argmax()]
            if all_ids is not None and all_values is not None:
                all_ids[b, : ids.size], all_values[b, : ids.size] = ids, values
    return Outputs(chosen, masked, all_ids, all_values)


def _survivors_v1(x: np.ndarray, k: int, p: np.floating[Any], rules: Rules) -> Survivors:
    if 0 < k <= min(x.size, rules.largest_k):
        ids = _leading(x, k)
        if 0 < p < 1:
            ids = ids[: _crossing(_softmax(x[ids]), p, strict=True)]
        return ids, _softmax(x[ids])
    values = _softmax(x)
    if not 0 < p < 1:
        return np.arange(x.size), values
    ids = _nucleus(x, values, p, rules.guess, strict=True)
    return ids, _softmax(values[ids] if rules.kernel_exact else x[ids])


def _survivors_v2(x: np.ndarray, k: int, p: np.floating[Any], min_p: np.floating[Any], rules: Rules) -> Survivors:
    weigh = _softmax if rules.input_is_logits else _raw
    if p <= 0:
        ids = _leading(x, 1)
        values = weigh(x[ids])
    elif 0 < k <= min(x.size, rules.largest_k):
        ids = _leading(x, k)
        values = weigh(x[ids])
        if p < 1:
            kept = _crossing(values, p, strict=False)
            ids, values = ids[:kept], values[:kept]
    elif p < 1:
        values = weigh(x)
        ids = _nucleus(x, values, p, rules.guess, strict=False)
        values = values[ids]
    else:
        ids, values = np.arange(x.size), weigh(x)
    if min_p > 0:
        top = values.argmax()
        keep = values >= min_p * values[top] if min_p < 1 else np.zeros(ids.size, bool)
        keep[top] = True
        ids, values = ids[keep], values[keep]
    return ids, values


def _reaching(x: np.ndarray, count: int) -> np.ndarray:
    """The ids, ascending, of the `count` largest and of all ties of the last of them."""
    last = -np.partition(-x, count - 1)[count - 1]  # negated: NumPy sorts NaN to the end, which here is below -inf
    return np.flatnonzero(x >= last) if last == last else np.arange(x.size)


def _leading(x: np.ndarray, count: int) -> np.ndarray:
    """The ids of the `count` largest, in descending order; among equals the lower id comes first."""
    ids = _reaching(x, count)
    return ids[np.argsort(-x[ids], kind="stable")[:count]]


def _nucleus(x: np.ndarray, values: np.ndarray, p: np.floating[Any], guess: int, *, strict: bool) -> np.ndarray:
    """The leading ids up to the one at which the running sum crosses p.

    `guess` leading ids are tried first, then four times as many and so on. The running sums of a longer prefix extend those of
    a shorter one, so `guess` cannot change the result.
    """
    count = min(guess or x.size, x.size)
    while True:
        ids = _leading(x, count)
        kept = _crossing(values[ids], p, strict=strict)
        if kept is not None or count == x.size:
            return ids[:kept]
        count = min(4 * count, x.size)


def _crossing(values: np.ndarray, p: np.floating[Any], *, strict: bool) -> int | None:
    """How many values it takes until their running sum exceeds p (strict) or reaches p; None where it never does."""
    mass, bound = _running(values), float(p) * _UNITS
    crossed = mass > bound if strict else mass >= bound
    return int(crossed.argmax()) + 1 if crossed.any() else None


def _running(values: np.ndarray) -> np.ndarray:
    """The running sums in units of 2^-52, each value clipped to [0, 1] and rounded up."""
    return np.cumsum(np.ceil(np.clip(values.astype(np.float64), 0, 1) * _UNITS))


def _softmax(x: np.ndarray) -> np.ndarray:
    """Softmax in which NaN has probability 0, +inf inputs share 1 equally, and a row of -inf and NaN alone is all 0."""
    numbers: np.ndarray = np.fmax(x, x.dtype.type(-np.inf))
    top = numbers.max()
    if top == -np.inf:
        return np.zeros_like(x)
    exp = exact_math.exp_float32 if x.dtype == np.float32 else exact_math.exp
    weights: np.ndarray = (numbers == top).astype(x.dtype) if top == np.inf else exp(numbers - top)
    return weights / x.dtype.type(_total(weights))


def _total(weights: np.ndarray) -> float:
    """The sum in float64: term i is added to partial sum i mod 16, in order; these are folded in halves."""
    terms = np.zeros((-(-weights.size // _PARTS), _PARTS))
    terms.reshape(-1)[: weights.size] = weights
    parts = np.add.accumulate(terms)[-1]
    while parts.size > 1:
        parts = parts[: parts.size // 2] + parts[parts.size // 2 :]
    return float(parts[0])


def _raw(x: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(x), np.zeros_like(x), x)
