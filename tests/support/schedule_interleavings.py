"""Every interleaving of a small schedule, by brute force: what `check` must agree with. Shares nothing with its clocks."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations
from typing import Any

from decodestep.npu_schedule import Graph, Load, Store

MOST_STATES = 400_000


@dataclass
class Truth:
    races: set[tuple[int, int]] = field(default_factory=set)  # pairs of events, the smaller first
    stuck: set[int] = field(default_factory=set)  # events that no interleaving executes
    left: set[tuple[str, int]] = field(default_factory=set)  # core and id of counters above 0 at the end
    highest: dict[Any, int] = field(default_factory=dict)  # by counter
    states: int = 0


class _Events:
    """The events of a graph as bits of a state, which is the set of executed events."""

    def __init__(self, graph: Graph) -> None:
        self.count = len(graph.events)
        self._before = [sum(1 << e for e in earlier) for earlier in graph.before]
        self._takes = graph.takes
        self.sources = {
            counter: [[sum(1 << s for s in sets) for sets in graph.sources[i].setters.values()] for i in indices]
            for counter, indices in graph.sources_of.items()
        }
        self.waits = defaultdict(int)
        for event, (counter, _) in graph.takes.items():
            self.waits[counter] |= 1 << event

    def increments(self, counter: Any, state: int) -> int:
        """How often the counter has risen; a wait lowers it."""
        return sum(min((state & mask).bit_count() for mask in setters) for setters in self.sources.get(counter, []))

    def value(self, counter: Any, state: int) -> int:
        return self.increments(counter, state) - (state & self.waits[counter]).bit_count()

    def next_of(self, state: int) -> list[int]:
        """The events that can be executed in a state."""
        ready = (e for e in range(self.count) if not state >> e & 1 and not self._before[e] & ~state)
        return [e for e in ready if e not in self._takes or self.increments(self._takes[e][0], state) >= self._takes[e][1]]


def truth(graph: Graph) -> Truth | None:
    """What holds over all interleavings; None for a schedule with too many states."""
    events = _Events(graph)
    found, needs = Truth(), [(1 << events.count) - 1] * events.count  # needs: what is executed in all states before an event
    seen, open_states, ends = {0}, [0], set()
    while open_states:
        state = open_states.pop()
        for counter in {**events.sources, **events.waits}:
            found.highest[counter] = max(found.highest.get(counter, 0), events.value(counter, state))
        following = events.next_of(state)
        for event in following:
            needs[event] &= state
            after = state | 1 << event
            if after not in seen:
                seen.add(after)
                open_states.append(after)
        if not following:
            ends.add(state)
        if len(seen) > MOST_STATES:
            return None
    found.states = len(seen)
    (end,) = ends  # whatever the order, the same events are executed
    found.stuck = {e for e in range(events.count) if not end >> e & 1}
    if not found.stuck:
        found.left = {(str(c.core), c.id) for c in events.sources if events.value(c, end) > 0}
    for a, b in combinations(sorted(set(range(events.count)) - found.stuck), 2):
        if not (needs[a] >> b & 1 or needs[b] >> a & 1) and _conflict(graph, a, b):
            found.races.add((a, b))
    return found


def _conflict(graph: Graph, a: int, b: int) -> bool:
    one, other = (graph.events[e].instruction for e in (a, b))
    if not (isinstance(one, (Load, Store)) and isinstance(other, (Load, Store)) and Store in (type(one), type(other))):
        return False
    p, q = (i.source if isinstance(i, Load) else i.target for i in (one, other))
    return p.buffer == q.buffer and not _cells(p).isdisjoint(_cells(q))


@cache
def _cells(tile) -> frozenset[tuple[int, int]]:
    starts = [n * tile.stride for n in range(tile.repeats)]
    return frozenset((row, at + column) for row in range(*tile.rows) for at in starts for column in range(*tile.columns))
