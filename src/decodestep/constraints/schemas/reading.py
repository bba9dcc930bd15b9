"""A schema read as the shapes that its values have."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from decodestep._base.checks import is_real
from decodestep.constraints.schemas.document import Document, Mark
from decodestep.constraints.schemas.formats import LONGEST, PATTERNS, UNSUPPORTED
from decodestep.constraints.schemas.meeting import Meeting
from decodestep.constraints.schemas.negation import negated
from decodestep.constraints.schemas.patterns import Patterns
from decodestep.constraints.schemas.shapes import (
    ALL_TYPES,
    EVERY,
    All,
    Array,
    ArrayPart,
    Constant,
    Number,
    Object,
    ObjectPart,
    Shape,
    Shapes,
    String,
    is_exact,
    united,
)

_MOST_SHAPES = 512  # of one place, beside constants
_FARTHEST = 10**100  # of numbers within bounds; a bound beyond is none
_MOST_DEEP = 60  # keywords within each other that are read at once


class Reader:
    """The shapes of a schema's parts, found when they are asked for."""

    def __init__(self, document: Document, patterns: Patterns) -> None:
        self.document = document
        self._found: dict[int, Shapes] = {}
        self._open: list[int] = []  # the parts that are being read
        self.meeting = Meeting(self.shapes, document, patterns)

    def shapes(self, parts: All) -> Shapes:
        """The shapes of the values that satisfy all of these parts."""
        found = EVERY
        for part in parts:
            found = self._both(part, found, self._of(part))
        return found

    def _of(self, part: int) -> Shapes:
        if part not in self._found:
            if part in self._open or len(self._open) > _MOST_DEEP:
                self.document.refuse(part, "", "free of references that lead back to it without an item or a member between")
            self._open.append(part)
            try:
                self._found[part] = self._read(part)
            finally:
                self._open.pop()
        return self._found[part]

    def _both(self, part: int, one: Shapes, other: Shapes) -> Shapes:
        found = self.meeting.both(one, other)
        if sum(not isinstance(each, Constant) for each in found) > _MOST_SHAPES:
            self.document.refuse(part, "", f"of at most {_MOST_SHAPES} kinds of values")
        return found

    def _read(self, part: int) -> Shapes:
        document, schema = self.document, self.document.schemas[part]
        if isinstance(schema, bool):
            return EVERY if schema else ()
        if "$ref" in schema:
            target = document.target(part)
            if document.ref_alone:
                return self._of(target)
        _refuse_unknown(document, part)
        found = _typed(document, part)
        for key in ("const", "enum"):
            if key in schema:
                values = [schema[key]] if key == "const" else schema[key]
                if not isinstance(values, list):
                    document.refuse(part, key, "a list of values")
                found = self._both(part, united(tuple(map(Constant, values))), found)
        if Mark.WITHOUT in schema:
            found = self.meeting.without(found, schema[Mark.WITHOUT])
        if "$ref" in schema:
            found = self._both(part, found, self._of(target))
        for key, joined in _JOINING.items():
            if key in schema:
                found = self._both(part, found, joined(self, part))
        for implied in _implications(document, part):
            found = self._both(part, found, self._of(implied))
        return found

    def all_of(self, part: int) -> Shapes:
        return self.shapes(tuple(self.children(part, "allOf")))

    def any_of(self, part: int) -> Shapes:
        return united(*map(self._of, self.children(part, "anyOf")))

    def one_of(self, part: int) -> Shapes:
        """Those of each, if no two meet; otherwise those of each that are of no other."""
        several = self.children(part, "oneOf")
        apart = [self._of(each) for each in several]
        if not any(self.meeting.meet(one, other) for i, one in enumerate(apart) for other in apart[:i]):
            return united(*apart)
        found: Shapes = ()
        for i, each in enumerate(several):
            others = (negated(self.document, other) for other in several[:i] + several[i + 1 :])
            found = united(found, self.shapes((each, *others)))
        return found

    def not_(self, part: int) -> Shapes:
        return self._of(negated(self.document, self.document.child(part, "not")))

    def if_(self, part: int) -> Shapes:
        """Those of `if` and `then`, and those of `else` that are not of `if`."""
        schema, condition = self.document.schemas[part], self.document.child(part, "if")
        sides = [self.document.child(part, key) if key in schema else None for key in ("then", "else")]
        if sides == [None, None]:
            return EVERY
        first = self.shapes((condition, *([] if sides[0] is None else [sides[0]])))
        rest = self.shapes((negated(self.document, condition), *([] if sides[1] is None else [sides[1]])))
        return united(first, rest)

    def children(self, part: int, key: str) -> list[int]:
        if not isinstance(self.document.schemas[part][key], list) or not self.document.schemas[part][key]:
            self.document.refuse(part, key, "a list of schemas")
        return [self.document.child(part, key, i) for i in range(len(self.document.schemas[part][key]))]


