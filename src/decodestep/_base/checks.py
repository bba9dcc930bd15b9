"""Argument checks; an error has the form ``<op>: <arg> must be <rule>; got <what>``, or a sentence where that reads badly."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import Any, NoReturn, Protocol, TypeGuard

import numpy as np

from decodestep.errors import RequestError as RequestError

UINT64 = "an integer in [0, 2^64)"


class Shaped(Protocol):
    """What arrays of NumPy and torch have in common."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> Any: ...


def shape_text(shape: Iterable[int]) -> str:
    """As errors write shapes: 2x3."""
    return "x".join(map(str, shape))


def describe(value: object) -> str:
    """What a caller passed, in a few words: dtype and shape of an array, a short repr of anything else."""
    # NumPy's scalars have both attributes and are shown by value; so have their types, whose attributes are descriptors.
    if hasattr(value, "shape") and hasattr(value, "dtype") and not isinstance(value, (np.generic, type)):
        return f"{value.dtype} {shape_text(value.shape) or 'scalar'}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


class Phrase(str):
    """What an error says it got, in words of its own; a plain string is a value and is quoted."""


def describe_range(values: np.ndarray) -> Phrase:
    """What an error says of numbers of which some are out of bounds."""
    return Phrase(f"{values.min()} to {values.max()}")


def refuse(op: str, arg: str, rule: str, got: object, code: str = "", sentence: str = "") -> NoReturn:
    """Raises RequestError. `got`: the value, which is passed to `describe`, or Words, which are used as they are."""
    raise RequestError(op, arg, rule, got if isinstance(got, Phrase) else describe(got), code, sentence)


def require(ok: bool, op: str, arg: str, rule: str, got: object) -> None:
    """Refuses what is not `ok`: see `refuse`."""
    if not ok:
        refuse(op, arg, rule, got)


def require_shape(op: str, arg: str, array: Shaped, shape: tuple[int, ...]) -> None:
    if tuple(array.shape) != shape:
        refuse(op, arg, f"of shape {shape_text(shape)}", array)


def is_scores(array: np.ndarray, shape: tuple[int, ...]) -> bool:
    """Whether an array may be what a processor returns: real numbers, and no bools, which would be a mask."""
    return array.shape == shape and array.dtype != np.bool_ and np.can_cast(array.dtype, np.float64, "same_kind")


def require_scores(op: str, processor: object, result: np.ndarray, shape: tuple[int, ...]) -> None:
    """What a processor returned is scores of this shape."""
    rule = f"a function to scores of shape {shape_text(shape)}"
    require(is_scores(result, shape), op, type(processor).__name__, rule, result)


def require_dtype(op: str, arg: str, array: Shaped, allowed: Collection[Any]) -> None:
    if array.dtype not in allowed:  # a dtype compares equal to its type and to its name
        refuse(op, arg, " or ".join(np.dtype(d).name for d in allowed), array)


def require_choice(op: str, arg: str, value: object, choices: Collection[Any]) -> None:
    # An array is compared item by item, and what cannot be hashed is not looked up in a mapping.
    is_array = hasattr(value, "shape") and not isinstance(value, np.generic)
    if is_array or value not in tuple(choices):
        refuse(op, arg, f"one of {', '.join(map(repr, choices))}", value)


def is_int(value: object) -> TypeGuard[int]:
    """An integer that is not a bool: True for 3 and np.int64(3), False for True and 3.0."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.bool_))


def is_uint64(value: object) -> TypeGuard[int]:
    """What `UINT64` says."""
    return is_int(value) and 0 <= value < 2**64


def require_seed(op: str, seed: object) -> None:
    require(is_uint64(seed), op, "seed", UINT64, seed)


def ids_below(bound: int, values: object) -> list[int] | None:
    """The values of an ordered iterable or an array as ints; None unless all are integers in [0, bound)."""
    plain = values.tolist() if hasattr(values, "tolist") else values
    # Bytes are text, whatever they iterate over; a set iterates in an order that is nobody's.
    if not isinstance(plain, Iterable) or isinstance(plain, (bytes, bytearray, Set)):
        return None
    ids = list(plain)
    if not {int}.issuperset(map(type, ids)):  # asked first, since it takes no loop in Python: prompts have thousands
        if not all(map(is_int, ids)):
            return None
        ids = [int(i) for i in ids]
    return ids if not ids or (min(ids) >= 0 and max(ids) < bound) else None


def require_within(op: str, arg: str, values: np.ndarray, end: int, kind: str = "") -> None:
    """An array of integers is in [0, end)."""
    if values.size and (values.min() < 0 or values.max() >= end):
        refuse(op, arg, f"{kind} in [0, {end})".lstrip(), describe_range(values))


def require_blocks(op: str, arg: str, table: np.ndarray, lengths: np.ndarray, blocks: int, block_size: int) -> None:
    """Requires the blocks that hold the first lengths[b] entries of each row of a block table to be in [0, blocks)."""
    read = table[np.arange(table.shape[1]) * block_size < lengths[:, None]]
    if read.size and (read.min() < 0 or read.max() >= blocks):
        refuse(op, arg, f"in [0, {blocks}) where it is read", describe_range(read))


def require_ids(op: str, arg: str, bound: int, values: object, kind: str = "token ids") -> list[int]:
    """The values of an ordered iterable or an array as ints; ValueError unless all are integers in [0, bound)."""
    ids = ids_below(bound, values)
    if ids is None:
        refuse(op, arg, f"{kind} in [0, {bound})", values)
    return ids


def require_id_set(op: str, arg: str, bound: int, values: object, kind: str = "token ids") -> frozenset[int]:
    """`require_ids` for values that need no order, so that they may be a set."""
    return frozenset(require_ids(op, arg, bound, list(values) if isinstance(values, Set) else values, kind))


def is_mapping(value: object) -> TypeGuard[Mapping[Any, Any]]:
    """A mapping, of items that are not known: `isinstance` would leave them without a type."""
    return isinstance(value, Mapping)


def is_sequence(value: object) -> TypeGuard[Sequence[Any]]:
    """A sequence, strings included, of items that are not known: as `is_mapping`."""
    return isinstance(value, Sequence)


def is_real(value: object) -> TypeGuard[float]:
    """An integer or a float, NaN and infinities included; not a bool."""
    return is_int(value) or isinstance(value, (float, np.floating))


def is_finite(value: object) -> TypeGuard[float]:
    """A real number (see `is_real`) that is neither NaN nor infinite."""
    try:
        return is_real(value) and math.isfinite(value)
    except OverflowError:  # an integer beyond the floats
        return False
