"""Plans: which stages of a row run fused and which unfused, and which orders are refused.

A stage with a part becomes typed steps of `decode_step`. Any other callable (input_ids, scores) -> scores is called on one row,
between two runs of fused stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from decodestep._base.arrays import Array
from decodestep._base.checks import Phrase, refuse
from decodestep.ops.decode_step.rows import Part
from decodestep.ops.decode_step.steps import Step
from decodestep.sampling.parts import build_steps
from decodestep.sampling.stage import OP, Stage, build_stage, call_unfused
from decodestep.sampling.token_history import TokenHistory
from decodestep.sampling.trace import Trace, trace_stages

_ALL_BUT_GUIDANCE = frozenset({"patch", "mask", "force", "repair", "scale", "filter", "normalise"})
# (kinds, kinds that must not come after them, why).
_ILLEGAL_ORDERS: tuple[tuple[frozenset[str], frozenset[str], str], ...] = (
    (_ALL_BUT_GUIDANCE, frozenset({"guidance"}), "guidance compares the model's own scores and comes first"),
    # Repair after masks is legal, as in transformers: a forbidden token then has the lowest finite score.
    (frozenset({"filter"}), frozenset({"repair", "force"}), "it would bring back what was filtered"),
    (frozenset({"normalise"}), _ALL_BUT_GUIDANCE, "log-probabilities are final"),
)


class FusedRun:
    """The parts of consecutive stages that all have one."""

    def __init__(self, vocab_size: int) -> None:
        self.parts: list[Part] = []
        self._vocab = vocab_size

    def steps(self, history: TokenHistory) -> Sequence[Step]:
        return [step for part in self.parts for step in build_steps(part, history, self._vocab)]


@dataclass(frozen=True)
class Plan:
    """The stages of one row, in order, split at those that cannot be fused.

    Attributes:
        stages: each a processor, or what equals it.
        vocab_size: V.
        unfused: each callable without a part, after the fused run that comes before it.
        tail: the fused run after the last of them, which `decode_step` runs; the whole plan if every stage has a part.
    """

    stages: tuple[Stage, ...]
    vocab_size: int
    unfused: tuple[tuple[FusedRun, Callable[..., Any]], ...] = field(repr=False)
    tail: FusedRun = field(repr=False)

    @property
    def processors(self) -> tuple[Any, ...]:
        """The processors that define the stages, callables (input_ids, scores) -> scores."""
        return tuple(stage.processor for stage in self.stages)

    def apply_unfused(self, row: np.ndarray, history: TokenHistory) -> np.ndarray:
        """Runs the plan up to its tail on logits (V,); returns `row` if every stage has a part."""
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

        Args:
            logits: (V,), float32, float16, bfloat16 or float64, NumPy or torch. Not written to.
            history: the tokens before, ids >= 0: prompt and generated ones.
            seed: an integer in [0, 2^64).
            greedy: whether the token is the argmax.
            spell: token id -> text, for display alone.

        Returns:
            A `Trace`. Its scores have the bits of `Sampler.processed`, and its token is the one that a `Sampler` draws. Nothing
            is modified: a processor that keeps state (``stateful``) is deep-copied before it is called.

        Raises:
            ValueError: for logits of another shape or dtype, for ids or a seed out of range, and whatever a processor raises.
        """
        return trace_stages(self.stages, self.vocab_size, logits, history, seed=seed, greedy=greedy, spell=spell)

    def explain(self) -> str:
        """One line for each stage: whether it runs fused, and what it is."""
        lines = []
        for number, stage in enumerate(self.stages, 1):
            how = f"fused, {stage.kind}" if stage.part is not None else "step by step"
            lines.append(f"{number:>3}. {how:<18} {stage.description}")
        return "\n".join(lines)


def plan(processors: Sequence[Any], vocab_size: int) -> Plan:
    """Builds the plan of a list of processors, which are callables (input_ids, scores) -> scores.

    Raises:
        ValueError: for anything else, and for an illegal order, naming the two processors.
    """
    return build_plan([build_stage(processor, vocab_size) for processor in processors], vocab_size)


def build_plan(stages: Sequence[Stage], vocab_size: int) -> Plan:
    """The plan of a list of stages. Raises ValueError for an illegal order."""
    _refuse_illegal_orders(stages)
    unfused: list[tuple[FusedRun, Callable[..., Any]]] = []
    run = FusedRun(vocab_size)
    for stage in stages:
        if stage.part is None:
            unfused.append((run, stage.processor))
            run = FusedRun(vocab_size)
        else:
            run.parts.append(stage.part)
    return Plan(tuple(stages), vocab_size, tuple(unfused), run)


def _refuse_illegal_orders(stages: Sequence[Stage]) -> None:
    for j, later in enumerate(stages):
        for earlier in stages[:j]:
            for before, after, reason in _ILLEGAL_ORDERS:
                if earlier.kind in before and later.kind in after:
                    refuse(OP, "processors", f"in a legal order: {reason}", Phrase(f"{earlier.name} before {later.name}"))
