"""Plans: which processors of a list run fused and which unfused, and which orders are refused.

A processor with a fusion rule becomes typed steps of `decode_step`. Any other callable (input_ids, scores) -> scores is called
on one row, between two runs of fused processors.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from decodestep._base import arrays
from decodestep._base.arrays import Array
from decodestep._base.checks import is_int, refuse, require
from decodestep.ops.decode_step import decode_step, reference
from decodestep.ops.decode_step.rows import Part
from decodestep.ops.decode_step.steps import PATCHES, Force, Step
from decodestep.sampling.causes import causes
from decodestep.sampling.fusion_rules import rule_of, steps_of
from decodestep.sampling.token_history import History
from decodestep.sampling.trace import Trace, draw, step_trace

_OP = "plan"

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

    def steps(self, history: History) -> Sequence[Step]:
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

    def steps(self, row: np.ndarray, history: History) -> tuple[np.ndarray, Sequence[Step]]:
        """Runs the plan up to its tail; returns the scores (V,) and the steps of the tail, for `decode_step`.

        row: logits (V,). The steps are valid for this history only.
        """
        return self.apply_unfused(row, history), self.tail.steps(history)

    def apply_unfused(self, row: np.ndarray, history: History) -> np.ndarray:
        """Runs the unfused processors, and the fused runs before them, on logits (V,); returns `row` if there are none."""
        for run, processor in self.unfused:
            row = self._call(processor, row, run.steps(history), history)
        return row

    def _call(self, processor: Callable[..., Any], row: np.ndarray, steps: Sequence[Step], history: History) -> np.ndarray:
        """Calls one unfused processor on the row as the earlier steps left it."""
        scores = _handed_on(row, steps, len(history))
        ids = np.array([history.tokens], np.int64).reshape(1, -1)
        precision = np.float64 if scores.dtype == np.float64 else np.float32
        result = np.asarray(processor(ids, scores[None].astype(precision)))
        rule = f"a function to scores of shape 1x{len(row)}"
        require(result.shape == (1, len(row)), _OP, type(processor).__name__, rule, result)
        return result[0]

    def trace(
        self,
        logits: Array,
        history: Iterable[int] | History = (),
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
        row = arrays.view(_OP, "logits", logits)
        require(row.shape == (self.vocab_size,), _OP, "logits", f"of shape {self.vocab_size}", row)
        ids = list(history.tokens if isinstance(history, History) else history)
        require(all(is_int(i) and i >= 0 for i in ids), _OP, "history", "token ids >= 0", ids)
        require(is_int(seed) and 0 <= seed < 2**64, _OP, "seed", "an integer in [0, 2^64)", seed)
        past, position = History(ids), len(ids)
        ids = list(past.tokens)
        scores = first = decode_step(row[None], [()], need_processed=True).processed[0]
        handed = row  # what the next processor is given
        traced = []
        for processor in self.processors:
            one = plan([copy.deepcopy(processor) if getattr(processor, "stateful", False) else processor], self.vocab_size)
            handed, steps = one.steps(handed, past)
            after = decode_step(handed[None], [steps], position=position, need_processed=True).processed[0]
            handed = _handed_on(handed, steps, position)
            traced.append(
                step_trace(
                    scores,
                    after,
                    steps,
                    position,
                    lambda tokens, processor=processor: causes(processor, ids, tokens),  # type: ignore[misc]
                    name=name_of(processor),
                    description=_description(processor),
                    fused=not one.unfused,
                    kind=rule_of(processor).kind,
                )
            )
            scores = after
        drawn = draw(scores, greedy=greedy, seed=int(seed), position=position)
        return Trace(first, tuple(traced), drawn, tuple(ids), spell)

    def explain(self) -> str:
        """One line for each processor: whether it runs fused, and what it is."""
        lines = []
        for number, processor in enumerate(self.processors, 1):
            rule = rule_of(processor)
            how = f"fused, {rule.kind}" if rule.make_part else "step by step"
            lines.append(f"{number:>3}. {how:<18} {_description(processor)}")
        return "\n".join(lines)


def plan(processors: Sequence[Any], vocab_size: int) -> Plan:
    """Builds the plan of a list of processors, which are callables (input_ids, scores) -> scores.

    Raises ValueError for anything else, and for an illegal order, naming the two processors.
    """
    _refuse_illegal_orders(processors)
    unfused: list[tuple[FusedRun, Callable[..., Any]]] = []
    run = FusedRun(vocab_size)
    for processor in processors:
        require(callable(processor), _OP, "processors", "callables (input_ids, scores) -> scores", processor)
        make_part = rule_of(processor).make_part
        if make_part is None:
            unfused.append((run, processor))
            run = FusedRun(vocab_size)
        else:
            run.parts.append(make_part(processor, vocab_size))
    return Plan(tuple(processors), vocab_size, tuple(unfused), run)


def _handed_on(row: np.ndarray, steps: Sequence[Step], position: int) -> np.ndarray:
    """What an unfused processor is given: the scores after the steps, `row` itself where there are none.

    To the steps NaN is -inf. Where they change single tokens alone, a NaN that they do not forbid stays NaN, as in
    transformers: repair makes it 0. A forced token has a score of its own.
    """
    if not steps:
        return row
    scores = reference.processed(reference.candidates(row, steps, position), len(row))
    nan = np.isnan(row)
    if nan.any() and all(isinstance(step, PATCHES) and not isinstance(step, Force) for step in steps):
        allowed = reference.candidates(np.where(nan, row.dtype.type(0), row), steps, position).ids
        scores[allowed[nan[allowed]]] = np.nan
    return scores


def _refuse_illegal_orders(processors: Sequence[Any]) -> None:
    kinds = [rule_of(processor).kind for processor in processors]
    for j, later in enumerate(kinds):
        for i, earlier in enumerate(kinds[:j]):
            for before, after, reason in _ILLEGAL_ORDERS:
                if earlier in before and later in after:
                    names = f"{type(processors[i]).__name__} before {type(processors[j]).__name__}"
                    refuse(_OP, "processors", f"in an order that makes sense: {reason}", names)


# Attributes that `explain` leaves out: every filter has them, and they rarely differ.
_COMMON_ATTRIBUTES = ("filter_value", "min_tokens_to_keep", "padding")


def _description(processor: Any) -> str:
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
