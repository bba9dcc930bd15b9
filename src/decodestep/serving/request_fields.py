"""The fields of a request: their types, and refusals that name them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from decodestep.serving.errors import refusal, too_long


def texts(value: object) -> Iterator[str]:
    """All that a template may write of a JSON value, without brackets and quotes."""
    if isinstance(value, dict):
        yield from value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from texts(item)
    else:
        yield str(value)


def require_short(texts: Sequence[str], most: int, name: str) -> None:
    """Refuses texts that cannot fit the context, before they are tokenized."""
    if sum(map(len, texts)) > most:
        raise too_long(name, f"{name} must be shorter than the context")


def object_field(body: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise refusal(name, "an object")
    return value


def bool_field(body: Mapping[str, Any], name: str) -> bool | None:
    value = body.get(name)
    if not isinstance(value, bool | None):
        raise refusal(name, "a bool")
    return value


def list_field(body: Mapping[str, Any], name: str) -> Sequence[Any]:
    value = body.get(name)
    if not isinstance(value, list) or not value:
        raise refusal(name, "a non-empty list")
    return value
