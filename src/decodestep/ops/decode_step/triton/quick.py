"""The quick way of a row with the usual filters: a temperature, top-k, top-p and min-p, in this order, each or none.

None of its kernels writes scores, and most read the logits once. `find_peaks` finds the largest logit of every strip. A row
with top-k is then LISTED: the k-th largest peak bounds its candidates, which are few and stay in registers. A row without
is RACED: all its tokens race, while their weights are added up, and only then is the winner tested: top-p keeps it if the
weights of the tokens that rank before it stay below p times all of them. If it fails, these tokens race again. (The winner of a
set is the winner of every subset that holds it, so that the result is that of filtering first.) Sums in float32 have an error
bound: where it leaves a test open, and wherever a list or a number would not fit, the row is `left` to the general steps.
"""

from __future__ import annotations

import triton
import triton.language as tl

from decodestep._base.triton import MINUS_INFINITY, as_float32, sortable
from decodestep.ops.decode_step.triton.draw import (
    is_within,
    load_logits,
    race_span,
    ranks_before,
    scaled,
    store_best,
    winner_among,
)
from decodestep.ops.decode_step.triton.row import EVERYONE, NO_KEY, weight
from decodestep.ops.decode_step.triton.table import GENERAL, LISTED, RACED
from decodestep.random.triton import noise_state

_GENERAL, _LISTED, _RACED = (tl.constexpr(way) for way in (GENERAL, LISTED, RACED))
_LOG2E = tl.constexpr(1.4426950408889634)
_TRIES = tl.constexpr(8)  # keys that one look at a list compares
_GROUP = tl.constexpr(16)  # strips whose tokens are listed together
# Of a sum of weights in float32: of the exponentials and of the additions in a lane, and, for each unit of a score's size, of
# the exponents, which are differences of rounded quotients. Weights below exp(-64) do not matter.
_ERROR_OF_SUM = tl.constexpr(2.0**-16)
_ERROR_OF_SCORE = tl.constexpr(2.0**-22)
_NEGLIGIBLE = tl.constexpr(64.0)
_ESTIMATE = tl.constexpr(2.0**-51)  # the relative error of a sum of float64, for each of its terms
_LARGEST_SCORE = tl.constexpr(1e30)  # scores and quotients beyond are left


