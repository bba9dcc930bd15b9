"""The kernels before and after a row's steps: logits to scores, and scores to a token. Several programs may share a row."""

from __future__ import annotations

import triton
import triton.language as tl

from decodestep._base.triton import MINUS_INFINITY, as_float32, log
from decodestep.ops.decode_step.triton.row import (
    EVERYONE,
    INFINITY,
    WEIGHT,
    largest,
    load_block,
    log_probability,
    store_block,
    total,
)
from decodestep.random.triton import gumbel, noise_bits, noise_state, uniform

# An estimate of gumbel noise from float32 logarithms is off by less than this, sums in float32 by a little more.
_SLACK = tl.constexpr(4e-3)
_SLACK_OF_SCORE = tl.constexpr(2.0**-20)
_AHEAD = tl.constexpr(3)  # blocks in flight
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def load_logits(logits, start, end, stride, BLOCK: tl.constexpr):
    """(ids, scores): float32, NaN as -inf."""
    ids = start + tl.arange(0, BLOCK)
    s = tl.load(logits + ids.to(tl.int64) * stride, mask=ids < end, other=MINUS_INFINITY)
    s = as_float32(s)
    return ids, tl.where(s == s, s, MINUS_INFINITY)


@triton.jit
def load_state(seeds, positions, b):
    """What all tokens of row b share of their noise."""
    return noise_state(tl.load(seeds + b).to(tl.uint64, bitcast=True), tl.load(positions + b).to(tl.uint32))


@triton.jit
def make_scores(logits, row_stride, stride, scores, peaks, vocab, span, BLOCK: tl.constexpr):
    """Program (b, i) copies the blocks of row b from token i * span on as float32."""
    b = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * span
    logits += b * row_stride
    for start in range(first, tl.minimum(first + span, vocab), BLOCK):
        ids, s = load_logits(logits, start, vocab, stride, BLOCK)
        store_block(scores + b * vocab, peaks + b * tl.cdiv(vocab, BLOCK), ids, s, start, vocab, BLOCK)


@triton.jit
def estimate_gumbel(bits):
    u = uniform(bits)
    q = tl.where(u < 1e-3, u + 0.5 * u * u, -tl.log(1.0 - u))
    return -tl.log(tl.maximum(q, 1e-30))


@triton.jit
def race(
    scores, row_stride, stride, greedy, seeds, positions, best_totals, best_tokens, tokens, vocab, span, BLOCK: tl.constexpr
):
    """Program (b, i) finds the winner of row b among `span` tokens from i * span on: the first maximum of the exact totals.

    best_totals: a pair for each program: whether its scores are +inf, which beats every total, and the total. With one program
    a row, tokens[b] is written at once.
    """
    b = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * span
    state = load_state(seeds, positions, b)
    is_infinite, total, winner, _mass = race_span(
        scores + b * row_stride, stride, first, tl.minimum(first + span, vocab), tl.load(greedy + b) != 0, state,
        1.0, 1.0, 0.0, MINUS_INFINITY, -1, scores, False, False, BLOCK, BLOCK,
    )  # fmt: skip
    if tl.num_programs(1) == 1:
        tl.store(tokens + b, tl.where(winner == EVERYONE, -1, winner))
    else:
        store_best(best_totals, best_tokens, b * tl.num_programs(1) + tl.program_id(1), is_infinite, total, winner)


@triton.jit
def store_best(best_totals, best_tokens, at, is_infinite, total, winner):
    tl.store(best_totals + 2 * at, is_infinite.to(tl.float64))
    tl.store(best_totals + 2 * at + 1, total)
    tl.store(best_tokens + at, winner)


