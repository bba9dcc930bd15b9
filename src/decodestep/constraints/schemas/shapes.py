"""Shapes: sets of JSON values of one type. A schema is the union of some."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

_WIDEST = 2**53  # integers up to here are exact as float64
FARTHEST = 2**63 - 2**10  # the last float64 within int64: llguidance has no range beyond

All: TypeAlias = tuple[int, ...]  # parts of a schema, all of which a value satisfies; () is every value


def form(value: object) -> str:
    """A text that two values have in common if JSON Schema takes them as equal."""
    return json.dumps(_plain(value), sort_keys=True)


def _plain(value: object) -> Any:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@dataclass(frozen=True, eq=False)
class Constant:
    """One value."""

    value: Any

    @cached_property
    def form(self) -> str:
        return form(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constant) and self.form == other.form

    def __hash__(self) -> int:
        return hash(self.form)


def is_exact(bound: float, *, above: bool) -> bool:
    """Whether the numbers that llguidance allows are on the right side of a bound, which it has as float64 and int64."""
    kept = max(-FARTHEST, min(int(float(bound)), FARTHEST)) if math.isfinite(bound) and abs(bound) >= _WIDEST else bound
    return kept >= bound if above else kept <= bound


@dataclass(frozen=True)
class Number:
    """Numbers between two, which may be excluded, that are multiples of others."""

    whole: bool = False
    least: float = -math.inf
    above: bool = False  # not the least itself
    most: float = math.inf
    below: bool = False  # not the most itself
    multiples: tuple[float, ...] = ()

    @property
    def whole_range(self) -> tuple[float, float]:
        """The first and last whole number; infinite where there is no bound."""
        first = self.least if math.isinf(self.least) else math.floor(self.least) + 1 if self.above else math.ceil(self.least)
        last = self.most if math.isinf(self.most) else math.ceil(self.most) - 1 if self.below else math.floor(self.most)
        return first, last

    @property
    def empty(self) -> bool:
        if self.whole:
            first, last = self.whole_range
            return first > last
        return self.least > self.most or (self.least == self.most and (self.above or self.below))


@dataclass(frozen=True)
class String:
    """Strings of a length in characters, of all these patterns and formats, without some."""

    least: int = 0
    most: int | None = None
    patterns: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    without: frozenset[str] = frozenset()

    @property
    def empty(self) -> bool:
        return self.most is not None and self.least > self.most


@dataclass(frozen=True)
class ArrayPart:
    """What one schema says of the items: the first ones each, and all others."""

    first: tuple[int, ...] = ()
    others: int | None = None


@dataclass(frozen=True)
class Array:
    parts: tuple[ArrayPart, ...] = ()
    least: int = 0
    most: int | None = None
    unique: bool = False
    contains: tuple[tuple[int, int, int | None], ...] = ()  # a part, how many items satisfy it at least and at most
    without: frozenset[Constant] = frozenset()


@dataclass(frozen=True)
class ObjectPart:
    """What one schema says of the members: those of a name, those of a pattern, and all others; None where it says nothing."""

    properties: tuple[tuple[str, int], ...] = ()
    patterns: tuple[tuple[str, int], ...] = ()
    others: int | None = None
    lists: bool = False  # whether its properties are those that objects are meant to have


@dataclass(frozen=True)
class Object:
    parts: tuple[ObjectPart, ...] = ()
    required: tuple[str, ...] = ()
    least: int = 0
    most: int | None = None
    names: All = ()
    without: frozenset[Constant] = frozenset()


Shape: TypeAlias = Constant | Number | String | Array | Object
Shapes: TypeAlias = tuple[Shape, ...]

ALL_TYPES: dict[str, Shapes] = {
    "null": (Constant(None),),
    "boolean": (Constant(False), Constant(True)),
    "integer": (Number(whole=True),),
    "number": (Number(),),
    "string": (String(),),
    "array": (Array(),),
    "object": (Object(),),
}
EVERY: Shapes = tuple(shape for name, shapes in ALL_TYPES.items() if name != "integer" for shape in shapes)


def type_of(value: object) -> str:
    """The name of a value's type; "number" for whole numbers too."""
    if value is None:
        return "null"
    names = ((bool, "boolean"), ((int, float), "number"), (str, "string"), (list, "array"))
    return next((name for kinds, name in names if isinstance(value, kinds)), "object")


def united(*several: Shapes) -> Shapes:
    """The shapes of all, each once."""
    return tuple(dict.fromkeys(shape for shapes in several for shape in shapes))
