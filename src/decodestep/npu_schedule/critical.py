"""Where the time goes: the utilisation of each core, and the critical path."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from decodestep.npu_schedule.instructions import Compute, Core, Job, Load, SetFlag, Store, WaitFlag
from decodestep.npu_schedule.timeline import Timeline


class Utilisation(NamedTuple):
    """Fractions of the makespan, which sum to 1. Time that belongs to several of them counts for the first."""

    computing: float
    moving: float
    waiting: float
    idle: float


@dataclass(frozen=True)
class Segment:
    """A part of the critical path: instructions of one core for one job, or the wait that connects it to the next core."""

    events: tuple[int, ...]
    core: Core
    seconds: float
    words: str


def utilisation(timeline: Timeline) -> dict[Core, Utilisation]:
    """How each core spends the makespan: computing, moving data, waiting for flags, or idle."""
    spans: dict[Core, tuple[list[tuple[float, float]], ...]] = defaultdict(lambda: ([], [], []))
    for event, e in enumerate(timeline.graph.events):
        kind = {Compute: 0, Load: 1, Store: 1, WaitFlag: 2}.get(type(e.instruction))
        if kind is not None:
            spans[e.core][kind].append((timeline.start[event], timeline.end[event]))
    total, found = timeline.makespan, {}
    for core in timeline.graph.schedule.cores:
        compute, move, wait = spans[core]
        covered = [_union_length(part) for part in (compute, compute + move, compute + move + wait)]
        shares = [c / total if total else 0.0 for c in covered]
        found[core] = Utilisation(shares[0], shares[1] - shares[0], shares[2] - shares[1], 1 - shares[2])
    return found


def _union_length(spans: Iterable[tuple[float, float]]) -> float:
    """The length of the union of intervals."""
    total, reached = 0.0, 0.0
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def critical_events(timeline: Timeline) -> list[int]:
    """The chain of events that ends with the last one, each of which allowed the next to start."""
    if not timeline.end:
        return []
    chain = [max(range(len(timeline.end)), key=timeline.end.__getitem__)]
    while timeline.cause[chain[-1]] >= 0:
        chain.append(timeline.cause[chain[-1]])
    return chain[::-1]


def critical_path(timeline: Timeline) -> list[Segment]:
    """The critical path in words. The segments' seconds sum to the makespan."""
    groups: list[list[int]] = []
    for event in critical_events(timeline):
        if groups and _belongs(timeline, groups[-1][-1], event):
            groups[-1].append(event)
        else:
            groups.append([event])
    reached, path = 0.0, []
    for group in groups:
        end = timeline.end[group[-1]]
        path.append(
            Segment(tuple(group), timeline.graph.events[group[0]].core, end - reached, _words(timeline, group, end - reached))
        )
        reached = end
    return path


def _belongs(timeline: Timeline, before: int, event: int) -> bool:
    """Whether an event continues a segment: a wait is its own segment, a set ends the work that it reports."""
    a, b = timeline.graph.events[before], timeline.graph.events[event]
    if a.core != b.core or isinstance(a.instruction, WaitFlag) or isinstance(b.instruction, WaitFlag):
        return False
    if isinstance(a.instruction, SetFlag) or isinstance(b.instruction, SetFlag):
        return True
    return (a.instruction.job.kernel, a.instruction.job.step) == (b.instruction.job.kernel, b.instruction.job.step)


def _words(timeline: Timeline, group: list[int], seconds: float) -> str:
    first = timeline.graph.events[group[0]]
    if isinstance(first.instruction, WaitFlag):
        return wait_in_words(timeline, group[0]) or f"{first.core} passes {first.instruction.flag}"
    jobs = [i.job for i in (timeline.graph.events[e].instruction for e in group) if isinstance(i, (Compute, Load, Store))]
    if not jobs:
        return f"{first.core} sets {first.instruction.flag}"  # type: ignore[union-attr]
    computing = sum(
        timeline.end[e] - timeline.start[e] for e in group if isinstance(timeline.graph.events[e].instruction, Compute)
    )
    columns = (min(j.columns[0] for j in jobs), max(j.columns[1] for j in jobs))
    job = Job(jobs[0].kernel, jobs[0].step, jobs[0].tokens, columns)
    return f"{first.core}: {job}: {micro(seconds)}, computing for {micro(computing)}, else moving data"


def wait_in_words(timeline: Timeline, wait: int) -> str | None:
    """A wait in words, with the time for which the core had nothing else to do; None if the flag was already set."""
    graph, e = timeline.graph, timeline.graph.events[wait]
    setter = timeline.cause[wait]
    if setter < 0 or not isinstance(graph.events[setter].instruction, SetFlag):
        return None
    busy = max((timeline.end[other] for other in _earlier(timeline, wait)), default=0.0)
    time = max(0.0, timeline.end[wait] - max(busy, timeline.start[wait]))
    flag = e.instruction.flag  # type: ignore[union-attr]
    return f"{e.core} waits {micro(time)} for {flag}, set last by {graph.events[setter].core}{_after(timeline, setter)}"


def _earlier(timeline: Timeline, wait: int) -> Iterable[int]:
    """The events before a wait in its core's program; a core's events have consecutive numbers."""
    graph = timeline.graph
    first = wait - graph.events[wait].position
    return (e for e in range(first, wait) if not isinstance(graph.events[e].instruction, (SetFlag, WaitFlag)))


def _after(timeline: Timeline, setter: int) -> str:
    """What the core of a set did last before it."""
    for event in range(setter - 1, setter - timeline.graph.events[setter].position - 1, -1):
        instruction = timeline.graph.events[event].instruction
        if isinstance(instruction, (Compute, Store)):
            return f" after {instruction.job}"
    return ""


def micro(seconds: float) -> str:
    return f"{seconds * 1e6:.2f} us"
