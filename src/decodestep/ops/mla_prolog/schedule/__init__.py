"""MlaProlog's schedule as data: programs of cube and vector cores, run in virtual time, checked over every interleaving."""

from decodestep.ops.mla_prolog.schedule.check import Deadlock, Race, Report, check
from decodestep.ops.mla_prolog.schedule.cost import CostModel
from decodestep.ops.mla_prolog.schedule.design import Design
from decodestep.ops.mla_prolog.schedule.graph import Graph, execution, graph_of, interleaving
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
from decodestep.ops.mla_prolog.schedule.program import mla_prolog_schedule
from decodestep.ops.mla_prolog.schedule.simulate import Simulated, simulate
from decodestep.ops.mla_prolog.schedule.timeline import Timeline, timeline
