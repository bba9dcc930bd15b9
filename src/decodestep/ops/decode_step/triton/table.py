"""The steps of a batch as tables of numbers that a kernel reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from decodestep.ops.decode_step import steps as kinds
from decodestep.ops.decode_step.steps import Step

# A step's kind is its place here; `filters.py` has a branch for each.
KINDS: tuple[type, ...] = (
    kinds.Penalise,
    kinds.Add,
    kinds.Lift,
    kinds.Ban,
    kinds.Allow,
    kinds.Force,
    kinds.Temperature,
    kinds.TopK,
    kinds.TopP,
    kinds.MinP,
    kinds.Typical,
    kinds.Epsilon,
    kinds.Eta,
    kinds.TopH,
    kinds.TopNSigma,
    kinds.Xtc,
    kinds.Normalise,
)
_NUMBER = {kind: number for number, kind in enumerate(KINDS)}
_AMOUNTS = ("factor", "temperature", "p", "mass", "epsilon", "share", "n", "threshold")
INTEGERS = 6  # of a step: kind, first id, ids, k or top, keep, seed


class Table(NamedTuple):
    """rows: int32 (B + 1), where each row's steps begin. integers: int64 (steps, 6). floats: float64 (steps, 2), amount and
    probability. ids: int32, those of the patches, each step's distinct. values: float32, those of `Add`, beside their ids.
    masks: int32, one bit for each token, of the steps that keep their ids alone. kinds: a bit for each kind that occurs."""

    rows: np.ndarray
    integers: np.ndarray
    floats: np.ndarray
    ids: np.ndarray
    values: np.ndarray
    masks: np.ndarray
    kinds: int


def make_table(steps: Sequence[Sequence[Step]], vocab: int) -> Table:
    """`steps`: one list per row, in the form of `normalise_arguments`."""
    starts, integers, floats, ids, values, masks = [0], [], [], [], [], []
    listed = words = present = 0
    for row in steps:
        for step in row:
            number = _NUMBER[type(step)]
            present |= 1 << number
            # Counts beyond the vocabulary mean all of it; an int64 holds what is left.
            k = min(getattr(step, "k", getattr(step, "top", 1)), vocab)
            keep, seed = min(getattr(step, "keep", 1), vocab), getattr(step, "seed", 0)
            amount = next((getattr(step, name) for name in _AMOUNTS if hasattr(step, name)), 0.0)
            floats_of_step = (amount, getattr(step, "probability", 0.0))
            for first, count, part, added in _parts(step, vocab):
                place = words if first else listed
                integers.append((number, place, count, k, keep, seed if seed < 2**63 else seed - 2**64))
                floats.append(floats_of_step)
                if first:
                    masks.append(part)
                    words += len(part)
                else:
                    ids.append(part)
                    values.append(added)
                    listed += len(part)
        starts.append(len(integers))
    return Table(
        np.array(starts, np.int32),
        np.array(integers, np.int64).reshape(-1, INTEGERS),
        np.array(floats, np.float64).reshape(-1, 2),
        _join(ids, np.int32),
        _join(values, np.float32),
        _join(masks, np.int32),
        present,
    )


def _parts(step: Any, vocab: int) -> Iterator[tuple[bool, int, np.ndarray, np.ndarray]]:
    """(is a mask, length, ids or mask, values): a patch of ids that come more than once is as many patches of distinct ones."""
    nothing = np.zeros(0, np.float32)
    if not isinstance(step, kinds.PATCHES):
        yield False, 0, np.zeros(0, np.int32), nothing
    elif isinstance(step, kinds.Allow | kinds.Force):
        kept = np.zeros(-(-vocab // 32) * 32, bool)
        kept[step.ids] = True
        yield True, len(kept) // 32, np.packbits(kept, bitorder="little").view("<i4"), nothing
    elif isinstance(step, kinds.Ban):
        ids = np.unique(step.ids).astype(np.int32)
        yield False, len(ids), ids, np.zeros(len(ids), np.float32)
    else:
        with np.errstate(over="ignore"):
            added = step.values.astype(np.float32) if isinstance(step, kinds.Add) else np.zeros(len(step.ids), np.float32)
        for these in occurrences(step.ids):
            yield False, len(these), step.ids[these].astype(np.int32), added[these]


def occurrences(ids: np.ndarray) -> Iterator[np.ndarray]:
    """The places of the first occurrence of every id, then of every second one, and so on."""
    order = np.argsort(ids, kind="stable")
    rank = np.empty(len(ids), np.int64)
    rank[order] = np.arange(len(ids)) - np.searchsorted(ids[order], ids[order])
    for n in range(int(rank.max(initial=-1)) + 1):
        yield np.flatnonzero(rank == n)


def _join(parts: list[np.ndarray], dtype: type) -> np.ndarray:
    """One array, of one element at least: a kernel's argument must have an address."""
    return np.concatenate([*parts, np.zeros(1)]).astype(dtype)
