"""What the kernels of Ascend's samplers are made of: sweeps of one program over its row.

A token's key, an int64, is larger the earlier it ranks by its logit; NaN has the lowest. `kept` marks survivors, one byte for
each token. Running sums are whole numbers of 2^-52 in float64, exact in any order up to every cut. The sum of a softmax is
rounded to float32: an estimate decides that rounding, unless it lies too close to the middle of two floats; then the sum is
taken in the order of the specification.
"""

from __future__ import annotations

import triton
import triton.language as tl

from decodestep._base.triton import MINUS_INFINITY, as_float32, exp_float32, fold, sortable

INFINITY = tl.constexpr(float("inf"))
UNITS = tl.constexpr(4503599627370496.0)  # 2^52
NAN_KEY = tl.constexpr(-0x100000000)
NO_KEY = tl.constexpr(-0x7FFFFFFFFFFFFFFF)
EVERYONE = tl.constexpr(0x7FFFFFFF)
_ESTIMATE = tl.constexpr(2.0**-51)


@triton.jit
def load_inputs(x, start, stride, vocab, BLOCK: tl.constexpr):
    ids = start + tl.arange(0, BLOCK)
    return ids, as_float32(tl.load(x + ids.to(tl.int64) * stride, mask=ids < vocab, other=MINUS_INFINITY))


@triton.jit
def load_kept(kept, ids, vocab):
    return tl.load(kept + ids, mask=ids < vocab, other=0) != 0


@triton.jit
def key_of(x):
    return tl.where(x == x, sortable(tl.where(x == x, x, 0.0)), NAN_KEY)


@triton.jit
def softmax_weight(x, top):
    """exp(x - top) in float32, NaN 0; where some inputs are +inf, 1 for these; 0 where there is nothing but -inf and NaN."""
    weight = exp_float32(tl.where(top == INFINITY, MINUS_INFINITY, x - top))
    weight = tl.where(top == INFINITY, tl.where(x == INFINITY, 1.0, 0.0), weight)
    return tl.where(x == x, tl.where(top > MINUS_INFINITY, weight, 0.0), 0.0)


@triton.jit
def value_of(x, top, total, top_value, total_values, RAW: tl.constexpr, TWICE: tl.constexpr):
    """A token's value: raw, its share of the softmax, or, TWICE, that in the softmax of the shares."""
    if RAW:
        value = tl.where(x == x, x, 0.0)
    else:
        value = share_of(softmax_weight(x, top), total)
        if TWICE:
            value = share_of(softmax_weight(value, top_value), total_values)
    return value


@triton.jit
def share_of(weight, total):
    """weight / total, 0 where the total is."""
    safe = tl.where(total > 0.0, total, 1.0)
    return tl.div_rn(weight, weight * 0.0 + safe)


@triton.jit
def units(value):
    clipped = tl.minimum(tl.maximum(value.to(tl.float64), 0.0), 1.0)
    return tl.ceil(clipped * UNITS)


@triton.jit
def largest(x, stride, kept, vocab, BLOCK: tl.constexpr):
    """Of the survivors, NaN left out."""
    top = tl.full([], MINUS_INFINITY, tl.float32)
    for start in range(0, vocab, BLOCK):
        ids, values = load_inputs(x, start, stride, vocab, BLOCK)
        usable = (values == values) & load_kept(kept, ids, vocab)
        top = tl.maximum(top, tl.max(tl.where(usable, values, MINUS_INFINITY), axis=0))
    return top


