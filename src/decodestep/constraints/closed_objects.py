"""Objects without other properties than those that a schema names, where it does not say whether there may be others.

JSON Schema allows any others, and a small model then writes property after property until its tokens are used up. So other
compilers of schemas, as those of llama.cpp and xgrammar, read an object with `properties` as closed unless it says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

Schema = dict[str, Any]

# What says of an object whether it may have other properties.
_SAYS = ("additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames")
_NAMES = ("properties", "patternProperties", "required")


def close_objects(parts: Iterable[Schema], named: Callable[[object], object]) -> None:
    """Closes the objects of a schema, unless it says of one that it has other properties: by a keyword, by what is required, or
    where several schemas of one object name properties, each of which would forbid those of the others.

    parts: the schema, and all those within it, which are changed. named: what a reference names.
    """
    objects = {id(each): each for each in parts}
    groups = {key: [*_groups(each, named)] for key, each in objects.items()}
    naming = _reaching((key for key, each in objects.items() if any(name in each for name in _NAMES)), groups)
    shared: list[Schema] = []
    for key, each in objects.items():
        found = [group for group in groups[key] if any(id(member) in naming for member in group)]
        own = any(name in each for name in _NAMES)
        if len(found) + own > 1:
            shared += [each, *(member for group in found for member in group)]
        shared += [member for name in ("not", "if") if isinstance(member := each.get(name), dict)]
    left_open = _reached(shared, groups)
    for key, each in objects.items():
        if key not in left_open and _is_closed(each):
            each["additionalProperties"] = False


def _is_closed(schema: Schema) -> bool:
    """Whether nothing in a schema itself says that its objects have properties that it does not name."""
    properties, required, least = schema.get("properties"), schema.get("required", []), schema.get("minProperties", 0)
    if not isinstance(properties, dict) or not properties or any(name in schema for name in _SAYS):
        return False
    needs_others = not isinstance(required, list) or any(name not in properties for name in required)
    return not needs_others and isinstance(least, (int, float)) and least <= len(properties)


def _groups(schema: Schema, named: Callable[[object], object]) -> Iterator[list[Schema]]:
    """The schemas of the same value that hold beside each other, each with its alternatives."""
    for name in ("anyOf", "oneOf"):
        yield _schemas(schema.get(name))
    yield _schemas([schema.get("then"), schema.get("else")])
    dependent = schema.get("dependentSchemas")
    beside = [*_schemas(schema.get("allOf")), *_schemas([*dependent.values()] if isinstance(dependent, dict) else [])]
    for each in [*beside, *_schemas([named(schema.get("$ref"))])]:
        yield [each]


def _schemas(value: object) -> list[Schema]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _reaching(ends: Iterable[int], groups: dict[int, list[list[Schema]]]) -> set[int]:
    """The schemas that hold one of `ends` in place, which count too."""
    holders: dict[int, list[int]] = {}
    for key, found in groups.items():
        for member in (each for group in found for each in group):
            holders.setdefault(id(member), []).append(key)
    reached, waiting = set[int](), list(ends)
    while waiting:
        key = waiting.pop()
        if key not in reached:
            reached.add(key)
            waiting += holders.get(key, ())
    return reached


def _reached(starts: list[Schema], groups: dict[int, list[list[Schema]]]) -> set[int]:
    """These schemas and those that they hold in place."""
    reached, waiting = set[int](), list(starts)
    while waiting:
        each = waiting.pop()
        if id(each) not in reached:
            reached.add(id(each))
            waiting += [member for group in groups.get(id(each), ()) for member in group]
    return reached
