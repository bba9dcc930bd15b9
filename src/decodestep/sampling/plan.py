"""A list of processors as a plan: what runs fused, what runs step by step, and which orders make no sense.

A processor that a rule of `fusion` knows becomes typed steps of `decode_step`. Any other callable (input_ids, scores) ->
scores runs as it is, on one row, between two fused runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from decodestep._base.checks import refuse, require
from decodestep.ops.decode_step import reference
from decodestep.ops.decode_step.rows import Part
from decodestep.ops.decode_step.steps import Step
from decodestep.sampling.fusion_rules import rule_of, steps_of
from decodestep.sampling.token_history import History

_OP = "pipeline"

# Pairs of kinds that must not stand in this order, and why.
_ILLEGAL: tuple[tuple[frozenset[str], frozenset[str], str], ...] = (
    (
        frozenset({"patch", "mask", "force", "repair", "scale", "filter", "normalise"}),
        frozenset({"guidance"}),
        "guidance compares the model's own scores and comes first",
    ),
    # transformers' own order has repair behind the masks: what they forbid becomes the lowest finite score.
    (frozenset({"filter"}), frozenset({"repair", "force"}), "it would bring back what was filtered"),
    (
        frozenset({"normalise"}),
        frozenset({"patch", "mask", "force", "repair", "scale", "filter", "normalise"}),
        "log-probabilities are final",
    ),
)


class Fused:
    """Neighbouring processors that all have steps."""

    def __init__(self, vocab_size: int) -> None:
        self.parts: list[Part] = []
        self._vocab = vocab_size

    def steps(self, history: History) -> Sequence[Step]:
        return [step for part in self.parts for step in steps_of(part, history, self._vocab)]


@dataclass(frozen=True)
class Plan:
    """The processors of one row, in order: single callables, each behind the fused run before it, and the last fused run."""

    processors: tuple[Any, ...]
    vocab_size: int
    own: tuple[tuple[Fused, Callable[..., Any]], ...] = field(repr=False)
    last: Fused = field(repr=False)

    def steps(self, row: np.ndarray, history: History) -> tuple[np.ndarray, Sequence[Step]]:
        """A row's logits as far as they must be worked out, and the steps that are left to `decode_step`.

        The steps hold until the history's next token.
        """
        return self.worked_out(row, history), self.last.steps(history)

    def worked_out(self, row: np.ndarray, history: History) -> np.ndarray:
        """What the single callables, and all before them, make of a row; the row itself where there are none."""
        for run, processor in self.own:
            row = self._own(processor, row, run.steps(history), history)
        return row

    def _own(self, processor: Callable[..., Any], row: np.ndarray, steps: Sequence[Step], history: History) -> np.ndarray:
        scores = reference.processed(reference.candidates(row, steps, len(history)), len(row)) if steps else row
        ids = np.array([history.tokens], np.int64).reshape(1, -1)
        real = np.float64 if scores.dtype == np.float64 else np.float32
        result = np.asarray(processor(ids, scores[None].astype(real)))
        require(
            result.shape == (1, len(row)), _OP, type(processor).__name__, f"a function to scores of shape 1x{len(row)}", result
        )
        return result[0]

    def explain(self) -> str:
        """One line for each processor: whether it runs fused, and what it is."""
        lines = []
        for number, processor in enumerate(self.processors, 1):
            rule = rule_of(processor)
            how = f"fused, {rule.kind}" if rule.bind else "step by step"
            lines.append(f"{number:>3}. {how:<18} {_described(processor)}")
        return "\n".join(lines)


def plan(processors: Sequence[Any], vocab_size: int) -> Plan:
    """Builds the plan of a list of processors; ValueError, naming both neighbours, for an order that makes no sense."""
    kinds = [rule_of(processor).kind for processor in processors]
    for j, later in enumerate(kinds):
        for i in range(j):
            for before, after, reason in _ILLEGAL:
                if kinds[i] in before and later in after:
                    refuse(
                        _OP,
                        "processors",
                        f"in an order that makes sense: {reason}",
                        f"{type(processors[i]).__name__} before {type(processors[j]).__name__}",
                    )
    own: list[tuple[Fused, Callable[..., Any]]] = []
    run = Fused(vocab_size)
    for processor in processors:
        require(callable(processor), _OP, "processors", "callables (input_ids, scores) -> scores", processor)
        bind = rule_of(processor).bind
        if bind is None:
            own.append((run, processor))
            run = Fused(vocab_size)
        else:
            run.parts.append(bind(processor, vocab_size))
    return Plan(tuple(processors), vocab_size, tuple(own), run)


def _described(processor: Any) -> str:
    named = getattr(processor, "__dict__", {}).items()
    shown = [f"{name}={value}" for name, value in named if not name.startswith("_") and name not in _USUAL and _is_plain(value)]
    return f"{getattr(processor, '__name__', type(processor).__name__)}({', '.join(shown)})"


# What every filter has, and what says nothing about the numbers.
_USUAL = ("filter_value", "min_tokens_to_keep", "padding")


def _is_plain(value: Any) -> bool:
    return isinstance(value, (bool, int, float, str)) or (isinstance(value, (list, tuple, dict)) and len(value) <= 4)