@triton.jit
def softmax_total(x, stride, kept, vocab, top, total, top_value, RANKED, TWICE: tl.constexpr, BLOCK: tl.constexpr):
    """The sum of the survivors' weights, in float32; TWICE: of those of their shares. RANKED: its order is that of ranks."""
    estimate = tl.full([], 0.0, tl.float64)
    terms = tl.full([], 0, tl.int32)
    for start in range(0, vocab, BLOCK):
        ids, values = load_inputs(x, start, stride, vocab, BLOCK)
        weight = tl.where(load_kept(kept, ids, vocab), weight_of(values, top, total, top_value, TWICE), 0.0)
        estimate += tl.sum(weight.to(tl.float64), axis=0)
        terms += tl.sum((weight > 0.0).to(tl.int32), axis=0)  # others leave a sum as it is
    error = estimate * (terms + 16) * _ESTIMATE
    result = estimate.to(tl.float32)
    if ((estimate - error).to(tl.float32) < result) | ((estimate + error).to(tl.float32) > result):
        parts = tl.zeros([16], tl.float64)
        lane = tl.arange(0, 16)
        if RANKED:
            rank = tl.full([], 0, tl.int64)
            level = highest_key(x, stride, kept, vocab, BLOCK)
            after = tl.full([], -1, tl.int64)
            while level > NO_KEY:
                first, lower = next_in_order(x, stride, kept, vocab, level, after, BLOCK)
                if first < EVERYONE:
                    value = as_float32(tl.load(x + first * stride))
                    weight = weight_of(value, top, total, top_value, TWICE).to(tl.float64)
                    parts += tl.where(lane == rank % 16, weight, 0.0)
                    rank += 1
                    after = first
                else:
                    level = lower
                    after = tl.full([], -1, tl.int64)
        else:
            for start in range(0, vocab, 16):
                ids, values = load_inputs(x, start, stride, vocab, 16)
                weight = weight_of(values, top, total, top_value, TWICE)
                parts += tl.where(load_kept(kept, ids, vocab), weight, 0.0).to(tl.float64)
        result = fold(parts).to(tl.float32)
    return result


@triton.jit
def weight_of(x, top, total, top_value, TWICE: tl.constexpr):
    weight = softmax_weight(x, top)
    if TWICE:
        weight = softmax_weight(share_of(weight, total), top_value)
    return weight


@triton.jit
def highest_key(x, stride, kept, vocab, BLOCK: tl.constexpr):
    level = tl.full([], NO_KEY, tl.int64)
    for start in range(0, vocab, BLOCK):
        ids, values = load_inputs(x, start, stride, vocab, BLOCK)
        level = tl.maximum(level, tl.max(tl.where(load_kept(kept, ids, vocab), key_of(values), NO_KEY), axis=0))
    return level


@triton.jit
def next_in_order(x, stride, kept, vocab, level, after, BLOCK: tl.constexpr):
    """Of the survivors with this key the first with a higher id; and the next lower key."""
    first = tl.full([], EVERYONE, tl.int64)
    lower = tl.full([], NO_KEY, tl.int64)
    for start in range(0, vocab, BLOCK):
        ids, values = load_inputs(x, start, stride, vocab, BLOCK)
        keys = tl.where(load_kept(kept, ids, vocab), key_of(values), NO_KEY)
        first = tl.minimum(first, tl.min(tl.where((keys == level) & (ids > after), ids.to(tl.int64), EVERYONE), axis=0))
        lower = tl.maximum(lower, tl.max(tl.where(keys < level, keys, NO_KEY), axis=0))
    return first, lower


