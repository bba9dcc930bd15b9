"""The kernels of Ascend's samplers: one program a row."""

from __future__ import annotations

import triton
import triton.language as tl

from decodestep._base.triton import MINUS_INFINITY
from decodestep.ops.top_k_top_p_sample.triton.row import (
    EVERYONE,
    NAN_KEY,
    NO_KEY,
    UNITS,
    highest_key,
    keep_all,
    keep_from,
    keep_leading,
    keep_nucleus,
    key_of,
    largest,
    load_inputs,
    load_kept,
    share_of,
    softmax_total,
    softmax_weight,
    sum_from,
    sums_from,
    threshold,
    value_of,
)
from decodestep.random.triton import exponential, noise_bits, noise_state


@triton.jit
def survive(
    inputs, row_stride, stride, top_k, top_p, min_p, kept, values, keys, counts, vocab, largest_k,
    FIRST: tl.constexpr, RAW: tl.constexpr, TWICE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Marks each row's survivors, and writes their values, keys and number. FIRST: by the rules of the first version.

    The keys of a row that keeps its vocabulary order are 0.
    """
    b = tl.program_id(0).to(tl.int64)
    x = inputs + b * row_stride
    kept += b * vocab
    values += b * vocab
    keys += b * vocab
    k, p, m = tl.load(top_k + b), tl.load(top_p + b), tl.load(min_p + b)
    keep_all(kept, vocab, BLOCK)
    top = largest(x, stride, kept, vocab, BLOCK)
    total = tl.full([], 1.0, tl.float32)
    has_k = (k > 0) & (k <= vocab) & (k <= largest_k)
    by_rank = has_k | (p < 1.0)
    if FIRST:
        by_rank = has_k | ((p > 0.0) & (p < 1.0))
        cuts = (p > 0.0) & (p < 1.0)
    else:
        cuts = (p > 0.0) & (p < 1.0)
        if p <= 0.0:
            k = tl.full([], 1, tl.int32)
            has_k = k > 0
    twice = tl.full([], 0, tl.int32)
    if has_k:
        keep_leading(x, stride, kept, vocab, k.to(tl.float64), BLOCK)
    if RAW == 0:
        total = softmax_total(x, stride, kept, vocab, top, total, 0.0, has_k, False, BLOCK)
    if cuts:
        keep_nucleus(x, stride, kept, vocab, p, top, total, FIRST, RAW, BLOCK)
    top_value = tl.full([], 0.0, tl.float32)
    total_values = tl.full([], 1.0, tl.float32)
    if FIRST and cuts:
        if TWICE & (has_k == 0):
            twice = tl.full([], 1, tl.int32)
            top_value = tl.max(share_of(softmax_weight(tl.zeros([2], tl.float32) + top, top), total), axis=0)
            total_values = softmax_total(x, stride, kept, vocab, top, total, top_value, True, True, BLOCK)
        else:
            total = softmax_total(x, stride, kept, vocab, top, total, 0.0, True, False, BLOCK)
    finish_row(
        x, stride, kept, values, keys, counts + b, vocab, m, top, total, top_value, total_values, twice, by_rank, RAW, BLOCK
    )  # fmt: skip


@triton.jit
def finish_row(
    x, stride, kept, values, keys, count_out, vocab, m, top, total, top_value, total_values, twice, by_rank,
    RAW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    best = tl.full([], MINUS_INFINITY, tl.float32)
    best_key = tl.full([], NO_KEY, tl.int64)
    best_id = tl.full([], EVERYONE, tl.int32)
    for start in range(0, vocab, BLOCK):
        ids, inputs = load_inputs(x, start, stride, vocab, BLOCK)
        alive = load_kept(kept, ids, vocab)
        value = value_of(inputs, top, total, top_value, total_values, RAW, False)
        if twice > 0:
            value = value_of(inputs, top, total, top_value, total_values, RAW, True)
        key = key_of(inputs)
        key = tl.where(by_rank, key, key * 0)
        tl.store(values + ids, value, mask=ids < vocab)
        tl.store(keys + ids, tl.where(alive, key, NO_KEY), mask=ids < vocab)
        best, best_key, best_id = better_of(best, best_key, best_id, value, key, ids, alive)
    tl.debug_barrier()
    count = tl.full([], 0, tl.int64)
    for start in range(0, vocab, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        alive = load_kept(kept, ids, vocab)
        if m > 0.0:
            value = tl.load(values + ids, mask=ids < vocab, other=0.0)
            bound = tl.where(m < 1.0, m * best, float("nan"))  # that nothing reaches
            alive = alive & ((value >= bound) | (ids == best_id))
            key = tl.load(keys + ids, mask=ids < vocab, other=NO_KEY)
            tl.store(keys + ids, tl.where(alive, key, NO_KEY), mask=ids < vocab)
            tl.store(kept + ids, alive.to(tl.int8), mask=ids < vocab)
        count += tl.sum(alive.to(tl.int64), axis=0)
    tl.store(count_out, count)


@triton.jit
def better_of(best, best_key, best_at, values, keys, at, alive):
    """The best so far, or the best of a tile: by value, then by key, then the first."""
    here = tl.max(tl.where(alive, values, MINUS_INFINITY), axis=0)
    equal = alive & (values == here)
    here_key = tl.max(tl.where(equal, keys, NO_KEY), axis=0)
    here_at = tl.min(tl.where(equal & (keys == here_key), at, EVERYONE), axis=0)
    better = (here_at < EVERYONE) & ((here > best) | (best_at == EVERYONE) | ((here == best) & (here_key > best_key)))
    return tl.where(better, here, best), tl.where(better, here_key, best_key), tl.where(better, here_at, best_at)


@triton.jit
def choose(
    values, keys, order, counts, q, q_row, q_item, seeds, positions, epsilon, chosen, vocab,
    GIVEN: tl.constexpr, SEEDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The first largest score of each row. With GIVEN noise, which belongs to ranks, in the order of `order`."""
    b = tl.program_id(0).to(tl.int64)
    values += b * vocab
    keys += b * vocab
    count = tl.load(counts + b)
    if SEEDED:
        state = noise_state(tl.load(seeds + b).to(tl.uint64, bitcast=True), tl.load(positions + b).to(tl.uint32))
    best = tl.full([], MINUS_INFINITY, tl.float32)
    best_key = tl.full([], NO_KEY, tl.int64)
    best_at = tl.full([], EVERYONE, tl.int64)
    end = vocab
    if GIVEN:
        end = count
    for start in range(0, end, BLOCK):
        at = start + tl.arange(0, BLOCK).to(tl.int64)
        if GIVEN:
            ids = tl.load(order + b * vocab + at, mask=at < count, other=0)
            alive = at < count
            key = at * 0
        else:
            ids = at
            key = tl.load(keys + at, mask=at < vocab, other=NO_KEY)
            alive = key > NO_KEY
        score = tl.load(values + ids, mask=alive, other=0.0)
        if GIVEN:
            noise = tl.abs(tl.load(q + b * q_row + at * q_item, mask=alive, other=1.0))
            score = tl.div_rn(score, noise + epsilon)
        if SEEDED:
            score = tl.div_rn(score, exponential(noise_bits(state, ids.to(tl.uint32))) + epsilon)
        score = tl.where(alive & (score == score), score, MINUS_INFINITY)
        best, best_key, best_at = better_of(best, best_key, best_at, score, key, at, alive)
    if GIVEN:
        best_at = tl.load(order + b * vocab + best_at, mask=best_at < vocab, other=0)
    tl.store(chosen + b, best_at)


@triton.jit
def apply_cuts(
    inputs, row_stride, stride, top_k, top_p, kept, vocab, HAS_K: tl.constexpr, HAS_P: tl.constexpr, BLOCK: tl.constexpr
):
    """ApplyTopKTopP: marks what stays. Top-p walks up from the smallest, so that of equal logits the lower ids go first."""
    b = tl.program_id(0).to(tl.int64)
    x = inputs + b * row_stride
    kept += b * vocab
    keep_all(kept, vocab, BLOCK)
    if HAS_K:
        k = tl.load(top_k + b)
        if (k > 0) & (k <= vocab):
            least = threshold(x, stride, kept, vocab, k.to(tl.float64), False, 0.0, 1.0, False, False, BLOCK)
            keep_from(x, stride, kept, vocab, least, 0.0, True, BLOCK)
    if HAS_P:
        bound = (1.0 - tl.load(top_p + b)).to(tl.float64) * UNITS
        if bound >= 0.0:
            top = largest(x, stride, kept, vocab, BLOCK)
            total = softmax_total(x, stride, kept, vocab, top, 1.0, 0.0, False, False, BLOCK)
            # The lowest key up to which the sum exceeds the bound: one above the highest up to which it does not.
            low = tl.full([], NAN_KEY - 1, tl.int64)
            high = tl.full([], 0x80000000, tl.int64)
            while high - low > 1:
                step = (high - low + 16) // 17
                at = low + (tl.arange(0, 16).to(tl.int64) + 1) * step
                sums = sums_from(x, stride, kept, vocab, at, top, total, True, True, False, BLOCK)
                within = tl.sum((tl.minimum(sums, UNITS) <= bound).to(tl.int64), axis=0)
                high = tl.minimum(high, low + (within + 1) * step)
                low = low + within * step
            highest = highest_key(x, stride, kept, vocab, BLOCK)
            least = tl.minimum(high, highest)
            before = sum_from(x, stride, kept, vocab, least - 1, top, total, True, True, False, BLOCK)
            through = sum_from(x, stride, kept, vocab, least, top, total, True, True, False, BLOCK)
            below = sum_from(x, stride, kept, vocab, least - 1, top, total, False, True, False, BLOCK)
            ties = sum_from(x, stride, kept, vocab, least, top, total, False, True, False, BLOCK) - below
            each = (through - before) / tl.maximum(ties, 1.0)
            lost = tl.floor((bound - before) / tl.maximum(each, 1.0))
            lost = tl.where(high > highest, ties, lost)
            # The last of the order always stays.
            lost = tl.minimum(tl.maximum(lost, 0.0), tl.where(least == highest, ties - 1.0, ties))
            keep_from(x, stride, kept, vocab, least, lost, True, BLOCK)
