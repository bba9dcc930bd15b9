"""The nodes of a GBNF grammar: what its rules consist of. Nodes are told apart by identity, not by content."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

SURROGATES = (0xD800, 0xDFFF)  # code points that are no characters
Range: TypeAlias = tuple[int, int]


@dataclass(frozen=True, eq=False, slots=True)
class Characters:
    """One character of a range: first and last code points, in ascending order, without those of surrogates."""

    ranges: tuple[Range, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Sequence:
    """A text of each part, one after the other."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Choice:
    """A text of one of the parts."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Repeat:
    """From `least` to `most` texts of a part, one after the other; None: to any number."""

    part: Node
    least: int
    most: int | None


@dataclass(frozen=True, eq=False, slots=True)
class Name:
    """A text of the rule of this name."""

    rule: str


Node: TypeAlias = Characters | Sequence | Choice | Repeat | Name


def parts_of(node: Node, rules: Mapping[str, Node] | None = None) -> tuple[Node, ...]:
    """The nodes that a node consists of; with the rules, that of a name is its rule's."""
    if isinstance(node, Name):
        return () if rules is None else (rules[node.rule],)
    if isinstance(node, Repeat):
        return (node.part,)
    return node.parts if isinstance(node, Sequence | Choice) else ()


def nodes_of(*nodes: Node) -> Iterator[Node]:
    """These nodes and all that they consist of."""
    left = list(nodes)
    while left:
        node = left.pop()
        left += parts_of(node)
        yield node


def choice_of(parts: list[Node]) -> Node:
    """A choice without choices in it, and with one part for all characters: llguidance fails for some like a | (a | b)."""
    flat = [inner for part in parts for inner in (part.parts if isinstance(part, Choice) else (part,))]
    ranges = [each for part in flat if isinstance(part, Characters) for each in part.ranges]
    merged: list[Node] = [part for part in flat if not isinstance(part, Characters)]
    if len(merged) < len(flat):
        merged.append(Characters(united(ranges)))
    return merged[0] if len(merged) == 1 else Choice(tuple(merged))


def sequence_of(parts: list[Node]) -> Node:
    """A sequence, or the only part itself."""
    return parts[0] if len(parts) == 1 else Sequence(tuple(parts))


def united(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """The ranges of all characters that are in one of these."""
    return others_than(others_than(ranges))


def others_than(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """The ranges of all characters that are in none of these."""
    others: list[Range] = []
    code = 0
    for first, last in [*sorted([*ranges, SURROGATES]), (sys.maxunicode + 1, sys.maxunicode + 1)]:
        if code < first:
            others.append((code, first - 1))
        code = max(code, last + 1)
    return tuple(others)
