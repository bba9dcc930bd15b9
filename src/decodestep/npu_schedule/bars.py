"""The bars of a timeline's chart: each is a core's work on one job, with what it waited for."""

from __future__ import annotations

from dataclasses import dataclass

from decodestep.npu_schedule.critical import critical_events, micro, wait_in_words
from decodestep.npu_schedule.instructions import Compute, Core, Job, Load, Store, WaitFlag
from decodestep.npu_schedule.timeline import Timeline

COMPUTE, MOVE, WAIT = "compute", "move", "wait"


@dataclass
class Bar:
    core: Core
    lane: str  # COMPUTE, MOVE or WAIT
    kernel: str  # or the flag that is waited for
    start: float
    end: float
    words: str
    critical: bool


def bars(timeline: Timeline) -> list[Bar]:
    """The bars of all cores, by core and start. Consecutive instructions of one job and lane form one bar, across gaps that are
    too small to see."""
    gap = timeline.makespan / 2000
    lit = set(critical_events(timeline))
    made: list[Bar] = []
    last: dict[tuple[Core, str], tuple[Job, Bar]] = {}
    reason: dict[Core, str] = {}
    busy: dict[Core, float] = {}
    for event, e in enumerate(timeline.graph.events):
        start, end, i = timeline.start[event], timeline.end[event], e.instruction
        if isinstance(i, WaitFlag):
            words = wait_in_words(timeline, event)
            reason[e.core] = words or f"{i.flag} was set before"
            idle = max(busy.get(e.core, 0.0), start)
            if end > idle:
                made.append(Bar(e.core, WAIT, i.flag, idle, end, words or f"{e.core} waits for {i.flag}", event in lit))
        elif isinstance(i, (Compute, Load, Store)):
            busy[e.core] = max(busy.get(e.core, 0.0), end)
            lane = COMPUTE if isinstance(i, Compute) else MOVE
            job, bar = last.get((e.core, lane), (None, None))
            if bar is not None and job == i.job and start - bar.end <= gap:
                bar.end, bar.critical = max(bar.end, end), bar.critical or event in lit
                continue
            what = f"{'moves for ' if lane == MOVE else ''}{i.job}, step {i.job.step}"
            words = f"{e.core}: {what}; {reason.get(e.core, 'waited for nothing')}"
            bar = Bar(e.core, lane, i.job.kernel, start, end, words, event in lit)
            last[e.core, lane] = (i.job, bar)
            made.append(bar)
    for bar in made:
        bar.words += f"; {micro(bar.start)} to {micro(bar.end)}, {micro(bar.end - bar.start)}"
    return sorted((bar for bar in made if bar.end > bar.start), key=lambda bar: (bar.core, bar.start, bar.lane))