@triton.jit
def find_peaks(logits, row_stride, stride, ways, peaks, tops, vocab, span, STRIP: tl.constexpr, BLOCK: tl.constexpr):
    """Program (b, i) writes the largest logit of each strip from token i * span of row b on, and of all of these."""
    b = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    first = part * span
    top = tl.full([], MINUS_INFINITY, tl.float32)
    peaks += b * tl.cdiv(vocab, STRIP)
    for start in range(first, tl.minimum(first + span, vocab), BLOCK):
        _ids, v = load_logits(logits + b * row_stride, start, vocab, stride, BLOCK)
        highest = tl.max(tl.reshape(v, [BLOCK // STRIP, STRIP]), axis=1)
        at = start // STRIP + tl.arange(0, BLOCK // STRIP)
        tl.store(peaks + at, highest, mask=at * STRIP < vocab)
        top = tl.maximum(top, tl.max(highest, axis=0))
    tl.store(tops + b * tl.num_programs(1) + part, top)


@triton.jit
def divide(a, b):
    """A quotient of two numbers, correctly rounded."""
    return tl.max(scaled(tl.zeros([2], tl.float32) + a, b, 2), axis=0)


@triton.jit
def load_scale(tops, amounts, parts, PARTS: tl.constexpr):
    """(largest logit, its score, divisor, about 1 / divisor, whether the quick way takes such numbers) of a row."""
    part = tl.arange(0, PARTS)
    top = tl.max(tl.load(tops + part, mask=part < parts, other=MINUS_INFINITY), axis=0)
    divisor = tl.load(amounts).to(tl.float32)
    inverse = divide(1.0, divisor)
    top_score = divide(top, divisor)
    largest = tl.maximum(tl.maximum(tl.abs(top), tl.abs(top_score)), tl.maximum(inverse, divisor))
    return top, top_score, divisor, inverse, largest < _LARGEST_SCORE


@triton.jit
def load_state(seeds, positions, b):
    return noise_state(tl.load(seeds + b).to(tl.uint64, bitcast=True), tl.load(positions + b).to(tl.uint32))


@triton.jit
def race_and_weigh(
    logits, row_stride, stride, ways, amounts, greedy, seeds, positions, tops, masses, best_totals, best_tokens, vocab, span,
    PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Program (b, i) of a RACED row finds the winner, and the sum of weights, of the tokens from i * span on."""
    b = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    parts = tl.num_programs(1)
    first = part * span
    if tl.load(ways + 3 * b) == _RACED:
        top, _top_score, divisor, inverse, is_usable = load_scale(tops + b * parts, amounts + 3 * b, parts, PARTS)
        if is_usable:
            x = logits + b * row_stride
            is_infinite, total, winner, mass = race_span(
                x, stride, first, tl.minimum(first + span, vocab), tl.load(greedy + b) != 0, load_state(seeds, positions, b),
                divisor, inverse, top, MINUS_INFINITY, -1, tops, True, False, BLOCK, BLOCK,
            )  # fmt: skip
            store_best(best_totals, best_tokens, b * parts + part, is_infinite, total, winner)
            tl.store(masses + b * parts + part, mass)


@triton.jit
def choose(
    logits, row_stride, stride, ways, amounts, greedy, seeds, positions, peaks, tops, masses, best_totals, best_tokens,
    strips, ids, scores, tokens, left, vocab, parts,
    WAYS: tl.constexpr, STRIP: tl.constexpr, BLOCK: tl.constexpr, PEAKS: tl.constexpr, PARTS: tl.constexpr, LIST: tl.constexpr,
):  # fmt: skip
    """The token of each row, or a mark in `left`. strips: (B, PEAKS), ids and scores: (B, LIST), to write lists to.

    WAYS: the bits of those that occur; what does not is not compiled.
    """
    b = tl.program_id(0).to(tl.int64)
    way, amounts = tl.load(ways + 3 * b), amounts + 3 * b
    x = logits + b * row_stride
    peaks += b * tl.cdiv(vocab, STRIP)
    top, top_score, divisor, inverse, is_usable = load_scale(tops + b * parts, amounts, parts, PARTS)
    p, least = tl.load(amounts + 1), tl.load(amounts + 2)
    is_greedy, state = tl.load(greedy + b) != 0, load_state(seeds, positions, b)
    way = tl.where(is_usable, way, _GENERAL)
    token = tl.full([], -1, tl.int64)
    if _LISTED & WAYS:
        k = tl.load(ways + 3 * b + 2)
        if way == _LISTED:
            ids += b * LIST
            scores += b * LIST
            n = list_candidates(x, stride, peaks, divisor, k, strips + b * PEAKS, ids, scores, vocab, STRIP, PEAKS, LIST)
            if n <= LIST:
                token = draw_listed(ids, scores, n, k, p, least, top_score, is_greedy, state, LIST)
    if _RACED & WAYS:
        part = tl.arange(0, PARTS)
        if way == _RACED:
            at = b * parts + part
            whole = tl.sum(tl.load(masses + at, mask=part < parts, other=0.0), axis=0)
            totals = tl.load(best_totals + 2 * at + 1, mask=part < parts, other=MINUS_INFINITY)
            winners = tl.load(best_tokens + at, mask=part < parts, other=EVERYONE)
            winner = tl.min(tl.where(totals == tl.max(totals, axis=0), winners, EVERYONE), axis=0)
            token = draw_raced(
                x,
                stride,
                peaks,
                divisor,
                inverse,
                top,
                top_score,
                p,
                least,
                whole,
                winner,
                is_greedy,
                state,
                vocab,
                STRIP,
                BLOCK,
            )
    tl.store(tokens + b, token)
    tl.store(left + b, (token < 0).to(tl.int8))


@triton.jit
def draw_raced(
    x, stride, peaks, divisor, inverse, top, top_score, p, least, whole, winner, is_greedy, state, vocab,
    STRIP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The token that the filters keep and that beats all others which they keep; -1 if a sum cannot tell."""
    error = _ERROR_OF_SUM + (tl.abs(top_score) + _NEGLIGIBLE) * _ERROR_OF_SCORE
    target = p * whole
    token = tl.full([], -1, tl.int64)
    while (token < 0) & (winner < EVERYONE):
        s = divide(as_float32(tl.load(x + winner * stride)), divisor)
        is_likely = weight(s, top_score) >= least
        above = tl.full([], 0.0, tl.float64)
        if is_likely & (p < 1.0):
            above = mass_before(x, stride, peaks, divisor, inverse, top, s, winner, vocab, STRIP, BLOCK)
        is_outside = (is_likely == 0) | ((p < 1.0) & (above * (1.0 - error) >= target * (1.0 + error)))
        if is_likely & ((p >= 1.0) | (above * (1.0 + error) < target * (1.0 - error))):
            token = winner
        elif is_outside:
            _is_infinite, _total, winner, _mass = race_span(
                x, stride, 0, vocab, is_greedy, state, divisor, inverse, top, s, winner, peaks, False, True, STRIP, BLOCK
            )
        else:
            winner = tl.full([], EVERYONE, tl.int64)
    return token


@triton.jit
def mass_before(x, stride, peaks, divisor, inverse, top, s, token, vocab, STRIP: tl.constexpr, BLOCK: tl.constexpr):
    """An estimate of the weights of the tokens that rank before one of score `s`."""
    masses = tl.zeros([BLOCK], tl.float32)
    for start in range(0, vocab, BLOCK):
        if is_within(peaks, start, vocab, divisor, s, True, STRIP, BLOCK):
            ids, v = load_logits(x, start, vocab, stride, BLOCK)
            before = ranks_before(scaled(v, divisor, BLOCK), ids, s, token)
            masses += tl.where(before, tl.exp2((v - top) * (inverse * _LOG2E)), 0.0)
    return tl.sum(masses.to(tl.float64), axis=0)


@triton.jit
def list_candidates(
    x, stride, peaks, divisor, k, strips, ids, scores, vocab, STRIP: tl.constexpr, PEAKS: tl.constexpr, LIST: tl.constexpr
):
    """Lists, by id, all tokens with the score of the k-th largest peak or more; returns how many. Beyond LIST they are lost."""
    strip = tl.arange(0, PEAKS)
    count = tl.cdiv(vocab, STRIP)
    peak = tl.load(peaks + strip, mask=strip < count, other=MINUS_INFINITY)
    key = tl.where(peak > MINUS_INFINITY, sortable(scaled(peak, divisor, PEAKS)), NO_KEY)
    bound = highest_reached(key, (key > NO_KEY).to(tl.int32), k)
    chosen = (key >= bound) & (key > NO_KEY)
    tl.store(strips + tl.cumsum(chosen.to(tl.int32), axis=0) - 1, strip, mask=chosen)
    tl.debug_barrier()
    many = tl.sum(chosen.to(tl.int32), axis=0)
    n = tl.where(count > PEAKS, LIST + 1, 0)
    for first in range(0, tl.where(n > LIST, 0, many), _GROUP):
        at = first + tl.arange(0, _GROUP)
        start = tl.load(strips + at, mask=at < many, other=count) * STRIP
        token = tl.reshape(start[:, None] + tl.arange(0, STRIP)[None, :], [_GROUP * STRIP])
        v = as_float32(tl.load(x + token.to(tl.int64) * stride, mask=token < vocab, other=MINUS_INFINITY))
        s = scaled(tl.where(v == v, v, MINUS_INFINITY), divisor, _GROUP * STRIP)
        taken = (s > MINUS_INFINITY) & (sortable(s) >= bound)
        place = n + tl.cumsum(taken.to(tl.int32), axis=0) - 1
        tl.store(ids + place, token, mask=taken & (place < LIST))
        tl.store(scores + place, s, mask=taken & (place < LIST))
        n += tl.sum(taken.to(tl.int32), axis=0)
    tl.debug_barrier()
    return n


@triton.jit
def highest_reached(key, amount, wanted):
    """The highest key from which the amounts add up to `wanted`; one below all keys of finite scores if they nowhere do."""
    low = tl.full([], -2139095040, tl.int64)
    high = tl.max(key, axis=0) + 1
    while high - low > 1:
        step = (high - low + _TRIES) // (_TRIES + 1)
        tries = low + (tl.arange(0, _TRIES).to(tl.int64) + 1) * step
        sums = tl.sum(tl.where(key[None, :] >= tries[:, None], amount[None, :], tl.zeros_like(amount)[None, :]), axis=1)
        met = tl.sum((sums >= wanted).to(tl.int64), axis=0)
        high = tl.minimum(high, low + (met + 1) * step)
        low = low + met * step
    return low


@triton.jit
def draw_listed(ids, scores, n, k, p, least, top_score, is_greedy, state, LIST: tl.constexpr):
    """The token that a list of candidates gives; -1 if a sum cannot tell."""
    at = tl.arange(0, LIST)
    token = tl.load(ids + at, mask=at < n, other=0)
    s = tl.load(scores + at, mask=at < n, other=MINUS_INFINITY)
    key = tl.where(at < n, sortable(s), NO_KEY)
    kept = (key > NO_KEY) & (key >= highest_reached(key, (key > NO_KEY).to(tl.int32), k))
    is_certain = p > 0.0
    weights = tl.where(kept, weight(s, top_score), 0.0)
    if p < 1.0:
        # As filters.top_p, of which this is the form for a list in registers.
        whole = tl.sum(weights, axis=0)
        bound = p * whole
        error = whole * (LIST + 16) * _ESTIMATE
        last = highest_reached(tl.where(kept, key, NO_KEY), weights, bound)
        above = tl.sum(tl.where(key > last, weights, 0.0), axis=0)
        is_last = kept & (key == last)
        ties = tl.sum(is_last.to(tl.int32), axis=0)
        each = tl.sum(tl.where(is_last, weights, 0.0), axis=0) / tl.maximum(ties, 1).to(tl.float64)
        wanted = tl.ceil((bound - above) / tl.maximum(each, 1e-300))
        wanted = tl.minimum(tl.maximum(wanted, 0.0), ties.to(tl.float64))
        is_certain = (bound - (above + (wanted - 1.0) * each) > 2.0 * error) & (above + wanted * each - bound > 2.0 * error)
        place = tl.cumsum(is_last.to(tl.int32), axis=0)
        kept = kept & ((key > last) | (is_last & (place.to(tl.float64) <= wanted)))
    kept = kept & (weights >= least)
    _total, winner = winner_among(s, token, kept, is_greedy, state)
    return tl.where(is_certain & (winner < EVERYONE), winner, -1)
