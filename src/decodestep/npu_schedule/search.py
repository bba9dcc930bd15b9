"""Searches for a faster schedule than the design's: other splits, steps and orders, each verified by the checker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from decodestep._base.checks import Words, refuse
from decodestep.npu_schedule.check import Report, check
from decodestep.npu_schedule.cost import CostModel
from decodestep.npu_schedule.design import Design
from decodestep.npu_schedule.program import mla_prolog_schedule
from decodestep.npu_schedule.sizes import Sizes, sizes_of
from decodestep.npu_schedule.timeline import Timeline, timeline
from decodestep.ops.mla_prolog.plan import MlaPrologPlan

_STEP = 128  # the largest number of tokens that fit a cube core
_WORTH = 1e-3  # what a change must save, as a fraction of the makespan


@dataclass(frozen=True)
class Found:
    """The result of a search. `tried`: every design with its makespan in seconds, in the order of the search."""

    design: Timeline  # of the published design with its missing flag added
    best: Timeline
    report: Report  # of the best one
    tried: tuple[tuple[Design, float], ...]

    @property
    def saved(self) -> float:
        """The fraction of the design's makespan that the best schedule saves."""
        return 1 - self.best.makespan / self.design.makespan


def search(plan: MlaPrologPlan, cost: CostModel | None = None, *, group: int = 2) -> Found:
    """Changes one choice of the design at a time and keeps it if it is faster and correct, until no change is.

    Choices: the order of the first two products, the columns that a core computes of them and of MatmulQcQr, tokens of a step,
    which cores compute MatmulCkvKr, weights loaded before the norms are ready, overlapping steps, two copies instead of a flag.

    Returns a `Found`, whose best schedule has passed `check`. Raises ValueError for a plan without tokens or one that does not
    fit its cores.
    Notes: the better of two local optima of the cost model, starting from the design and from the design with every reordering
    that lets cores work ahead. Other changes that help only in combination are not tried.
    """
    sizes = sizes_of(plan, group)
    if not sizes.tokens:
        refuse("search", "plan", "one with tokens", Words("one without"))
    made: dict[Design, Timeline] = {}

    def run(design: Design) -> Timeline:
        if design not in made:
            made[design] = timeline(mla_prolog_schedule(plan, design, group=group), cost)
        return made[design]

    def descend(best: Design) -> Design:
        improved = True
        while improved:
            improved = False
            for changed in _changes(best, plan, sizes):
                faster = run(changed).makespan < run(best).makespan * (1 - _WORTH)
                if faster and check(made[changed].graph.schedule).ok:
                    best, improved = changed, True
        return best

    ahead = Design(preload=True, ckvkr_from_last=sizes.cached, overlap=len(plan.steps) > 1)
    best = min((descend(start) for start in (Design(), ahead)), key=lambda design: run(design).makespan)
    tried = tuple((design, t.makespan) for design, t in made.items())
    return Found(run(Design()), run(best), check(run(best).graph.schedule), tried)


def _changes(design: Design, plan: MlaPrologPlan, sizes: Sizes) -> Iterator[Design]:
    """The designs that differ from this one in one choice."""
    several = len(plan.steps) > 1 or design.step is not None
    cached = sizes.cached
    for name, wanted in (("preload", True), ("ckvkr_from_last", cached), ("ckvkr_first", cached), ("overlap", several)):
        if wanted:
            changed: dict[str, Any] = {name: not getattr(design, name)}
            yield replace(design, **changed)
    if sizes.cached and several:
        yield replace(design, join="copies" if design.join == "flag" else "flag")
    down, up = (32 if quantised else 16 for quantised in (sizes.scenario.full, sizes.scenario.partial))
    yield from _splits(design, "cq_columns", sizes.hcq, down, sizes.cubes)
    if sizes.cached:
        yield from _splits(design, "ckvkr_columns", sizes.hckv + sizes.rope, down, sizes.cubes)
    if not sizes.by_head:
        yield from _splits(design, "qcqr_columns", sizes.heads * sizes.head, up, sizes.cubes)
    even = -(-sizes.tokens // -(-sizes.tokens // _STEP))
    for step in {even, _STEP // 2, _STEP // 4, -(-sizes.tokens // 2)}:
        if step < min(sizes.tokens, _STEP):
            yield replace(design, step=step)
    if design.step:
        yield replace(design, step=None)


def _splits(design: Design, name: str, columns: int, align: int, cubes: int) -> Iterator[Design]:
    """The narrowest legal block, and those twice and four times as wide."""
    narrowest = -(-columns // (align * cubes)) * align
    for width in (narrowest, narrowest + align, 2 * narrowest, 4 * narrowest):
        if width < columns + align and width != getattr(design, name):
            changed: dict[str, Any] = {name: width}
            yield replace(design, **changed)
