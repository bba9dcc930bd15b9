"""The quick way of a row with the usual filters: a temperature, top-k, top-p and min-p, in this order, each or none.

None of its kernels writes scores, and most read the logits once. `sweep` finds the largest logit of every strip. A row
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
from decodestep.ops.decode_step.triton.table import GENERAL, LISTED, PLAIN, RACED
from decodestep.random.triton import noise_state

_GENERAL, _LISTED, _RACED, _PLAIN = (tl.constexpr(way) for way in (GENERAL, LISTED, RACED, PLAIN))
# Of a row in `left`: its token is there, the general steps must find it, or the tokens before this one must race.
_DONE, _FAILED, _AGAIN = (tl.constexpr(code) for code in range(3))
_LOG2E = tl.constexpr(1.4426950408889634)
_TRIES = tl.constexpr(8)  # keys that one look at a list compares
_NEAR = tl.constexpr(4096)  # of keys: a bound of candidates this much too low lets few more in
_GROUP = tl.constexpr(16)  # strips whose tokens are listed together
_SOME = tl.constexpr(16)  # tokens that all others are compared with at a time
# Of a sum of weights in float32: of the exponentials and of the additions in a lane, and, for each unit of a score's size, of
# the exponents, which are differences of rounded quotients. Weights below exp(-64) do not matter.
_ERROR_OF_SUM = tl.constexpr(2.0**-16)
_ERROR_OF_SCORE = tl.constexpr(2.0**-22)
_NEGLIGIBLE = tl.constexpr(64.0)
_ESTIMATE = tl.constexpr(2.0**-51)  # the relative error of a sum of float64, for each of its terms
_LARGEST_SCORE = tl.constexpr(1e30)  # scores and quotients beyond are left


@triton.jit
def find_peaks(x, stride, peaks, first, end, vocab, STRIP: tl.constexpr, BLOCK: tl.constexpr):
    """Writes the largest logit of each strip of tokens [first, end); returns the largest of these."""
    highest = tl.full([BLOCK // STRIP], MINUS_INFINITY, tl.float32)
    for start in range(first, end, BLOCK):
        _ids, v = load_logits(x, start, end, stride, BLOCK)
        peak = tl.max(tl.reshape(v, [BLOCK // STRIP, STRIP]), axis=1)
        at = start // STRIP + tl.arange(0, BLOCK // STRIP)
        tl.store(peaks + at, peak, mask=at * STRIP < vocab)
        highest = tl.maximum(highest, peak)
    return tl.max(highest, axis=0)


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
def sweep(
    logits, row_stride, stride, ways, amounts, greedy, seeds, positions, peaks, tops, masses, best_totals, best_tokens,
    vocab, span, WAYS: tl.constexpr, STRIP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Program (b, i): of the tokens of row b from i * span on the peaks and the largest logit; where the tokens race also the
    winner and, relative to that largest logit, the sum of weights."""
    b = tl.program_id(0).to(tl.int64)
    way = tl.load(ways + 3 * b)
    if way != _GENERAL:
        at = b * tl.num_programs(1) + tl.program_id(1)
        x = logits + b * row_stride
        first = tl.program_id(1) * span
        end = tl.minimum(first + span, vocab)
        top = find_peaks(x, stride, peaks + b * tl.cdiv(vocab, STRIP), first, end, vocab, STRIP, BLOCK)
        tl.store(tops + at, top)
        if (_RACED | _PLAIN) & WAYS:
            divisor = tl.load(amounts + 3 * b).to(tl.float32)
            if way != _LISTED:
                is_infinite, total, winner, mass = race_span(
                    x, stride, first, end, tl.load(greedy + b) != 0, load_state(seeds, positions, b), divisor,
                    divide(1.0, divisor), top, MINUS_INFINITY, -1, peaks, (_RACED & WAYS) != 0, False, STRIP, BLOCK,
                )  # fmt: skip
                store_best(best_totals, best_tokens, at, is_infinite, total, winner)
                tl.store(masses + at, mass)


