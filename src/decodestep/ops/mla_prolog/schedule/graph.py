"""A schedule as events: what each waits for within its core, and which sets raise which counters.

Counters belong to cores, and only its own core lowers a counter. Therefore no event makes another impossible: an event that is
enabled stays enabled until it happens, and all interleavings execute the same events. That is why one run finds every
deadlock, and why `clocks` holds for all interleavings.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from decodestep._base.checks import is_int, refuse, require
from decodestep.ops.mla_prolog.schedule.instructions import (
    CUBE,
    OP,
    PIPES,
    VECTOR,
    Compute,
    Core,
    Flag,
    Instruction,
    Load,
    Schedule,
    SetFlag,
    Store,
    WaitFlag,
    pipe_of,
    used,
)


class Counter(NamedTuple):
    """The counter of a flag id on one core."""

    core: Core
    id: int


@dataclass
class Source:
    """A source of increments: when each of `setters` has set it k times, each of `counters` rises for the k-th time."""

    setters: dict[Core, list[int]]  # the events that set it, in program order
    counters: list[Counter]


class Event(NamedTuple):
    core: Core
    position: int  # in the core's program
    instruction: Instruction
    thread: int
    rank: int  # among the events of its thread


@dataclass
class Graph:
    """The events of a schedule."""

    schedule: Schedule
    events: list[Event] = field(default_factory=list)
    threads: list[tuple[Core, str]] = field(default_factory=list)  # a pipe of a core
    before: list[tuple[int, ...]] = field(default_factory=list)  # the events of its core that an event comes after
    producers: list[tuple[int, ...]] = field(default_factory=list)  # those that make its local values, in order
    sources: list[Source] = field(default_factory=list)
    source_of: dict[int, int] = field(default_factory=dict)  # of the events that set a flag
    takes: dict[int, tuple[Counter, int]] = field(default_factory=dict)  # of a wait: its counter, and n for its n-th increment
    sources_of: dict[Counter, list[int]] = field(default_factory=lambda: defaultdict(list))

    def words(self, event: int) -> str:
        e = self.events[event]
        match e.instruction:
            case SetFlag() | WaitFlag() as i:
                return f"{e.core} {'sets' if isinstance(i, SetFlag) else 'waits for'} {i.flag} of step {i.step}"
            case Load() as i:
                return f"{e.core} reads {i.source} for {i.job}"
            case Store() as i:
                return f"{e.core} writes {i.target} of {i.job}"
        return f"{e.core} computes {e.instruction.job}"


def graph_of(schedule: Schedule) -> Graph:
    """Checks a schedule's instructions and builds its graph."""
    graph = Graph(schedule)
    sources: dict[Hashable, int] = {}
    for name, flag in schedule.flags.items():
        _check_flag(name, flag)
    for core in schedule.cores:
        _check_core(schedule, core)
        _bind_core(graph, core, sources)
    return graph


def _check_flag(name: str, flag: Flag) -> None:
    require(isinstance(flag, Flag) and flag.mode in (0, 1, 2), OP, f"flag {name}", "of mode 0, 1 or 2", flag)
    require(is_int(flag.id) and flag.id >= 0, OP, f"flag {name}", "of an id >= 0", repr(flag.id))


def _check_core(schedule: Schedule, core: Core) -> None:
    count = {CUBE: schedule.sizes.cubes, VECTOR: schedule.sizes.vectors}.get(core.kind, 0)
    require(
        0 <= core.number < count,
        OP,
        "core",
        f"one of {schedule.sizes.cubes} cube and {schedule.sizes.vectors} vector cores",
        str(core),
    )
    for instruction in schedule.programs[core]:
        if not isinstance(instruction, (Load, Compute, Store, SetFlag, WaitFlag)):
            refuse(OP, f"program of {core}", "of instructions", instruction)
        if isinstance(instruction, (SetFlag, WaitFlag)):
            known = f"one of {', '.join(schedule.flags) or 'none'}"
            require(instruction.flag in schedule.flags, OP, "flag", known, repr(instruction.flag))
            if isinstance(instruction, SetFlag):
                require(
                    instruction.pipe in PIPES[core.kind],
                    OP,
                    "pipe",
                    f"one of {', '.join(PIPES[core.kind])}",
                    repr(instruction.pipe),
                )
            if schedule.flags[instruction.flag].mode == 1:
                require(
                    core.kind == VECTOR,
                    OP,
                    f"flag {instruction.flag}",
                    "used by vector cores only, its mode being 1",
                    str(core),
                )


