"""The kernels that run each row's steps in their order: one program a row."""

from __future__ import annotations

import triton
import triton.language as tl

from decodestep._base.triton import MINUS_INFINITY
from decodestep.ops.decode_step import steps
from decodestep.ops.decode_step.triton import filters
from decodestep.ops.decode_step.triton.draw import load_logits, load_state, race_span
from decodestep.ops.decode_step.triton.row import EVERYONE, INFINITY, largest, load_block, refresh, store_block
from decodestep.ops.decode_step.triton.table import FLOATS, INTEGERS, KINDS
from decodestep.random.triton import noise_state


def _constants(*types: type) -> list[tl.constexpr]:
    return [tl.constexpr(KINDS[each]) for each in types]


_PENALISE, _ADD, _LIFT, _BAN, _, _ALLOW, _FORCE = _constants(*steps.PATCHES)
_TEMPERATURE, _TOP_K, _TOP_P, _MIN_P = _constants(steps.Temperature, steps.TopK, steps.TopP, steps.MinP)
_TYPICAL, _EPSILON, _ETA, _TOP_H = _constants(steps.Typical, steps.Epsilon, steps.Eta, steps.TopH)
_TOP_N_SIGMA, _XTC, _NORMALISE = _constants(steps.TopNSigma, steps.Xtc, steps.Normalise)
_CHANGES = tl.constexpr(sum(KINDS[each] for each in (steps.Penalise, steps.Add, steps.Lift, steps.Ban)))
_MASKS = tl.constexpr(KINDS[steps.Allow] | KINDS[steps.Force])
_INTEGERS, _FLOATS = tl.constexpr(INTEGERS), tl.constexpr(FLOATS)


@triton.jit
def run_steps(
    scores, peaks, rows, integers, floats, ids, values, masks, positions, ways, vocab,
    LEADING: tl.constexpr, KINDS: tl.constexpr, BLOCK: tl.constexpr, PEAKS: tl.constexpr,
):  # fmt: skip
    """scores: (B, vocab) float32; peaks: (B, blocks). The tables are those of `table.Table`.

    LEADING: only the patches before all filters. KINDS: as in `Table`; what does not occur is not compiled.
    """
    b = tl.program_id(0).to(tl.int64)
    first, end = tl.load(rows + b), tl.load(rows + b + 1)
    if LEADING:
        end = first + tl.load(ways + 3 * b + 1)
    run_row(
        scores + b * vocab, peaks + b * tl.cdiv(vocab, BLOCK), first, end, integers, floats, ids, values, masks,
        tl.load(positions + b), vocab, not LEADING, KINDS, BLOCK, PEAKS,
    )  # fmt: skip


@triton.jit
def finish_left(
    logits, row_stride, stride, scores, peaks, rows, integers, floats, ids, values, masks, positions, ways, left, greedy, seeds,
    tokens, vocab, COPIED: tl.constexpr, KINDS: tl.constexpr, BLOCK: tl.constexpr, PEAKS: tl.constexpr,
):  # fmt: skip
    """The tokens of the rows that the quick ways have `left`. COPIED: the scores are there, as the patches leave them, without
    their peaks."""
    b = tl.program_id(0).to(tl.int64)
    if tl.load(left + b) != 0:
        scores += b * vocab
        peaks += b * tl.cdiv(vocab, BLOCK)
        if COPIED:
            refresh(scores, peaks, vocab, BLOCK)
        else:
            for start in range(0, vocab, BLOCK):
                at, s = load_logits(logits + b * row_stride, start, vocab, stride, BLOCK)
                store_block(scores, peaks, at, s, start, vocab, BLOCK)
            tl.debug_barrier()
        first, position = tl.load(rows + b) + tl.load(ways + 3 * b + 1), tl.load(positions + b)
        run_row(
            scores, peaks, first, tl.load(rows + b + 1), integers, floats, ids, values, masks, position, vocab,
            False, KINDS, BLOCK, PEAKS,
        )  # fmt: skip
        state = load_state(seeds, positions, b)
        _is_infinite, _total, winner, _mass = race_span(
            scores, 1, 0, vocab, tl.load(greedy + b) != 0, state, 1.0, 1.0, 0.0, MINUS_INFINITY, -1, peaks, False, False,
            BLOCK, BLOCK,
        )  # fmt: skip
        tl.store(tokens + b, tl.where(winner == EVERYONE, -1, winner))


