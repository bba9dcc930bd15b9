"""JSON in function calls: how it is parsed, and the schemas that constrain it. Parsing raises `UnreadableError`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any


class UnreadableError(ValueError):
    """The text looks like calls but cannot be parsed."""


def _finite(text: str) -> float:
    """A number of JSON, which has no infinity and no NaN, though Python reads and writes them."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


# The types of JSON Schema that a value of Python's has, the narrowest first.
_TYPES: Mapping[type, tuple[str, ...]] = {
    bool: ("boolean",),
    int: ("integer", "number"),
    float: ("number",),
    str: ("string",),
    list: ("array",),
    dict: ("object",),
    type(None): ("null",),
}
_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)


def parse(text: str) -> Any:
    """The JSON value that a text is, between spaces."""
    found, rest = first_json(text.strip())
    if rest:
        raise UnreadableError
    return found


def first_json(text: str) -> tuple[Any, str]:
    """The JSON value at the start of a text, and the rest."""
    try:
        found, end = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        raise UnreadableError from None
    return found, text[end:]


def marked_json(text: str, mark: str, end: str) -> tuple[Any, str]:
    """The JSON value at the start of a text, which may contain the mark itself, and the rest from the next mark on.

    Only what follows `end` may stand between the two; nothing may if it is "".
    """
    found, rest = first_json(text.lstrip())
    between, found_mark, rest = rest.partition(mark)
    if (between.partition(end)[0] if end else between).strip():
        raise UnreadableError
    return found, found_mark + rest


def call_in(found: Any) -> tuple[str, Any]:
    """The name and the arguments of a call that is written as one JSON object."""
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        raise UnreadableError
    return found["name"], arguments_in(found)


def arguments_in(found: Mapping[str, Any]) -> Any:
    """The arguments of a call that is written as one JSON object."""
    return read_arguments(found.get("arguments", found.get("parameters")))


def read_arguments(given: Any) -> Any:
    """A call's arguments, also from JSON as text, which OpenAI's interface has and some models write. {} for null and an empty
    text, as a call of a function without parameters may have them."""
    arguments = parse(given) if isinstance(given, str) and given else given
    return {} if arguments in (None, "") else arguments


def call_schema(name: str, key: str, schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a call as an object; the arguments' schema gets an $id, so that "#" in it still refers to its own root."""
    inner = {"$id": f"tool:{name}", **schema}
    whole = {"type": "object", "properties": {"name": {"const": name}, key: inner}, "required": ["name", key]}
    return {**whole, "additionalProperties": False}


def properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    found = schema.get("properties")
    return found if isinstance(found, dict) else {}


def constrained_arguments(schema: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The arguments of a constrained call, each with its schema: the required ones, or all if the schema does not say."""
    known, required = properties(schema), schema.get("required")
    names = [name for name in known if name in required] if isinstance(required, list) else list(known)
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    return [(name, {**known[name], **shared} if isinstance(known[name], dict) else {}) for name in names]


def tagged_form(schema: dict[str, Any]) -> dict[str, Any] | re.Pattern[str]:
    """The form of a value between tags: a string without quotes, anything else as JSON."""
    values = _values(schema)
    if values and all(isinstance(value, str) for value in values):
        # Within the slashes of a Lark expression, on one line: re.escape leaves a slash, and a line's end after a backslash.
        return re.compile("|".join(re.escape(value).replace("/", r"\/").replace("\n", "n") for value in values))
    return re.compile(r"[^<]+") if schema.get("type") == "string" else schema


def tagged_value(text: str, schema: Any) -> Any:
    """The value between tags: verbatim if a string is expected or it is not JSON, else parsed. Where a string may stand too, it
    is one if the schema does not allow what it would be as JSON."""
    types = _types(schema)
    if types == {"string"}:
        return text
    try:
        value = parse(text)
    except UnreadableError:
        return text
    return text if "string" in types and types.isdisjoint(_TYPES[type(value)]) else value


def _types(schema: Any) -> set[str]:
    """The types of the values that a schema allows, as far as it says so."""
    if not isinstance(schema, dict):
        return set()
    given = schema.get("type")
    if given is not None:
        return {name for name in (given if isinstance(given, list) else [given]) if isinstance(name, str)}
    lists = [found for key in ("anyOf", "oneOf") if isinstance(found := schema.get(key), list)]
    of_values = [_TYPES[type(value)][0] for value in _values(schema)]
    return set().union(of_values, *(_types(each) for found in lists for each in found))


def _values(schema: Mapping[str, Any]) -> list[Any]:
    """The values that a schema lists; [] if it lists none."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return values if isinstance(values, list) else []
