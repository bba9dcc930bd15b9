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


@triton.jit
def load_logits(logits, start, end, stride, BLOCK: tl.constexpr):
    """(ids, scores): float32, NaN as -inf."""
    ids = start + tl.arange(0, BLOCK)
    s = tl.load(logits + ids.to(tl.int64) * stride, mask=ids < end, other=MINUS_INFINITY)
    s = as_float32(s)
    return ids, tl.where(s == s, s, MINUS_INFINITY)


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

    Estimates of the noise tell which blocks may hold it; the logarithms in float64 run for these alone. best_totals: a pair for
    each program: whether its scores are +inf, which beats every total, and the total. With one program a row, tokens[b] is
    written at once.
    """
    b = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    parts = tl.num_programs(1)
    first = part * span
    end = tl.minimum(first + span, vocab)
    scores += b * row_stride
    is_greedy = tl.load(greedy + b) != 0
    state = noise_state(tl.load(seeds + b).to(tl.uint64, bitcast=True), tl.load(positions + b).to(tl.uint32))
    best = tl.full([], MINUS_INFINITY, tl.float32)  # of the estimates
    top = tl.full([], MINUS_INFINITY, tl.float32)
    for start in range(first, end, BLOCK):
        ids, s = load_logits(scores, start, end, stride, BLOCK)
        top = tl.maximum(top, tl.max(s, axis=0))
        guess = s
        if is_greedy == 0:
            guess = s + estimate_gumbel(noise_bits(state, ids.to(tl.uint32)))
        best = tl.maximum(best, tl.max(tl.where(s < INFINITY, guess, MINUS_INFINITY), axis=0))
    has_infinity = top == INFINITY
    least = best - (_SLACK + tl.abs(best) * _SLACK_OF_SCORE)
    winner = tl.full([], EVERYONE, tl.int64)
    winning = tl.full([], MINUS_INFINITY, tl.float64)
    if top > MINUS_INFINITY:
        for start in range(first, end, BLOCK):
            ids, s = load_logits(scores, start, end, stride, BLOCK)
            open = s > MINUS_INFINITY
            if has_infinity:
                open = s == INFINITY
                s = tl.where(open, 0.0, MINUS_INFINITY)
            bits = noise_bits(state, ids.to(tl.uint32))
            if (is_greedy == 0) & (has_infinity == 0):
                open = open & (s + estimate_gumbel(bits) >= least)
            if tl.max(open.to(tl.int32), axis=0) > 0:
                totals = s.to(tl.float64)
                if is_greedy == 0:
                    totals += gumbel(bits).to(tl.float64)
                totals = tl.where(open, totals, MINUS_INFINITY)
                here = tl.max(totals, axis=0)
                at = tl.min(tl.where(open & (totals == here), ids.to(tl.int64), EVERYONE), axis=0)
                winner = tl.where(here > winning, at, winner)
                winning = tl.maximum(winning, here)
    if parts == 1:
        tl.store(tokens + b, tl.where(winner == EVERYONE, -1, winner))
    else:
        at = b * parts + part
        tl.store(best_totals + 2 * at, has_infinity.to(tl.float64))
        tl.store(best_totals + 2 * at + 1, winning)
        tl.store(best_tokens + at, winner)


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
