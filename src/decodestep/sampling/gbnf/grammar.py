"""What follows from the rules of a GBNF grammar alone: sizes, empty texts, beginnings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from operator import or_

from decodestep.sampling.gbnf.automaton import leads_of
from decodestep.sampling.gbnf.syntax import Characters, Name, Node, Repeat, Sequence, parts_of
from decodestep.sampling.gbnf.texts import with_the_empty_text

MOST_NODES = 300  # from which on a size is not counted further
_MOST_WORK = 300_000  # steps, a few tenths of a second


class TooMuchWorkError(Exception):
    """A grammar takes more steps than anybody should wait for."""


class Grammar:
    """The rules, with counted work: methods raise TooMuchWorkError after so many steps in all.

    sizes: of each node the number of nodes of its expression without names, at most MOST_NODES + 1; inf if it leads to a rule
    that leads to itself. empty: the nodes that have the empty text.
    """

    def __init__(self, rules: dict[str, Node]) -> None:
        self.rules = rules
        self.sizes = _sizes(rules)
        self.empty = with_the_empty_text(rules)
        self._left = _MOST_WORK

    def work(self) -> None:
        """Counts a step."""
        self._left -= 1
        if self._left < 0:
            raise TooMuchWorkError

    def parts(self, node: Node) -> tuple[Node, ...]:
        """The nodes that a node consists of; of a name its rule's."""
        return (self.rules[node.rule],) if isinstance(node, Name) else parts_of(node)

    def beginning(self, parts: tuple[Node, ...]) -> tuple[Node, ...]:
        """Of parts one after the other those with which a text may begin: up to the first without the empty text."""
        for number, part in enumerate(parts, 1):
            self.work()
            if part not in self.empty:
                return parts[:number]
        return parts

    def first(self, nodes: Iterable[Node], among: Callable[[Node], bool]) -> set[Node]:
        """The nodes `among` those wanted with which a text of one of `nodes` may begin."""
        found: set[Node] = set()
        seen: set[Node] = set()
        todo = list(nodes)
        while todo:
            node = todo.pop()
            if node in seen:
                continue
            seen.add(node)
            self.work()
            if among(node):
                found.add(node)
            else:
                todo += self.beginning(node.parts) if isinstance(node, Sequence) else self.parts(node)
        return found

    def leads(self, nodes: Iterable[Node]) -> int:
        """The first bytes of the texts of nodes, a bit each."""
        characters = self.first(nodes, lambda node: isinstance(node, Characters))
        return reduce(or_, (leads_of(node) for node in characters if isinstance(node, Characters)), 0)


def _sizes(rules: dict[str, Node]) -> dict[Node, float]:
    sizes: dict[Node, float] = {}

    def measure(node: Node) -> float:
        size = 1 + (sizes.get(rules[node.rule], math.inf) if isinstance(node, Name) else sum(map(measure, parts_of(node))))
        if isinstance(node, Repeat):
            size *= max(node.least, node.most or 1)
        sizes[node] = size if math.isinf(size) else min(size, MOST_NODES + 1)
        return sizes[node]

    for name in _from_the_leaves(rules):
        measure(rules[name])
    return sizes


def _from_the_leaves(rules: dict[str, Node]) -> Iterator[str]:
    """The names of all rules: each that does not lead to recursion after those that it names, then the others."""
    named = {name: set(_names(node)) for name, node in rules.items()}
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


def _names(node: Node) -> Iterator[str]:
    nodes = [node]
    while nodes:
        node = nodes.pop()
        nodes += parts_of(node)
        if isinstance(node, Name):
            yield node.rule
