"""Executions of a graph: its events in an order that the flags allow.

Counters belong to cores, and only its own core lowers a counter. Therefore no event makes another impossible: an event that is
enabled stays enabled until it happens, and all interleavings execute the same events. That is why one run finds every
deadlock, and why `clocks` holds for all interleavings.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

from decodestep.npu_schedule.graph import Counter, Graph


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
        return [event for event, missing in enumerate(self.missing) if missing == 0 and self._is_enabled(event)]

    def execute(self, event: int) -> list[int]:
        """Executes an event. Returns the events that it enables."""
        return self.finish(event) + self.signal(event)

    def finish(self, event: int) -> list[int]:
        """The effects of an event on its own core."""
        ready = []
        for later in self.after[event]:
            self.missing[later] -= 1
            if self.missing[later] == 0 and self._is_enabled(later):
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

    def _is_enabled(self, event: int) -> bool:
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
