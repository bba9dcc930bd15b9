"""What the steps are made of: sweeps of one program over its row of scores.

A score of -inf has been dropped. `peaks` holds the largest score of each block, so that a sweep for high scores reads few
blocks. A candidate's key is an int64 that is larger the earlier it ranks: by its score, or for `Typical` by its distance.

Sums in any order are estimates with a bound for their error; what they decide is certain, or `walk` adds up in the order that
the contract names.
"""

from __future__ import annotations

import triton
import triton.language as tl

from decodestep._base.triton import MINUS_INFINITY, exp, fold, sortable

BY_SCORE = tl.constexpr(0)
BY_DISTANCE = tl.constexpr(1)
# The terms of `total`.
WEIGHT = tl.constexpr(0)
ENTROPY = tl.constexpr(1)
SCORE = tl.constexpr(2)
APART = tl.constexpr(3)
NO_KEY = tl.constexpr(-0x7FFFFFFFFFFFFFFF)
EVERYONE = tl.constexpr(0x7FFFFFFF)
INFINITY = tl.constexpr(float("inf"))


@triton.jit
def load_block(scores, start, vocab, BLOCK: tl.constexpr):
    """(ids, scores) of a block; -inf beyond the row."""
    ids = start + tl.arange(0, BLOCK)
    return ids, tl.load(scores + ids, mask=ids < vocab, other=MINUS_INFINITY)


