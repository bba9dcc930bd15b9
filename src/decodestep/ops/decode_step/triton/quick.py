"""The quick way of a row with the usual filters: a temperature, top-k, top-p and min-p, in this order, each or none.

None of its kernels writes scores. `sweep` finds the largest logit of every strip. A row with top-k is then LISTED (listed.py):
the k-th largest peak bounds its candidates, which are few. A row without is RACED (raced.py): all its tokens race, while their
weights are added up, and only then is the winner tested: top-p keeps it if the weights of the tokens that rank before it stay
below p times all of them. If it fails, these tokens race again. (The winner of a set is the winner of every subset that holds
it, so that the result is that of filtering first.) Sums in float32 have an error bound: where it leaves a test open, and
wherever a list or a number would not fit, the row is `left` to the general steps.
"""

from __future__ import annotations

import triton
import triton.language as tl

from decodestep._base.triton import MINUS_INFINITY
from decodestep.ops.decode_step.triton import table
from decodestep.ops.decode_step.triton.draw import load_logits, load_state, race_span, scaled, store_best

# The ways of table.py as constants of kernels.
GENERAL, LISTED, RACED, PLAIN = (tl.constexpr(way) for way in (table.GENERAL, table.LISTED, table.RACED, table.PLAIN))
# Of a row in `left`: its token is there, the general steps must find it, or the tokens before this one must race.
DONE, FAILED, AGAIN = (tl.constexpr(code) for code in range(3))
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
def load_way(ways, b, WAYS: tl.constexpr):
    """The way of row b, or GENERAL if it is none of WAYS: a launch serves later tables too, whose ways may be others."""
    return tl.load(ways + 3 * b) & WAYS


@triton.jit
def sweep(
    logits, row_stride, stride, ways, amounts, greedy, seeds, positions, peaks, tops, masses, best_totals, best_tokens,
    vocab, span, WAYS: tl.constexpr, STRIP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Program (b, i): of the tokens of row b from i * span on the peaks and the largest logit; where the tokens race also the
    winner and, relative to that largest logit, the sum of weights."""
    b = tl.program_id(0).to(tl.int64)
    way = load_way(ways, b, WAYS)
    if way != GENERAL:
        at = b * tl.num_programs(1) + tl.program_id(1)
        x = logits + b * row_stride
        first = tl.program_id(1) * span
        end = tl.minimum(first + span, vocab)
        top = find_peaks(x, stride, peaks + b * tl.cdiv(vocab, STRIP), first, end, vocab, STRIP, BLOCK)
        tl.store(tops + at, top)
        if (RACED | PLAIN) & WAYS:
            divisor = tl.load(amounts + 3 * b).to(tl.float32)
            if way != LISTED:
                is_infinite, total, winner, mass = race_span(
                    x, stride, first, end, tl.load(greedy + b) != 0, load_state(seeds, positions, b), divisor,
                    divide(1.0, divisor), top, MINUS_INFINITY, -1, peaks, (RACED & WAYS) != 0, False, STRIP, BLOCK,
                )  # fmt: skip
                store_best(best_totals, best_tokens, at, is_infinite, total, winner)
                tl.store(masses + at, mass)
