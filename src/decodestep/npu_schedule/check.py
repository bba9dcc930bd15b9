"""Races, deadlocks and flags left set in a schedule, over every interleaving that its flags allow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from decodestep._base.checks import is_int, require
from decodestep.npu_schedule.clocks import Clocks
from decodestep.npu_schedule.execution import execution
from decodestep.npu_schedule.graph import Counter, Graph, graph_of
from decodestep.npu_schedule.instructions import OP, Load, Schedule, Store, Tile
from decodestep.npu_schedule.orders import place, what_orders

FLAG_LIMIT = 15  # the largest value of a flag's counter on the device
_CACHES = ("kv_cache", "kr_cache")


@dataclass(frozen=True)
class Race:
    """Two accesses to one tile, at least one of them a write, that interleavings may execute in either order."""

    first: int  # events, `first` being the earlier one in the operator's sequential order
    then: int
    tile: Tile  # the overlap of the accesses
    words: str


@dataclass(frozen=True)
class Deadlock:
    """A wait that ends in no interleaving."""

    event: int
    words: str


@dataclass(frozen=True)
class Report:
    """The result of a check. `ok`: every interleaving terminates, computes the same values and leaves all counters at 0."""

    graph: Graph = field(repr=False)
    clocks: Clocks = field(repr=False)
    races: tuple[Race, ...]  # one for every pair of tiles
    deadlocks: tuple[Deadlock, ...]
    leftovers: tuple[str, ...]  # counters that are not 0 at the end, so the next launch would find the flag set
    overflows: tuple[str, ...]  # counters that may exceed the limit; does not affect `ok`
    highest: Mapping[str, int]  # by flag: the highest value of the counters that waits for this flag use

    @property
    def ok(self) -> bool:
        return not (self.races or self.deadlocks or self.leftovers)

    def __str__(self) -> str:
        lines = [d.words for d in self.deadlocks] + [f"race: {words}" for words in _by_kernels(self.races)]
        lines += [*self.leftovers, *self.overflows]
        return "\n".join(lines) or "no race, no deadlock, no flag left set"


def check(schedule: Schedule, slots: np.ndarray | None = None, *, flag_limit: int = FLAG_LIMIT) -> Report:
    """Checks every interleaving that the flags allow.

    slots: the cache row of each token, negative for one that is not cached; None: all differ. Two tokens with the same row
        race if nothing orders their cores.
    flag_limit: the largest value that a counter may have.
    Returns a `Report`. Raises ValueError for a schedule with an unknown flag, pipe or local value.
    Notes: exact within the model: accesses to global memory by Load and Store, pipes that execute in order, waits that block
    all later instructions. A value that a core has loaded does not change.
    """
    require(is_int(flag_limit) and flag_limit >= 1, OP, "flag_limit", "an integer >= 1", flag_limit)
    if slots is not None:
        shape_ok = isinstance(slots, np.ndarray) and slots.shape == (schedule.sizes.tokens,) and slots.dtype.kind in "iu"
        require(shape_ok, OP, "slots", f"integers of shape {schedule.sizes.tokens}", slots)
    graph = graph_of(schedule)
    order = execution(graph)
    clocks = Clocks(graph, order)
    executed = np.zeros(len(graph.events), bool)
    executed[order] = True
    executed_at = np.empty(len(graph.events), np.int64)
    executed_at[order] = np.arange(len(order))
    races = tuple(
        Race(a, b, tile, _race_words(graph, a, b, tile)) for a, b, tile in _races(graph, clocks, executed, executed_at, slots)
    )
    deadlocks = tuple(_deadlocks(graph, executed))
    leftovers, overflows, highest = _counters(graph, clocks, executed, flag_limit, stuck=bool(deadlocks))
    return Report(graph, clocks, races, deadlocks, leftovers, overflows, highest)


def _accesses(graph: Graph, executed: np.ndarray, slots: np.ndarray | None) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """For each buffer that is written to: (n, 5) events and rectangles, and which of them are writes."""
    found: dict[str, list[tuple[int, int, int, int, int, bool]]] = {}
    for event in np.flatnonzero(executed).tolist():
        instruction = graph.events[event].instruction
        if isinstance(instruction, (Load, Store)):
            tile = instruction.source if isinstance(instruction, Load) else instruction.target
            write = isinstance(instruction, Store)
            rows = [tile.rows]
            if slots is not None and tile.buffer in _CACHES:
                rows = [(int(s), int(s) + 1) for s in slots[slice(*tile.rows)] if s >= 0]
            found.setdefault(tile.buffer, []).extend((event, *r, *part, write) for r in rows for part in tile.parts)
    tables = {name: np.array(rows, np.int64) for name, rows in found.items() if any(row[5] for row in rows)}
    return {name: (table[:, :5], table[:, 5] == 1) for name, table in tables.items()}


def _races(
    graph: Graph, clocks: Clocks, executed: np.ndarray, executed_at: np.ndarray, slots: np.ndarray | None
) -> Iterator[tuple[int, int, Tile]]:
    for buffer, (table, writes) in _accesses(graph, executed, slots).items():
        event, top, bottom, left, right = table.T
        found = set[tuple[int, int]]()
        for w in np.flatnonzero(writes):
            other = (top < bottom[w]) & (top[w] < bottom) & (left < right[w]) & (left[w] < right)
            other &= event != event[w]
            at = np.flatnonzero(other)
            mine = np.full(len(at), event[w])
            unordered = ~(clocks.before(mine, event[at]) | clocks.before(event[at], mine))
            for o in at[unordered]:
                a, b = sorted((int(event[w]), int(event[o])), key=lambda e: (_sequential_place(graph, e), executed_at[e]))
                if (a, b) not in found:  # tiles may overlap in several rectangles
                    found.add((a, b))
                    rows = (int(max(top[w], top[o])), int(min(bottom[w], bottom[o])))
                    yield a, b, Tile(buffer, rows, (int(max(left[w], left[o])), int(min(right[w], right[o]))))


def _sequential_place(graph: Graph, event: int) -> tuple[int, int]:
    """The place of an access in the operator's sequential order: by step, then by kernel."""
    job = graph.events[event].instruction.job  # type: ignore[union-attr]
    return (job.step, place(job.kernel))


