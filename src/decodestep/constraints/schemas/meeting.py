"""Values of two shapes at once, and whether a value is of a shape."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any, TypeVar

from decodestep.constraints.schemas.document import Document
from decodestep.constraints.schemas.formats import PATTERNS
from decodestep.constraints.schemas.patterns import Patterns
from decodestep.constraints.schemas.shapes import All, Array, Constant, Number, Object, Shape, Shapes, String, type_of, united

Item = TypeVar("Item")
_NAMES = {Number: "number", String: "string", Array: "array", Object: "object"}


def _smaller(one: int | None, other: int | None) -> int | None:
    return min((each for each in (one, other) if each is not None), default=None)


class Meeting:
    """Intersections. shapes_of: the shapes of parts that hold at once."""

    def __init__(self, shapes_of: Callable[[All], Shapes], document: Document, patterns: Patterns) -> None:
        self._shapes_of, self._document, self._patterns = shapes_of, document, patterns

    def both(self, ones: Shapes, others: Shapes) -> Shapes:
        """The shapes of the values that are of one of both."""
        return united(
            self._constants_of(ones, others),
            self._constants_of(others, ones),
            tuple(
                found
                for one in ones
                if not isinstance(one, Constant)
                for other in others
                if not isinstance(other, Constant) and (found := self._meet(one, other)) is not None
            ),
        )

    def meet(self, ones: Shapes, others: Shapes) -> bool:
        """Whether a value is of both, as far as that can be seen; True where it cannot."""
        return any(not self._never(shape) for shape in self.both(ones, others))

    def without(self, shapes: Shapes, values: list[Any]) -> Shapes:
        """The shapes without some values."""
        found: list[Shape] = list(shapes)
        for value in map(Constant, values):
            found = [each for shape in found for each in self._leave_out(shape, value)]
        return tuple(found)

    def holds(self, value: Any, parts: All) -> bool:
        """Whether a value satisfies all of these parts."""
        return any(self.is_of(value, shape) for shape in self._shapes_of(parts))

    def is_of(self, value: Any, shape: Shape) -> bool:
        if isinstance(shape, Constant):
            return shape == Constant(value)
        if type_of(value) != _NAMES[type(shape)]:
            return False
        if isinstance(shape, Number):
            return _is_number_of(value, shape)
        if isinstance(shape, String):
            return self._is_string_of(value, shape)
        if Constant(value) in shape.without:
            return False
        return self._is_array_of(value, shape) if isinstance(shape, Array) else self._is_object_of(value, shape)

    def value_parts(self, shape: Object, name: str) -> All:
        """The parts that the value of a member satisfies."""
        found: list[int] = []
        for part in shape.parts:
            own = [each for known, each in part.properties if known == name]
            own += [each for pattern, each in part.patterns if self._patterns.matches(pattern, name)]
            found += own or ([] if part.others is None else [part.others])
        return self._document.combined(found)

    def item_parts(self, shape: Array, place: int) -> All:
        """The parts that the item at a place satisfies."""
        found: list[int] = []
        for part in shape.parts:
            found += [part.first[place]] if place < len(part.first) else [] if part.others is None else [part.others]
        return self._document.combined(found)

    def _constants_of(self, ones: Shapes, others: Shapes) -> Shapes:
        """The constants of one side that are of the other. There may be thousands on both."""
        alike = {each for each in others if isinstance(each, Constant)}
        wider = [each for each in others if not isinstance(each, Constant)]
        constants = (each for each in ones if isinstance(each, Constant))
        return tuple(each for each in constants if each in alike or any(self.is_of(each.value, shape) for shape in wider))

    def _meet(self, one: Shape, other: Shape) -> Shape | None:
        if isinstance(one, Number) and isinstance(other, Number):
            return _both_numbers(one, other)
        if isinstance(one, String) and isinstance(other, String):
            return _both_strings(one, other)
        if isinstance(one, Array) and isinstance(other, Array):
            return _both_arrays(one, other)
        return _both_objects(one, other) if isinstance(one, Object) and isinstance(other, Object) else None

    def _never(self, shape: Shape) -> bool:
        """Whether a shape has no value because two of its required members, or first items, cannot be had: what tells the sides
        of a oneOf apart."""
        if isinstance(shape, Object):
            return any(not self._some(self.value_parts(shape, name)) for name in shape.required)
        if isinstance(shape, Array):
            return any(not self._some(self.item_parts(shape, place)) for place in range(min(shape.least, 8)))
        return False

    def _some(self, parts: All) -> bool:
        """Whether there are shapes; one level deep, since what is within may lead back here."""
        return bool(self._shapes_of(parts))

    def _leave_out(self, shape: Shape, value: Constant) -> list[Shape]:
        if not self.is_of(value.value, shape):
            return [shape]
        if isinstance(shape, Constant):
            return []
        if isinstance(shape, Number):
            halves = (Number(most=value.value, below=True), Number(least=value.value, above=True))
            return [found for half in halves if (found := self._meet(shape, half)) is not None]
        if isinstance(shape, String):
            return [replace(shape, without=shape.without | {value.value})]
        return [replace(shape, without=shape.without | {value})]

    def _is_string_of(self, value: str, shape: String) -> bool:
        fits = shape.least <= len(value) and (shape.most is None or len(value) <= shape.most)
        expressions = (*shape.patterns, *map(PATTERNS.__getitem__, shape.formats))
        return fits and value not in shape.without and all(self._patterns.matches(each, value) for each in expressions)

    def _is_array_of(self, value: list[Any], shape: Array) -> bool:
        if not (shape.least <= len(value) and (shape.most is None or len(value) <= shape.most)):
            return False
        if shape.unique and len(set(map(Constant, value))) < len(value):
            return False
        for part, least, most in shape.contains:
            count = sum(self.holds(each, (part,)) for each in value)
            if count < least or (most is not None and count > most):
                return False
        return all(self.holds(each, self.item_parts(shape, place)) for place, each in enumerate(value))

    def _is_object_of(self, value: dict[str, Any], shape: Object) -> bool:
        if not (shape.least <= len(value) and (shape.most is None or len(value) <= shape.most)):
            return False
        if not set(shape.required) <= value.keys() or not all(self.holds(name, shape.names) for name in value):
            return False
        return all(self.holds(each, self.value_parts(shape, name)) for name, each in value.items())


def _both_numbers(one: Number, other: Number) -> Number | None:
    least, above = max((one.least, one.above), (other.least, other.above))
    most, with_most = min((one.most, not one.below), (other.most, not other.below))
    found = Number(one.whole or other.whole, least, above, most, not with_most, _joined(one.multiples, other.multiples))
    return None if found.empty else found


def _both_strings(one: String, other: String) -> String | None:
    least, most = max(one.least, other.least), _smaller(one.most, other.most)
    patterns, formats = _joined(one.patterns, other.patterns), _joined(one.formats, other.formats)
    found = String(least, most, patterns, formats, one.without | other.without)
    return None if found.empty else found


def _both_arrays(one: Array, other: Array) -> Array | None:
    least, most = max(one.least, other.least), _smaller(one.most, other.most)
    if most is not None and least > most:
        return None
    parts, contains = _joined(one.parts, other.parts), _joined(one.contains, other.contains)
    return Array(parts, least, most, one.unique or other.unique, contains, one.without | other.without)


def _both_objects(one: Object, other: Object) -> Object | None:
    least, most = max(one.least, other.least), _smaller(one.most, other.most)
    required = _joined(one.required, other.required)
    if most is not None and max(least, len(required)) > most:
        return None
    parts, names = _joined(one.parts, other.parts), _joined(one.names, other.names)
    return Object(parts, required, least, most, names, one.without | other.without)


def _joined(ones: tuple[Item, ...], others: tuple[Item, ...]) -> tuple[Item, ...]:
    """The items of both, each once."""
    return tuple(dict.fromkeys(ones + others))


def _is_number_of(value: float, shape: Number) -> bool:
    if shape.whole and value != math.floor(value):
        return False
    if (
        value < shape.least
        or value > shape.most
        or (shape.above and value == shape.least)
        or (shape.below and value == shape.most)
    ):
        return False
    return all((Fraction(repr(value)) / Fraction(repr(step))).denominator == 1 for step in shape.multiples)
