"""Which parts of a GBNF grammar may be read as one lexeme without changing the grammar's texts.

llama.cpp follows every way to read a text, character by character. llguidance reads lexemes: of those allowed at a place it
takes the longest, whether or not the rest of the text fits it. Both accept the same texts if, wherever a text may end one
lexeme, no lexeme that begins at the same place can be read on with the first byte of what may follow. Large lexemes make masks
fast; one that breaks this rule is replaced by its parts, in the end by single characters, none of which goes on where another
ends.
"""

from __future__ import annotations

import math

from decodestep.constraints.gbnf.bits import meeting, members_of, union
from decodestep.constraints.gbnf.grammar import Grammar, TooMuchWorkError
from decodestep.constraints.gbnf.nodes import Name, Node, Repeat, Sequence, parts_of


def lexemes_of(rules: dict[str, Node], start: Name) -> frozenset[Node]:
    """The parts of rules that are one lexeme each; characters outside of them are one each too.

    start: a name outside of the rules. A grammar that takes too much work is read character by character.
    """
    grammar = Grammar(rules)
    if not math.isinf(grammar.sizes[rules[start.rule]]):
        return frozenset({start})
    replaced: set[Node] = set()
    try:
        while wrong := (choice := _Lexemes(grammar, start, replaced)).wrong():
            replaced |= wrong
    except TooMuchWorkError:
        return frozenset()
    return frozenset(choice.all)


class _Lexemes:
    """The largest parts without recursion that are not to be replaced, and which of them may follow one another.

    Lexemes of one class are written alike and followed by the same ones.
    """

    def __init__(self, grammar: Grammar, start: Name, replaced: set[Node]) -> None:
        self._grammar = grammar
        self._users: dict[Node, list[tuple[Node, int]]] = {start: []}  # of each node: which part it is of which nodes
        self.all: set[Node] = set()
        nodes: list[Node] = [start]
        while nodes:
            node = nodes.pop()
            grammar.work()
            if node not in replaced and not math.isinf(grammar.sizes.get(node, math.inf)):
                self.all.add(node)
                continue
            for number, part in enumerate(parts_of(node, grammar.rules)):
                if part not in self._users:
                    self._users[part] = []
                    nodes.append(part)
                self._users[part].append((node, number))
        self._first = grammar.first([start], self.all)
        self._classes: dict[tuple[int, frozenset[Node]], list[Node]] = {}  # and what follows their lexemes
        for lexeme in self.all:
            following = frozenset(grammar.first(self._followers(lexeme), self.all))
            self._classes.setdefault((grammar.key(lexeme), following), []).append(lexeme)

    def wrong(self) -> set[Node]:
        """The lexemes that could be read on where another may end."""
        grammar, members = self._grammar, list(self._classes.values())
        bit = {lexeme: 1 << each for each, lexemes in enumerate(members) for lexeme in lexemes}  # sets of classes are integers
        following = [union(bit[lexeme] for lexeme in lexemes) for _, lexemes in self._classes]
        next_leads = [union(map(grammar.leads, lexemes)) for _, lexemes in self._classes]
        meets = meeting([grammar.leads(lexemes[0]) for lexemes in members])
        first = union(bit[lexeme] for lexeme in self._first)
        wrong: set[int] = set()
        compared = [0] * len(members)
        groups = {(first, first)}  # of classes that may begin at the same place
        todo = list(groups)
        while todo:
            group, others = todo.pop()
            for a in members_of(group):
                for b in members_of(others & meets[a] & ~compared[a]):
                    grammar.work()
                    compared[a] |= 1 << b
                    compared[b] |= 1 << a
                    if a == b and not following[a]:
                        continue
                    shared = grammar.overlap(members[a][0], members[b][0])
                    if shared.first_goes_on & next_leads[b]:
                        wrong.add(a)
                    if shared.second_goes_on & next_leads[a]:
                        wrong.add(b)
                    after = following[a], following[b]
                    if shared.equal and after not in groups:
                        groups.add(after)
                        todo.append(after)
        return {lexeme for each in wrong for lexeme in members[each]}

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
