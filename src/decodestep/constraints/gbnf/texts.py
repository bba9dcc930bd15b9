"""Which parts of a GBNF grammar have a text at all, or the empty text, and the grammar without those that have none."""

from __future__ import annotations

from collections.abc import Callable

from decodestep.constraints.gbnf.nodes import Characters, Choice, Node, Repeat, Sequence, choice_of, nodes_of, parts_of


def with_texts(rules: dict[str, Node]) -> dict[str, Node]:
    """The rules without what has no text, such as a rule that always leads to itself; ValueError if that is the root.

    Otherwise a text could be begun that cannot be ended.
    """
    alive = _holding(rules, lambda node: isinstance(node, Characters) and node.ranges != ())
    if rules["root"] not in alive:
        raise ValueError("one that no text satisfies")

    def living(node: Node) -> Node:
        if isinstance(node, Repeat):
            empty = node.part not in alive or node.most == 0
            return Sequence(()) if empty else Repeat(living(node.part), node.least, node.most)
        if isinstance(node, Choice):
            return choice_of([living(part) for part in node.parts if part in alive])
        return Sequence(tuple(map(living, node.parts))) if isinstance(node, Sequence) else node

    return {name: living(node) for name, node in rules.items() if node in alive}


def with_the_empty_text(rules: dict[str, Node]) -> set[Node]:
    """The nodes that have the empty text."""
    return _holding(rules, lambda _: False)


def _holding(rules: dict[str, Node], holds: Callable[[Node], bool]) -> set[Node]:
    """The nodes of which something holds that holds of sequences of such nodes, of choices with one, and of no repetition."""
    missing: dict[Node, int] = {}  # of a node: how many of its parts are yet to be found
    users: dict[Node, list[Node]] = {}
    found: list[Node] = []
    for node in nodes_of(*rules.values()):
        parts = parts_of(node, rules)
        missing[node] = len(parts) if isinstance(node, Sequence) else 1
        if holds(node) or missing[node] == 0 or (isinstance(node, Repeat) and node.least == 0):
            found.append(node)
        for part in parts:
            users.setdefault(part, []).append(node)
    holding: set[Node] = set()
    while found:
        node = found.pop()
        if node not in holding:
            holding.add(node)
            for user in users.get(node, ()):
                missing[user] -= 1
                if missing[user] == 0:
                    found.append(user)
    return holding
