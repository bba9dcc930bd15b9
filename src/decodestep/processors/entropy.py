"""Filters that cut by the entropy of the distribution, and the plain probability floor: typical, epsilon, eta, top-h."""

from __future__ import annotations

import math

from decodestep._base.array_api import (
    NEGATIVE_INFINITY,
    Namespace,
    constant,
    fill,
    highest,
    kth_largest,
    largest,
    log_softmax,
    log_sum_exp,
    namespace,
    narrow,
    quiet,
    running_sum,
    softmax,
    times,
    total,
    widen,
)
from decodestep._base.arrays import Array, ArrayT
from decodestep._base.checks import refuse, require
from decodestep.processors.base import LogitsProcessor
from decodestep.processors.filters import require_min_tokens


class TypicalLogitsWarper(LogitsProcessor):
    """Keeps the tokens whose surprisal is closest to the entropy, until their probabilities reach `mass`.

        p = softmax(s);  H = -sum(p * log p);  d = |-log p - H|
        in ascending order of d:  n = min(#{i: p[0] + ... + p[i] < mass}, vocab - 1)
        drop s where d > d[n], but never one of the first min_tokens_to_keep

    Every tie of d[n] stays; of ties protected by min_tokens_to_keep the lowest ids. The most probable token may be dropped.
    -inf adds nothing to H. A row that holds NaN or +inf, or nothing but -inf, is left alone.

    Args:
        mass: in (0, 1), taken through float().
        filter_value: what a dropped score becomes.
        min_tokens_to_keep: an int >= 1.

    Source:
        Meister et al., "Locally typical sampling", 2022; as in transformers 5.23.
    """

    def __init__(self, mass: float = 0.9, filter_value: float = NEGATIVE_INFINITY, min_tokens_to_keep: int = 1) -> None:
        mass = float(mass)
        require(0 < mass < 1, "TypicalLogitsWarper", "typical_p", "in (0, 1)", mass)
        require_min_tokens("TypicalLogitsWarper", min_tokens_to_keep)
        self.filter_value = filter_value
        self.mass = mass
        self.min_tokens_to_keep = min_tokens_to_keep

    def __call__(self, input_ids: Array, scores: ArrayT) -> ArrayT:
        xp = namespace(scores)
        with quiet():
            log_p = log_softmax(xp, scores)
            terms = log_p * xp.exp(log_p)
            entropy = -total(xp, xp.where(xp.isnan(terms), constant(xp, 0.0, terms), terms))
            distance = xp.abs(-log_p - entropy)
        order = xp.argsort(distance, axis=-1, stable=True)
        ordered = xp.take_along_axis(distance, order, axis=-1)
        cumulative = running_sum(xp, softmax(xp, xp.take_along_axis(scores, order, axis=-1)))
        reached = xp.count_nonzero(cumulative < constant(xp, self.mass, cumulative), axis=-1, keepdims=True)
        last = xp.where(reached < scores.shape[-1], reached, reached - 1)
        far = distance > xp.take_along_axis(ordered, last, axis=-1)
        keep = min(self.min_tokens_to_keep, scores.shape[-1])
        if keep > 1:  # the nearest token is never far
            far = far & ~highest(xp, -distance, -ordered[..., keep - 1 : keep], keep)
        return fill(xp, scores, far, self.filter_value)


class EpsilonLogitsWarper(LogitsProcessor):
    """Drops the tokens below a fixed probability.

        p = softmax(s);  drop s where p < epsilon and s < the min_tokens_to_keep-th largest s

    Every tie of the protected scores stays, so a row is never emptied. A row that holds NaN or +inf, or nothing but -inf, is
    left alone.

    Args:
        epsilon: in (0, 1), taken through float().
        filter_value: what a dropped score becomes.
        min_tokens_to_keep: a number >= 1, taken through int().

    Source:
        Hewitt, Manning, Liang, "Truncation sampling as language model desmoothing", 2022; as in transformers 5.23.
    """

    def __init__(self, epsilon: float, filter_value: float = NEGATIVE_INFINITY, min_tokens_to_keep: int = 1) -> None:
        self.epsilon, self.min_tokens_to_keep = _cutoff("EpsilonLogitsWarper", "epsilon_cutoff", epsilon, min_tokens_to_keep)
        self.filter_value = filter_value

    def __call__(self, input_ids: Array, scores: ArrayT) -> ArrayT:
        xp = namespace(scores)
        p = softmax(xp, scores)
        unlikely = p < constant(xp, self.epsilon, p)
        return fill(xp, scores, unlikely & _below_kept(xp, scores, self.min_tokens_to_keep), self.filter_value)


