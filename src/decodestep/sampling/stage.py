"""One processor on one row: what it is given, what it leaves, and how it is called in texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from decodestep._base.checks import require_scores
from decodestep.ops.decode_step import decode_step, reference
from decodestep.ops.decode_step.steps import PATCHES, Force, Step
from decodestep.sampling.fusion_rules import rule_of, steps_of
from decodestep.sampling.token_history import TokenHistory

OP = "plan"


def run_one(processor: Any, row: np.ndarray, history: TokenHistory) -> tuple[np.ndarray, Sequence[Step]]:
    """The scores and the steps for `decode_step` that together are `row` after this processor: one of the two is as it was."""
    make_part = rule_of(processor).make_part
    if make_part is None:
        return call_unfused(processor, row, (), history), ()
    return row, steps_of(make_part(processor, len(row)), history, len(row))


def call_unfused(processor: Callable[..., Any], row: np.ndarray, steps: Sequence[Step], history: TokenHistory) -> np.ndarray:
    """Calls one unfused processor on the row as the earlier steps left it."""
    scores = scores_after(row, steps, len(history))
    precision = np.float64 if scores.dtype == np.float64 else np.float32
    result = np.asarray(processor(history.ids()[None], scores[None].astype(precision)))
    require_scores(OP, processor, result, (1, len(row)))
    return result[0]


def scores_after(row: np.ndarray, steps: Sequence[Step], position: int) -> np.ndarray:
    """What an unfused processor is given: the scores after the steps, `row` itself where there are none.

    To the steps NaN is -inf. Where they change single tokens alone, a NaN that they do not forbid stays NaN, as in
    transformers: repair makes it 0. A forced token has a score of its own.
    """
    if not steps:
        return row
    scores = decode_step(row[None], [steps], greedy=True, position=position, need_processed=True).processed[0]
    nan = np.isnan(row)
    if nan.any() and all(isinstance(step, PATCHES) and not isinstance(step, Force) for step in steps):
        allowed = reference.candidates(np.where(nan, row.dtype.type(0), row), steps, position).ids
        scores[allowed[nan[allowed]]] = np.nan
    return scores


# Attributes that `explain` leaves out: every filter has them, and they rarely differ.
_COMMON_ATTRIBUTES = ("filter_value", "min_tokens_to_keep", "padding")


def description_of(processor: Any) -> str:
    """The class or function by name, with its public attributes that are numbers, strings or short lists."""
    shown = [
        f"{name}={value}"
        for name, value in getattr(processor, "__dict__", {}).items()
        if not name.startswith("_") and name not in _COMMON_ATTRIBUTES and _is_short(value)
    ]
    return f"{name_of(processor)}({', '.join(shown)})"


def name_of(processor: Any) -> str:
    """The class of a processor, or the name of a function."""
    return str(getattr(processor, "__name__", type(processor).__name__))


def _is_short(value: Any) -> bool:
    return isinstance(value, (bool, int, float, str)) or (isinstance(value, (list, tuple, dict)) and len(value) <= 4)
