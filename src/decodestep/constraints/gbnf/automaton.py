"""The finite automaton of a part of a GBNF grammar that does not lead to itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

from decodestep.constraints.gbnf.bits import union
from decodestep.constraints.gbnf.nodes import Characters, Choice, Name, Node, Repeat


@dataclass
class _Ends:
    """Of an expression: the states of its first and of its last characters, and whether the empty text is one of its texts."""

    first: set[int] = field(default_factory=set)
    last: set[int] = field(default_factory=set)
    empty: bool = True


class Automaton:
    """A state for each character of an expression, entered by reading that character (Glushkov's automaton).

    leads[p]: the first bytes of state p's characters; characters of one first byte count as equal here. follow[p]: the states
    that can be entered from p. goes_on[p]: their first bytes. first, last: the states of the first and of the last characters.
    A byte is a bit.
    """

    def __init__(self, node: Node, rules: dict[str, Node]) -> None:
        self._rules = rules
        self.leads: list[int] = []
        self.follow: list[set[int]] = []
        ends = self._add(node)
        self.first, self.last = ends.first, ends.last
        self.goes_on = [union(self.leads[state] for state in states) for states in self.follow]

    def _add(self, node: Node) -> _Ends:
        if isinstance(node, Characters):
            self.leads.append(leads_of(node))
            self.follow.append(set())
            state = {len(self.leads) - 1}
            return _Ends(state, state, empty=False)
        if isinstance(node, Name):
            return self._add(self._rules[node.rule])
        if isinstance(node, Repeat):
            return self._repeated(node)
        ends = [self._add(part) for part in node.parts]
        if isinstance(node, Choice):
            first, last = set().union(*(e.first for e in ends)), set().union(*(e.last for e in ends))
            return _Ends(first, last, any(e.empty for e in ends))
        whole = _Ends()
        for part in ends:
            whole = self._joined(whole, part)
        return whole

    def _repeated(self, node: Repeat) -> _Ends:
        """The least number of copies, then one that follows itself, or others within each other: x(x(x)?)?"""
        rest, copies = _Ends(), node.least
        if node.most is None:
            rest, copies = self._add(node.part), max(node.least - 1, 0)
            self._joined(rest, rest)
            rest.empty |= node.least == 0
        for _ in range((node.most or 0) - node.least):
            rest = self._joined(self._add(node.part), rest)
            rest.empty = True
        for _ in range(copies):
            rest = self._joined(self._add(node.part), rest)
        return rest

    def _joined(self, a: _Ends, b: _Ends) -> _Ends:
        for state in a.last:
            self.follow[state] |= b.first
        return _Ends(a.first | b.first if a.empty else a.first, a.last | b.last if b.empty else b.last, a.empty and b.empty)


class Overlap(NamedTuple):
    """What two expressions have in common, read from the same place.

    equal: whether a text of one may be one of the other. first_goes_on, second_goes_on: the first bytes, a bit each, with which
    one can be read on where a text of the other ends.
    """

    equal: bool
    first_goes_on: int
    second_goes_on: int


def overlap(first: Automaton, second: Automaton, step: Callable[[], None]) -> Overlap:
    """Reads both at once; calls `step` for each pair of states."""
    equal, first_goes_on, second_goes_on = False, 0, 0
    seen: set[tuple[int, int]] = set()
    todo = [(first.first, second.first)]
    while todo:
        for p, q in product(*todo.pop()):
            step()
            if (p, q) in seen or not first.leads[p] & second.leads[q]:
                continue
            seen.add((p, q))
            todo.append((first.follow[p], second.follow[q]))
            equal |= p in first.last and q in second.last
            if q in second.last:
                first_goes_on |= first.goes_on[p]
            if p in first.last:
                second_goes_on |= second.goes_on[q]
    return Overlap(equal, first_goes_on, second_goes_on)


def leads_of(characters: Characters) -> int:
    """The first bytes of the characters in UTF-8, a bit each: ranges of code points have ranges of first bytes."""
    leads = 0
    for first, last in characters.ranges:
        low, high = (chr(code).encode()[0] for code in (first, last))
        leads |= (2 << high) - (1 << low)
    return leads
