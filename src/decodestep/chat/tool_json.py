"""JSON in function calls: how it is parsed, and the schemas that constrain it. Parsing raises `UnreadableError`."""

from __future__ import annotations

import json
import math
from typing import Any


class UnreadableError(ValueError):
    """The text looks like calls but cannot be parsed."""


def _finite(text: str) -> float:
    """A number of JSON, which has no infinity and no NaN, though Python reads and writes them."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)


def parse(text: str) -> Any:
    """The JSON value that a text is, between spaces."""
    try:
        return _DECODER.decode(text.strip())
    except (ValueError, RecursionError):
        raise UnreadableError from None


def call_in(found: object) -> tuple[str, Any]:
    """The name and the arguments of a call that is written as one JSON object."""
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        raise UnreadableError
    return found["name"], read_arguments(found.get("arguments", found.get("parameters")))


def read_arguments(given: object) -> Any:
    """A call's arguments, also from JSON as text, which OpenAI's interface has and some models write. {} for null and an empty
    text, as a call of a function without parameters may have them."""
    arguments = parse(given) if isinstance(given, str) and given else given
    return {} if arguments in (None, "") else arguments


def call_schema(name: str, key: str, schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a call as an object; the arguments' schema gets an $id, so that "#" in it still refers to its own root."""
    inner = {"$id": f"tool:{name}", **schema}
    whole = {"type": "object", "properties": {"name": {"const": name}, key: inner}, "required": ["name", key]}
    return {**whole, "additionalProperties": False}
