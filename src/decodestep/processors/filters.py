"""Filters that cut by rank or by probability: temperature, top-k, top-p and min-p."""

from __future__ import annotations

from decodestep._base.array_api import (
    NEGATIVE_INFINITY,
    constant,
    divide,
    fill,
    highest,
    kth_largest,
    namespace,
    running_sum,
    softmax,
    times,
)
from decodestep._base.arrays import Array, ArrayT
from decodestep._base.checks import require
from decodestep.processors.base import LogitsProcessor


class TemperatureLogitsWarper(LogitsProcessor):
    """Divides the scores by the temperature.

        s = s / temperature

    NaN and infinities do not change.

    Args:
        temperature: a float > 0 (an int is refused).

    Source:
        Ackley, Hinton, Sejnowski, "A learning algorithm for Boltzmann machines", 1985; as in transformers 5.23.
    """

    supports_continuous_batching = True

    def __init__(self, temperature: float) -> None:
        ok = isinstance(temperature, float) and temperature > 0
        hint = " (for greedy decoding set do_sample=False)" if isinstance(temperature, float) and temperature == 0 else ""
        require(ok, "TemperatureLogitsWarper", "temperature", f"a float > 0{hint}", temperature)
        self.temperature = float(temperature)

    def __call__(self, input_ids: Array, scores: ArrayT) -> ArrayT:
        return divide(namespace(scores), scores, self.temperature)


class TopKLogitsWarper(LogitsProcessor):
    """Keeps the k highest scores.

        k = min(max(top_k, min_tokens_to_keep), vocab)
        drop s where s < the k-th largest s

    All ties of the k-th largest are kept, so more than k may be kept. NaN ranks above all and is never dropped: with k or more
    NaN, nothing is dropped.

    Args:
        top_k: an int >= 1.
        filter_value: what a dropped score becomes.
        min_tokens_to_keep: an int; not checked.

    Source:
        Fan, Lewis, Dauphin, "Hierarchical neural story generation", 2018; as in transformers 5.23.
    """

    supports_continuous_batching = True

    def __init__(self, top_k: int, filter_value: float = NEGATIVE_INFINITY, min_tokens_to_keep: int = 1) -> None:
        require(isinstance(top_k, int) and top_k > 0, "TopKLogitsWarper", "top_k", "an int >= 1", top_k)
        self.top_k = max(top_k, min_tokens_to_keep)
        self.filter_value = filter_value
        self.min_tokens_to_keep = min_tokens_to_keep

    def __call__(self, input_ids: Array, scores: ArrayT) -> ArrayT:
        xp = namespace(scores)
        cut = kth_largest(xp, scores, min(self.top_k, scores.shape[-1]))
        return fill(xp, scores, scores < cut, self.filter_value)


class TopPLogitsWarper(LogitsProcessor):
    """Keeps the smallest set of most probable tokens whose probabilities reach top_p.

        with the scores in ascending order, p = softmax(s):
        drop the prefix where p[0] + ... + p[i] <= 1 - top_p, but never one of the last min_tokens_to_keep

    Among tokens tied at the cut the lowest ids stay. A row that holds NaN or +inf, or nothing but -inf, is left alone.

    Args:
        top_p: a number in [0, 1], taken through float(). 0 keeps min_tokens_to_keep; 1 still drops a probability of exactly 0.
        filter_value: what a dropped score becomes.
        min_tokens_to_keep: an int >= 1.

    Source:
        Holtzman et al., "The curious case of neural text degeneration", 2019. As in transformers 5.23, where an unstable
        sort picks the survivors of a tie.
    """

    supports_continuous_batching = True

    def __init__(self, top_p: float, filter_value: float = NEGATIVE_INFINITY, min_tokens_to_keep: int = 1) -> None:
        top_p = float(top_p)
        require(not (top_p < 0 or top_p > 1), "TopPLogitsWarper", "top_p", "in [0, 1]", top_p)
        require_min_tokens("TopPLogitsWarper", min_tokens_to_keep)
        self.top_p = top_p
        self.filter_value = filter_value
        self.min_tokens_to_keep = min_tokens_to_keep

    def __call__(self, input_ids: Array, scores: ArrayT) -> ArrayT:
        xp = namespace(scores)
        vocab = scores.shape[-1]
        ordered = xp.sort(scores, axis=-1, stable=False)
        cumulative = running_sum(xp, softmax(xp, ordered))[..., : max(vocab - self.min_tokens_to_keep, 0)]
        below = cumulative <= constant(xp, 1 - self.top_p, cumulative)
        dropped = xp.count_nonzero(below, axis=-1, keepdims=True)
        keep = highest(xp, scores, xp.take_along_axis(ordered, dropped, axis=-1), vocab - dropped)
        return fill(xp, scores, ~keep & (dropped > 0), self.filter_value)


class MinPLogitsWarper(LogitsProcessor):
    """Drops the tokens that are far less probable than the most probable one.

        p = softmax(s);  drop s where p < min_p * max(p), but never one of the min_tokens_to_keep highest scores

    Of tied scores the lowest ids are protected. A row that holds NaN or +inf, or nothing but -inf, is left alone.

    Args:
        min_p: in [0, 1]. 0 keeps all; 1 keeps the ties of the maximum.
        filter_value: what a dropped score becomes.
        min_tokens_to_keep: an int >= 1.

    Source:
        Nguyen et al., "Turning up the heat: min-p sampling for creative and coherent LLM outputs", 2024.
        Deviation from transformers 5.23: there the protected tokens are the most probable ones, which is arbitrary where
        probabilities underflow to 0; here they are those with the highest scores, which still differ there.
    """

    def __init__(self, min_p: float, filter_value: float = NEGATIVE_INFINITY, min_tokens_to_keep: int = 1) -> None:
        require(bool(0 <= min_p <= 1), "MinPLogitsWarper", "min_p", "in [0, 1]", min_p)
        require_min_tokens("MinPLogitsWarper", min_tokens_to_keep)
        self.min_p = min_p
        self.filter_value = filter_value
        self.min_tokens_to_keep = min_tokens_to_keep

    def __call__(self, input_ids: Array, scores: ArrayT) -> ArrayT:
        xp = namespace(scores)
        p = softmax(xp, scores)
        unlikely = p < times(xp, xp.max(p, axis=-1, keepdims=True), self.min_p)
        keep = min(self.min_tokens_to_keep, scores.shape[-1])
        if keep > 1:  # the most probable token is never unlikely
            unlikely = unlikely & ~highest(xp, scores, kth_largest(xp, scores, keep), keep)
        return fill(xp, scores, unlikely, self.filter_value)


def require_min_tokens(op: str, value: object) -> None:
    require(isinstance(value, int) and value >= 1, op, "min_tokens_to_keep", "an int >= 1", value)