def _race_words(graph: Graph, a: int, b: int, tile: Tile) -> str:
    remedy = what_orders(graph.schedule, graph.events[a], graph.events[b])
    return f"{tile}: {graph.words(a)} / {graph.words(b)}; in order with {remedy}"


def _deadlocks(graph: Graph, executed: np.ndarray) -> Iterator[Deadlock]:
    """The first wait of each core that never ends, and who sets its flag."""
    stuck: dict[object, int] = {}
    for event in graph.takes:
        core = graph.events[event].core
        if not executed[event] and core not in stuck:
            stuck[core] = event
    for event in stuck.values():
        counter, n = graph.takes[event]
        rounds, short = 0, []
        for index in graph.sources_of[counter]:
            counts = {core: int(executed[sets].sum()) if sets else 0 for core, sets in graph.sources[index].setters.items()}
            rounds += min(counts.values())
            short += [f"{core} {count}x" for core, count in counts.items() if count == min(counts.values())]
        names = ", ".join(short[:4]) + (f" and {len(short) - 4} more" if len(short) > 4 else "")
        reason = f"its counter of id {counter.id} rises {rounds} times, the wait needs {n}; set by {names or 'nobody'}"
        yield Deadlock(event, f"deadlock: {graph.words(event)}, but {reason}")


def _counters(
    graph: Graph, clocks: Clocks, executed: np.ndarray, limit: int, *, stuck: bool
) -> tuple[tuple[str, ...], tuple[str, ...], dict[str, int]]:
    waits: dict[Counter, list[int]] = {}
    for event, (counter, _) in graph.takes.items():
        waits.setdefault(counter, []).append(event)
    leftovers, overflows = [], []
    highest = dict.fromkeys(graph.schedule.flags, 0)
    for counter in {**waits, **graph.sources_of}:
        if stuck:
            break
        rises = sum(
            min(int(executed[sets].sum()) if sets else 0 for sets in graph.sources[i].setters.values())
            for i in graph.sources_of.get(counter, [])
        )
        taking = waits.get(counter, [])
        if rises > len(taking):
            leftovers.append(f"left over: {counter.core} ends with its counter of id {counter.id} at {rises - len(taking)}")
        most = clocks.highest(counter, taking)
        for wait in taking:
            name = graph.events[wait].instruction.flag  # type: ignore[union-attr]
            highest[name] = max(highest[name], most)
        if most > limit:
            overflows.append(f"overflow: the counter of id {counter.id} on {counter.core} may rise to {most}, above {limit}")
    return tuple(leftovers), tuple(overflows), highest


def _by_kernels(races: tuple[Race, ...]) -> Iterator[str]:
    """One line for all races between the same two kernels over the same buffer."""
    groups: dict[tuple[str, str], list[Race]] = {}
    for race in races:
        groups.setdefault((race.tile.buffer, race.words.partition("; in order with ")[2]), []).append(race)
    for group in groups.values():
        yield group[0].words + (f" ({len(group)} such pairs)" if len(group) > 1 else "")