@triton.jit
def sums_from(
    x, stride, kept, vocab, keys, top, total,
    BY_MASS: tl.constexpr, UP: tl.constexpr, RAW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """For each key, how many survivors have one as high (with UP as low), or the units of their values."""
    sums = tl.zeros([keys.shape[0]], tl.float64)
    for start in range(0, vocab, BLOCK):
        ids, values = load_inputs(x, start, stride, vocab, BLOCK)
        here = key_of(values)[None, :]
        reached = (here <= keys[:, None]) if UP else (here >= keys[:, None])
        reached = reached & load_kept(kept, ids, vocab)[None, :]
        each = tl.full([BLOCK], 1.0, tl.float64)
        if BY_MASS:
            each = units(value_of(values, top, total, 0.0, 1.0, RAW, False))
        sums += tl.sum(tl.where(reached, each[None, :], 0.0), axis=1)
    return sums


@triton.jit
def sum_from(
    x, stride, kept, vocab, key, top, total,
    BY_MASS: tl.constexpr, UP: tl.constexpr, RAW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    keys = tl.zeros([2], tl.int64) + key
    return tl.max(sums_from(x, stride, kept, vocab, keys, top, total, BY_MASS, UP, RAW, BLOCK), axis=0)


@triton.jit
def threshold(
    x, stride, kept, vocab, bound, STRICT: tl.constexpr, top, total,
    BY_MASS: tl.constexpr, RAW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The highest key from which survivors number, or weigh, at least `bound` (more, if STRICT); NAN_KEY if none do."""
    low = tl.full([], NAN_KEY, tl.int64)
    high = tl.full([], 0x80000000, tl.int64)
    while high - low > 1:
        step = (high - low + 16) // 17
        keys = low + (tl.arange(0, 16).to(tl.int64) + 1) * step
        sums = sums_from(x, stride, kept, vocab, keys, top, total, BY_MASS, False, RAW, BLOCK)
        reached = (sums > bound) if STRICT else (sums >= bound)
        met = tl.sum(reached.to(tl.int64), axis=0)
        high = tl.minimum(high, low + (met + 1) * step)
        low = low + met * step
    return low


@triton.jit
def keep_all(kept, vocab, BLOCK: tl.constexpr):
    for start in range(0, vocab, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        tl.store(kept + ids, tl.full([BLOCK], 1, tl.int8), mask=ids < vocab)
    tl.debug_barrier()


@triton.jit
def keep_from(x, stride, kept, vocab, least, ties, AFTER: tl.constexpr, BLOCK: tl.constexpr):
    """Keeps survivors with keys above `least`, and the first `ties` that equal it; with AFTER, those after these."""
    seen = tl.full([], 0.0, tl.float64)
    for start in range(0, vocab, BLOCK):
        ids, values = load_inputs(x, start, stride, vocab, BLOCK)
        keys = key_of(values)
        alive = load_kept(kept, ids, vocab)
        equal = (keys == least) & alive
        count = seen + tl.cumsum(equal.to(tl.int32), axis=0).to(tl.float64)
        within = (count > ties) if AFTER else (count <= ties)
        stays = alive & ((keys > least) | (equal & within))
        seen += tl.sum(equal.to(tl.float64), axis=0)
        tl.store(kept + ids, stays.to(tl.int8), mask=ids < vocab)
    tl.debug_barrier()


@triton.jit
def keep_leading(x, stride, kept, vocab, count, BLOCK: tl.constexpr):
    least = threshold(x, stride, kept, vocab, count, False, 0.0, 1.0, False, False, BLOCK)
    above = sum_from(x, stride, kept, vocab, least + 1, 0.0, 1.0, False, False, False, BLOCK)
    keep_from(x, stride, kept, vocab, least, count - above, False, BLOCK)


@triton.jit
def keep_nucleus(x, stride, kept, vocab, p, top, total, STRICT: tl.constexpr, RAW: tl.constexpr, BLOCK: tl.constexpr):
    """Through the first survivor at which the running sum of values reaches p (exceeds it, if STRICT); all if none does."""
    bound = p.to(tl.float64) * UNITS
    whole = sum_from(x, stride, kept, vocab, NAN_KEY, top, total, True, False, RAW, BLOCK)
    crosses = (whole > bound) if STRICT else (whole >= bound)
    if crosses:
        least = threshold(x, stride, kept, vocab, bound, STRICT, top, total, True, RAW, BLOCK)
        above = sum_from(x, stride, kept, vocab, least + 1, top, total, True, False, RAW, BLOCK)
        reached = sum_from(x, stride, kept, vocab, least, top, total, True, False, RAW, BLOCK)
        count = sum_from(x, stride, kept, vocab, least + 1, top, total, False, False, RAW, BLOCK)
        ties = sum_from(x, stride, kept, vocab, least, top, total, False, False, RAW, BLOCK) - count
        each = tl.maximum((reached - above) / tl.maximum(ties, 1.0), 1.0)
        wanted = tl.floor((bound - above) / each) + 1.0 if STRICT else tl.ceil((bound - above) / each)
        keep_from(x, stride, kept, vocab, least, tl.maximum(wanted, 1.0), False, BLOCK)
