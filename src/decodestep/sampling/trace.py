"""A record of what a plan does to one row, step by step: `Plan.trace` returns a `Trace`."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from decodestep import random
from decodestep._base import arrays
from decodestep._base.arrays import Array
from decodestep._base.checks import is_int, require, require_seed
from decodestep.ops.decode_step import decode_step, reference
from decodestep.ops.decode_step.steps import Step
from decodestep.sampling import trace_html
from decodestep.sampling.causes import Spans, causes
from decodestep.sampling.distribution import entropy, likeliest, log_probability, probabilities
from decodestep.sampling.stage import OP, Stage, build_stage, scores_after
from decodestep.sampling.thresholds import Threshold, find_threshold
from decodestep.sampling.token_history import TokenHistory


@dataclass(frozen=True, eq=False)
class StepTrace:
    """What one processor did to a row.

    Attributes:
        name: its class or function.
        description: that with its arguments.
        fused: whether the core runs it as typed steps.
        kind: what its class does to scores, as in `Plan.explain`: "patch", "mask", "scale", "filter" …; "own" for a user's
            class.
        scores: after it, (V,), float32 (float64 for float64 logits); -inf for a dropped token.
        kept: the ids above -inf after it.
        touched: those of them whose score it changed, or brought back from -inf.
        dropped: the ids that were above -inf before it and are not now. All three int64, ascending.
        mass: the probability, before it, of the tokens that it kept; 0 where there was no candidate.
        entropy: of the distribution after it, in nats; 0 where no candidate is left.
        threshold: what decided a cut; None for a step that is no cut, that could cut nothing (a top-k of all candidates), or
            that did not act (XTC's coin).
        ties: the kept and the dropped ids with the lowest score kept, where there are several; ascending.
        causes: for touched and dropped tokens, the spans of the history for which a penalty, a bias or a ban acted on them;
            empty for steps that do not read the history.
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
    causes: Mapping[int, Spans] = field(repr=False)

    @property
    def probabilities(self) -> np.ndarray:
        """softmax of the scores, float64 (V,); 0 for a dropped token."""
        return probabilities(self.scores)


class Draw(NamedTuple):
    """How the token was drawn: the first maximum of `race`, lowest id among equals; -1 without a candidate.

    Attributes:
        ids: the candidates, int64, ascending.
        noise: their gumbel(seed, position, id), float32; None for a greedy row.
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

    Attributes:
        logits: the scores that the first step is given, (V,), float32 (float64 for float64 logits), NaN as -inf.
        steps: one `StepTrace` for each processor of the plan, in order.
        draw: the draw from what they leave.
        history: the tokens before.
        spell: token id -> text, for display; None shows ids.
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
        how = "greedy" if self.draw.seed is None else f"seed {self.draw.seed}"
        where = f"position {self.draw.position}, {how}"
        return trace_html.table(self.stages, [step.name for step in self.steps], self.top(10), self.token, where, self.spell)


def trace_stages(
    stages: Sequence[Stage],
    vocab_size: int,
    logits: Array,
    history: Iterable[int] | TokenHistory,
    *,
    seed: int,
    greedy: bool,
    spell: Callable[[int], str] | None,
) -> Trace:
    """See `Plan.trace`."""
    row = arrays.view(OP, "logits", logits)
    require(row.shape == (vocab_size,), OP, "logits", f"of shape {vocab_size}", row)
    ids = list(history.tokens if isinstance(history, TokenHistory) else history)
    require(all(is_int(i) and i >= 0 for i in ids), OP, "history", "token ids >= 0", ids)
    require_seed(OP, seed)
    past = TokenHistory(ids)
    scores = first = decode_step(row[None], [()], need_processed=True).processed[0]
    handed = row  # what the next processor is given
    traced = []
    for stage in stages:
        stateful = getattr(stage.processor, "stateful", False)
        own = build_stage(copy.deepcopy(stage.processor), vocab_size) if stateful else stage
        handed, steps = own.run(handed, past)
        after = decode_step(handed[None], [steps], position=len(past), need_processed=True).processed[0]
        handed = scores_after(handed, steps, len(past))
        traced.append(_step_trace(stage, scores, after, steps, past))
        scores = after
    drawn = _draw(scores, greedy=greedy, seed=int(seed), position=len(past))
    return Trace(first, tuple(traced), drawn, tuple(past.tokens), spell)


def _step_trace(stage: Stage, before: np.ndarray, after: np.ndarray, steps: Sequence[Step], history: TokenHistory) -> StepTrace:
    """What a stage did between two arrays of scores (V,); `steps` are its typed steps if it is fused."""
    was, now = (reference.candidates(scores, (), len(history)) for scores in (before, after))
    kept = after > -np.inf
    touched, dropped = np.flatnonzero(kept & (before != after)), np.flatnonzero(~kept & (before > -np.inf))
    lowest = now.scores.min(initial=np.inf)
    ties = np.flatnonzero((before == lowest) & (before > -np.inf)) if len(dropped) and lowest < np.inf else now.ids[:0]
    return StepTrace(
        name=stage.name,
        description=stage.description,
        fused=stage.part is not None,
        kind=stage.kind,
        scores=after,
        kept=now.ids,
        touched=touched,
        dropped=dropped,
        mass=math.fsum(probabilities(before)[now.ids]),
        entropy=entropy(reference.log_probabilities(now)) if len(now.ids) else 0.0,
        threshold=find_threshold(steps[0], was) if len(steps) == 1 else None,
        ties=ties if len(ties) > 1 else ties[:0],
        causes=causes(stage.processor, history.tokens, [*touched.tolist(), *dropped.tolist()]),
    )


def _draw(scores: np.ndarray, *, greedy: bool, seed: int, position: int) -> Draw:
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