@triton.jit
def run_row(
    scores, peaks, first_step, end, integers, floats, ids, values, masks, position, vocab,
    REFRESH: tl.constexpr, KINDS: tl.constexpr, BLOCK: tl.constexpr, PEAKS: tl.constexpr,
):  # fmt: skip
    """The steps [first_step, end) of a table, on a row. REFRESH: the peaks are those of the scores afterwards too."""
    stale = tl.full([], 0, tl.int32)  # whether the peaks are older than the scores
    for at in range(first_step, end):
        step, amounts = integers + at * _INTEGERS, floats + at * _FLOATS
        kind = tl.load(step)
        first = tl.load(step + 1)
        if kind <= _BAN:
            if _CHANGES & KINDS:
                factor = tl.load(amounts).to(tl.float32)
                change_ids(scores, ids + first, values + first, tl.load(step + 2), factor, kind, vocab, BLOCK)
            stale = tl.full([], 1, tl.int32)
        elif kind <= _FORCE:
            if _MASKS & KINDS:
                apply_mask(scores, peaks, masks + first, kind, vocab, BLOCK)
            stale = tl.full([], 0, tl.int32)
        else:
            if stale > 0:
                refresh(scores, peaks, vocab, BLOCK)
            stale = tl.full([], 0, tl.int32)
            top = largest(peaks, vocab, BLOCK, PEAKS)
            if top > MINUS_INFINITY:
                apply_filter(scores, peaks, vocab, top, step, amounts, masks + first, position, KINDS, BLOCK)
    if REFRESH and stale > 0:
        refresh(scores, peaks, vocab, BLOCK)


@triton.jit
def change_ids(scores, ids, values, count, factor, kind, vocab, BLOCK: tl.constexpr):
    """Penalise, Add, Lift or Ban, of distinct ids."""
    for start in range(0, count, BLOCK):
        at = start + tl.arange(0, BLOCK)
        token = tl.load(ids + at, mask=at < count, other=0)
        mine = (at < count) & (token >= 0) & (token < vocab)
        s = tl.load(scores + token, mask=mine, other=MINUS_INFINITY)
        penalised = tl.where(s < 0, s * factor, tl.div_rn(s, tl.zeros([BLOCK], tl.float32) + factor))
        added = s + tl.load(values + at, mask=at < count, other=0.0)
        lifted = tl.where(tl.abs(s) < INFINITY, s + tl.abs(s) * factor, s)
        new = tl.where(kind == _ADD, added, tl.where(kind == _LIFT, lifted, MINUS_INFINITY))
        new = tl.where(kind == _PENALISE, penalised, new)
        new = tl.where((new == new) & (s > MINUS_INFINITY), new, MINUS_INFINITY)
        tl.store(scores + token, new, mask=mine)
    tl.debug_barrier()


@triton.jit
def apply_mask(scores, peaks, mask, kind, vocab, BLOCK: tl.constexpr):
    """Allow, or Force, which also sets what it keeps to 0."""
    for start in range(0, vocab, BLOCK):
        ids, s = load_block(scores, start, vocab, BLOCK)
        named = (tl.load(mask + ids // 32, mask=ids < vocab, other=0) >> (ids % 32)) & 1
        new = tl.where(kind == _ALLOW, s, 0.0)
        store_block(scores, peaks, ids, tl.where((named == 1) & (ids < vocab), new, MINUS_INFINITY), start, vocab, BLOCK)
    tl.debug_barrier()


@triton.jit
def apply_filter(scores, peaks, vocab, top, step, amounts, special, position, KINDS: tl.constexpr, BLOCK: tl.constexpr):
    """step, amounts: the step's rows in the tables of integers and of floats. special: of XTC, a bit for each token."""
    kind = tl.load(step)
    k = tl.load(step + 3)
    keep = tl.load(step + 4)
    amount = tl.load(amounts)
    if kind == _TEMPERATURE:
        if _TEMPERATURE & KINDS:
            filters.temperature(scores, peaks, vocab, top, amount, BLOCK)
    elif kind == _TOP_K:
        if _TOP_K & KINDS:
            filters.top_k(scores, peaks, vocab, top, tl.maximum(k, keep), BLOCK)
    elif kind == _TOP_P:
        if _TOP_P & KINDS:
            filters.top_p(scores, peaks, vocab, top, amount, keep, BLOCK)
    elif kind == _MIN_P:
        if _MIN_P & KINDS:
            filters.min_p(scores, peaks, vocab, top, amount, keep, BLOCK)
    elif kind == _TYPICAL:
        if _TYPICAL & KINDS:
            filters.typical(scores, peaks, vocab, top, amount, keep, BLOCK)
    elif kind == _EPSILON:
        if _EPSILON & KINDS:
            filters.epsilon(scores, peaks, vocab, top, amount, keep, BLOCK)
    elif kind == _ETA:
        if _ETA & KINDS:
            filters.eta(scores, peaks, vocab, top, amount, keep, BLOCK)
    elif kind == _TOP_H:
        if _TOP_H & KINDS:
            filters.top_h(scores, peaks, vocab, top, amount, k, BLOCK)
    elif kind == _TOP_N_SIGMA:
        if _TOP_N_SIGMA & KINDS:
            filters.top_n_sigma(scores, peaks, vocab, top, amount, BLOCK)
    elif kind == _XTC:
        if _XTC & KINDS:
            state = noise_state(tl.load(step + 5).to(tl.uint64, bitcast=True), position.to(tl.uint32))
            words = tl.load(step + 2)
            filters.xtc(scores, peaks, vocab, top, amount, tl.load(amounts + 1), special, words, state, BLOCK)
    else:
        if _NORMALISE & KINDS:
            filters.normalise(scores, peaks, vocab, top, BLOCK)
