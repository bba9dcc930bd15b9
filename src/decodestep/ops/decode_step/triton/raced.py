"""The token of a row without top-k: the winner of a race of all tokens, if the filters keep it; else those before it race."""

from __future__ import annotations

import triton
import triton.language as tl

from decodestep._base.triton import MINUS_INFINITY, as_float32
from decodestep.ops.decode_step.triton.draw import (
    LOG2E,
    is_within,
    load_logits,
    load_state,
    race_span,
    ranks_before,
    scaled,
    store_best,
)
from decodestep.ops.decode_step.triton.quick import AGAIN, DONE, FAILED, LISTED, RACED, divide, load_scale, load_way
from decodestep.ops.decode_step.triton.row import EVERYONE, weight

# Of a sum of weights in float32: of the exponentials, of each addition in a lane, and, for each unit of a score's size, of the
# exponents, which are differences of rounded quotients. Weights below exp(-64) do not matter.
_ERROR_OF_WEIGHT = tl.constexpr(2.0**-20)
_ERROR_OF_ADDITION = tl.constexpr(2.0**-24)
_ERROR_OF_SCORE = tl.constexpr(2.0**-22)
_NEGLIGIBLE = tl.constexpr(64.0)


@triton.jit
def weigh_before(
    logits, row_stride, stride, ways, amounts, peaks, tops, best_totals, best_tokens, above, left, vocab, span,
    REPEATED: tl.constexpr, STRIP: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Program (b, i): the weights, among the tokens from i * span on, of those that rank before the winner of a RACED row."""
    b = tl.program_id(0).to(tl.int64)
    parts = tl.num_programs(1)
    is_wanted = tl.load(ways + 3 * b) == RACED
    if REPEATED:
        is_wanted = tl.load(left + b) == AGAIN
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
    WAYS: tl.constexpr, REPEATED: tl.constexpr, STRIP: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """The verdict on the winner of each row that raced; if it is AGAIN, program (b, i) races its tokens that rank before.

    REPEATED: only of the rows whose verdict was that. Their programs need not agree on `left`, which one of them writes: where
    the new verdict is another, there is nothing more to do for the others.
    """
    b = tl.program_id(0).to(tl.int64)
    parts = tl.num_programs(1)
    way = load_way(ways, b, WAYS)
    if REPEATED:
        way = tl.where(tl.load(left + b) == AGAIN, way, LISTED)
    token = tl.full([], -1, tl.int64)
    verdict = tl.full([], FAILED, tl.int32)
    if way >= RACED:
        x = logits + b * row_stride
        top, top_score, divisor, inverse, is_usable = load_scale(tops + b * parts, amounts + 3 * b, parts, PARTS)
        token = winner_of_parts(best_totals, best_tokens, b * parts, parts, PARTS)
        if is_usable & (token < EVERYONE):
            p, least = tl.load(amounts + 3 * b + 1), tl.load(amounts + 3 * b + 2)
            whole = total_mass(masses + b * parts, tops + b * parts, top, inverse, parts, PARTS)
            before = tl.full([], 0.0, tl.float64)
            if way == RACED:
                before = sum_of_parts(above + b * parts, parts, PARTS)
            s = divide(as_float32(tl.load(x + token * stride)), divisor)
            verdict = judge(s, top_score, p, least, whole, before, tl.cdiv(vocab, BLOCK))
            if verdict == AGAIN:
                first = tl.program_id(1) * span
                is_infinite, total, winner, _mass = race_span(
                    x, stride, first, tl.minimum(first + span, vocab), tl.load(greedy + b) != 0,
                    load_state(seeds, positions, b), divisor, inverse, top, s, token, peaks + b * tl.cdiv(vocab, STRIP),
                    False, True, STRIP, BLOCK,
                )  # fmt: skip
                store_best(next_totals, next_tokens, b * parts + tl.program_id(1), is_infinite, total, winner)
    if (way != LISTED) & (tl.program_id(1) == 0):
        tl.store(tokens + b, token)
        tl.store(left + b, verdict.to(tl.int8))


@triton.jit
def settle(
    logits, row_stride, stride, amounts, greedy, seeds, positions, peaks, tops, masses, best_totals, best_tokens, above, tokens,
    left, vocab, parts, STRIP: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """The verdict on the winners of the races before; a row whose winner fails once more, as few do, goes on here.

    BLOCK: twice that of the other kernels.
    """
    b = tl.program_id(0).to(tl.int64)
    if tl.load(left + b) == AGAIN:
        x = logits + b * row_stride
        peaks += b * tl.cdiv(vocab, STRIP)
        top, top_score, divisor, inverse, _is_usable = load_scale(tops + b * parts, amounts + 3 * b, parts, PARTS)
        p, least = tl.load(amounts + 3 * b + 1), tl.load(amounts + 3 * b + 2)
        whole = total_mass(masses + b * parts, tops + b * parts, top, inverse, parts, PARTS)
        token = winner_of_parts(best_totals, best_tokens, b * parts, parts, PARTS)
        s = divide(as_float32(tl.load(x + token * stride)), divisor)
        additions = 2 * tl.cdiv(vocab, BLOCK)
        verdict = judge(s, top_score, p, least, whole, sum_of_parts(above + b * parts, parts, PARTS), additions)
        while verdict == AGAIN:
            _is_infinite, _total, token, _mass = race_span(
                x, stride, 0, vocab, tl.load(greedy + b) != 0, load_state(seeds, positions, b), divisor, inverse, top,
                s, token, peaks, False, True, STRIP, BLOCK,
            )  # fmt: skip
            s = divide(as_float32(tl.load(x + token * stride)), divisor)
            before = mass_before(x, stride, peaks, divisor, inverse, top, s, token, 0, vocab, STRIP, BLOCK)
            verdict = judge(s, top_score, p, least, whole, before, additions)
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
    return tl.sum(mass * tl.exp2((own - top) * (inverse * LOG2E)).to(tl.float64), axis=0)


@triton.jit
def sum_of_parts(values, parts, PARTS: tl.constexpr):
    part = tl.arange(0, PARTS)
    return tl.sum(tl.load(values + part, mask=part < parts, other=0.0), axis=0)


@triton.jit
def judge(s, top_score, p, least, whole, above, additions):
    """Whether the filters keep a token of score s: DONE if they do, AGAIN if not, FAILED if a sum cannot tell.

    additions: in a lane, at most, of the sums `whole` and `above`.
    """
    error = _ERROR_OF_WEIGHT + additions * _ERROR_OF_ADDITION + (tl.abs(top_score) + _NEGLIGIBLE) * _ERROR_OF_SCORE
    is_inside = (p >= 1.0) | (above * (1.0 + error) < p * whole * (1.0 - error))
    is_outside = (p < 1.0) & (above * (1.0 - error) >= p * whole * (1.0 + error))
    is_outside = is_outside | (weight(s, top_score) < least)
    return tl.where(is_outside, AGAIN, tl.where(is_inside, DONE, FAILED)).to(tl.int32)


@triton.jit
def mass_before(x, stride, peaks, divisor, inverse, top, s, token, first, end, STRIP: tl.constexpr, BLOCK: tl.constexpr):
    """An estimate of the weights, among tokens [first, end), of those that rank before a token of score s."""
    masses = tl.zeros([BLOCK], tl.float32)
    for start in range(first, end, BLOCK):
        if is_within(peaks, start, end, divisor, s, STRIP, BLOCK):
            ids, v = load_logits(x, start, end, stride, BLOCK)
            before = ranks_before(scaled(v, divisor, BLOCK), ids, s, token)
            masses += tl.where(before, tl.exp2((v - top) * (inverse * LOG2E)), 0.0)
    return tl.sum(masses.to(tl.float64), axis=0)