@triton.jit
def race_span(
    x, stride, first, end, is_greedy, state, divisor, inverse, top, limit, limit_id, peaks,
    WEIGH: tl.constexpr, LIMITED: tl.constexpr, STRIP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """(whether +inf, total, token, mass) of the winner among tokens [first, end) of a row, whose scores are x / divisor.

    Noise is -log(q), where q is at least its uniform number u; so a token beats a total only if u <= exp(score - total). That
    needs no logarithm, and holds for few tokens of few blocks. Estimates of the totals of these tell the winner, unless two are
    too near to each other; then a second sweep computes all that are as high.

    inverse: about 1 / divisor. LIMITED: only tokens that rank before one with score `limit` and id `limit_id`; peaks are the
    largest x of strips of STRIP. WEIGH: also an estimate of the sum of exp((x - top) / divisor), `top` being the largest x.
    """
    best = tl.full([], MINUS_INFINITY, tl.float32)  # estimates
    second = tl.full([], MINUS_INFINITY, tl.float32)
    winner = tl.full([], EVERYONE, tl.int64)
    masses = tl.zeros([BLOCK], tl.float32)
    for start in tl.range(first, end, BLOCK, num_stages=_AHEAD):
        is_worth = True
        if LIMITED:
            is_worth = is_within(peaks, start, end, divisor, limit, STRIP, BLOCK)
        ids, v = load_logits(x, start, tl.where(is_worth, end, start), stride, BLOCK)
        if WEIGH:
            masses += tl.exp2((v - top) * (inverse * LOG2E))
        if LIMITED:
            v = tl.where(ranks_before(scaled(v, divisor, BLOCK), ids, limit, limit_id), v, MINUS_INFINITY)
        if is_greedy:
            is_open = scaled(v, divisor, BLOCK) > best
        else:
            reach = tl.exp2((v * inverse - (best - slack_of(best))) * LOG2E)
            is_open = uniform(noise_bits(state, ids.to(tl.uint32))) <= reach
        if tl.max(is_open.to(tl.int32), axis=0) > 0:
            s = scaled(v, divisor, BLOCK)
            guess = tl.where(is_open & (s > MINUS_INFINITY), estimate_total(s, ids, is_greedy, state), MINUS_INFINITY)
            highest = tl.max(guess, axis=0)
            is_highest = (guess == highest) & (guess > MINUS_INFINITY)
            at = tl.min(tl.where(is_highest, ids.to(tl.int64), EVERYONE), axis=0)
            next_highest = tl.max(tl.where(ids == at, MINUS_INFINITY, guess), axis=0)
            winner = tl.where(highest > best, at, winner)
            second = tl.maximum(tl.maximum(second, next_highest), tl.minimum(best, highest))
            best = tl.maximum(best, highest)
    is_infinite = (best == INFINITY).to(tl.int32)
    total = best.to(tl.float64)
    if (is_greedy == 0) & (winner < EVERYONE):
        least = best - slack_of(best)
        if (second >= least) | (is_infinite > 0):
            total, winner = race_exactly(
                x, stride, first, end, state, divisor, least, is_infinite, limit, limit_id, LIMITED, BLOCK
            )
        else:
            bits = noise_bits(state, tl.zeros([2], tl.uint32) + winner.to(tl.uint32))
            s = scaled(tl.load(x + (tl.zeros([2], tl.int64) + winner) * stride), divisor, 2)
            total = tl.max(s.to(tl.float64) + gumbel(bits).to(tl.float64), axis=0)
    elif is_infinite > 0:
        total = tl.full([], 0.0, tl.float64)
    return is_infinite, total, winner, tl.sum(masses.to(tl.float64), axis=0)


@triton.jit
def race_exactly(
    x, stride, first, end, state, divisor, least, is_infinite, limit, limit_id, LIMITED: tl.constexpr, BLOCK: tl.constexpr
):
    """(total, token) of the winner among those whose estimate is `least` or more, or among scores of +inf if there are any."""
    total = tl.full([], MINUS_INFINITY, tl.float64)
    winner = tl.full([], EVERYONE, tl.int64)
    for start in range(first, end, BLOCK):
        ids, v = load_logits(x, start, end, stride, BLOCK)
        s = scaled(v, divisor, BLOCK)
        is_open = s > MINUS_INFINITY
        if LIMITED:
            is_open = is_open & ranks_before(s, ids, limit, limit_id)
        if is_infinite > 0:
            is_open = s == INFINITY
            s = tl.where(is_open, 0.0, s)
        else:
            is_open = is_open & (estimate_total(s, ids, False, state) >= least)
        if tl.max(is_open.to(tl.int32), axis=0) > 0:
            here, at = winner_among(s, ids, is_open, False, state)
            winner = tl.where(here > total, at, winner)
            total = tl.maximum(total, here)
    return total, winner


@triton.jit
def estimate_total(s, ids, is_greedy, state):
    guess = s
    if is_greedy == 0:
        guess = s + estimate_gumbel(noise_bits(state, ids.to(tl.uint32)))
    return guess


@triton.jit
def is_within(peaks, start, end, divisor, limit, STRIP: tl.constexpr, BLOCK: tl.constexpr):
    """Whether a block of tokens may hold one that ranks before `limit`."""
    at = start // STRIP + tl.arange(0, BLOCK // STRIP)
    peak = tl.load(peaks + at, mask=at * STRIP < end, other=MINUS_INFINITY)
    return tl.max(scaled(peak, divisor, BLOCK // STRIP), axis=0) >= limit


@triton.jit
def scaled(x, divisor, WIDTH: tl.constexpr):
    s = as_float32(x)
    if divisor != 1.0:  # a division takes as long as all else that is done with most tokens
        s = tl.div_rn(s, tl.zeros([WIDTH], tl.float32) + divisor)
    return s


@triton.jit
def ranks_before(s, ids, limit, limit_id):
    return (s > limit) | ((s == limit) & (ids < limit_id))


@triton.jit
def winner_among(s, ids, is_open, is_greedy, state):
    """(total, token): the first maximum of the exact totals, whose logarithms run for few, one after the other."""
    guess = tl.where(is_open, estimate_total(s, ids, is_greedy, state), MINUS_INFINITY)
    leading = tl.max(guess, axis=0)
    total = leading.to(tl.float64)
    winner = tl.min(tl.where(is_open & (guess == leading), ids.to(tl.int64), EVERYONE), axis=0)
    if is_greedy == 0:
        is_open = is_open & (guess >= leading - slack_of(leading))
        total = tl.full([], MINUS_INFINITY, tl.float64)
        going = tl.max(is_open.to(tl.int32), axis=0)
        while going > 0:
            at = tl.min(tl.where(is_open, ids, EVERYONE), axis=0)
            own = tl.max(tl.where(is_open & (ids == at), s, MINUS_INFINITY), axis=0)
            here = own.to(tl.float64) + gumbel(noise_bits(state, at.to(tl.uint32))).to(tl.float64)
            winner = tl.where(here > total, at.to(tl.int64), winner)
            total = tl.maximum(total, here)
            is_open = is_open & (ids != at)
            going = tl.max(is_open.to(tl.int32), axis=0)
    return total, winner


@triton.jit
def slack_of(leading):
    return _SLACK + tl.abs(leading) * _SLACK_OF_SCORE


@triton.jit
def finish(best_totals, best_tokens, tokens, parts, PARTS: tl.constexpr):
    """The winner of each row among those of its programs, the lower id among equals."""
    b = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, PARTS)
    at = b * parts + part
    infinite = tl.load(best_totals + 2 * at, mask=part < parts, other=0.0)
    totals = tl.load(best_totals + 2 * at + 1, mask=part < parts, other=MINUS_INFINITY)
    ids = tl.load(best_tokens + at, mask=part < parts, other=EVERYONE)
    totals = tl.where(infinite == tl.max(infinite, axis=0), totals, MINUS_INFINITY)
    best = tl.max(totals, axis=0)
    winner = tl.min(tl.where(totals == best, ids, EVERYONE), axis=0)
    tl.store(tokens + b, tl.where(winner == EVERYONE, -1, winner))


@triton.jit
def report(scores, peaks, tokens, wanted, chosen, best_ids, best_values, most, vocab, BLOCK: tl.constexpr, PEAKS: tl.constexpr):
    """Log-probabilities of each row: of its token, and of its `wanted` most likely ones, best first; -1 marks the end."""
    b = tl.program_id(0).to(tl.int64)
    scores += b * vocab
    peaks += b * tl.cdiv(vocab, BLOCK)
    count = tl.load(wanted + b)
    token = tl.load(tokens + b)
    top = largest(peaks, vocab, BLOCK, PEAKS)
    if (count >= 0) & (token >= 0) & (top > MINUS_INFINITY):
        mass = log(total(scores, peaks, vocab, top, 0.0, WEIGHT, BLOCK))
        own = tl.load(scores + token, mask=token < vocab, other=MINUS_INFINITY)
        tl.store(chosen + b, tl.where(own > MINUS_INFINITY, log_probability(own, top, mass), MINUS_INFINITY))
        level = tl.full([], INFINITY, tl.float64)
        after = tl.full([], -1, tl.int64)
        n = tl.full([], 0, tl.int64)
        while n < count:
            best = tl.full([], MINUS_INFINITY, tl.float64)
            at = tl.full([], -1, tl.int64)
            for start in range(0, vocab, BLOCK):
                if tl.load(peaks + start // BLOCK) > MINUS_INFINITY:
                    ids, s = load_block(scores, start, vocab, BLOCK)
                    values = log_probability(s, top, mass)
                    later = (values < level) | ((values == level) & (ids > after))
                    later = later & (s > MINUS_INFINITY)
                    here = tl.max(tl.where(later, values, MINUS_INFINITY), axis=0)
                    place = tl.min(tl.where(later & (values == here), ids.to(tl.int64), EVERYONE), axis=0)
                    better = (place < EVERYONE) & ((here > best) | (at < 0))
                    at = tl.where(better, place, at)
                    best = tl.where(better, here, best)
            tl.store(best_ids + b * most + n, at)
            tl.store(best_values + b * most + n, best)
            level = best
            after = at
            n = tl.where(at < 0, count, n + 1)
