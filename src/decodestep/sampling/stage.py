"""One stage of a plan: a processor or the part that equals it, how it runs on one row, and how it is called in texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from decodestep._base.checks import require, require_scores
from decodestep.ops.decode_step import decode_step, reference
from decodestep.ops.decode_step.rows import Part
from decodestep.ops.decode_step.steps import PATCHES, Force, Step
from decodestep.sampling.fusion_rules import find_rule
from decodestep.sampling.parts import build_steps
from decodestep.sampling.token_history import TokenHistory

OP = "plan"


class Stage:
    """One thing that a plan does to scores.

    name: of the processor: its class, or the name of a function. kind: as of `Rule`. part: that runs in its place; None: the
    processor itself is called.
    """

    def __init__(self, name: str, kind: str, part: Part | None, build: Callable[[], Any]) -> None:
        self.name, self.kind, self.part = name, kind, part
        self._build = build

    @cached_property
    def processor(self) -> Any:
        """The callable (input_ids, scores) -> scores that defines the stage; made when it is first asked for."""
        return self._build()

    @property
    def description(self) -> str:
        """The name, with the processor's public attributes that are numbers, strings or short lists."""
        shown = [
            f"{name}={value}"
            for name, value in getattr(self.processor, "__dict__", {}).items()
            if not name.startswith("_") and name not in _COMMON_ATTRIBUTES and _is_short(value)
        ]
        return f"{self.name}({', '.join(shown)})"

    def run(self, row: np.ndarray, history: TokenHistory) -> tuple[np.ndarray, Sequence[Step]]:
        """The scores and the steps for `decode_step` that together are `row` after this stage: one of the two is as it was."""
        if self.part is None:
            return call_unfused(self.processor, row, (), history), ()
        return row, build_steps(self.part, history, len(row))


def build_stage(processor: Any, vocab_size: int) -> Stage:
    """The stage of a processor: fused if there is a rule for it, with its attributes as they are now."""
    require(callable(processor), OP, "processors", "callables (input_ids, scores) -> scores", processor)
    rule = find_rule(processor)
    part = None if rule.make_part is None else rule.make_part(processor, vocab_size)
    name = str(getattr(processor, "__name__", type(processor).__name__))
    return Stage(name, rule.kind, part, lambda: processor)


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


# Attributes that descriptions leave out: every filter has them, and they rarely differ.
_COMMON_ATTRIBUTES = ("filter_value", "min_tokens_to_keep", "padding")


def _is_short(value: object) -> bool:
    return isinstance(value, (bool, int, float, str)) or (isinstance(value, (list, tuple, dict)) and len(value) <= 4)
