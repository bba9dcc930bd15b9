"""MlaProlog's schedule as data: programs of cube and vector cores, simulated in virtual time and model-checked."""

from decodestep.npu_schedule.audit import Verdict, audit
from decodestep.npu_schedule.check import Deadlock, Race, Report, check
from decodestep.npu_schedule.cost import CostModel
from decodestep.npu_schedule.critical import Segment, Utilisation, critical_path, utilisation
from decodestep.npu_schedule.design import Design
from decodestep.npu_schedule.execution import execution, interleaving
from decodestep.npu_schedule.gantt import chart
from decodestep.npu_schedule.graph import Graph, graph_of
from decodestep.npu_schedule.instructions import (
    Compute,
    Core,
    Flag,
    Job,
    Load,
    Schedule,
    SetFlag,
    Store,
    Tile,
    WaitFlag,
)
from decodestep.npu_schedule.page import page
from decodestep.npu_schedule.program import mla_prolog_schedule
from decodestep.npu_schedule.search import Found, search
from decodestep.npu_schedule.simulate import Simulated, simulate
from decodestep.npu_schedule.timeline import Timeline, timeline
from decodestep.npu_schedule.trace import trace

__all__ = [
    "Compute",
    "Core",
    "CostModel",
    "Deadlock",
    "Design",
    "Flag",
    "Found",
    "Graph",
    "Job",
    "Load",
    "Race",
    "Report",
    "Schedule",
    "Segment",
    "SetFlag",
    "Simulated",
    "Store",
    "Tile",
    "Timeline",
    "Utilisation",
    "Verdict",
    "WaitFlag",
    "audit",
    "chart",
    "check",
    "critical_path",
    "execution",
    "graph_of",
    "interleaving",
    "mla_prolog_schedule",
    "page",
    "search",
    "simulate",
    "timeline",
    "trace",
    "utilisation",
]
