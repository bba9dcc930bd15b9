"""A schedule as events: what each waits for within its core, and which sets raise which counters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from decodestep._base.checks import Words, is_int, refuse, require
from decodestep.npu_schedule.instructions import (
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
    operands,
    pipe_of,
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
    require(is_int(flag.id) and flag.id >= 0, OP, f"flag {name}", "of an id >= 0", flag.id)


def _check_core(schedule: Schedule, core: Core) -> None:
    count = {CUBE: schedule.sizes.cubes, VECTOR: schedule.sizes.vectors}.get(core.kind, 0)
    require(
        0 <= core.number < count,
        OP,
        "core",
        f"one of {schedule.sizes.cubes} cube and {schedule.sizes.vectors} vector cores",
        Words(core),
    )
    for instruction in schedule.programs[core]:
        if not isinstance(instruction, (Load, Compute, Store, SetFlag, WaitFlag)):
            refuse(OP, f"program of {core}", "of instructions", instruction)
        if isinstance(instruction, (SetFlag, WaitFlag)):
            _check_flag_use(schedule, core, instruction)


def _check_flag_use(schedule: Schedule, core: Core, instruction: SetFlag | WaitFlag) -> None:
    name = instruction.flag
    require(name in schedule.flags, OP, "flag", f"one of {', '.join(schedule.flags) or 'none'}", name)
    if isinstance(instruction, SetFlag):
        pipes = PIPES[core.kind]
        require(instruction.pipe in pipes, OP, "pipe", f"one of {', '.join(pipes)}", instruction.pipe)
    if schedule.flags[name].mode == 1:
        require(core.kind == VECTOR, OP, f"flag {name}", "used by vector cores only, its mode being 1", Words(core))


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
        for name in operands(instruction):
            what = Words(f"{type(instruction).__name__} at {position}")
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
