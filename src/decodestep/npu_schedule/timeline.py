"""A schedule in virtual time: when each instruction starts and ends, and what it waited for."""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass, field

from decodestep._base.checks import Words, refuse, require
from decodestep.npu_schedule.cost import HBM, L2, CostModel
from decodestep.npu_schedule.execution import Run
from decodestep.npu_schedule.graph import Graph, graph_of
from decodestep.npu_schedule.instructions import OP, Compute, Core, Load, Schedule, SetFlag, Store


@dataclass(frozen=True)
class Timeline:
    """start, end: seconds, by event; a wait starts when it is issued. order: the events by their end.

    cause: by event, the one whose end allowed it to start; for a wait, the set that ended it; -1 for none.
    """

    graph: Graph = field(repr=False)
    cost: CostModel
    start: list[float] = field(repr=False)
    end: list[float] = field(repr=False)
    cause: list[int] = field(repr=False)
    order: list[int] = field(repr=False)

    @property
    def makespan(self) -> float:
        return max(self.end, default=0.0)


class _Bandwidth:
    """A bandwidth that moves share equally. `served`: bytes that a move active from the start would have moved."""

    def __init__(self, total: float, most: float) -> None:
        self.total, self.most = total, most
        self.moves: list[tuple[float, int]] = []  # the value of `served` at which a move ends, and its event
        self.served = self.now = 0.0
        self.version = 0

    @property
    def rate(self) -> float:
        return min(self.most, self.total / max(len(self.moves), 1))

    def advance(self, now: float) -> None:
        if now > self.now:
            self.served += self.rate * (now - self.now) if self.moves else 0.0
            self.now = now

    def add(self, event: int, size: int, now: float) -> None:
        self.advance(now)
        heapq.heappush(self.moves, (self.served + size, event))
        self.version += 1

    def finish(self, now: float) -> int:
        """Ends the move that ends next."""
        self.now = now
        self.served, event = heapq.heappop(self.moves)
        self.version += 1
        return event

    @property
    def next_end(self) -> float:
        return self.now + max(0.0, self.moves[0][0] - self.served) / self.rate


def timeline(schedule: Schedule, cost: CostModel | None = None, *, graph: Graph | None = None) -> Timeline:
    """Runs a schedule in virtual time, without computing values.

    cost: the cost model; None: `CostModel()`. graph: of the schedule, if already built.
    Returns a `Timeline`. Raises ValueError for a schedule that is invalid or deadlocks.
    """
    cost = CostModel() if cost is None else cost
    require(isinstance(cost, CostModel), OP, "cost", "a CostModel", cost)
    graph = graph or graph_of(schedule)
    made = _Simulation(graph, cost)
    made.run_all()
    if len(made.order) < len(graph.events):
        wait = next(event for event in graph.takes if made.end[event] < 0)
        refuse(OP, "schedule", "free of deadlocks", Words(f"one in which {graph.words(wait)} for ever"))
    return Timeline(graph, cost, made.start, made.end, made.cause, made.order)


class _Simulation:
    def __init__(self, graph: Graph, cost: CostModel) -> None:
        self.graph, self.cost = graph, cost
        count = len(graph.events)
        self.start, self.end, self.cause = [-1.0] * count, [-1.0] * count, [-1] * count
        self.order: list[int] = []
        self.shared = {HBM: _Bandwidth(cost.hbm_bytes, cost.core_bytes), L2: _Bandwidth(cost.l2_bytes, cost.core_bytes)}
        # Time, order of entry, what, and of which event; for the end of a level's next move, the level and its version.
        self.agenda: list[tuple[float, int, str, int]] = []
        self.entered = 0
        self.run = Run(graph, _room(graph, cost.buffers))

    def run_all(self) -> None:
        for event in self.run.start():
            self._begin(event, 0.0, -1)
        while self.agenda:
            now, _, what, which = heapq.heappop(self.agenda)
            match what:
                case "end":
                    self._end(which, now)
                case "move":
                    self._start_move(which, now)
                case "signal":
                    for event in self.run.signal(which):
                        self._begin(event, now, which)
                case level if which == self.shared[level].version:  # else the moves have changed since this end was expected
                    self._end_move(level, now)

    def _begin(self, event: int, now: float, cause: int) -> None:
        self.start[event], self.cause[event] = now, cause
        e = self.graph.events[event]
        match e.instruction:
            case Compute():
                self._enter(now + self.cost.seconds(e.core, e.instruction, self.graph.schedule.sizes), "end", event)
            case Load() | Store():
                self._enter(now + self.cost.move_seconds, "move", event)
            case SetFlag():
                self._enter(now + self.cost.flag_seconds, "signal", event)
                self._enter(now, "end", event)
            case _:
                self.start[event] = max((self.end[earlier] for earlier in self.graph.before[event]), default=0.0)
                self._enter(now, "end", event)

    def _end(self, event: int, now: float) -> None:
        self.end[event] = now
        self.order.append(event)
        for later in self.run.finish(event):
            self._begin(later, now, event)

    def _start_move(self, event: int, now: float) -> None:
        instruction = self.graph.events[event].instruction
        assert isinstance(instruction, (Load, Store))
        level = self.cost.level(instruction)
        self.shared[level].add(event, instruction.size, now)
        self._expect(level)

    def _end_move(self, level: str, now: float) -> None:
        event = self.shared[level].finish(now)
        if self.shared[level].moves:
            self._expect(level)
        self._end(event, now)

    def _expect(self, level: str) -> None:
        """Enters the end of the move that ends next if none begins or ends before it."""
        shared = self.shared[level]
        self._enter(shared.next_end, level, shared.version)

    def _enter(self, time: float, what: str, which: int) -> None:
        self.entered += 1
        heapq.heappush(self.agenda, (time, self.entered, what, which))


def _room(graph: Graph, buffers: int) -> dict[int, int]:
    """For each load, the computation that must have ended before there is buffer space for it."""
    made: dict[Core, list[int]] = defaultdict(list)
    room = {}
    for event, e in enumerate(graph.events):
        if isinstance(e.instruction, Compute):
            made[e.core].append(event)
        elif isinstance(e.instruction, Load) and len(made[e.core]) >= buffers:
            room[event] = made[e.core][-buffers]
    return room
