"""The values of a schema by the parts that they satisfy at once: their members and items, and whether there are any."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

from decodestep.constraints.schemas.document import Document
from decodestep.constraints.schemas.leaves import (
    beginning,
    embedded,
    name_terminal,
    require_plain,
    string_schema,
)
from decodestep.constraints.schemas.numbers import multiple_schemas
from decodestep.constraints.schemas.patterns import Patterns
from decodestep.constraints.schemas.reading import Reader
from decodestep.constraints.schemas.shapes import All, Array, Constant, Number, Object, Shape, Shapes, String, is_exact
from decodestep.constraints.trial import probe

_MOST_FAMILIES = 5_000
_MOST_PATTERNS = 5  # of the names of one object
_MOST_VALUES = 64  # of items that are unique
# Patterns of names of so few, and so short, are written out: so that no name is written twice.
_FEW, _SHORT = 16, 64


@dataclass
class Names:
    """Names of members that a schema does not list, and the parts that their values satisfy."""

    terminal: str  # of those that do not begin with a listed one
    value: All
    every: str  # the terminal of all of them
    probed: bool  # whether there may be none, or only a few


@dataclass
class Members:
    """What an object may have: listed names in their order, with the parts that their values satisfy, and other names.

    loose: those of the listed names that have no order: they are all that patterns or propertyNames allow.
    """

    listed: dict[str, All]
    required: tuple[str, ...]
    others: list[Names] = field(default_factory=list)
    loose: set[str] = field(default_factory=set)


class Families:
    """All sets of parts that values of a schema satisfy at once.

    closed: whether objects with properties and without additionalProperties have no other members. Where they have, no other
        name begins with that of a property: with an order that it may not have, or once it is written, it could not end there.
    Raises ValueError if no text satisfies the schema, or for what is not supported, with its place.
    """

    def __init__(self, document: Document, patterns: Patterns, *, closed: bool) -> None:
        self.document, self._patterns, self._closed = document, patterns, closed
        self._reader = Reader(document, patterns)
        self.meeting = self._reader.meeting
        self.root: All = document.combined([document.root])
        self.shapes: dict[All, Shapes] = {}
        self.members: dict[Object, Members] = {}
        self._places: dict[Shape, int] = {}  # a part that a shape is of
        self._dead: set[Shape] = set()  # strings and numbers that no text has
        self._explore()
        self._probe()
        self.alive: set[All] = set()
        self._find_alive()
        if self.root not in self.alive:
            document.refuse(document.root, "", "possible to satisfy")

    def refuse(self, shape: Shape, keyword: str, rule: str) -> NoReturn:
        """Raises ValueError: a keyword of the schema that a shape is of must be so."""
        self.document.refuse(self._places[shape], keyword, rule)

    def alive_shapes(self, parts: All) -> list[Shape]:
        return [shape for shape in self.shapes[parts] if self._is_alive(shape)]

    def item(self, shape: Array, place: int) -> All:
        return self.meeting.item_parts(shape, place)

    def containing(self, shape: Array) -> All:
        """The parts of the items that `contains` asks for."""
        return self.document.combined((*self.item(shape, 0), shape.contains[0][0]))

    def prefix(self, shape: Array) -> int:
        """How many items have a schema of their own."""
        return max((len(part.first) for part in shape.parts), default=0)

    def longest(self, shape: Array) -> float:
        """How many items there may be, which is infinite, or less where one has no value."""
        dead = (place for place in range(self.prefix(shape) + 1) if self.item(shape, place) not in self.alive)
        return min(next(dead, math.inf), math.inf if shape.most is None else shape.most)

    def values(self, parts: All) -> list[Any] | None:
        """All values of a family, if they are few scalars or constants; else None."""
        found: list[Any] = []
        for shape in self.shapes[parts]:
            if isinstance(shape, Constant):
                found.append(shape.value)
            elif isinstance(shape, Number) and shape.whole and not shape.multiples:
                first, last = shape.whole_range
                if not last - first < _MOST_VALUES:
                    return None
                found += range(int(first), int(last) + 1)
            else:
                return None
        unique = list({Constant(value): value for value in found}.values())
        return unique if len(unique) <= _MOST_VALUES else None

    def _explore(self) -> None:
        waiting = [self.root]
        while waiting:
            parts = waiting.pop()
            if parts in self.shapes:
                continue
            if len(self.shapes) >= _MOST_FAMILIES:
                self.document.refuse(self.document.root, "", f"of at most {_MOST_FAMILIES} kinds of values at once")
            self.shapes[parts] = self._reader.shapes(parts)
            for shape in self.shapes[parts]:
                self._places.setdefault(shape, parts[-1] if parts else self.document.root)
                waiting += self._children(shape)

    def _children(self, shape: Shape) -> Iterator[All]:
        if isinstance(shape, Array):
            self._check_array(shape)
            yield from (self.item(shape, place) for place in range(self.prefix(shape) + 1))
            if shape.contains:
                yield self.containing(shape)
        elif isinstance(shape, Object):
            members = self.members[shape] = self._members(shape)
            yield from members.listed.values()
            yield from (names.value for names in members.others)
        elif isinstance(shape, Number) and shape.multiples:  # of one schema, and bounds perhaps of another
            self._check_multiples(shape)

    def _check_multiples(self, shape: Number) -> None:
        if not (is_exact(shape.least, above=True) and is_exact(shape.most, above=False)):
            self.refuse(shape, "", "without multipleOf beside bounds of more than 53 bits")

    def _check_array(self, shape: Array) -> None:
        if shape.without:
            self.refuse(shape, "", "without not or oneOf of arrays that other keywords allow")
        if shape.contains:
            beside = self.prefix(shape) > 0 or shape.unique or len(shape.contains) > 1
            if beside:
                self.refuse(shape, "contains", "alone: not beside prefixItems, uniqueItems or another one")
            if shape.contains[0][2] is not None:
                self.refuse(shape, "maxContains", "absent")
        if shape.unique and (shape.most is None or shape.most > 1) and self.prefix(shape):
            self.refuse(shape, "uniqueItems", "false beside prefixItems")

    def _members(self, shape: Object) -> Members:
        place, value = self._places[shape], self.meeting.value_parts
        if shape.without:
            self.refuse(shape, "", "without not or oneOf of objects that other keywords allow")
        names = [name for part in shape.parts for name, _ in part.properties] + list(shape.required)
        allowed = [name for name in dict.fromkeys(names) if self.meeting.holds(name, shape.names)]
        spelled = [each for each in self._reader.shapes(shape.names) if isinstance(each, (String, Constant))]
        given = [each.value for each in spelled if isinstance(each, Constant) and isinstance(each.value, str)]
        closed = self._closed and all(part.others is None for part in shape.parts) and any(part.lists for part in shape.parts)
        patterns = list(dict.fromkeys(pattern for part in shape.parts for pattern, _ in part.patterns))
        if len(patterns) > _MOST_PATTERNS:
            self.refuse(shape, "patternProperties", f"of at most {_MOST_PATTERNS} patterns")
        loose: set[str] = set()
        if not closed or patterns:
            matched = (name for name in given if not closed or any(self._patterns.matches(each, name) for each in patterns))
            loose = set(matched).difference(allowed)
            allowed += sorted(loose, key=given.index)
        found = Members({name: value(shape, name) for name in allowed}, tuple(shape.required), loose=loose)
        missing = [name for name in shape.required if name not in found.listed]
        if missing:  # propertyNames forbids them
            found.listed |= dict.fromkeys(missing, (self.document.implied(place, "propertyNames", False),))
        begun = [name for name in found.listed if name]
        for of_names in (each for each in spelled if isinstance(each, String)):
            for pattern in dict.fromkeys((*patterns, *of_names.patterns)):
                require_plain(pattern, self._patterns.places[pattern])
            for inside in itertools.chain.from_iterable(itertools.combinations(patterns, n) for n in range(len(patterns) + 1)):
                if closed and not inside:
                    continue
                outside = [each for each in patterns if each not in inside]
                every, unlike = (name_terminal(of_names, inside, outside, found.listed, names) for names in ((), begun))
                probed = bool(patterns) or of_names != String()
                found.others.append(Names(unlike, self._value_of(shape, inside), every, probed))
        return found

    def _value_of(self, shape: Object, inside: tuple[str, ...]) -> All:
        """The parts that the values of names satisfy that are of these patterns alone, and that no schema lists."""
        found: list[int] = []
        for part in shape.parts:
            own = [each for pattern, each in part.patterns if pattern in inside]
            found += own or ([] if part.others is None else [part.others])
        return self.document.combined(found)

    def _probe(self) -> None:
        """Asks llguidance which strings and numbers have a text, and which names are few."""
        leaves = list(dict.fromkeys(
            shape for shapes in self.shapes.values() for shape in shapes
            if (isinstance(shape, String) and _may_be_empty(shape)) or (isinstance(shape, Number) and shape.multiples)
        ))  # fmt: skip
        groups = [
            (shape, members, names) for shape, members in self.members.items() for names in members.others if names.probed
        ]
        if not leaves and not groups:
            return
        empty: set[Shape] = {leaf for leaf in leaves if not leaf_schemas(leaf)}
        leaves = [leaf for leaf in leaves if leaf not in empty]
        grammars = [f"start: value\nvalue: {' | '.join(map(embedded, leaf_schemas(leaf)))}" for leaf in leaves]
        grammars += [f"start: NAME\nNAME: {names.terminal}" for _, _, names in groups]
        places = [self._place(leaf, leaf.patterns if isinstance(leaf, String) else ()) for leaf in leaves]
        places += [self._place(shape, self._name_patterns(shape)) for shape, _, _ in groups]
        objects = [f'start: "{{" NAME\nNAME: {names.every}' for _, _, names in groups]
        dead, few = probe(grammars, objects, _FEW, _SHORT, places)
        self._dead = empty | {leaf for leaf, is_dead in zip(leaves, dead, strict=False) if is_dead}
        found: dict[Object, list[str]] = {}
        for (shape, members, names), few_names, is_dead in zip(groups, few, dead[len(leaves) :], strict=True):
            if few_names is not None or is_dead:
                members.others.remove(names)
                members.listed |= dict.fromkeys(few_names or (), names.value)
                members.loose.update(few_names or ())
                found.setdefault(shape, []).extend(few_names or ())
        self._part_from(found)

    def _part_from(self, few: dict[Object, list[str]]) -> None:
        """Leaves names that begin with one of these out of the other names of an object."""
        groups = [(shape, names) for shape, begun in few.items() if begun for names in self.members[shape].others]
        if not groups:
            return
        for shape, names in groups:
            names.terminal += f" & ~({' | '.join(map(beginning, few[shape]))})"
        grammars = [f"start: NAME\nNAME: {names.terminal}" for _, names in groups]
        dead, _ = probe(grammars, [], _FEW, _SHORT, [self._place(shape, self._name_patterns(shape)) for shape, _ in groups])
        for (shape, names), is_dead in zip(groups, dead, strict=True):
            if is_dead:
                self.members[shape].others.remove(names)

    def _place(self, shape: Shape, patterns: Iterable[str]) -> str:
        """Where a shape's patterns are, or itself."""
        found = [self._patterns.places[each] for each in patterns]
        return " or ".join(found) or self.document.paths[self._places[shape]]

    def _name_patterns(self, shape: Object) -> list[str]:
        """The patterns of the names of an object's members."""
        found = [pattern for part in shape.parts for pattern, _ in part.patterns]
        for names in self._reader.shapes(shape.names):
            found += names.patterns if isinstance(names, String) else ()
        return list(dict.fromkeys(found))

    def _find_alive(self) -> None:
        changed = True
        while changed:
            changed = False
            for parts in reversed(self.shapes):
                if parts not in self.alive and any(map(self._is_alive, self.shapes[parts])):
                    self.alive.add(parts)
                    changed = True

    def _is_alive(self, shape: Shape) -> bool:
        if isinstance(shape, Object):
            members = self.members[shape]
            if not all(members.listed[name] in self.alive for name in members.required):
                return False
            count = sum(value in self.alive for value in members.listed.values())
            return count >= shape.least or any(names.value in self.alive for names in members.others)
        if isinstance(shape, Array):
            if shape.contains and shape.contains[0][1] and self.containing(shape) not in self.alive:
                return False
            values = self.values(self.item(shape, 0)) if shape.unique else None
            least = max([shape.least, *(least for _, least, _ in shape.contains)])
            return least <= min(self.longest(shape), math.inf if values is None else len(values))
        return shape not in self._dead


def _may_be_empty(shape: String) -> bool:
    """Whether strings are of a pattern, or of a format and something else, so that there may be none, at a high cost."""
    others = shape.least > 0 or shape.most is not None or bool(shape.without) or len(shape.formats) > 1
    return bool(shape.patterns or (shape.formats and others))


def leaf_schemas(shape: String | Number) -> list[dict[str, Any]]:
    """Of whose texts a string, or a number with multiples, is one."""
    return [string_schema(shape)] if isinstance(shape, String) else multiple_schemas(shape)
