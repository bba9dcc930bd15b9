"""Every interleaving of a small schedule, by brute force: what `check` must agree with. Shares nothing with its clocks."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from decodestep.ops.mla_prolog.schedule import Graph, Load, Store

MOST_STATES = 400_000


@dataclass
class Truth:
    races: set[tuple[int, int]] = field(default_factory=set)  # pairs of events, the smaller first
    stuck: set[int] = field(default_factory=set)  # events that no interleaving executes
    left: set[tuple[str, int]] = field(default_factory=set)  # core and id of counters above 0 at the end
    highest: dict[Any, int] = field(default_factory=dict)  # by counter
    states: int = 0


def truth(graph: Graph) -> Truth | None:
    """What holds over all interleavings; None for a schedule with too many states. A state is the set of executed events."""
    count = len(graph.events)
    before = [sum(1 << e for e in earlier) for earlier in graph.before]
    gates = [graph.takes.get(e) for e in range(count)]
    sources = {
        counter: [[sum(1 << s for s in sets) for sets in graph.sources[i].setters.values()] for i in indices]
        for counter, indices in graph.sources_of.items()
    }
    waits = defaultdict(int)
    for event, (counter, _) in graph.takes.items():
        waits[counter] |= 1 << event

    def rises(counter, state):
        return sum(min((state & mask).bit_count() for mask in setters) for setters in sources.get(counter, []))

    found, needs = Truth(), [(1 << count) - 1] * count
    seen, open_states, ends = {0}, [0], set()
    while open_states:
        state = open_states.pop()
        for counter in {**sources, **waits}:
            value = rises(counter, state) - (state & waits[counter]).bit_count()
            found.highest[counter] = max(found.highest.get(counter, 0), value)
        last = True
        for event in range(count):
            if state >> event & 1 or before[event] & ~state:
                continue
            if gates[event] is not None and rises(gates[event][0], state) < gates[event][1]:
                continue
            last = False
            needs[event] &= state
            after = state | 1 << event
            if after not in seen:
                seen.add(after)
                open_states.append(after)
        if last:
            ends.add(state)
        if len(seen) > MOST_STATES:
            return None
    found.states = len(seen)
    (end,) = ends  # whatever the order, the same events are executed
    found.stuck = {e for e in range(count) if not end >> e & 1}
    if not found.stuck:
        found.left = {(str(c.core), c.id) for c in sources if rises(c, end) > waits[c].bit_count()}
    for a in range(count):
        for b in range(a + 1, count):
            if not {a, b} & found.stuck and not (needs[a] >> b & 1 or needs[b] >> a & 1) and _conflict(graph, a, b):
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
