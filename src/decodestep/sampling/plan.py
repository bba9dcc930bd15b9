"""Plans: which processors of a list run fused and which unfused, and which orders are refused.

A processor with a fusion rule becomes typed steps of `decode_step`. Any other callable (input_ids, scores) -> scores is called
on one row, between two runs of fused processors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from decodestep._base.arrays import Array
from decodestep._base.checks import Words, refuse, require
from decodestep.ops.decode_step.rows import Part
from decodestep.ops.decode_step.steps import Step
from decodestep.sampling.fusion_rules import rule_of, steps_of
from decodestep.sampling.stage import OP, call_unfused, description_of
from decodestep.sampling.token_history import TokenHistory
from decodestep.sampling.trace import Trace, trace_plan

_ALL_BUT_GUIDANCE = frozenset({"patch", "mask", "force", "repair", "scale", "filter", "normalise"})
# (kinds, kinds that must not come after them, why).
_ILLEGAL_ORDERS: tuple[tuple[frozenset[str], frozenset[str], str], ...] = (
    (_ALL_BUT_GUIDANCE, frozenset({"guidance"}), "guidance compares the model's own scores and comes first"),
    # Repair after masks is legal, as in transformers: a forbidden token then has the lowest finite score.
    (frozenset({"filter"}), frozenset({"repair", "force"}), "it would bring back what was filtered"),
    (frozenset({"normalise"}), _ALL_BUT_GUIDANCE, "log-probabilities are final"),
)


class FusedRun:
    """Consecutive processors that all have a fusion rule, as parts."""

    def __init__(self, vocab_size: int) -> None:
        self.parts: list[Part] = []
        self._vocab = vocab_size

    def steps(self, history: TokenHistory) -> Sequence[Step]:
        return [step for part in self.parts for step in steps_of(part, history, self._vocab)]


@dataclass(frozen=True)
class Plan:
    """The processors of one row, in order, split at those that cannot be fused.

    processors: as given to `plan`. vocab_size: V.
    unfused: each callable without a rule, after the fused run that comes before it.
    tail: the fused run after the last of them, which `decode_step` runs; the whole plan if every processor has a rule.
    """

    processors: tuple[Any, ...]
    vocab_size: int
    unfused: tuple[tuple[FusedRun, Callable[..., Any]], ...] = field(repr=False)
    tail: FusedRun = field(repr=False)

    def apply_unfused(self, row: np.ndarray, history: TokenHistory) -> np.ndarray:
        """Runs the plan up to its tail on logits (V,); returns `row` if every processor has a rule."""
        for run, processor in self.unfused:
            row = call_unfused(processor, row, run.steps(history), history)
        return row

    def trace(
        self,
        logits: Array,
        history: Iterable[int] | TokenHistory = (),
        *,
        seed: int = 0,
        greedy: bool = False,
        spell: Callable[[int], str] | None = None,
    ) -> Trace:
        """Records what every step does to a row of logits, and the draw from the result.

            scores = logits
            for processor in processors:  scores = processor(history, scores)        # a `StepTrace` each
            token = the first argmax of scores, or of scores + gumbel(seed, len(history), token)

        logits: (V,), float32, float16, bfloat16 or float64, NumPy or torch. Not written to.
        history: the tokens before, ids >= 0: prompt and generated ones.
        seed: an integer in [0, 2^64). greedy: whether the token is the argmax. spell: token id -> text, for display alone.

        Returns a `Trace`. Its scores have the bits of `Sampler.processed`, and its token is the one that a `Sampler` draws.
        Nothing is modified: a processor that keeps state (``stateful``) is deep-copied before it is called.
        Raises ValueError for logits of another shape or dtype, for ids or a seed out of range, and whatever a processor raises.
        """
        return trace_plan(self.processors, self.vocab_size, logits, history, seed=seed, greedy=greedy, spell=spell)

    def explain(self) -> str:
        """One line for each processor: whether it runs fused, and what it is."""
        lines = []
        for number, processor in enumerate(self.processors, 1):
            rule = rule_of(processor)
            how = f"fused, {rule.kind}" if rule.make_part else "step by step"
            lines.append(f"{number:>3}. {how:<18} {description_of(processor)}")
        return "\n".join(lines)


def plan(processors: Sequence[Any], vocab_size: int) -> Plan:
    """Builds the plan of a list of processors, which are callables (input_ids, scores) -> scores.

    Raises ValueError for anything else, and for an illegal order, naming the two processors.
    """
    _refuse_illegal_orders(processors)
    unfused: list[tuple[FusedRun, Callable[..., Any]]] = []
    run = FusedRun(vocab_size)
    for processor in processors:
        require(callable(processor), OP, "processors", "callables (input_ids, scores) -> scores", processor)
        make_part = rule_of(processor).make_part
        if make_part is None:
            unfused.append((run, processor))
            run = FusedRun(vocab_size)
        else:
            run.parts.append(make_part(processor, vocab_size))
    return Plan(tuple(processors), vocab_size, tuple(unfused), run)


def _refuse_illegal_orders(processors: Sequence[Any]) -> None:
    kinds = [rule_of(processor).kind for processor in processors]
    for j, later in enumerate(kinds):
        for i, earlier in enumerate(kinds[:j]):
            for before, after, reason in _ILLEGAL_ORDERS:
                if earlier in before and later in after:
                    names = Words(f"{type(processors[i]).__name__} before {type(processors[j]).__name__}")
                    refuse(OP, "processors", f"in a legal order: {reason}", names)