def _bind_core(graph: Graph, core: Core, sources: dict[Hashable, int]) -> None:
    thread_of: dict[str, int] = {}
    last_in: dict[str, int] = {}
    rank: dict[str, int] = defaultdict(int)
    made: dict[str, int] = {}  # the event that made a local value
    last_wait: int | None = None
    taken: dict[Counter, int] = defaultdict(int)
    for position, instruction in enumerate(graph.schedule.programs[core]):
        pipe, event = pipe_of(core, instruction), len(graph.events)
        if pipe not in thread_of:
            thread_of[pipe] = len(graph.threads)
            graph.threads.append((core, pipe))
        producers: list[int] = []
        for name in used(instruction):
            what = f"{type(instruction).__name__} at {position}"
            require(name in made, OP, f"program of {core}", f"one that makes {name!r} before it is used", what)
            producers.append(made[name])
        before = {*producers, *([last_in[pipe]] if pipe in last_in else []), *([last_wait] if last_wait is not None else [])}
        graph.events.append(Event(core, position, instruction, thread_of[pipe], rank[pipe]))
        graph.before.append(tuple(before))
        graph.producers.append(tuple(producers))
        rank[pipe] += 1
        last_in[pipe] = event
        match instruction:
            case Compute():
                made.update(dict.fromkeys(instruction.outputs, event))
            case Load():
                made[instruction.local] = event
            case SetFlag():
                _bind_set(graph, core, event, instruction, sources)
            case WaitFlag():
                counter = Counter(core, graph.schedule.flags[instruction.flag].id)
                taken[counter] += 1
                graph.takes[event] = (counter, taken[counter])
                last_wait = event


def _bind_set(graph: Graph, core: Core, event: int, instruction: SetFlag, sources: dict[Hashable, int]) -> None:
    schedule = graph.schedule
    flag, group = schedule.flags[instruction.flag], schedule.sizes.group
    home = core.number if core.kind == CUBE else core.number // group
    members = [Core(VECTOR, home * group + i) for i in range(group)]
    if flag.mode == 0:
        every = range(schedule.sizes.cubes if core.kind == CUBE else schedule.sizes.vectors)
        setters = raised = [Core(core.kind, i) for i in every]
        key: Hashable = (0, flag.id, core.kind)
    elif flag.mode == 1:
        setters = raised = members
        key = (1, flag.id, home)
    else:
        setters, raised = ([core], members) if core.kind == CUBE else (members, [Core(CUBE, home)])
        key = (2, flag.id, core.kind, home)
    if key not in sources:
        sources[key] = len(graph.sources)
        counters = [Counter(c, flag.id) for c in raised]
        graph.sources.append(Source({c: [] for c in setters}, counters))
        for counter in counters:
            graph.sources_of[counter].append(sources[key])
    source = graph.sources[sources[key]]
    source.setters[core].append(event)
    graph.source_of[event] = sources[key]


class Run:
    """One execution of a graph, event by event: tracks which events are enabled."""

    def __init__(self, graph: Graph, also: Mapping[int, int] | None = None) -> None:
        """also: for some events, an additional predecessor in their core."""
        self.graph = graph
        self.missing = [len(before) for before in graph.before]
        self.after: list[list[int]] = [[] for _ in graph.events]
        for event, before in enumerate(graph.before):
            for earlier in before:
                self.after[earlier].append(event)
        for event, earlier in (also or {}).items():
            self.missing[event] += 1
            self.after[earlier].append(event)
        self.raised: dict[Counter, int] = defaultdict(int)
        self.sets = [dict.fromkeys(source.setters, 0) for source in graph.sources]
        self.rounds = [0] * len(graph.sources)
        self.waiting: dict[Counter, int] = {}  # an issued wait whose counter is still too low

    def start(self) -> list[int]:
        """The events that are enabled at the start."""
        return [event for event, missing in enumerate(self.missing) if missing == 0 and self._admitted(event)]

    def execute(self, event: int) -> list[int]:
        """Executes an event. Returns the events that it enables."""
        return self.finish(event) + self.signal(event)

    def finish(self, event: int) -> list[int]:
        """The effects of an event on its own core."""
        ready = []
        for later in self.after[event]:
            self.missing[later] -= 1
            if self.missing[later] == 0 and self._admitted(later):
                ready.append(later)
        return ready

    def signal(self, event: int) -> list[int]:
        """The effects of a set on counters; none for other events."""
        index = self.graph.source_of.get(event)
        if index is None:
            return []
        ready, sets = [], self.sets[index]
        sets[self.graph.events[event].core] += 1
        if min(sets.values()) > self.rounds[index]:
            self.rounds[index] += 1
            for counter in self.graph.sources[index].counters:
                self.raised[counter] += 1
                wait = self.waiting.get(counter)
                if wait is not None and self.graph.takes[wait][1] <= self.raised[counter]:
                    del self.waiting[counter]
                    ready.append(wait)
        return ready

    def _admitted(self, event: int) -> bool:
        """Whether an event whose predecessors are done is enabled; a wait that is not is recorded."""
        taking = self.graph.takes.get(event)
        if taking is None or taking[1] <= self.raised[taking[0]]:
            return True
        self.waiting[taking[0]] = event
        return False


def execution(graph: Graph, choose: Callable[[list[int]], int] | None = None) -> list[int]:
    """The events in an order in which they can be executed, without those that never can be.

    choose: returns the position of the next event among those that are enabled; None: the oldest.
    """
    run = Run(graph)
    possible, order, at = run.start(), [], 0
    while at < len(possible):
        if choose is not None:
            picked = at + choose(possible[at:])
            possible[at], possible[picked] = possible[picked], possible[at]
        order.append(possible[at])
        at += 1
        possible += run.execute(order[-1])
    return order


def interleaving(graph: Graph, late: int) -> list[int]:
    """An execution in which `late` and everything that must follow it come as late as possible."""
    run = Run(graph)
    possible, order = run.start(), []
    while possible:
        event = possible.pop()
        if event == late and possible:
            possible.insert(0, event)
            continue
        order.append(event)
        possible += run.execute(event)
    return order