_JOINING: dict[str, Callable[[Reader, int], Shapes]] = {
    "allOf": Reader.all_of,
    "anyOf": Reader.any_of,
    "oneOf": Reader.one_of,
    "not": Reader.not_,
    "if": Reader.if_,
}


def _refuse_unknown(document: Document, part: int) -> None:
    """Refuses keywords that change which values are valid and are not read."""
    schema = document.schemas[part]
    for key in ("$dynamicRef", "$recursiveRef", "extends", "disallow"):
        if key in schema:
            document.refuse(part, "", f"without {key}")
    for key in ("unevaluatedProperties", "unevaluatedItems"):
        if schema.get(key, True) is not True and not _alone(schema, key):
            document.refuse(part, "", f"without {key} beside keywords that join schemas")
    if schema.get("required") is True:  # of draft 3; many write it by mistake
        document.refuse(part, "required", "a list of names")


def _alone(schema: dict[str, Any], key: str) -> bool:
    """Whether an unevaluated keyword means what its additional one does: no other keyword evaluates anything."""
    joining = {"allOf", "anyOf", "oneOf", "not", "if", "$ref", "dependentSchemas", "dependencies", "$dynamicRef", "contains"}
    return not joining & schema.keys() and ("additionalProperties" if key == "unevaluatedProperties" else "items") not in schema


def _typed(document: Document, part: int) -> Shapes:
    """The shapes of the types that a schema allows, with its keywords of each type."""
    schema = document.schemas[part]
    names = schema.get("type", [name for name in ALL_TYPES if name != "integer"])
    several = [names] if isinstance(names, str) else names
    if not isinstance(several, list) or any(not isinstance(name, str) or name not in ALL_TYPES for name in several):
        document.refuse(part, "type", "one or several of JSON Schema's types")
    if "number" in several:
        several = [name for name in several if name != "integer"]
    own: dict[str, Callable[[Document, int], Shape]] = {"string": _string, "array": _array, "object": _object}
    found: list[Shape] = []
    for name in dict.fromkeys(several):
        if name in own:
            found.append(own[name](document, part))
        elif name in ("integer", "number"):
            found.append(_number(document, part, whole=name == "integer"))
        else:
            found += ALL_TYPES[name]
    return tuple(shape for shape in found if not (isinstance(shape, (Number, String)) and shape.empty))


def _number(document: Document, part: int, *, whole: bool) -> Number:
    schema = document.schemas[part]
    step = schema.get("multipleOf")
    if step is not None and not (is_real(step) and step > 0):
        document.refuse(part, "multipleOf", "a number above 0")
    keys = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
    bounds = {key: _bound(document, part, key, wide=whole and step is None) for key in keys}
    low = [
        (value, key == "exclusiveMinimum") for key, value in bounds.items() if "Min" in key or "min" in key if value is not None
    ]
    high = [(-value, key == "exclusiveMaximum") for key, value in bounds.items() if "ax" in key if value is not None]
    least, above = max(low, default=(-math.inf, False))
    most, below = max(high, default=(-math.inf, False))
    return Number(whole, least, above, -most, below, () if step is None else (step,))


def _bound(document: Document, part: int, key: str, *, wide: bool) -> float | None:
    """wide: whether it may have any number of bits."""
    value = document.schemas[part].get(key)
    if isinstance(value, bool) or (value is not None and not is_real(value)):
        document.refuse(part, key, "a number")
    above = key in ("minimum", "exclusiveMinimum")
    if value is not None and abs(value) > _FARTHEST:
        if (value > 0) == above:
            document.refuse(part, key, "a number of at most 100 digits")
        return None
    if value is not None and not wide and not is_exact(value, above=above):
        document.refuse(part, key, "a number of 53 bits")
    return value


