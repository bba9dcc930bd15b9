"""The token of a row with top-k: its candidates as a list, in which each is compared with all others."""

from __future__ import annotations

import triton
import triton.language as tl

from decodestep._base.triton import MINUS_INFINITY, as_float32, sortable
from decodestep.ops.decode_step.triton.draw import load_state, ranks_before, scaled, winner_among
from decodestep.ops.decode_step.triton.quick import DONE, FAILED, GENERAL, LISTED, load_scale, load_way
from decodestep.ops.decode_step.triton.row import EVERYONE, NO_KEY, weight

_TRIES = tl.constexpr(8)  # keys that one look at a list compares
_NEAR = tl.constexpr(4096)  # of keys: a bound of candidates this much too low lets few more in
_GROUP = tl.constexpr(16)  # strips whose tokens are listed together
_ESTIMATE = tl.constexpr(2.0**-51)  # the relative error of a sum of float64, for each of its terms
_SOME = tl.constexpr(16)  # tokens that all others are compared with at a time


@triton.jit
def choose_listed(
    logits, row_stride, stride, ways, amounts, greedy, seeds, positions, peaks, tops, strips, ids, scores, weights,
    tokens, left, vocab, parts,
    WAYS: tl.constexpr, STRIP: tl.constexpr, PEAKS: tl.constexpr, PARTS: tl.constexpr, LIST: tl.constexpr,
):  # fmt: skip
    """The token of each LISTED row. strips: (B, PEAKS), the others to write lists to: (B, LIST)."""
    b = tl.program_id(0).to(tl.int64)
    way = load_way(ways, b, WAYS)
    token = tl.full([], -1, tl.int64)
    verdict = tl.full([], FAILED, tl.int32)
    if way == LISTED:
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
    if (way == LISTED) | (way == GENERAL):
        tl.store(tokens + b, token)
        tl.store(left + b, verdict.to(tl.int8))


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
    """(token, verdict) of a list of candidates: DONE, or FAILED if a sum cannot tell.

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
    return winner, tl.where(is_certain & (winner < EVERYONE), DONE, FAILED).to(tl.int32)
