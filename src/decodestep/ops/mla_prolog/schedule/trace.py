"""A timeline in the trace event format that Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
from typing import Any

from decodestep.ops.mla_prolog.schedule.gantt import title
from decodestep.ops.mla_prolog.schedule.instructions import PIPES, Compute, Load, SetFlag, Store, WaitFlag
from decodestep.ops.mla_prolog.schedule.timeline import Timeline


def trace(timeline: Timeline) -> str:
    """JSON: a process for each core, a thread for each of its pipes, an arrow from each set to the waits that it ended."""
    graph = timeline.graph
    cores = graph.schedule.cores
    process = {core: n for n, core in enumerate(cores, 1)}
    made: list[dict[str, Any]] = []
    for core, pid in process.items():
        made.append(_named("process_name", pid, 0, {"name": str(core)}))
        made.append(_named("process_sort_index", pid, 0, {"sort_index": pid}))
        made += [_named("thread_name", pid, tid, {"name": name}) for tid, name in enumerate(("S", *PIPES[core.kind]), 1)]
    for event, e in enumerate(graph.events):
        pid, pipe, i = process[e.core], graph.threads[e.thread][1], e.instruction
        tid = ("S", *PIPES[e.core.kind]).index(pipe) + 1
        start, end = timeline.start[event] * 1e6, timeline.end[event] * 1e6
        place = {"pid": pid, "tid": tid, "ts": start}
        if isinstance(i, (Compute, Load, Store)):
            tile = (
                {} if isinstance(i, Compute) else {"tile": str(i.source if isinstance(i, Load) else i.target), "bytes": i.size}
            )
            args = {"what": str(i.job), "step": i.job.step, **tile}
            made.append({"name": i.job.kernel, "cat": type(i).__name__, "ph": "X", "dur": end - start, **place, "args": args})
        elif isinstance(i, WaitFlag):
            made.append(
                {"name": f"wait {i.flag}", "cat": "wait", "ph": "X", "dur": end - start, **place, "args": {"step": i.step}}
            )
            setter = timeline.cause[event]
            if setter >= 0 and isinstance(graph.events[setter].instruction, SetFlag):
                made += _arrow(timeline, setter, event, process)
        else:
            made.append({"name": f"set {i.flag}", "cat": "set", "ph": "X", "dur": 0.0, **place, "args": {"step": i.step}})
    return json.dumps({"traceEvents": made, "displayTimeUnit": "ns", "otherData": {"title": title(timeline)}})


def _named(name: str, pid: int, tid: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": pid, "tid": tid, "args": args}


def _arrow(timeline: Timeline, setter: int, wait: int, process: dict[Any, int]) -> list[dict[str, Any]]:
    graph, made = timeline.graph, []
    for event, phase, time in ((setter, "s", timeline.end[setter]), (wait, "f", timeline.end[wait])):
        e = graph.events[event]
        tid = ("S", *PIPES[e.core.kind]).index(graph.threads[e.thread][1]) + 1
        arrow = {"name": "flag", "cat": "flag", "ph": phase, "id": wait, "pid": process[e.core], "tid": tid, "ts": time * 1e6}
        made.append(arrow | ({"bp": "e"} if phase == "f" else {}))
    return made