@triton.jit
def store_block(scores, peaks, ids, s, start, vocab, BLOCK: tl.constexpr):
    s = tl.where(s == s, s, MINUS_INFINITY)
    tl.store(scores + ids, s, mask=ids < vocab)
    tl.store(peaks + start // BLOCK, tl.max(s, axis=0))


@triton.jit
def refresh(scores, peaks, vocab, BLOCK: tl.constexpr):
    """Recomputes the peaks after tokens have been changed one by one."""
    for start in range(0, vocab, BLOCK):
        _ids, s = load_block(scores, start, vocab, BLOCK)
        tl.store(peaks + start // BLOCK, tl.max(s, axis=0))
    tl.debug_barrier()


@triton.jit
def largest(peaks, vocab, BLOCK: tl.constexpr, PEAKS: tl.constexpr):
    blocks = tl.cdiv(vocab, BLOCK)
    top = tl.full([PEAKS], MINUS_INFINITY, tl.float32)
    for first in range(0, blocks, PEAKS):
        at = first + tl.arange(0, PEAKS)
        top = tl.maximum(top, tl.load(peaks + at, mask=at < blocks, other=MINUS_INFINITY))
    return tl.max(top, axis=0)


@triton.jit
def weight(s, top):
    """exp(score - largest) in float64; where some scores are +inf, 1 for these and 0 for the others."""
    apart = tl.where(top == INFINITY, MINUS_INFINITY, s.to(tl.float64) - top.to(tl.float64))
    return tl.where(top == INFINITY, (s == INFINITY).to(tl.float64), exp(apart))


@triton.jit
def log_probability(s, top, mass):
    """mass: the logarithm of the sum of the weights."""
    apart = (s.to(tl.float64) - top.to(tl.float64)) - mass
    return tl.where(top == INFINITY, tl.where(s == INFINITY, -mass, MINUS_INFINITY), apart)


@triton.jit
def surprise_term(log_p):
    """p log p, 0 where p is."""
    share = exp(log_p)
    return share * tl.where(share > 0.0, log_p, 0.0)


@triton.jit
def term(s, top, mass, WHAT: tl.constexpr):
    """What `total` adds up. mass: of ENTROPY as in `log_probability`, of APART the mean."""
    if WHAT == WEIGHT:
        value = weight(s, top)
    elif WHAT == ENTROPY:
        value = surprise_term(log_probability(s, top, mass))
    elif WHAT == SCORE:
        value = s.to(tl.float64)
    else:
        value = (s.to(tl.float64) - mass) * (s.to(tl.float64) - mass)
    return tl.where(s > MINUS_INFINITY, value, 0.0)


@triton.jit
def total(scores, peaks, vocab, top, mass, WHAT: tl.constexpr, BLOCK: tl.constexpr):
    """The sum in the contract's order: token i to partial sum i mod 16, in vocabulary order; these are folded in halves."""
    parts = tl.zeros([16], tl.float64)
    for start in range(0, vocab, BLOCK):
        if tl.load(peaks + start // BLOCK) > MINUS_INFINITY:  # other blocks would add zeros
            for row in range(start, tl.minimum(start + BLOCK, vocab), 16):
                _ids, s = load_block(scores, row, vocab, 16)
                parts += term(s, top, mass, WHAT)
    tl.debug_barrier()  # Each warp has added up the whole row by itself: none may yet read what another is to overwrite next.
    return fold(parts)


@triton.jit
def key_of(s, top, mass, entropy, ORDER: tl.constexpr):
    if ORDER == BY_SCORE:
        key = sortable(s)
    else:
        distance = -log_probability(s, top, mass) - entropy
        key = -tl.abs(distance).to(tl.int64, bitcast=True)
    return tl.where(s > MINUS_INFINITY, key, NO_KEY)


@triton.jit
def has_key_from(peak, least, ORDER: tl.constexpr):
    """Whether a block with this peak may hold a key >= least."""
    here = peak > MINUS_INFINITY
    if ORDER == BY_SCORE:
        here = here & (sortable(peak) >= least)
    return here


@triton.jit
def measure_keys(
    scores, peaks, vocab, keys, least, top, mass, entropy, ORDER: tl.constexpr, MASS: tl.constexpr, BLOCK: tl.constexpr
):
    """For each of `keys`, none below `least`: how many candidates have a key as high, or estimates of their weights' sum."""
    sums = tl.zeros([keys.shape[0]], tl.float64 if MASS else tl.int64)
    for start in range(0, vocab, BLOCK):
        if has_key_from(tl.load(peaks + start // BLOCK), least, ORDER):
            _ids, s = load_block(scores, start, vocab, BLOCK)
            reached = key_of(s, top, mass, entropy, ORDER)[None, :] >= keys[:, None]
            reached = reached & (s > MINUS_INFINITY)[None, :]
            if MASS:
                each = weight(s, top)
                if ORDER == BY_DISTANCE:
                    each = exp(log_probability(s, top, mass))
                sums += tl.sum(tl.where(reached, each[None, :], 0.0), axis=1)
            else:
                sums += tl.sum(reached.to(tl.int64), axis=1)
    return sums


@triton.jit
def measure(scores, peaks, vocab, key, top, mass, entropy, ORDER: tl.constexpr, MASS: tl.constexpr, BLOCK: tl.constexpr):
    """`measure_keys` for one key."""
    keys = tl.zeros([2], tl.int64) + key
    return tl.max(measure_keys(scores, peaks, vocab, keys, key, top, mass, entropy, ORDER, MASS, BLOCK), axis=0)


@triton.jit
def threshold(scores, peaks, vocab, wanted, top, mass, entropy, ORDER: tl.constexpr, MASS: tl.constexpr, BLOCK: tl.constexpr):
    """The highest key that candidates of this number, or of this estimated mass, reach; all of them together must.

    Each sweep tries sixteen keys, so that an interval of 2^32 shrinks to one key in eight.
    """
    if ORDER == BY_SCORE:
        low = tl.full([], -2139095040, tl.int64)  # below the key of the lowest finite score
        high = sortable(top) + 1
    else:
        low = tl.full([], -0x7FF0000000000000, tl.int64)
        high = tl.full([], 1, tl.int64)
    while high - low > 1:
        step = (high - low + 16) // 17
        keys = low + (tl.arange(0, 16).to(tl.int64) + 1) * step
        sums = measure_keys(scores, peaks, vocab, keys, low + step, top, mass, entropy, ORDER, MASS, BLOCK)
        met = tl.sum((sums >= wanted).to(tl.int64), axis=0)
        high = tl.minimum(high, low + (met + 1) * step)
        low = low + met * step
    return low


@triton.jit
def walk(scores, peaks, vocab, level, bound, top, mass, entropy, ORDER: tl.constexpr, BLOCK: tl.constexpr):
    """How many candidates come before a running sum of weights, in the order of their ranking, reaches `bound`.

    The slow way, one sweep for all that share a key and a weight; it is taken where an estimate cannot decide.
    """
    running = tl.full([], 0.0, tl.float64)
    count = tl.full([], 0, tl.int64)
    after = tl.full([], -1, tl.int64)  # of equal keys, the last id that has been added
    going = tl.full([], 1, tl.int32)
    while going > 0:
        first, s, ties, lower = next_in_order(scores, peaks, vocab, level, after, top, mass, entropy, ORDER, BLOCK)
        if ties == 0:
            level = lower
            after = tl.full([], -1, tl.int64)
            going = (lower > NO_KEY).to(tl.int32)
        else:
            each = weight(s, top)
            after = first
            if ORDER == BY_DISTANCE:
                each = exp(log_probability(s, top, mass))
                ties = tl.full([], 1, tl.int64)  # equally far, but perhaps on the other side
            else:
                after = tl.full([], EVERYONE, tl.int64)
            while (ties > 0) & (running < bound):
                running += each
                count += 1
                ties -= 1
            going = (running < bound).to(tl.int32)
    return count


@triton.jit
def next_in_order(scores, peaks, vocab, level, after, top, mass, entropy, ORDER: tl.constexpr, BLOCK: tl.constexpr):
    """Of the candidates with this key and a higher id: the first, its score, and how many they are; and the next lower key."""
    first = tl.full([], EVERYONE, tl.int64)
    ties = tl.full([], 0, tl.int64)
    lower = tl.full([], NO_KEY, tl.int64)
    for start in range(0, vocab, BLOCK):
        if tl.load(peaks + start // BLOCK) > MINUS_INFINITY:
            ids, s = load_block(scores, start, vocab, BLOCK)
            keys = key_of(s, top, mass, entropy, ORDER)
            same = (keys == level) & (ids > after) & (s > MINUS_INFINITY)
            first = tl.minimum(first, tl.min(tl.where(same, ids.to(tl.int64), EVERYONE), axis=0))
            ties += tl.sum(same.to(tl.int64), axis=0)
            lower = tl.maximum(lower, tl.max(tl.where(keys < level, keys, NO_KEY), axis=0))
    return first, tl.load(scores + first, mask=first < vocab, other=MINUS_INFINITY), ties, lower


@triton.jit
def keep_first(scores, peaks, vocab, count, top, mass, entropy, ORDER: tl.constexpr, BLOCK: tl.constexpr):
    """Drops all but the first `count` candidates in the order of their keys, lowest id first among equals."""
    least = threshold(scores, peaks, vocab, count, top, mass, entropy, ORDER, False, BLOCK)
    above = measure(scores, peaks, vocab, least + 1, top, mass, entropy, ORDER, False, BLOCK)
    prune(scores, peaks, vocab, least, count - above, top, mass, entropy, 0.0, 1.0, ORDER, False, BLOCK)


@triton.jit
def prune(
    scores, peaks, vocab, least, ties, top, mass, entropy, share, whole,
    ORDER: tl.constexpr, SHARE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Keeps the keys above `least`, and the first `ties` that equal it; with SHARE also weights / whole >= share."""
    seen = tl.full([], 0, tl.int64)
    for start in range(0, vocab, BLOCK):
        if tl.load(peaks + start // BLOCK) > MINUS_INFINITY:
            ids, s = load_block(scores, start, vocab, BLOCK)
            keys = key_of(s, top, mass, entropy, ORDER)
            equal = (keys == least) & (s > MINUS_INFINITY)
            kept = (keys > least) | (equal & (seen + tl.cumsum(equal.to(tl.int32), axis=0) <= ties))
            seen += tl.sum(equal.to(tl.int64), axis=0)
            if SHARE:
                kept = kept | (weight(s, top) / whole >= share)
            store_block(scores, peaks, ids, tl.where(kept, s, MINUS_INFINITY), start, vocab, BLOCK)
    tl.debug_barrier()
