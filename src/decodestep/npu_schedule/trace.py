"""A timeline in the trace event format that Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
from typing import Any

from decodestep.npu_schedule.gantt import title
from decodestep.npu_schedule.instructions import PIPES, Compute, Core, Load, SetFlag, Store, WaitFlag
from decodestep.npu_schedule.timeline import Timeline


def trace(timeline: Timeline) -> str:
    """JSON: a process for each core, a thread for each of its pipes, an arrow from each set to the waits that it ended."""
    graph = timeline.graph
    cores = graph.schedule.cores
    process = {core: n for n, core in enumerate(cores, 1)}
    made: list[dict[str, Any]] = []
    arrows: list[dict[str, Any]] = []
    for core, pid in process.items():
        made.append(_metadata("process_name", pid, 0, {"name": str(core)}))
        made.append(_metadata("process_sort_index", pid, 0, {"sort_index": pid}))
        made += [_metadata("thread_name", pid, tid, {"name": name}) for tid, name in enumerate(("S", *PIPES[core.kind]), 1)]
    for event, e in enumerate(graph.events):
        i, start, end = e.instruction, _micros(timeline.start[event]), _micros(timeline.end[event])
        if isinstance(i, (Compute, Load, Store)):
            tile = "" if isinstance(i, Compute) else str(i.source if isinstance(i, Load) else i.target)
            name, args = i.job.kernel, {"what": str(i.job), "step": i.job.step, "tile": tile}
        else:
            name, args = f"{'wait' if isinstance(i, WaitFlag) else 'set'} {i.flag}", {"step": i.step}
        span = {"name": name, "cat": type(i).__name__, "ph": "X", "ts": start, "dur": round(end - start, 3), "args": args}
        made.append(span | _place(timeline, event, process))
        setter = timeline.cause[event]
        if isinstance(i, WaitFlag) and setter >= 0 and isinstance(graph.events[setter].instruction, SetFlag):
            for at, more in ((setter, {"ph": "s"}), (event, {"ph": "f", "bp": "e"})):
                point = {"name": "flag", "cat": "flag", "id": event, "ts": _micros(timeline.end[at])}
                arrows.append(point | more | _place(timeline, at, process))
    # Viewers process events with equal times in file order, and an arrow must come after its spans.
    return json.dumps({"traceEvents": made + arrows, "displayTimeUnit": "ns", "otherData": {"title": title(timeline)}})


def _place(timeline: Timeline, event: int, process: dict[Core, int]) -> dict[str, int]:
    core, pipe = timeline.graph.threads[timeline.graph.events[event].thread]
    return {"pid": process[core], "tid": ("S", *PIPES[core.kind]).index(pipe) + 1}


def _micros(seconds: float) -> float:
    """Microseconds, rounded to nanoseconds as viewers do, so that adjacent spans do not overlap."""
    return round(seconds * 1e6, 3)


def _metadata(name: str, pid: int, tid: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": pid, "tid": tid, "args": args}