class EtaLogitsWarper(LogitsProcessor):
    """Drops the tokens below a probability threshold, which is lower the higher the entropy is.

        p = softmax(s);  H = -sum(p * log p);  eta = min(epsilon, sqrt(epsilon) * exp(-H))
        drop s where p < eta and s < the min_tokens_to_keep-th largest s

    Every tie of the protected scores stays. -inf adds nothing to H.

    Args:
        epsilon: in (0, 1), taken through float().
        filter_value: what a dropped score becomes.
        min_tokens_to_keep: a number >= 1, taken through int().
        device: accepted as transformers does, without effect: the work is done on the device of the scores.

    Raises:
        ValueError: for a row that holds NaN or +inf, or nothing but -inf: it has no entropy.

    Source:
        Hewitt, Manning, Liang, "Truncation sampling as language model desmoothing", 2022. As in transformers 5.23, which rounds
        epsilon to float32 also for float64 scores.
    """

    def __init__(
        self, epsilon: float, filter_value: float = NEGATIVE_INFINITY, min_tokens_to_keep: int = 1, device: object = "cpu"
    ) -> None:
        self.epsilon, self.min_tokens_to_keep = _cutoff("EtaLogitsWarper", "eta_cutoff", epsilon, min_tokens_to_keep)
        self.filter_value = filter_value

    def __call__(self, input_ids: Array, scores: ArrayT) -> ArrayT:
        xp = namespace(scores)
        _, entropy = _probabilities("EtaLogitsWarper", xp, scores)
        falling = times(xp, xp.exp(-entropy), math.sqrt(self.epsilon))
        epsilon = constant(xp, self.epsilon, falling)
        unlikely = softmax(xp, scores) < xp.where(falling < epsilon, falling, epsilon)
        return fill(xp, scores, unlikely & _below_kept(xp, scores, self.min_tokens_to_keep), self.filter_value)


class TopHLogitsWarper(LogitsProcessor):
    """Keeps the most probable tokens while their part of the entropy is at most a fraction of the whole.

        of the 100 highest scores, in descending order:  p = softmax(s);  H = -sum(p * log p)
        keep the first, and the prefix where -p[0] log p[0] - ... - p[i] log p[i] <= top_h * H;  drop all others

    Of ties at the cut the lowest ids stay. A probability of 0 among the 100 ends the prefix.

    Args:
        top_h: in (0, 1]. 1 may still drop the last tokens, if rounding makes the sum exceed H.
        filter_value: what a dropped score becomes.

    Raises:
        ValueError: for a row that holds NaN or +inf, or nothing but -inf.

    Source:
        Baghaei Potraghloo et al., "Top-H decoding: adapting the creativity and coherence with bounded entropy in text
        generation", 2025; as in transformers 5.23.
    """

    def __init__(self, top_h: float, filter_value: float = NEGATIVE_INFINITY) -> None:
        require(bool(0 < top_h <= 1), "TopHLogitsWarper", "top_h", "in (0, 1]", top_h)
        self.top_n = 100
        self.top_h = top_h
        self.filter_value = filter_value

    def __call__(self, input_ids: Array, scores: ArrayT) -> ArrayT:
        xp = namespace(scores)
        top = _descending(xp, scores, min(self.top_n, scores.shape[-1]))
        p, entropy = _probabilities("TopHLogitsWarper", xp, top)
        with quiet():
            within = running_sum(xp, -p * xp.log(p)) <= times(xp, entropy, self.top_h)
        count = xp.count_nonzero(within[..., 1:], axis=-1, keepdims=True) + 1
        last = xp.take_along_axis(top, count - 1, axis=-1)
        keep = scores >= last
        # Ties at the cut are rare, and expensive to rank.
        if bool(xp.any(xp.count_nonzero(keep, axis=-1, keepdims=True) > count)):
            keep = highest(xp, scores, last, count)
        return fill(xp, scores, ~keep, self.filter_value)


def _cutoff(op: str, arg: str, epsilon: float, min_tokens_to_keep: int) -> tuple[float, int]:
    epsilon, keep = float(epsilon), int(min_tokens_to_keep)
    require(not (epsilon <= 0 or epsilon >= 1), op, arg, "in (0, 1)", epsilon)
    require(keep >= 1, op, "min_tokens_to_keep", "an int >= 1", keep)
    return epsilon, keep


def _below_kept(xp: Namespace, scores: Array, min_tokens_to_keep: int) -> Array:
    return scores < kth_largest(xp, scores, min(min_tokens_to_keep, scores.shape[-1]))


def _descending(xp: Namespace, scores: ArrayT, count: int) -> ArrayT:
    if hasattr(xp, "topk"):
        return xp.topk(scores, count, dim=-1)[0]
    rest, wide = scores.shape[-1] - count, widen(xp, scores)  # as in `kth_largest`
    top = xp.partition(wide, rest, axis=-1)[..., rest:] if rest and hasattr(xp, "partition") else wide
    return narrow(xp, xp.flip(xp.sort(top, axis=-1), axis=-1)[..., :count], scores)


def _probabilities(op: str, xp: Namespace, scores: ArrayT) -> tuple[ArrayT, ArrayT]:
    """The probabilities of each row and its entropy; -inf scores add nothing. ValueError if a row has no distribution."""
    with quiet():
        log_p = scores - log_sum_exp(xp, scores)
        if bool(xp.any(xp.isnan(log_p))):
            refuse(op, "scores", "free of NaN and +inf, with a finite score in each row", scores)
        p = softmax(xp, log_p)
        floor = constant(xp, -largest(xp, log_p), log_p)
        return p, -total(xp, xp.where(log_p < floor, floor, log_p) * p)