def _size(document: Document, part: int, key: str) -> int | None:
    value = document.schemas[part].get(key)
    if value is None:
        return None
    if not is_real(value) or value < 0 or value != int(value):
        document.refuse(part, key, "a whole number of at least 0")
    return int(value)


def _string(document: Document, part: int) -> String:
    schema = document.schemas[part]
    pattern, name = schema.get("pattern"), schema.get("format")
    if pattern is not None and not isinstance(pattern, str):
        document.refuse(part, "pattern", "a string")
    if name in UNSUPPORTED:
        document.refuse(part, "format", f"supported: {name}")
    formats = (name,) if isinstance(name, str) and name in PATTERNS else ()
    least = _size(document, part, "minLength") or 0
    longest = (_size(document, part, "maxLength"), LONGEST.get(name) if formats else None)
    most = min((each for each in longest if each is not None), default=None)
    return String(least, most, () if pattern is None else (pattern,), formats)


def _array(document: Document, part: int) -> Array:
    schema = document.schemas[part]
    key = "prefixItems" if "prefixItems" in schema else "items" if isinstance(schema.get("items"), list) else None
    first = [] if key is None else [document.child(part, key, i) for i in range(len(schema[key]))]
    rest = {"prefixItems": "items", "items": "additionalItems", None: "items"}[key]
    if rest not in schema and "unevaluatedItems" in schema:
        rest = "unevaluatedItems"
    others = document.child(part, rest) if rest in schema else None
    contains: tuple[tuple[int, int, int | None], ...] = ()
    if "contains" in schema:
        least = _size(document, part, "minContains")
        contains = ((document.child(part, "contains"), 1 if least is None else least, _size(document, part, "maxContains")),)
    parts = (ArrayPart(tuple(first), others),) if first or others is not None else ()
    sizes = _size(document, part, "minItems") or 0, _size(document, part, "maxItems")
    return Array(parts, *sizes, unique=schema.get("uniqueItems") is True, contains=contains)


def _object(document: Document, part: int) -> Object:
    schema = document.schemas[part]
    properties, patterns = (_by_name(document, part, key) for key in ("properties", "patternProperties"))
    rest = next((key for key in ("additionalProperties", "unevaluatedProperties") if key in schema), None)
    others = None if rest is None else document.child(part, rest)
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        document.refuse(part, "required", "a list of names")
    names = document.combined([document.child(part, "propertyNames")]) if "propertyNames" in schema else ()
    lists = bool(properties) and not schema.get(Mark.UNLISTED)
    parts = (ObjectPart(properties, patterns, others, lists),) if properties or patterns or others is not None else ()
    sizes = _size(document, part, "minProperties") or 0, _size(document, part, "maxProperties")
    return Object(parts, tuple(dict.fromkeys(required)), *sizes, names)


def _by_name(document: Document, part: int, key: str) -> tuple[tuple[str, int], ...]:
    """The parts under a keyword, by their names."""
    given = document.schemas[part].get(key, {})
    if not isinstance(given, dict):
        document.refuse(part, key, "an object")
    return tuple((name, document.child(part, key, name)) for name in given)


def _implications(document: Document, part: int) -> list[int]:
    """The parts that keywords about what depends on a name imply."""
    schema = document.schemas[part]
    found = []
    for key in ("dependentRequired", "dependentSchemas", "dependencies"):
        given = schema.get(key, {})
        if not isinstance(given, dict):
            document.refuse(part, key, "an object")
        for name, then in given.items():
            also = {"required": [name, *then]} if isinstance(then, list) else {"required": [name], "allOf": [then]}
            without = {Mark.UNLISTED: True, "type": "object", "properties": {name: False}}
            others = [kind for kind in ALL_TYPES if kind not in ("object", "integer")]
            either = {"anyOf": [{"type": others}, without, {"type": "object", **also}]}
            found.append(document.implied(part, f"{key}/{name}", either))
    return found
