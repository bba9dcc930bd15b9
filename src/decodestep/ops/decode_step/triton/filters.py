"""The steps that look at the whole row, each a few sweeps over its scores. `top`: the largest of them."""

from __future__ import annotations

import triton
import triton.language as tl

from decodestep._base.triton import MINUS_INFINITY, exp, log, sortable
from decodestep.ops.decode_step.triton.row import (
    APART,
    BY_DISTANCE,
    BY_SCORE,
    ENTROPY,
    EVERYONE,
    INFINITY,
    NO_KEY,
    SCORE,
    WEIGHT,
    keep_first,
    load_block,
    log_probability,
    measure,
    next_in_order,
    prune,
    store_block,
    surprise_term,
    threshold,
    total,
    walk,
    weight,
)
from decodestep.random.triton import noise_bits, uniform

_ESTIMATE = tl.constexpr(2.0**-51)  # the relative error of a sum of float64, for each of its terms: with room to spare
_XTC_COIN = tl.constexpr(0xFFFFFFFF)  # of decodestep.random.reference


@triton.jit
def temperature(scores, peaks, vocab, top, amount, BLOCK: tl.constexpr):
    if top == INFINITY:
        prune(scores, peaks, vocab, sortable(top), EVERYONE, top, 0.0, 0.0, 0.0, 1.0, BY_SCORE, False, BLOCK)
    else:
        divisor = amount.to(tl.float32)
        peak = tl.full([], MINUS_INFINITY, tl.float32)
        odd = tl.full([], 0, tl.int32)  # NaN or +inf
        for start in range(0, vocab, BLOCK):
            if tl.load(peaks + start // BLOCK) > MINUS_INFINITY:
                ids, s = load_block(scores, start, vocab, BLOCK)
                quotient = tl.div_rn(s, tl.zeros([BLOCK], tl.float32) + divisor)
                is_odd = ((quotient < INFINITY) == 0) & (s > MINUS_INFINITY)
                odd = tl.maximum(odd, tl.max(is_odd.to(tl.int32), axis=0))
                quotient = tl.where((s > MINUS_INFINITY) & (is_odd == 0), quotient, MINUS_INFINITY)
                peak = tl.maximum(peak, tl.max(quotient, axis=0))
        relative = (odd > 0) | (peak == MINUS_INFINITY)
        for start in range(0, vocab, BLOCK):
            if tl.load(peaks + start // BLOCK) > MINUS_INFINITY:
                ids, s = load_block(scores, start, vocab, BLOCK)
                quotient = tl.div_rn(s, tl.zeros([BLOCK], tl.float32) + divisor)
                limit = ((s.to(tl.float64) - top.to(tl.float64)) / amount).to(tl.float32)
                new = tl.where(s > MINUS_INFINITY, tl.where(relative, limit, quotient), MINUS_INFINITY)
                store_block(scores, peaks, ids, new, start, vocab, BLOCK)
        tl.debug_barrier()


@triton.jit
def candidates(scores, peaks, vocab, BLOCK: tl.constexpr):
    """How many candidates there are."""
    return measure(scores, peaks, vocab, NO_KEY + 1, 0.0, 0.0, 0.0, BY_SCORE, False, BLOCK)


@triton.jit
def top_k(scores, peaks, vocab, top, k, BLOCK: tl.constexpr):
    if k < candidates(scores, peaks, vocab, BLOCK):
        least = threshold(scores, peaks, vocab, k, top, 0.0, 0.0, BY_SCORE, False, BLOCK)
        prune(scores, peaks, vocab, least, EVERYONE, top, 0.0, 0.0, 0.0, 1.0, BY_SCORE, False, BLOCK)


@triton.jit
def top_p(scores, peaks, vocab, top, p, keep, BLOCK: tl.constexpr):
    if p < 1.0:
        whole = measure(scores, peaks, vocab, NO_KEY + 1, top, 0.0, 0.0, BY_SCORE, True, BLOCK)
        error = whole * (vocab + 16) * _ESTIMATE
        bound = p * whole
        least = threshold(scores, peaks, vocab, bound, top, 0.0, 0.0, BY_SCORE, True, BLOCK)
        above = measure(scores, peaks, vocab, least + 1, top, 0.0, 0.0, BY_SCORE, True, BLOCK)
        reached = measure(scores, peaks, vocab, least, top, 0.0, 0.0, BY_SCORE, True, BLOCK)
        count = measure(scores, peaks, vocab, least + 1, top, 0.0, 0.0, BY_SCORE, False, BLOCK)
        ties = measure(scores, peaks, vocab, least, top, 0.0, 0.0, BY_SCORE, False, BLOCK) - count
        # Of the tokens that share the last score, those before whose turn the sum is below the bound.
        each = (reached - above) / tl.maximum(ties, 1).to(tl.float64)
        of_ties = tl.ceil((bound - above) / tl.maximum(each, 1e-300))
        of_ties = tl.minimum(tl.maximum(of_ties, 0.0), ties.to(tl.float64))
        certain = (bound - (above + (of_ties - 1.0) * each) > 2.0 * error) & (above + of_ties * each - bound > 2.0 * error)
        if certain:
            count += of_ties.to(tl.int64)
        else:
            exact = p * total(scores, peaks, vocab, top, 0.0, WEIGHT, BLOCK)
            count = walk(scores, peaks, vocab, sortable(top), exact, top, 0.0, 0.0, BY_SCORE, BLOCK)
        count = tl.maximum(count, keep)
        if count < candidates(scores, peaks, vocab, BLOCK):
            keep_first(scores, peaks, vocab, count, top, 0.0, 0.0, BY_SCORE, BLOCK)


@triton.jit
def min_p(scores, peaks, vocab, top, p, keep, BLOCK: tl.constexpr):
    if keep < candidates(scores, peaks, vocab, BLOCK):
        least = threshold(scores, peaks, vocab, keep, top, 0.0, 0.0, BY_SCORE, False, BLOCK)
        above = measure(scores, peaks, vocab, least + 1, top, 0.0, 0.0, BY_SCORE, False, BLOCK)
        prune(scores, peaks, vocab, least, keep - above, top, 0.0, 0.0, p, 1.0, BY_SCORE, True, BLOCK)


@triton.jit
def typical(scores, peaks, vocab, top, share, keep, BLOCK: tl.constexpr):
    mass = log(total(scores, peaks, vocab, top, 0.0, WEIGHT, BLOCK))
    entropy = -total(scores, peaks, vocab, top, mass, ENTROPY, BLOCK)
    everyone = candidates(scores, peaks, vocab, BLOCK)
    error = (vocab + 16) * _ESTIMATE
    whole = measure(scores, peaks, vocab, NO_KEY + 1, top, mass, entropy, BY_DISTANCE, True, BLOCK)
    count = everyone
    least = tl.full([], 0, tl.int64)
    certain = whole > share + error
    if certain:
        least = threshold(scores, peaks, vocab, share, top, mass, entropy, BY_DISTANCE, True, BLOCK)
        above = measure(scores, peaks, vocab, least + 1, top, mass, entropy, BY_DISTANCE, True, BLOCK)
        reached = measure(scores, peaks, vocab, least, top, mass, entropy, BY_DISTANCE, True, BLOCK)
        certain = (share - above > error) & (reached - share > error)
    if certain == 0:
        nearest = level_of_first(scores, peaks, vocab, top, mass, entropy, BLOCK)
        last = walk(scores, peaks, vocab, nearest, share, top, mass, entropy, BY_DISTANCE, BLOCK)
        last = tl.minimum(tl.maximum(last, 1), everyone)
        least = threshold(scores, peaks, vocab, last, top, mass, entropy, BY_DISTANCE, False, BLOCK)
    count = measure(scores, peaks, vocab, least, top, mass, entropy, BY_DISTANCE, False, BLOCK)
    count = tl.maximum(count, keep)
    if count < everyone:
        keep_first(scores, peaks, vocab, count, top, mass, entropy, BY_DISTANCE, BLOCK)


@triton.jit
def level_of_first(scores, peaks, vocab, top, mass, entropy, BLOCK: tl.constexpr):
    """The key of the token nearest to the entropy."""
    _first, _s, _ties, nearest = next_in_order(scores, peaks, vocab, 1, -1, top, mass, entropy, BY_DISTANCE, BLOCK)
    return nearest


@triton.jit
def epsilon(scores, peaks, vocab, top, least, keep, BLOCK: tl.constexpr):
    whole = total(scores, peaks, vocab, top, 0.0, WEIGHT, BLOCK)
    keep_likely(scores, peaks, vocab, top, least, whole, keep, BLOCK)


@triton.jit
def eta(scores, peaks, vocab, top, least, keep, BLOCK: tl.constexpr):
    whole = total(scores, peaks, vocab, top, 0.0, WEIGHT, BLOCK)
    entropy = -total(scores, peaks, vocab, top, log(whole), ENTROPY, BLOCK)
    least = tl.minimum(least, tl.sqrt(least) * exp(-entropy))
    keep_likely(scores, peaks, vocab, top, least, whole, keep, BLOCK)


@triton.jit
def keep_likely(scores, peaks, vocab, top, least, whole, keep, BLOCK: tl.constexpr):
    """Keeps the tokens of a weight of at least `least` * whole, and the `keep` highest."""
    keep = tl.minimum(keep, candidates(scores, peaks, vocab, BLOCK))
    kth = threshold(scores, peaks, vocab, keep, top, 0.0, 0.0, BY_SCORE, False, BLOCK)
    prune(scores, peaks, vocab, kth, EVERYONE, top, 0.0, 0.0, least, whole, BY_SCORE, True, BLOCK)


@triton.jit
def top_h(scores, peaks, vocab, top, share, most, BLOCK: tl.constexpr):
    if most < candidates(scores, peaks, vocab, BLOCK):
        keep_first(scores, peaks, vocab, most, top, 0.0, 0.0, BY_SCORE, BLOCK)
    mass = log(total(scores, peaks, vocab, top, 0.0, WEIGHT, BLOCK))
    whole, _everyone = entropy_within(scores, peaks, vocab, top, mass, INFINITY, BLOCK)
    _running, count = entropy_within(scores, peaks, vocab, top, mass, share * whole, BLOCK)
    if count < candidates(scores, peaks, vocab, BLOCK):
        keep_first(scores, peaks, vocab, count, top, 0.0, 0.0, BY_SCORE, BLOCK)


@triton.jit
def entropy_within(scores, peaks, vocab, top, mass, bound, BLOCK: tl.constexpr):
    """The entropy added up in the order of the ranking, and one more than how many terms after the first are positive and
    leave the sum within `bound`."""
    running = tl.full([], 0.0, tl.float64)
    count = tl.full([], 1, tl.int64)
    rank = tl.full([], 0, tl.int64)
    level = sortable(top)
    while level > NO_KEY:
        _first, s, ties, lower = next_in_order(scores, peaks, vocab, level, -1, top, mass, 0.0, BY_SCORE, BLOCK)
        each = -surprise_term(log_probability(s, top, mass))
        while ties > 0:
            running += each
            count += ((rank > 0) & (each > 0.0) & (running <= bound)).to(tl.int64)
            rank += 1
            ties -= 1
        level = lower
    return running, count


@triton.jit
def top_n_sigma(scores, peaks, vocab, top, n, BLOCK: tl.constexpr):
    if top == INFINITY:
        prune(scores, peaks, vocab, sortable(top), EVERYONE, top, 0.0, 0.0, 0.0, 1.0, BY_SCORE, False, BLOCK)
    else:
        count = candidates(scores, peaks, vocab, BLOCK).to(tl.float64)
        mean = total(scores, peaks, vocab, top, 0.0, SCORE, BLOCK) / count
        bound = top.to(tl.float64) - n * tl.sqrt(total(scores, peaks, vocab, top, mean, APART, BLOCK) / count)
        for start in range(0, vocab, BLOCK):
            if tl.load(peaks + start // BLOCK) > MINUS_INFINITY:
                ids, s = load_block(scores, start, vocab, BLOCK)
                store_block(scores, peaks, ids, tl.where(s.to(tl.float64) >= bound, s, MINUS_INFINITY), start, vocab, BLOCK)
        tl.debug_barrier()


@triton.jit
def xtc(scores, peaks, vocab, top, least, probability, special, words, state, BLOCK: tl.constexpr):
    coin = uniform(noise_bits(state, tl.full([], _XTC_COIN, tl.uint32)))
    if coin.to(tl.float64) < probability:
        drop_likely(scores, peaks, vocab, top, least, special, words, BLOCK)


@triton.jit
def drop_likely(scores, peaks, vocab, top, least, special, words, BLOCK: tl.constexpr):
    """Drops all tokens of at least this probability but the least likely of them, the last among equals, and the special ones,
    of which the bit is 1 in so many words."""
    whole = total(scores, peaks, vocab, top, 0.0, WEIGHT, BLOCK)
    count = tl.full([], 0, tl.int64)
    lowest = tl.full([], INFINITY, tl.float32)
    last = tl.full([], -1, tl.int32)
    for start in range(0, vocab, BLOCK):
        if tl.load(peaks + start // BLOCK) > MINUS_INFINITY:
            ids, s = load_block(scores, start, vocab, BLOCK)
            likely = (weight(s, top) / whole >= least) & (s > MINUS_INFINITY)
            count += tl.sum(likely.to(tl.int64), axis=0)
            here = tl.min(tl.where(likely, s, INFINITY), axis=0)
            at = tl.max(tl.where(likely & (s == here), ids, -1), axis=0)
            last = tl.where((here <= lowest) & (at >= 0), at, last)
            lowest = tl.minimum(lowest, here)
    if count >= 2:
        for start in range(0, vocab, BLOCK):
            if tl.load(peaks + start // BLOCK) > MINUS_INFINITY:
                ids, s = load_block(scores, start, vocab, BLOCK)
                likely = (weight(s, top) / whole >= least) & (s > MINUS_INFINITY)
                named = (tl.load(special + ids // 32, mask=ids // 32 < words, other=0) >> (ids % 32)) & 1
                dropped = likely & (ids != last) & (named == 0)
                store_block(scores, peaks, ids, tl.where(dropped, MINUS_INFINITY, s), start, vocab, BLOCK)
    tl.debug_barrier()


@triton.jit
def normalise(scores, peaks, vocab, top, BLOCK: tl.constexpr):
    mass = log(total(scores, peaks, vocab, top, 0.0, WEIGHT, BLOCK))
    for start in range(0, vocab, BLOCK):
        if tl.load(peaks + start // BLOCK) > MINUS_INFINITY:
            ids, s = load_block(scores, start, vocab, BLOCK)
            new = tl.where(s > MINUS_INFINITY, log_probability(s, top, mass).to(tl.float32), MINUS_INFINITY)
            store_block(scores, peaks, ids, new, start, vocab, BLOCK)
    tl.debug_barrier()