@triton.jit
def choose_listed(
    logits, row_stride, stride, ways, amounts, greedy, seeds, positions, peaks, tops, strips, ids, scores, weights,
    tokens, left, vocab, parts, STRIP: tl.constexpr, PEAKS: tl.constexpr, PARTS: tl.constexpr, LIST: tl.constexpr,
):  # fmt: skip
    """The token of each LISTED row. strips: (B, PEAKS), the others to write lists to: (B, LIST)."""
    b = tl.program_id(0).to(tl.int64)
    way = tl.load(ways + 3 * b)
    token = tl.full([], -1, tl.int64)
    verdict = tl.full([], _FAILED, tl.int32)
    if way == _LISTED:
        x = logits + b * row_stride
        _top, top_score, divisor, _inverse, is_usable = load_scale(tops + b * parts, amounts + 3 * b, parts, PARTS)
        p, least, k = tl.load(amounts + 3 * b + 1), tl.load(amounts + 3 * b + 2), tl.load(ways + 3 * b + 2)
        ids += b * LIST
        scores += b * LIST
        n = tl.full([], LIST + 1, tl.int32)
        if is_usable:
            peaks += b * tl.cdiv(vocab, STRIP)
            n = list_candidates(x, stride, peaks, divisor, k, strips + b * PEAKS, ids, scores, vocab, STRIP, PEAKS, LIST)
        if n <= LIST:
            token, verdict = draw_listed(
                ids, scores, weights + b * LIST, n, k, p, least, top_score, tl.load(greedy + b) != 0,
                load_state(seeds, positions, b), LIST,
            )  # fmt: skip
    if (way == _LISTED) | (way == _GENERAL):
        tl.store(tokens + b, token)
        tl.store(left + b, verdict.to(tl.int8))


