"""Typed access to a model file's metadata: a value of the wrong type or out of range raises ModelError.

A key that is missing has the default, or raises ModelError if that is None. Ranges are closed: [least, most].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from decodestep._base.checks import describe, is_int, is_real
from decodestep.errors import ModelError

Metadata = Mapping[str, Any]


def text(data: Metadata, key: str, default: str | None = None) -> str:
    value = data.get(key, default)
    if not isinstance(value, str):
        refuse(key, "a string", value)
    return value


def flag(data: Metadata, key: str, default: bool) -> bool:
    value = data.get(key, default)
    if not isinstance(value, bool):
        refuse(key, "true or false", value)
    return value


def integer(data: Metadata, key: str, default: int | None = None, *, least: int = 1, most: int) -> int:
    value = data.get(key, default)
    if not (is_int(value) and least <= value <= most):
        refuse(key, f"an integer in [{least}, {most}]", value)
    return int(value)


def number(data: Metadata, key: str, default: float | None = None, *, least: float, most: float) -> float:
    value = data.get(key, default)
    if not (is_real(value) and least <= value <= most):  # NaN is in no range
        refuse(key, f"a number in [{least:g}, {most:g}]", value)
    return float(value)


def texts(data: Metadata, key: str) -> list[str]:
    """An array of strings; empty if the file has none."""
    value = data.get(key, [])
    if not (isinstance(value, list) and set(map(type, value)) <= {str}):
        refuse(key, "an array of strings", value)
    return value


def numbers(data: Metadata, key: str, length: int, *, integers: bool = False) -> np.ndarray | None:
    """An array of `length` finite numbers; None if the file has none."""
    value = data.get(key)
    if value is None:
        return None
    array = np.asarray(value) if isinstance(value, np.ndarray) or _are_numbers(value) else np.empty(0, object)
    if array.ndim != 1 or array.dtype.kind not in ("iu" if integers else "iuf") or len(array) != length:
        refuse(key, f"an array of {length} {'integers' if integers else 'numbers'}", value)
    if not np.isfinite(array).all():
        refuse(key, "finite", value)
    return array


def _are_numbers(value: object) -> bool:
    return isinstance(value, list) and all(map(is_real, value))


def refuse(key: str, rule: str, value: object) -> NoReturn:
    """Raises the ModelError; value: what the file has, None if it lacks the key."""
    if value is None:
        raise ModelError(f"metadata {key} is missing")
    raise ModelError(
        f"metadata {key} must be {rule}; got {f'{len(value)} items' if isinstance(value, list) else describe(value)}"
    )
