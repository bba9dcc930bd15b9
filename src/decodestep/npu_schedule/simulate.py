"""Executes a schedule on real data, instruction by instruction, in any order that its flags allow."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from decodestep._base.checks import Phrase, require
from decodestep.npu_schedule.cost import CostModel
from decodestep.npu_schedule.execution import Run
from decodestep.npu_schedule.frame import build_frame
from decodestep.npu_schedule.graph import Graph, graph_of
from decodestep.npu_schedule.instructions import Compute, Load, Schedule, Store, operands
from decodestep.npu_schedule.kernels import Kernels, Local
from decodestep.npu_schedule.memory import Memory, fits
from decodestep.npu_schedule.timeline import timeline
from decodestep.ops.mla_prolog import mla_prolog_v3
from decodestep.ops.mla_prolog.arguments import bind
from decodestep.ops.mla_prolog.call import Call
from decodestep.ops.mla_prolog.problem import Problem

_OP = "simulate"


@dataclass(frozen=True)
class Simulated:
    """The results of a call as a schedule computed them, with the token axes merged."""

    query: np.ndarray  # (T, N, Hckv)
    query_rope: np.ndarray  # (T, N, Dr)
    kv_cache: np.ndarray  # copies of the call's, updated
    kr_cache: np.ndarray
    dequant_scale_q_nope: np.ndarray | None  # (T, N, 1) in FULL_KV


def simulate(
    schedule: Schedule, arguments: dict[str, Any], *, cost: CostModel | None = None, order: Sequence[int] | None = None
) -> Simulated:
    """Computes a call tile by tile, as the cores of a schedule do.

        for instruction in order:
            Load: local value = tile of global memory      Store: tile = local value      Compute: local values = kernel(...)

    arguments: of `mla_prolog_v3`, with weights that are not in `LinearPanels`. The caches are not changed.
    cost: determines the order, by virtual time; None: `CostModel()`.
    order: overrides it: the events of `graph_of(schedule)` in an order that the flags allow, for example from `interleaving`.
    Returns the results; results that nothing wrote hold NaN or improbable integers.
    Raises ValueError, before anything runs, for an invalid schedule, arguments of another call, or an order that the flags do
        not allow; and for a schedule that deadlocks.
    """
    p = build_problem(arguments)
    graph = graph_of(schedule)
    fits(schedule.sizes, p)
    if order is None:
        order = timeline(schedule, cost, graph=graph).order
    else:
        _check_order(graph, order)
    memory, kernels = Memory(build_frame(schedule.plan, schedule.sizes, schedule.design), p), Kernels(schedule.sizes, p)
    for event in graph.events:
        match event.instruction:
            case Load() as i:
                memory.check(i.source, write=False)
            case Store() as i:
                memory.check(i.target, write=True)
            case Compute() as i:
                kernels.check(i)
    with np.errstate(all="ignore"):  # as in the reference; incorrect schedules also compute with unwritten memory
        _execute(graph, order, memory, kernels)
    s, made = schedule.sizes, memory.written
    return Simulated(
        made["query"].reshape(s.tokens, s.heads, s.hckv),
        made["query_rope"].reshape(s.tokens, s.heads, s.rope),
        memory.kv_cache.reshape(arguments["kv_cache"].shape),
        memory.kr_cache.reshape(arguments["kr_cache"].shape),
        made["dequant_scale_q_nope"].reshape(s.tokens, s.heads, 1) if s.scenario.query_quantised else None,
    )


def build_problem(arguments: dict[str, Any]) -> Problem:
    """Arguments of `mla_prolog_v3`, checked in the same way."""
    call = inspect.signature(mla_prolog_v3).bind(**arguments)
    call.apply_defaults()
    return bind(Call(op="mla_prolog_v3", **call.arguments))


def _check_order(graph: Graph, order: Sequence[int]) -> None:
    """Refuses an order that is not a complete execution."""
    run, possible = Run(graph), set[int]()
    possible.update(run.start())
    for at, event in enumerate(order):
        require(event in possible, _OP, "order", "one that the flags allow", Phrase(f"event {event} at {at}"))
        possible.remove(event)
        possible.update(run.execute(event))
    require(len(order) == len(graph.events), _OP, "order", f"all {len(graph.events)} events", Phrase(f"{len(order)} of them"))


def _execute(graph: Graph, order: Sequence[int], memory: Memory, kernels: Kernels) -> None:
    uses = [0] * len(graph.events)
    for producers in graph.producers:
        for producer in producers:
            uses[producer] += 1
    local: dict[int, dict[str, Local]] = {}
    for event in order:
        instruction = graph.events[event].instruction
        values = _inputs(graph, event, local)
        match instruction:
            case Load():
                local[event] = {instruction.local: memory.load(instruction.source)}
            case Compute():
                made = kernels.compute(instruction, values)
                local[event] = dict(zip(instruction.outputs, made, strict=True))
            case Store():
                memory.store(instruction.target, kernels.value(values[0]))
        for producer in graph.producers[event]:
            uses[producer] -= 1
            if uses[producer] == 0:
                del local[producer]


def _inputs(graph: Graph, event: int, local: dict[int, dict[str, Local]]) -> list[Local]:
    instruction = graph.events[event].instruction
    return [local[producer][name] for producer, name in zip(graph.producers[event], operands(instruction), strict=True)]
