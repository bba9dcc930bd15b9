"""Vector clocks: which events precede an event in every interleaving that the flags allow.

clock[e][t] is the number of events of thread t without which e cannot happen. Within a core, and for a counter with a single
source, it is the maximum over e's predecessors. A wait for the n-th increment of a counter with several sources can be
satisfied by any n increments: it needs event x exactly if fewer than n increments are possible without x. Therefore each
component of its clock is the n-th smallest of the increments' clocks. The same holds for the k-th set of a flag that a core
sets from several pipes. Increments may prove possible only later in an execution, so these clocks are lowered until they
converge.
"""

from __future__ import annotations

import numpy as np

from decodestep.npu_schedule.graph import Counter, Graph, Source

_NEVER = np.iinfo(np.int32).max


class Clocks:
    """The clocks of a graph's events; `order` is an execution of it, in which stuck events are missing."""

    def __init__(self, graph: Graph, order: list[int]) -> None:
        self.graph = graph
        events = graph.events
        self.thread = np.array([e.thread for e in events], np.int32)
        self.rank = np.array([e.rank for e in events], np.int32)
        self.clock = np.full((len(events), len(graph.threads)), _NEVER, np.int32)
        self._simple = [_simple(graph, source) for source in graph.sources]
        # For a counter with one source whose setters each use one pipe, the n-th sets cause the n-th increment.
        while self._lower(order):
            pass

    def _lower(self, order: list[int]) -> bool:
        """One pass in the order of an execution. Returns whether another one may lower clocks."""
        graph, clock, changed, settled = self.graph, self.clock, False, True
        for event in order:
            e = graph.events[event]
            own = np.zeros(clock.shape[1], np.int32)
            for earlier in graph.before[event]:
                np.maximum(own, clock[earlier], out=own)
            taking = graph.takes.get(event)
            if taking is not None:
                sources = graph.sources_of[taking[0]]
                if len(sources) == 1 and self._simple[sources[0]]:
                    for sets in graph.sources[sources[0]].setters.values():
                        np.maximum(own, clock[sets[taking[1] - 1]], out=own)
                else:
                    settled = False
                    np.maximum(own, self._before_increment(*taking), out=own)
            own[e.thread] = max(own[e.thread], e.rank + 1)
            if not np.array_equal(own, clock[event]):
                clock[event], changed = own, True
        return changed and not settled

    def _before_increment(self, counter: Counter, n: int) -> np.ndarray:
        """What must have happened before the counter's n-th increment."""
        increments = [self._rounds(self.graph.sources[index]) for index in self.graph.sources_of[counter]]
        smallest: np.ndarray = np.sort(np.concatenate(increments), axis=0)[n - 1]
        return smallest

    def _rounds(self, source: Source) -> np.ndarray:
        """(rounds, threads): what must have happened before each round of a source is complete."""
        rounds = min(len(sets) for sets in source.setters.values())
        every = [np.sort(self.clock[sets], axis=0)[:rounds] for sets in source.setters.values()]
        made: np.ndarray = np.maximum.reduce(every)
        return made

    def before(self, first: np.ndarray, then: np.ndarray) -> np.ndarray:
        """Whether each event of `first` precedes the corresponding one of `then` in every interleaving."""
        return self.clock[then, self.thread[first]] > self.rank[first]

    def highest(self, counter: Counter, waits: list[int]) -> int:
        """The highest value that a counter can have in any interleaving; `waits` are those of its core, in their order."""
        increments = [self._rounds(self.graph.sources[index]) for index in self.graph.sources_of[counter]]
        clocks = np.concatenate(increments) if increments else np.zeros((0, self.clock.shape[1]), np.int32)
        clocks = clocks[clocks.max(axis=1, initial=0) < _NEVER]
        # Before wait k, k - 1 have been taken, and all increments that do not depend on it may have happened.
        held = [int((clocks[:, self.thread[w]] <= self.rank[w]).sum()) - k for k, w in enumerate(waits)]
        return max([*held, len(clocks) - len(waits)])


def _simple(graph: Graph, source: Source) -> bool:
    return all(len({graph.events[s].thread for s in sets}) <= 1 for sets in source.setters.values())
