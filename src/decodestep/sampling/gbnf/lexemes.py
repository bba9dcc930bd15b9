"""Which parts of a GBNF grammar may be read as one lexeme without changing the grammar's texts.

llama.cpp follows every way to read a text, character by character. llguidance reads lexemes: of those allowed at a place it
takes the longest, whether or not the rest of the text fits it. Both accept the same texts if, wherever a text may end one
lexeme, no lexeme that begins at the same place can be read on with the first byte of what may follow. Large lexemes make masks
fast; one that breaks this rule is replaced by its parts, in the end by single characters, none of which goes on where another
ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import product

from decodestep.sampling.gbnf.automaton import Automaton
from decodestep.sampling.gbnf.grammar import MOST_NODES, Grammar, TooMuchWorkError
from decodestep.sampling.gbnf.syntax import Name, Node, Repeat, Sequence


def lexemes_of(rules: dict[str, Node], start: Name) -> frozenset[Node]:
    """The parts of rules that are one lexeme each; characters outside of them are one each too.

    start: a name outside of the rules. A grammar that takes too much work is read character by character.
    """
    grammar = Grammar(rules)
    if not math.isinf(grammar.sizes[rules[start.rule]]):
        return frozenset({start})
    replaced: set[Node] = set()
    try:
        while wrong := (choice := _Choice(grammar, start, replaced)).wrong():
            replaced |= wrong
    except TooMuchWorkError:
        return frozenset()
    return frozenset(choice.lexemes)


class _Choice:
    """The largest parts without recursion that are not to be replaced, and which of them may follow one another."""

    def __init__(self, grammar: Grammar, start: Name, replaced: set[Node]) -> None:
        self._grammar = grammar
        self._start = start
        self._automata: dict[Node, Automaton] = {}
        self._users: dict[Node, list[tuple[Node, int]]] = {start: []}  # of each node: which part it is of which nodes
        self.lexemes: dict[Node, int] = {}  # and their numbers
        nodes: list[Node] = [start]
        while nodes:
            node = nodes.pop()
            grammar.work()
            if node not in replaced and not math.isinf(grammar.sizes.get(node, math.inf)):
                self.lexemes[node] = len(self.lexemes)
                continue
            for number, part in enumerate(grammar.parts(node)):
                if part not in self._users:
                    self._users[part] = []
                    nodes.append(part)
                self._users[part].append((node, number))
        self._next = {lexeme: self._first(self._followers(lexeme)) for lexeme in self.lexemes}
        self._next_leads = {lexeme: grammar.leads(following) for lexeme, following in self._next.items()}

    def wrong(self) -> set[Node]:
        """The lexemes that could be read on where another may end."""
        wrong: set[Node] = set()
        seen: set[tuple[Node, Node]] = set()
        first = self._first([self._start])
        groups = [(first, first)]
        while groups:
            for pair in product(*groups.pop()):
                self._grammar.work()
                a, b = sorted(pair, key=self.lexemes.__getitem__)
                if (a, b) not in seen:
                    seen.add((a, b))
                    longer, equal = self._compare(a, b)
                    wrong |= longer
                    if equal:
                        groups.append((self._next[a], self._next[b]))
        return wrong

    def _compare(self, a: Node, b: Node) -> tuple[set[Node], bool]:
        """Of two lexemes that begin at the same place: which can be read on where the other ends, and whether both can end."""
        if a is b and not self._next[a]:
            return set(), True
        if not self._grammar.leads([a]) & self._grammar.leads([b]):
            return set(), False
        large = {lexeme for lexeme in (a, b) if self._grammar.sizes[lexeme] > MOST_NODES}
        if large:
            return large, True
        longer: set[Node] = set()
        equal = False
        first, second = self._automaton(a), self._automaton(b)
        seen: set[tuple[int, int]] = set()
        todo = [(first.first, second.first)]
        while todo:
            for p, q in product(*todo.pop()):
                self._grammar.work()
                if (p, q) in seen or not first.leads[p] & second.leads[q]:
                    continue
                seen.add((p, q))
                todo.append((first.follow[p], second.follow[q]))
                if p in first.last and q in second.last:
                    equal = True
                if p in first.last and second.goes_on[q] & self._next_leads[a]:
                    longer.add(b)
                if q in second.last and first.goes_on[p] & self._next_leads[b]:
                    longer.add(a)
        return longer, equal

    def _automaton(self, lexeme: Node) -> Automaton:
        if lexeme not in self._automata:
            self._automata[lexeme] = Automaton(lexeme, self._grammar.rules)
        return self._automata[lexeme]

    def _first(self, nodes: Iterable[Node]) -> set[Node]:
        return self._grammar.first(nodes, self.lexemes.__contains__)

    def _followers(self, lexeme: Node) -> list[Node]:
        """The nodes that may come right after a lexeme, some of which have the empty text."""
        followers: list[Node] = []
        seen = {lexeme}
        ended = [lexeme]
        while ended:
            node = ended.pop()
            for user, number in self._users[node]:
                self._grammar.work()
                if isinstance(user, Sequence):
                    after = user.parts[number + 1 :]
                    followers += self._grammar.beginning(after)
                    if not self._grammar.empty.issuperset(after):
                        continue
                elif isinstance(user, Repeat) and user.most != 1:
                    followers.append(node)
                if user not in seen:
                    seen.add(user)
                    ended.append(user)
        return followers
