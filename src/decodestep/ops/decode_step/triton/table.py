"""The steps of a batch as tables of numbers that a kernel reads."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from decodestep.ops.decode_step import steps as kinds
from decodestep.ops.decode_step.steps import Step

KINDS: dict[type, int] = {
    kind: 1 << number for number, kind in enumerate((*kinds.PATCHES, *kinds.FILTERS))
}  # a step's kind in a table is a bit
KINDS[kinds.AllowBits] = KINDS[kinds.Allow]  # a table has masks for both
PATCHING = sum({KINDS[kind] for kind in kinds.PATCHES})
_AMOUNTS = ("temperature", "p", "mass", "epsilon", "share", "n", "threshold")
# How a row's token may be found: by its steps one after the other, or the quick ways (see quick.py).
GENERAL, LISTED, RACED, PLAIN = 0, 1, 2, 4
_USUAL = (kinds.Temperature, kinds.TopK, kinds.TopP, kinds.MinP)
_MOST_LISTED = 256  # of top-k: more would not fit its list
INTEGERS = 6  # of a step: kind, first id, ids, k or top, keep, seed
FLOATS = 2  # of a step: amount, probability


class Table(NamedTuple):
    """rows: int32 (B + 1), where each row's steps begin. integers: int64 (steps, 6). floats: float64 (steps, 2). ids: int32,
    those of the patches, each step's distinct. values: float32, those of `Add`, beside their ids. masks: int32, a bit for each
    token, of the steps that keep their ids alone, and of XTC's special tokens. ways: int32 (B, 3): how the row's token may be
    found, how many of its steps are patches before all filters, and k. amounts: float64 (B, 3), for the quick ways:
    temperature, p of top-p, p of min-p. kinds: the bits of the kinds that occur; found: those of the ways."""

    rows: np.ndarray
    integers: np.ndarray
    floats: np.ndarray
    ids: np.ndarray
    values: np.ndarray
    masks: np.ndarray
    ways: np.ndarray
    amounts: np.ndarray
    kinds: int
    found: int


def make_table(steps: Sequence[Sequence[Step]], vocab: int) -> Table:
    """`steps`: one list per row, in the form of `normalise_arguments`."""
    integers: list[tuple[int, ...]] = []
    starts, floats, ids, values, masks = [0], [], [], [], []
    ways, amounts = [], []
    listed = words = present = 0
    for row in steps:
        leading: int | None = None
        for step in row:
            kind = KINDS[type(step)]
            present |= kind
            if not kind & PATCHING:
                leading = len(integers) - starts[-1] if leading is None else leading
                numbers, of_filter = _filter_numbers(kind, step, vocab)
                named = [token for token in getattr(step, "special_tokens", ()) if token < vocab]
                special = _packed(named, max(named, default=-1) + 1)
                integers.append((kind, words, len(special), *numbers))
                floats.append(of_filter)
                masks.append(special)
                words += len(special)
                continue
            for is_mask, count, part, added in _parts(step, vocab):
                integers.append((kind, words if is_mask else listed, count, 0, 0, 0))
                floats.append((getattr(step, "factor", 0.0), 0.0))
                if is_mask:
                    masks.append(part)
                    words += len(part)
                else:
                    ids.append(part)
                    values.append(added)
                    listed += len(part)
        way, k, *amounts_of_row = quick_way(row, vocab)
        ways.append((way, len(integers) - starts[-1] if leading is None else leading, min(k, vocab)))
        amounts.append(amounts_of_row)
        starts.append(len(integers))
    return Table(
        np.array(starts, np.int32),
        np.array(integers, np.int64).reshape(-1, INTEGERS),
        np.array(floats, np.float64).reshape(-1, FLOATS),
        _join(ids, np.int32),
        _join(values, np.float32),
        _join(masks, np.int32),
        np.array(ways, np.int32).reshape(-1, 3),
        np.array(amounts, np.float64).reshape(-1, 3),
        present,
        int(np.bitwise_or.reduce([way for way, _, _ in ways], initial=0)),
    )


@lru_cache(maxsize=1 << 12)
def _filter_numbers(kind: int, step: Step, vocab: int) -> tuple[tuple[int, int, int], tuple[float, float]]:
    """(k or top, keep, seed) and (amount, probability) of a filter. kind: by its bit, as steps of two kinds may be equal."""
    # Counts beyond the vocabulary mean all of it; an int64 holds what is left.
    k = min(getattr(step, "k", getattr(step, "top", 1)), vocab)
    keep, seed = min(getattr(step, "keep", 1), vocab), getattr(step, "seed", 0)
    amount = next((getattr(step, name) for name in _AMOUNTS if hasattr(step, name)), 0.0)
    return (k, keep, seed if seed < 2**63 else seed - 2**64), (amount, getattr(step, "probability", 0.0))


def quick_way(steps: Sequence[Step], vocab: int) -> tuple[int, int, float, float, float]:
    """(way, k, temperature, p of top-p, p of min-p); GENERAL unless the steps are patches and then the usual filters."""
    filters = tuple(itertools.dropwhile(lambda step: isinstance(step, kinds.PATCHES), steps))
    types = tuple(map(type, filters))
    return _find_way(types, filters, vocab) if set(types) <= set(_USUAL) else (GENERAL, vocab, 1.0, 1.0, 0.0)


@lru_cache(maxsize=1 << 12)
def _find_way(types: tuple[type, ...], filters: tuple[Any, ...], vocab: int) -> tuple[int, int, float, float, float]:
    found: dict[type, Any] = dict(zip(types, filters, strict=True))
    top_k = found.get(kinds.TopK, kinds.TopK(vocab))
    top_p, min_p = found.get(kinds.TopP, kinds.TopP(1.0)), found.get(kinds.MinP, kinds.MinP(0.0))
    k = max(top_k.k, top_k.keep)
    is_usual = list(types) == [kind for kind in _USUAL if kind in found]  # each once, in this order
    if not is_usual or vocab > k > _MOST_LISTED or not (top_p.keep == min_p.keep == 1 and top_p.p > 0 and min_p.p <= 1):
        way = GENERAL
    elif k < vocab:
        way = LISTED
    else:
        way = RACED if top_p.p < 1 or min_p.p > 0 else PLAIN
    return way, k, found.get(kinds.Temperature, kinds.Temperature(1.0)).temperature, top_p.p, min_p.p


def _parts(step: Any, vocab: int) -> Iterator[tuple[bool, int, np.ndarray, np.ndarray]]:
    """(is a mask, length, ids or mask, values): a patch of ids that come more than once is as many patches of distinct ones."""
    if isinstance(step, kinds.AllowBits):
        yield True, len(step.bits), step.bits.astype("<i4", copy=False), np.zeros(0, np.float32)
    elif isinstance(step, kinds.Allow | kinds.Force):
        kept = _packed(step.ids, vocab)
        yield True, len(kept), kept, np.zeros(0, np.float32)
    elif isinstance(step, kinds.Ban):
        ids = np.unique(step.ids).astype(np.int32)
        yield False, len(ids), ids, np.zeros(len(ids), np.float32)
    else:
        with np.errstate(over="ignore"):
            added = step.values.astype(np.float32) if isinstance(step, kinds.Add) else np.zeros(len(step.ids), np.float32)
        for these in occurrences(step.ids):
            yield False, len(these), step.ids[these].astype(np.int32), added[these]


def _packed(ids: Sequence[int] | np.ndarray, count: int) -> np.ndarray:
    """The mask of these ids, which are below `count`."""
    kept = np.zeros(-(-count // 32) * 32, bool)
    kept[ids] = True
    return np.packbits(kept, bitorder="little").view("<i4")


def occurrences(ids: np.ndarray) -> Iterator[np.ndarray]:
    """The places of the first occurrence of every id, then of every second one, and so on."""
    if (ids[1:] > ids[:-1]).all():
        yield np.arange(len(ids))
        return
    order = np.argsort(ids, kind="stable")
    rank = np.empty(len(ids), np.int64)
    rank[order] = np.arange(len(ids)) - np.searchsorted(ids[order], ids[order])
    for n in range(int(rank.max(initial=-1)) + 1):
        yield np.flatnonzero(rank == n)


def _join(parts: list[np.ndarray], dtype: type) -> np.ndarray:
    """One array, of one element at least: a kernel's argument must have an address."""
    return np.concatenate([*parts, np.zeros(1)]).astype(dtype)
