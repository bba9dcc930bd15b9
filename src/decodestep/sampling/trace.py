"""A record of what a plan does to one row, step by step: `Plan.trace` returns a `Trace`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from decodestep import random
from decodestep.ops.decode_step import reference
from decodestep.ops.decode_step.steps import Step
from decodestep.sampling import trace_html
from decodestep.sampling.thresholds import Threshold, threshold_of

Span = tuple[int, int]  # tokens [start, stop) of the history


@dataclass(frozen=True, eq=False)
class StepTrace:
    """What one processor did to a row.

    name: its class or function. description: that with its arguments. fused: whether the core runs it as typed steps.
    kind: what its class does to scores, as in `Plan.explain`: "patch", "mask", "scale", "filter" …; "own" for a user's class.
    scores: after it, (V,), float32 (float64 for float64 logits); -inf for a dropped token.
    kept: the ids above -inf after it. touched: those of them whose score it changed, or brought back from -inf.
    dropped: the ids that were above -inf before it and are not now. All three int64, ascending.
    mass: the probability, before it, of the tokens that it kept; 0 where there was no candidate.
    entropy: of the distribution after it, in nats; 0 where no candidate is left.
    threshold: what decided a cut; None for a step that is no cut, that could cut nothing (a top-k of all candidates), or that
        did not act (XTC's coin).
    ties: the kept and the dropped ids with the lowest score kept, where there are several; ascending.
    causes: for touched and dropped tokens, the spans of the history for which a penalty, a bias or a ban acted on them; empty
        for steps that do not read the history.
    """

    name: str
    description: str
    fused: bool
    kind: str
    scores: np.ndarray = field(repr=False)
    kept: np.ndarray = field(repr=False)
    touched: np.ndarray = field(repr=False)
    dropped: np.ndarray = field(repr=False)
    mass: float
    entropy: float
    threshold: Threshold | None
    ties: np.ndarray = field(repr=False)
    causes: Mapping[int, tuple[Span, ...]] = field(repr=False)

    @property
    def probabilities(self) -> np.ndarray:
        """softmax of the scores, float64 (V,); 0 for a dropped token."""
        return probabilities(self.scores)


class Draw(NamedTuple):
    """How the token was drawn: the first maximum of `race`, lowest id among equals; -1 without a candidate.

    ids: the candidates, int64, ascending. noise: their gumbel(seed, position, id), float32; None for a greedy row.
    race: float64, the scores plus the noise; where some scores are +inf, their noise alone, and -inf for the others.
    """

    token: int
    seed: int | None
    position: int
    ids: np.ndarray
    noise: np.ndarray | None
    race: np.ndarray


@dataclass(frozen=True, eq=False)
class Trace:
    """The processing of one row from logits to a token, made by `Plan.trace` and `Sampler.trace`; displays in notebooks.

    logits: the scores that the first step is given, (V,), float32 (float64 for float64 logits), NaN as -inf.
    steps: one `StepTrace` for each processor of the plan, in order. draw: the draw from what they leave.
    history: the tokens before. spell: token id -> text, for display; None shows ids.
    """

    logits: np.ndarray = field(repr=False)
    steps: tuple[StepTrace, ...]
    draw: Draw = field(repr=False)
    history: tuple[int, ...] = field(repr=False)
    spell: Callable[[int], str] | None = field(default=None, repr=False)

    @property
    def token(self) -> int:
        return self.draw.token

    @property
    def scores(self) -> np.ndarray:
        """The scores after all steps, (V,), the same bits as `Sampler.processed`."""
        return self.steps[-1].scores if self.steps else self.logits

    @property
    def stages(self) -> tuple[np.ndarray, ...]:
        """The scores before the first step and after each: len(steps) + 1 arrays (V,)."""
        return (self.logits, *(step.scores for step in self.steps))

    def logprobs(self, token: int) -> tuple[float, float]:
        """A token's log-probabilities (natural) under the original logits and after all steps."""
        raw, processed = (log_probability(scores, token) for scores in (self.logits, self.scores))
        return raw, processed

    def top(self, count: int) -> np.ndarray:
        """The `count` most likely ids of the logits and of the final scores, int64, most likely by the logits first."""
        return likeliest((self.logits, self.scores), count)

    def _repr_html_(self) -> str:
        return trace_html.table(self, self.top(10))


def step_trace(
    before: np.ndarray,
    after: np.ndarray,
    steps: Sequence[Step],
    position: int,
    causes: Callable[[Sequence[int]], Mapping[int, tuple[Span, ...]]],
    **names: Any,
) -> StepTrace:
    """What happened between two arrays of scores (V,); `steps` are the typed steps of a fused processor."""
    was, now = (reference.candidates(scores, (), position) for scores in (before, after))
    kept = after > -np.inf
    touched, dropped = np.flatnonzero(kept & (before != after)), np.flatnonzero(~kept & (before > -np.inf))
    lowest = now.scores.min(initial=np.inf)
    ties = np.flatnonzero((before == lowest) & (before > -np.inf)) if len(dropped) and lowest < np.inf else now.ids[:0]
    return StepTrace(
        **names,
        scores=after,
        kept=now.ids,
        touched=touched,
        dropped=dropped,
        mass=math.fsum(probabilities(before)[now.ids]),
        entropy=entropy(after),
        threshold=threshold_of(steps[0], was) if len(steps) == 1 else None,
        ties=ties if len(ties) > 1 else ties[:0],
        causes=causes([*touched.tolist(), *dropped.tolist()]),
    )


def draw(scores: np.ndarray, *, greedy: bool, seed: int, position: int) -> Draw:
    """The draw of `decode_step` from scores (V,), with the noise that decided it."""
    row = reference.candidates(scores, (), position)
    race = row.scores.astype(np.float64)
    noise: np.ndarray | None = None
    if not greedy:
        noise = np.asarray(random.gumbel(seed, position, row.ids)) if len(row.ids) else np.zeros(0, np.float32)
        infinite = race == np.inf
        race = np.where(infinite, noise, -np.inf) if infinite.any() else race + noise
    token = int(row.ids[np.argmax(race)]) if len(row.ids) else -1
    return Draw(token, None if greedy else seed, position, row.ids, noise, race)


def probabilities(scores: np.ndarray) -> np.ndarray:
    """softmax in float64 over (V,), as the steps compute it; 0 for tokens at -inf."""
    row = reference.candidates(scores, (), 0)
    found = np.zeros(len(scores))
    if len(row.ids):
        found[row.ids] = reference.probabilities(row)
    return found


def log_probability(scores: np.ndarray, token: int) -> float:
    row = reference.candidates(scores, (), 0)
    at = np.flatnonzero(row.ids == token)
    return float(reference.log_probabilities(row)[at[0]]) if len(at) else -math.inf


def entropy(scores: np.ndarray) -> float:
    """In nats; 0 without a candidate."""
    row = reference.candidates(scores, (), 0)
    if not len(row.ids):
        return 0.0
    log_p = reference.log_probabilities(row)
    share = np.exp(log_p)
    return float(-(share * np.where(share > 0, log_p, 0.0)).sum()) + 0.0


def likeliest(stages: Sequence[np.ndarray], count: int) -> np.ndarray:
    """The `count` highest candidates of each array, lowest id first among equals; sorted by the first array."""
    found = {int(i) for scores in stages for i in np.argsort(-scores, kind="stable")[:count] if scores[i] > -np.inf}
    return np.array(sorted(found, key=lambda i: (-stages[0][i], i)), np.int64)
