"""Processors that transformers does not have: counts, biases, allow-lists, top-n-sigma, XTC and DRY."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np
from array_api_compat import device

from decodestep import random
from decodestep._base.array_api import (
    NEGATIVE_INFINITY,
    columns,
    constant,
    copy,
    fill,
    full,
    namespace,
    narrow,
    quiet,
    softmax,
    widen,
)
from decodestep._base.arrays import Array, ArrayT, Integers, token_ids
from decodestep._base.checks import is_finite, is_int, is_real, require
from decodestep.processors.base import LogitsProcessor
from decodestep.processors.penalties import RepetitionPenaltyLogitsProcessor

# Longer repetitions count as this long, so that the power of the base remains finite.
DRY_LONGEST = 50


class PresenceFrequencyPenaltyLogitsProcessor(LogitsProcessor):
    """Makes generated tokens less likely: once for occurring, and again for each occurrence.

        n[t] = how often t occurs in input_ids[prompt_length:]
        s[t] = s[t] - frequency_penalty * n[t] - presence_penalty * (n[t] > 0)

    Ids past the vocabulary are ignored. The penalty is summed in float64 and subtracted with one rounding.

    Args:
        presence_penalty: a finite number; a negative one rewards. OpenAI's service accepts [-2, 2].
        frequency_penalty: likewise.
        prompt_length: how many leading ids were not generated, an int >= 0.

    Raises:
        ValueError: for a negative id.

    Source:
        The OpenAI API's parameters of these names, counted over generated tokens only, as in vLLM.
    """

    def __init__(self, presence_penalty: float = 0.0, frequency_penalty: float = 0.0, prompt_length: int = 0) -> None:
        op = "PresenceFrequencyPenaltyLogitsProcessor"
        for arg, value in (("presence_penalty", presence_penalty), ("frequency_penalty", frequency_penalty)):
            require(is_finite(value), op, arg, "a finite number", value)
        require(is_int(prompt_length) and prompt_length >= 0, op, "prompt_length", "an int >= 0", prompt_length)
        self.presence_penalty = presence_penalty
        self.frequency_penalty = frequency_penalty
        self.prompt_length = prompt_length

    def __call__(self, input_ids: Array, scores: ArrayT) -> ArrayT:
        vocab, penalties = scores.shape[-1], []
        for row in input_ids[:, self.prompt_length :].tolist():
            ids, counts = np.unique(np.array([t for t in row if t < vocab], np.int64), return_counts=True)
            amounts = self.frequency_penalty * counts + self.presence_penalty
            penalties.append(dict(zip(ids.tolist(), amounts.tolist(), strict=True)))
        return _subtract(type(self).__name__, scores, penalties)


class LogitBiasLogitsProcessor(LogitsProcessor):
    """Adds a bias to single tokens.

        s[t] = s[t] + logit_bias[t]

    Args:
        logit_bias: {id >= 0: number, not NaN}; -inf forbids.

    Raises:
        ValueError: at the call for an id past the vocabulary.

    Source:
        The OpenAI API's parameter of this name.
    """

    def __init__(self, logit_bias: Mapping[int, float]) -> None:
        op = "LogitBiasLogitsProcessor"
        for token, bias in logit_bias.items():
            require(is_int(token) and token >= 0, op, "logit_bias", "a dict whose keys are ids >= 0", token)
            ok = is_finite(bias) or (is_real(bias) and bias in (math.inf, -math.inf))
            require(ok, op, "logit_bias", "a dict whose values are numbers", bias)
        self.logit_bias = {int(token): float(bias) for token, bias in logit_bias.items()}

    def __call__(self, input_ids: Array, scores: ArrayT) -> ArrayT:
        beyond = [token for token in self.logit_bias if token >= scores.shape[-1]]
        op = "LogitBiasLogitsProcessor"
        require(not beyond, op, "logit_bias", f"about tokens below {scores.shape[-1]}", beyond)
        return _subtract(op, scores, [{token: -bias for token, bias in self.logit_bias.items()}] * scores.shape[0])


class AllowedTokenIdsLogitsProcessor(LogitsProcessor):
    """Forbids every token outside a list.

        s[t] = -inf for t not in allowed_token_ids

    Args:
        allowed_token_ids: at least one id >= 0.

    Raises:
        ValueError: at the call where one lies past the vocabulary.

    Source:
        vLLM's parameter of this name.
    """

    def __init__(self, allowed_token_ids: Iterable[int]) -> None:
        op = "AllowedTokenIdsLogitsProcessor"
        self.allowed_token_ids = token_ids(op, "allowed_token_ids", allowed_token_ids)
        ok = bool(self.allowed_token_ids) and all(is_int(t) and t >= 0 for t in self.allowed_token_ids)
        require(ok, op, "allowed_token_ids", "at least one id >= 0", self.allowed_token_ids)

    def __call__(self, input_ids: Array, scores: ArrayT) -> ArrayT:
        xp, op, vocab = namespace(scores), "AllowedTokenIdsLogitsProcessor", scores.shape[-1]
        require(max(self.allowed_token_ids) < vocab, op, "allowed_token_ids", f"below {vocab}", max(self.allowed_token_ids))
        result = full(xp, scores, NEGATIVE_INFINITY)
        result[:, self.allowed_token_ids] = scores[:, self.allowed_token_ids]
        return result


class AllowedBitsLogitsProcessor(LogitsProcessor):
    """Forbids the tokens whose bit is 0 in a packed mask, as grammar engines compute it: llguidance, xgrammar and vLLM.

        s[t] = -inf where bits[t // 32] >> (t % 32) & 1 is 0

    Args:
        next_bits: a function of the row's tokens, prompt included, that returns the mask of the next one: int32, ceil(V / 32)
            words, lowest bit first; or None where all tokens are allowed.

    Raises:
        ValueError: at the call for another mask.

    Source:
        xgrammar's bitmask.
    """

    def __init__(self, next_bits: Callable[[Sequence[int]], np.ndarray | None]) -> None:
        require(callable(next_bits), "AllowedBitsLogitsProcessor", "next_bits", "a function of the row's tokens", next_bits)
        self.next_bits = next_bits

    def __call__(self, input_ids: Array, scores: ArrayT) -> ArrayT:
        xp, vocab = namespace(scores), scores.shape[-1]
        rows = [self.next_bits([int(token) for token in row]) for row in input_ids]
        allowed = [np.ones(vocab, np.bool_) if bits is None else _unpacked(bits, vocab) for bits in rows]
        mask = xp.asarray(np.stack(allowed), device=device(scores))
        return xp.where(mask, scores, full(xp, scores, NEGATIVE_INFINITY))


def _unpacked(bits: np.ndarray, vocab: int) -> np.ndarray:
    words = -(-vocab // 32)
    ok = isinstance(bits, np.ndarray) and bits.dtype == np.int32 and bits.shape == (words,)
    require(ok, "AllowedBitsLogitsProcessor", "next_bits", f"a function that returns {words} words of int32", bits)
    return np.unpackbits(np.ascontiguousarray(bits).view(np.uint8), count=vocab, bitorder="little").astype(np.bool_)


class TopNSigmaLogitsWarper(LogitsProcessor):
    """Keeps the scores within n standard deviations of the highest.

        sigma = sqrt(mean((s - mean(s))^2)) over the row's finite scores;  drop s where s < max(s) - n * sigma

    A temperature before it does not change what it keeps. A row that holds NaN or +inf, or nothing but -inf, is left alone.

    Args:
        n: a finite number >= 0; 0 keeps the ties of the maximum.
        filter_value: what a dropped score becomes.

    Source:
        Tang et al., "Top-nσ: not all logits are you need", 2024; the deviation divides by the number of finite scores, as
        in llama.cpp.
    """

    def __init__(self, n: float, filter_value: float = NEGATIVE_INFINITY) -> None:
        require(is_finite(n) and n >= 0, "TopNSigmaLogitsWarper", "n", "a finite number >= 0", n)
        self.n = n
        self.filter_value = filter_value

    def __call__(self, input_ids: Array, scores: ArrayT) -> ArrayT:
        xp = namespace(scores)
        wide = xp.astype(scores, xp.float64)
        there = ~(wide == NEGATIVE_INFINITY)
        zero = xp.zeros_like(wide)
        with quiet():
            count = xp.astype(xp.count_nonzero(there, axis=-1, keepdims=True), xp.float64)
            mean = xp.sum(xp.where(there, wide, zero), axis=-1, keepdims=True) / count
            variance = xp.sum(xp.where(there, wide - mean, zero) ** 2, axis=-1, keepdims=True) / count
            cut = xp.max(wide, axis=-1, keepdims=True) - float(self.n) * xp.sqrt(variance)
        return fill(xp, scores, wide < cut, self.filter_value)


class XTCLogitsWarper(LogitsProcessor):
    """Exclude top choices: with a given probability, drops all likely tokens except the least likely of them.

        p = softmax(s);  likely = the tokens above -inf where p >= threshold
        where uniform(seed, position, XTC_COIN) < probability and there are 2 or more likely tokens:
            drop all of them but the one with the lowest score, and the special tokens

    `uniform` and XTC_COIN are those of `decodestep.random`; position is the length of the row without its padding. Of several
    tokens with the lowest score the highest id stays. A row that holds NaN or +inf, or nothing but -inf, is left alone.

    Args:
        probability: in [0, 1]; 0 never drops.
        threshold: in [0, 1]; above 0.5 it never drops.
        seed: an integer in [0, 2^64), or one for each row.
        padding: how many leading ids of a row are padding, an int or one for each row.
        filter_value: what a dropped score becomes.
        special_tokens: ids that are never dropped, such as end tokens and line ends; those past the vocabulary are ignored.

    Source:
        p-e-w's sampler of this name in text-generation-webui, 2024, with another random number; the special tokens as in
        mlx-lm's apply_xtc.
    """

    def __init__(
        self,
        probability: float,
        threshold: float = 0.1,
        seed: int = 0,
        padding: Integers | int = 0,
        filter_value: float = NEGATIVE_INFINITY,
        special_tokens: Iterable[int] = (),
    ) -> None:
        for arg, value in (("probability", probability), ("threshold", threshold)):
            require(is_real(value) and 0 <= value <= 1, "XTCLogitsWarper", arg, "in [0, 1]", value)
        self.probability = probability
        self.threshold = threshold
        self.seed = seed
        self.padding = padding
        self.filter_value = filter_value
        self.special_tokens = tuple(token_ids("XTCLogitsWarper", "special_tokens", list(special_tokens)))
        ok = all(is_int(token) and 0 <= token < 2**31 for token in self.special_tokens)
        require(ok, "XTCLogitsWarper", "special_tokens", "ids in [0, 2^31)", self.special_tokens)

    def __call__(self, input_ids: Array, scores: ArrayT) -> ArrayT:
        xp = namespace(scores)
        positions = np.broadcast_to(input_ids.shape[-1] - np.asarray(self.padding), (scores.shape[0],))
        heads = random.uniform(self.seed, positions, random.XTC_COIN) < self.probability
        p = softmax(xp, scores)
        above = (p >= constant(xp, self.threshold, p)) & (scores > -math.inf)
        lowest = xp.min(xp.where(above, scores, constant(xp, math.inf, scores)), axis=-1, keepdims=True)
        level = above & (scores == lowest)
        spared = level & (xp.cumulative_sum(level, axis=-1, dtype=xp.int64) == xp.count_nonzero(level, axis=-1, keepdims=True))
        heads = xp.asarray(heads.tolist(), dtype=xp.bool, device=device(scores))
        spared = spared | columns(xp, self.special_tokens, scores)
        return fill(xp, scores, above & ~spared & heads[:, None], self.filter_value)


class RecentRepetitionPenaltyLogitsProcessor(LogitsProcessor):
    """Makes every token that occurs among the last ids less likely, once, however often it occurs.

        for each distinct id t of the last `range` ids:  s[t] = s[t] * penalty where s[t] < 0, else s[t] / penalty

    Ids past the vocabulary are ignored.

    Args:
        penalty: a float > 0 (an int is refused); below 1 it rewards.
        range: how many of the last ids count, an int >= 0; 0 for all.

    Raises:
        ValueError: for a negative id.

    Source:
        llama.cpp's penalty_repeat and penalty_last_n; `RepetitionPenaltyLogitsProcessor` of these ids.
    """

    def __init__(self, penalty: float, range: int = 0) -> None:
        op = "RecentRepetitionPenaltyLogitsProcessor"
        require(is_int(range) and range >= 0, op, "range", "an int >= 0", range)
        self._of_all = RepetitionPenaltyLogitsProcessor(penalty)
        self.penalty = self._of_all.penalty
        self.range = range

    def __call__(self, input_ids: Array, scores: ArrayT) -> ArrayT:
        return self._of_all(input_ids[:, -self.range :], scores)


class DRYLogitsProcessor(LogitsProcessor):
    """Don't repeat yourself: penalises tokens that would continue a repetition, more the longer it is.

        for each token t of the last `range` ids:
            n = the most ids before an occurrence of t that equal the last ids of the row; at most 50, and none past a breaker
            where n >= allowed_length:  s[t] = s[t] - multiplier * base ** (n - allowed_length)

    The penalty is subtracted with one rounding; ids past the vocabulary are ignored.

    Args:
        multiplier: a finite number >= 0; 0 has no effect.
        base: a finite number >= 1.
        allowed_length: the shortest repetition that is penalised, an int >= 1.
        breakers: ids at which a repetition ends; they are never penalised.
        range: how many of the last ids count, an int >= 0; 0 for all.

    Raises:
        ValueError: if a negative id would be penalised.

    Source:
        p-e-w's sampler of this name in text-generation-webui, 2024.
    """

    def __init__(
        self, multiplier: float, base: float = 1.75, allowed_length: int = 2, breakers: Collection[int] = (), range: int = 0
    ) -> None:
        op = "DRYLogitsProcessor"
        require(is_finite(multiplier) and multiplier >= 0, op, "multiplier", "a finite number >= 0", multiplier)
        require(is_finite(base) and base >= 1, op, "base", "a finite number >= 1", base)
        require(is_int(allowed_length) and allowed_length >= 1, op, "allowed_length", "an int >= 1", allowed_length)
        require(is_int(range) and range >= 0, op, "range", "an int >= 0", range)
        self.multiplier = multiplier
        self.base = base
        self.allowed_length = allowed_length
        self.breakers = frozenset(token_ids(op, "breakers", list(breakers)))
        self.range = range

    def __call__(self, input_ids: Array, scores: ArrayT) -> ArrayT:
        rows = input_ids[:, -self.range :].tolist()
        return _subtract("DRYLogitsProcessor", scores, [self.penalties(row, scores.shape[-1]) for row in rows])

    def penalties(self, ids: list[int], vocab: int) -> dict[int, float]:
        """{token: penalty} for one row, without ids past the vocabulary."""
        if not self.multiplier:  # which an infinite power would make NaN
            return {}
        tail = next((n for n, token in enumerate(reversed(ids)) if token in self.breakers), len(ids))
        longest: dict[int, int] = {}
        for place, length in enumerate(_suffix_matches(ids), start=1):
            matched, token = min(length, tail, DRY_LONGEST), ids[place]
            if matched >= self.allowed_length and token not in self.breakers and token < vocab:
                longest[token] = max(matched, longest.get(token, 0))
        return {token: self.penalty(length) for token, length in longest.items()}

    def penalty(self, length: int) -> float:
        """The penalty for continuing a repetition of `length` ids, from allowed_length to DRY_LONGEST."""
        return dry_penalty(self.multiplier, self.base, length - self.allowed_length)


def dry_penalty(multiplier: float, base: float, beyond: int) -> float:
    """DRY's penalty for continuing a repetition that is `beyond` ids longer than the shortest that is penalised."""
    with np.errstate(over="ignore"):
        return float(multiplier * np.float64(base) ** beyond)


def _suffix_matches(ids: list[int]) -> list[int]:
    """For each position but the last: how many ids ending there equal the row's last ids (the Z function of the reverse)."""
    flipped = ids[::-1]
    count = len(flipped)
    z = [0] * count
    left = right = 0
    for i in range(1, count):
        n = min(right - i, z[i - left]) if i < right else 0
        while i + n < count and flipped[n] == flipped[i + n]:
            n += 1
        z[i] = n
        if i + n > right:
            left, right = i, i + n
    return z[:0:-1]


def _subtract(op: str, scores: ArrayT, penalties: list[dict[int, float]]) -> ArrayT:
    """The scores minus the penalties {id: amount} of each row, of ids in the vocabulary; ValueError for a negative one."""
    xp = namespace(scores)
    rows = [row for row, amounts in enumerate(penalties) for _ in amounts]
    result = copy(xp, scores)
    if rows:
        here, ids = device(scores), [t for amounts in penalties for t in amounts]
        require(min(ids) >= 0, op, "input_ids", "non-negative", min(ids))
        index = xp.asarray(rows, device=here), xp.asarray(ids, device=here)
        amount = xp.asarray([a for amounts in penalties for a in amounts.values()], dtype=xp.float64, device=here)
        old = scores[index]
        with quiet():
            result[index] = narrow(xp, widen(xp, old) - narrow(xp, amount, widen(xp, old)), scores)
    return result