@triton.jit
def weigh_before(
    logits, row_stride, stride, ways, amounts, peaks, tops, best_totals, best_tokens, above, left, vocab, span,
    AGAIN: tl.constexpr, STRIP: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Program (b, i): the weights, among the tokens from i * span on, of those that rank before the winner of a RACED row."""
    b = tl.program_id(0).to(tl.int64)
    parts = tl.num_programs(1)
    is_wanted = tl.load(ways + 3 * b) == _RACED
    if AGAIN:
        is_wanted = tl.load(left + b) == _AGAIN
    if is_wanted:
        x = logits + b * row_stride
        top, _top_score, divisor, inverse, is_usable = load_scale(tops + b * parts, amounts + 3 * b, parts, PARTS)
        token = winner_of_parts(best_totals, best_tokens, b * parts, parts, PARTS)
        if is_usable & (token < EVERYONE):
            first = tl.program_id(1) * span
            s = divide(as_float32(tl.load(x + token * stride)), divisor)
            own = mass_before(
                x, stride, peaks + b * tl.cdiv(vocab, STRIP), divisor, inverse, top, s, token,
                first, tl.minimum(first + span, vocab), STRIP, BLOCK,
            )  # fmt: skip
            tl.store(above + b * parts + tl.program_id(1), own)


@triton.jit
def judge_winners(
    logits, row_stride, stride, ways, amounts, greedy, seeds, positions, peaks, tops, masses, best_totals, best_tokens, above,
    next_totals, next_tokens, tokens, left, vocab, span,
    AGAIN: tl.constexpr, STRIP: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """The verdict on the winner of each row that raced; if it is _AGAIN, program (b, i) races its tokens that rank before.

    AGAIN: only of the rows whose verdict was that. Their programs need not agree on `left`, which one of them writes: where the
    new verdict is another, there is nothing more to do for the others."""
    b = tl.program_id(0).to(tl.int64)
    parts = tl.num_programs(1)
    way = tl.load(ways + 3 * b)
    if AGAIN:
        way = tl.where(tl.load(left + b) == _AGAIN, way, _LISTED)
    token = tl.full([], -1, tl.int64)
    verdict = tl.full([], _FAILED, tl.int32)
    if way >= _RACED:
        x = logits + b * row_stride
        top, top_score, divisor, inverse, is_usable = load_scale(tops + b * parts, amounts + 3 * b, parts, PARTS)
        token = winner_of_parts(best_totals, best_tokens, b * parts, parts, PARTS)
        if is_usable & (token < EVERYONE):
            p, least = tl.load(amounts + 3 * b + 1), tl.load(amounts + 3 * b + 2)
            whole = total_mass(masses + b * parts, tops + b * parts, top, inverse, parts, PARTS)
            before = tl.full([], 0.0, tl.float64)
            if way == _RACED:
                before = sum_of_parts(above + b * parts, parts, PARTS)
            s = divide(as_float32(tl.load(x + token * stride)), divisor)
            verdict = judge(s, top_score, p, least, whole, before)
            if verdict == _AGAIN:
                first = tl.program_id(1) * span
                is_infinite, total, winner, _mass = race_span(
                    x, stride, first, tl.minimum(first + span, vocab), tl.load(greedy + b) != 0,
                    load_state(seeds, positions, b), divisor, inverse, top, s, token, peaks + b * tl.cdiv(vocab, STRIP),
                    False, True, STRIP, BLOCK,
                )  # fmt: skip
                store_best(next_totals, next_tokens, b * parts + tl.program_id(1), is_infinite, total, winner)
    if (way != _LISTED) & (tl.program_id(1) == 0):
        tl.store(tokens + b, token)
        tl.store(left + b, verdict.to(tl.int8))


@triton.jit
def settle(
    logits, row_stride, stride, amounts, greedy, seeds, positions, peaks, tops, masses, best_totals, best_tokens, above, tokens,
    left, vocab, parts, STRIP: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """The verdict on the winners of second races; a row whose winner fails once more, as few do, goes on here."""
    b = tl.program_id(0).to(tl.int64)
    if tl.load(left + b) == _AGAIN:
        x = logits + b * row_stride
        peaks += b * tl.cdiv(vocab, STRIP)
        top, top_score, divisor, inverse, _is_usable = load_scale(tops + b * parts, amounts + 3 * b, parts, PARTS)
        p, least = tl.load(amounts + 3 * b + 1), tl.load(amounts + 3 * b + 2)
        whole = total_mass(masses + b * parts, tops + b * parts, top, inverse, parts, PARTS)
        token = winner_of_parts(best_totals, best_tokens, b * parts, parts, PARTS)
        s = divide(as_float32(tl.load(x + token * stride)), divisor)
        verdict = judge(s, top_score, p, least, whole, sum_of_parts(above + b * parts, parts, PARTS))
        while verdict == _AGAIN:
            _is_infinite, _total, token, _mass = race_span(
                x, stride, 0, vocab, tl.load(greedy + b) != 0, load_state(seeds, positions, b), divisor, inverse, top,
                s, token, peaks, False, True, STRIP, BLOCK,
            )  # fmt: skip
            s = divide(as_float32(tl.load(x + token * stride)), divisor)
            before = mass_before(x, stride, peaks, divisor, inverse, top, s, token, 0, vocab, STRIP, BLOCK)
            verdict = judge(s, top_score, p, least, whole, before)
        tl.store(tokens + b, token)
        tl.store(left + b, verdict.to(tl.int8))


@triton.jit
def winner_of_parts(best_totals, best_tokens, at, parts, PARTS: tl.constexpr):
    part = tl.arange(0, PARTS)
    totals = tl.load(best_totals + 2 * (at + part) + 1, mask=part < parts, other=MINUS_INFINITY)
    winners = tl.load(best_tokens + at + part, mask=part < parts, other=EVERYONE)
    return tl.min(tl.where(totals == tl.max(totals, axis=0), winners, EVERYONE), axis=0)


@triton.jit
def total_mass(masses, tops, top, inverse, parts, PARTS: tl.constexpr):
    """The sum of a row's weights, from its parts' sums relative to their own largest logits."""
    part = tl.arange(0, PARTS)
    own = tl.load(tops + part, mask=part < parts, other=MINUS_INFINITY)
    mass = tl.load(masses + part, mask=(part < parts) & (own > MINUS_INFINITY), other=0.0)
    return tl.sum(mass * tl.exp2((own - top) * (inverse * _LOG2E)).to(tl.float64), axis=0)


@triton.jit
def sum_of_parts(values, parts, PARTS: tl.constexpr):
    part = tl.arange(0, PARTS)
    return tl.sum(tl.load(values + part, mask=part < parts, other=0.0), axis=0)


@triton.jit
def judge(s, top_score, p, least, whole, above):
    """Whether the filters keep a token of score s: _DONE if they do, _AGAIN if not, _FAILED if a sum cannot tell."""
    error = _ERROR_OF_SUM + (tl.abs(top_score) + _NEGLIGIBLE) * _ERROR_OF_SCORE
    is_inside = (p >= 1.0) | (above * (1.0 + error) < p * whole * (1.0 - error))
    is_outside = (p < 1.0) & (above * (1.0 - error) >= p * whole * (1.0 + error))
    is_outside = is_outside | (weight(s, top_score) < least)
    return tl.where(is_outside, _AGAIN, tl.where(is_inside, _DONE, _FAILED)).to(tl.int32)


@triton.jit
def mass_before(x, stride, peaks, divisor, inverse, top, s, token, first, end, STRIP: tl.constexpr, BLOCK: tl.constexpr):
    """An estimate of the weights, among tokens [first, end), of those that rank before a token of score s."""
    masses = tl.zeros([BLOCK], tl.float32)
    for start in range(first, end, BLOCK):
        if is_within(peaks, start, end, divisor, s, STRIP, BLOCK):
            ids, v = load_logits(x, start, end, stride, BLOCK)
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
    # With fewer strips than k, nothing bounds the candidates.
    bound = tl.where(tl.sum((key > NO_KEY).to(tl.int32), axis=0) < k, NO_KEY + 1, reached_by(key, k))
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
def reached_by(key, wanted):
    """The highest key that as many reach as are wanted, or one that is lower by less than _NEAR; the lowest if there are fewer.

    NO_KEY does not count.
    """
    low = tl.min(tl.where(key > NO_KEY, key, -NO_KEY), axis=0)
    high = tl.max(key, axis=0) + 1
    while high - low > _NEAR:
        step = (high - low + _TRIES) // (_TRIES + 1)
        tries = low + (tl.arange(0, _TRIES).to(tl.int64) + 1) * step
        sums = tl.sum((key[None, :] >= tries[:, None]).to(tl.int32), axis=1)
        met = tl.sum((sums >= wanted).to(tl.int64), axis=0)
        high = tl.minimum(high, low + (met + 1) * step)
        low = low + met * step
    return low


@triton.jit
def draw_listed(ids, scores, weights, n, k, p, least, top_score, is_greedy, state, LIST: tl.constexpr):
    """(token, verdict) of a list of candidates: _DONE, or _FAILED if a sum cannot tell.

    Each token is compared with all others, a few of them at a time, which is what ranks are by their definition.
    """
    at = tl.arange(0, LIST)
    some = tl.arange(0, _SOME)
    s = tl.load(scores + at, mask=at < n, other=MINUS_INFINITY)
    higher = tl.zeros([LIST], tl.int32)
    for first in range(0, n, _SOME):
        other = tl.load(scores + first + some, mask=first + some < n, other=MINUS_INFINITY)
        higher += tl.sum((other[None, :] > s[:, None]).to(tl.int32), axis=1)
    kept = (at < n) & (higher < k)
    weight_of = tl.where(kept, weight(s, top_score), 0.0)
    is_certain = tl.full([], True, tl.int1)
    if p < 1.0:
        tl.store(weights + at, weight_of, mask=at < n)
        tl.debug_barrier()
        above = tl.zeros([LIST], tl.float64)
        for first in range(0, n, _SOME):
            place = first + some
            other = tl.load(scores + place, mask=place < n, other=MINUS_INFINITY)
            before = ranks_before(other[None, :], place[None, :], s[:, None], at[:, None])
            above += tl.sum(tl.where(before, tl.load(weights + place, mask=place < n, other=0.0)[None, :], 0.0), axis=1)
        whole = tl.sum(weight_of, axis=0)
        is_open = kept & (tl.abs(above - p * whole) <= 4.0 * whole * (LIST + 16) * _ESTIMATE)
        is_certain = tl.max(is_open.to(tl.int32), axis=0) == 0
        kept = kept & (above < p * whole)
    kept = kept & (weight_of >= least)
    token = tl.load(ids + at, mask=at < n, other=0)
    _total, winner = winner_among(s, token, kept, is_greedy, state)
    return winner, tl.where(is_certain & (winner < EVERYONE), _DONE, _FAILED).to(tl.int32)
