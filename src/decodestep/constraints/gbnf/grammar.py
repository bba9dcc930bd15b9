"""What follows from the rules of a GBNF grammar, whatever its lexemes are: sizes, beginnings, overlaps."""

from __future__ import annotations

import math
from collections.abc import Container, Hashable, Iterable, Iterator

from decodestep.constraints.gbnf.automaton import Automaton, Overlap, leads_of, overlap
from decodestep.constraints.gbnf.bits import union
from decodestep.constraints.gbnf.nodes import Characters, Name, Node, Repeat, Sequence, nodes_of, parts_of
from decodestep.constraints.gbnf.texts import with_the_empty_text

_MOST_NODES = 300  # of an expression that is written out for its automaton
_ANY_BYTE = -1  # all bits
_MOST_WORK = 500_000  # steps, about a second


class TooMuchWorkError(Exception):
    """A grammar takes more steps than anybody should wait for."""


class Grammar:
    """The rules, with counted work: methods raise TooMuchWorkError after so many steps in all.

    sizes: of each node the number of nodes of its expression without names, at most _MOST_NODES + 1; inf if it leads to a rule
    that leads to itself. empty: the nodes that have the empty text.
    """

    def __init__(self, rules: dict[str, Node]) -> None:
        self.rules = rules
        self.sizes = _sizes(rules)
        self.empty = with_the_empty_text(rules)
        self._left = _MOST_WORK
        self._keys: dict[Node, int] = {}
        self._numbers: dict[Hashable, int] = {}  # of the keys
        self._leads: dict[int, int] = {}
        self._automata: dict[int, Automaton] = {}
        self._overlaps: dict[tuple[int, int], Overlap] = {}

    def work(self) -> None:
        """Counts a step."""
        self._left -= 1
        if self._left < 0:
            raise TooMuchWorkError

    def beginning(self, parts: tuple[Node, ...]) -> tuple[Node, ...]:
        """Of parts one after the other those with which a text may begin: up to the first without the empty text."""
        for number, part in enumerate(parts, 1):
            self.work()
            if part not in self.empty:
                return parts[:number]
        return parts

    def first(self, nodes: Iterable[Node], among: Container[Node] = ()) -> set[Node]:
        """The nodes `among` these, else the characters, with which a text of one of `nodes` may begin."""
        found: set[Node] = set()
        seen: set[Node] = set()
        todo = list(nodes)
        while todo:
            node = todo.pop()
            if node in seen:
                continue
            seen.add(node)
            self.work()
            if node in among or isinstance(node, Characters):
                found.add(node)
            else:
                todo += self.beginning(node.parts) if isinstance(node, Sequence) else parts_of(node, self.rules)
        return found

    def leads(self, node: Node) -> int:
        """The first bytes of a node's texts, a bit each."""
        key = self.key(node)
        if key not in self._leads:
            self._leads[key] = union(leads_of(one) for one in self.first([node]) if isinstance(one, Characters))
        return self._leads[key]

    def overlap(self, a: Node, b: Node) -> Overlap:
        """What two nodes without recursion have in common; everything with one that is too large for its automaton."""
        if max(self.sizes[a], self.sizes[b]) > _MOST_NODES:
            return Overlap(True, *(_ANY_BYTE if self.sizes[node] > _MOST_NODES else 0 for node in (a, b)))
        keys = self.key(a), self.key(b)
        if keys not in self._overlaps:
            self._overlaps[keys] = overlap(self._automaton(a), self._automaton(b), self.work)
        return self._overlaps[keys]

    def key(self, node: Node) -> int:
        """A number, equal for nodes that are the same name, the same characters or the same literal."""
        if node not in self._keys:
            self._keys[node] = self._numbers.setdefault(_spelling(node), len(self._numbers))
        return self._keys[node]

    def _automaton(self, node: Node) -> Automaton:
        key = self.key(node)
        if key not in self._automata:
            self._automata[key] = Automaton(node, self.rules)
        return self._automata[key]


def _spelling(node: Node) -> Hashable:
    if isinstance(node, Name):
        return node.rule
    if isinstance(node, Characters):
        return node.ranges
    if isinstance(node, Sequence) and all(isinstance(part, Characters) for part in node.parts):
        return tuple(map(_spelling, node.parts))
    return node


def _sizes(rules: dict[str, Node]) -> dict[Node, float]:
    sizes: dict[Node, float] = {}

    def measure(node: Node) -> float:
        size = 1 + (sizes.get(rules[node.rule], math.inf) if isinstance(node, Name) else sum(map(measure, parts_of(node))))
        if isinstance(node, Repeat):
            size *= max(node.least, node.most or 1)
        sizes[node] = size if math.isinf(size) else min(size, _MOST_NODES + 1)
        return sizes[node]

    for name in _from_the_leaves(rules):
        measure(rules[name])
    return sizes


def _from_the_leaves(rules: dict[str, Node]) -> Iterator[str]:
    """The names of all rules: each that does not lead to recursion after those that it names, then the others."""
    named = {name: {each.rule for each in nodes_of(node) if isinstance(each, Name)} for name, node in rules.items()}
    users: dict[str, list[str]] = {name: [] for name in rules}
    for user, names in named.items():
        for name in names:
            users[name].append(user)
    ready = [name for name, names in named.items() if not names]
    while ready:
        name = ready.pop()
        yield name
        for user in users[name]:
            named[user].remove(name)
            if not named[user]:
                ready.append(user)
    yield from (name for name, names in named.items() if names)
