"""MlaProlog's schedule as data: programs of cube and vector cores, simulated in virtual time and model-checked."""

from decodestep.ops.mla_prolog.schedule.audit import Verdict, audit
from decodestep.ops.mla_prolog.schedule.check import Deadlock, Race, Report, check
from decodestep.ops.mla_prolog.schedule.cost import CostModel
from decodestep.ops.mla_prolog.schedule.critical import Segment, Utilisation, critical_path, utilisation
from decodestep.ops.mla_prolog.schedule.design import Design
from decodestep.ops.mla_prolog.schedule.execution import execution, interleaving
from decodestep.ops.mla_prolog.schedule.gantt import chart
from decodestep.ops.mla_prolog.schedule.graph import Graph, graph_of
from decodestep.ops.mla_prolog.schedule.instructions import (
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
from decodestep.ops.mla_prolog.schedule.page import page
from decodestep.ops.mla_prolog.schedule.program import mla_prolog_schedule
from decodestep.ops.mla_prolog.schedule.search import Found, search
from decodestep.ops.mla_prolog.schedule.simulate import Simulated, simulate
from decodestep.ops.mla_prolog.schedule.timeline import Timeline, timeline
from decodestep.ops.mla_prolog.schedule.trace import trace

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
