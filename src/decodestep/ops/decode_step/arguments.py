"""Checks decode_step's arguments and normalises them to lists of Python values, one item per row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from decodestep._base import arrays
from decodestep._base.checks import UINT64, Phrase, ids_below, is_finite, is_int, is_real, is_uint64, refuse, require
from decodestep.ops.decode_step import steps as kinds
from decodestep.ops.decode_step.steps import FILTERS, PATCHES, Step, Steps

_OP = "decode_step"


def normalise_arguments(
    rows: np.ndarray,
    steps: Sequence[Steps],
    greedy: object,
    seed: object,
    position: object,
    top_logprobs: object,
) -> tuple[list[list[Step]], list[bool], list[int], list[int], list[int | None]]:
    """(steps, greedy, seed, position, top_logprobs), each a list with one item per row; ValueError outside the rules."""
    batch, vocab = rows.shape
    ok = isinstance(steps, Sequence) and all(isinstance(row, Sequence) for row in steps)
    require(ok, _OP, "steps", "a sequence of steps for each row", steps)
    require(len(steps) == batch, _OP, "steps", f"given for {batch} rows", Phrase(f"{len(steps)} rows"))
    plain_steps = [[normalise_step(step, vocab) for step in row] for row in steps]
    flags, wanted = _column(greedy, batch), _column(top_logprobs, batch)
    ok = len(flags) == batch and all(isinstance(flag, (bool, np.bool_)) for flag in flags)
    require(ok, _OP, "greedy", f"a bool, or one for each of {batch} rows", greedy)
    ok = len(wanted) == batch and all(n is None or (is_int(n) and n >= 0) for n in wanted)
    require(ok, _OP, "top_logprobs", f"None or an integer >= 0, or one for each of {batch} rows", top_logprobs)
    seeds, positions = _integers("seed", seed, batch, 2**64), _integers("position", position, batch, 2**32)
    counts = [None if n is None else min(int(n), vocab) for n in wanted]
    return plain_steps, [bool(flag) for flag in flags], seeds, positions, counts


def _column(value: object, batch: int) -> list[Any]:
    """The items of a column; a scalar once for each row."""
    given = value.tolist() if arrays.is_array(value) else value
    return list(given) if isinstance(given, (list, tuple, range)) else [given] * batch


def _integers(name: str, value: object, batch: int, bound: int) -> list[int]:
    rule = f"integers in [0, 2^{bound.bit_length() - 1}), a scalar or {batch}"
    column = ids_below(bound, _column(value, batch))
    if column is None or len(column) != batch:
        refuse(_OP, name, rule, value)
    return column


def normalise_step(step: Step, vocab: int) -> Step:
    """The step with Python numbers and packed arrays of int64 or float64; ValueError outside its rules."""
    if type(step) in FILTERS:
        try:
            return _normalise_filter((type(step), *map(type, step)), tuple(step))
        except TypeError:  # a field that cannot be a key, and so is none that is allowed
            pass
    _check_step(step, vocab)
    return type(step)(*(_plain_field(value) for value in step))


@lru_cache(maxsize=1 << 12)
def _normalise_filter(types: tuple[Any, ...], fields: tuple[Any, ...]) -> Step:
    """Remembered, because rows have the same filters at every step, and their checks take longer than a GPU does for a row.

    types: the step's, and those of its fields, since True and 1.0 equal 1.
    """
    step: Step = types[0](*fields)
    _check_step(step, 0)  # no rule of a filter speaks of the vocabulary
    normalised: Step = types[0](*map(_plain_field, fields))
    return normalised


def _plain_field(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value, value.dtype if value.dtype.kind == "i" else np.float64)
    if isinstance(value, tuple):
        return tuple(map(int, value))
    return int(value) if is_int(value) else float(value)


def _check_step(step: Step, vocab: int) -> None:
    rules = _RULES.get(type(step))
    require(rules is not None, _OP, "steps", "of the types in decodestep.steps", Phrase(type(step).__name__))
    if isinstance(step, PATCHES) and not isinstance(step, kinds.AllowBits):
        ids = step.ids
        ok = isinstance(ids, np.ndarray) and ids.ndim == 1 and ids.dtype == np.int64
        require(
            ok and len(ids) <= vocab and (not ids.size or (ids.min() >= 0 and ids.max() < vocab)),
            _OP,
            "steps",
            f"about at most {vocab} ids, int64 in [0, {vocab})",
            step,
        )
    for name, (rule, check) in (rules or {}).items():
        value = getattr(step, name)
        require(check(value), _OP, f"{type(step).__name__}.{name}", rule, value)
    if isinstance(step, kinds.AllowBits):
        words = -(-vocab // 32)
        require(len(step.bits) == words, _OP, "AllowBits.bits", f"{words} words for {vocab} tokens", step.bits)
    if isinstance(step, kinds.Add):
        require(step.values.shape == step.ids.shape, _OP, "Add.values", "one for each id", step.values)


def _is_bits(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype == np.int32


def _are_ids(value: object) -> bool:
    return isinstance(value, tuple) and all(is_int(each) and 0 <= each < 2**31 for each in value)


_POSITIVE = ("a finite number > 0", lambda v: is_finite(v) and v > 0)
_SHARE = ("in [0, 1]", lambda v: is_real(v) and 0 <= v <= 1)
_INSIDE = ("in (0, 1)", lambda v: is_real(v) and 0 < v < 1)
_COUNT = ("an integer in [1, 2^63)", lambda v: is_int(v) and 1 <= v < 2**63)
# The rules of each step's fields, except ids: the text of the rule, and a predicate.
_RULES: dict[type, dict[str, tuple[str, Callable[[Any], bool]]]] = {
    kinds.Penalise: {"factor": _POSITIVE},
    kinds.Add: {"values": ("a float array", lambda v: isinstance(v, np.ndarray) and v.dtype.kind == "f")},
    kinds.Lift: {"factor": ("a finite number", is_finite)},
    kinds.Ban: {},
    kinds.AllowBits: {"bits": ("a vector of int32", _is_bits)},
    kinds.Allow: {},
    kinds.Force: {},
    kinds.Temperature: {"temperature": _POSITIVE},
    kinds.TopK: {"k": _COUNT, "keep": _COUNT},
    kinds.TopP: {"p": _SHARE, "keep": _COUNT},
    kinds.MinP: {"p": _SHARE, "keep": _COUNT},
    kinds.Typical: {"mass": _INSIDE, "keep": _COUNT},
    kinds.Epsilon: {"epsilon": _INSIDE, "keep": _COUNT},
    kinds.Eta: {"epsilon": _INSIDE, "keep": _COUNT},
    kinds.TopH: {"share": ("in (0, 1]", lambda v: is_real(v) and 0 < v <= 1), "top": _COUNT},
    kinds.TopNSigma: {"n": ("a finite number >= 0", lambda v: is_finite(v) and v >= 0)},
    kinds.Xtc: {
        "threshold": _SHARE,
        "probability": _SHARE,
        "seed": (UINT64, is_uint64),
        "special_tokens": ("a tuple of ids in [0, 2^31)", _are_ids),
    },
    kinds.Normalise: {},
}
