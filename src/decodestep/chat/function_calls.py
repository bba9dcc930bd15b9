"""Calls of Python functions with the arguments that a model has written."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections import abc
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from decodestep._base.checks import Phrase, refuse
from decodestep.chat.function_schemas import annotations_of, fields_of, unwrapped

_OP = "chat"


def call_function(function: Callable[..., Any], arguments: str | Mapping[str, Any]) -> Any:
    """Calls a function that is a tool, and returns its result.

    Args:
        function: as for `describe_function`.
        arguments: of the call, JSON text as in `Completion.tool_calls`, or the object that it is. Values become what the
            annotations say: members of enumerations, dataclasses, models of Pydantic, tuples and sets.

    Raises:
        RequestError: a ValueError, for arguments that are no JSON object, or values that are none of their types.
        Exception: what the function raises, a TypeError if it is given other arguments than it has.
    """
    name = getattr(function, "__name__", type(function).__name__)
    given = arguments
    if isinstance(arguments, str):
        try:
            given = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            refuse(_OP, "arguments", f"of {name} as JSON", Phrase(str(error)))
    if not isinstance(given, Mapping):
        refuse(_OP, "arguments", f"of {name} as a JSON object", given)
    kinds = annotations_of(name, function)
    return function(**{key: _converted(value, kinds.get(key, Any)) for key, value in given.items()})


def _converted(value: object, kind: object) -> Any:
    """A value of JSON as its type has it; as it is where the type has nothing of its own."""
    kind, _ = unwrapped(kind)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    plain = origin or kind
    if origin in (typing.Union, types.UnionType):
        return _first_of(value, arguments)
    if isinstance(plain, type) and issubclass(plain, Enum):
        return _made(plain, value)
    if hasattr(plain, "model_validate"):
        return plain.model_validate(value)
    if _has_fields(plain) and isinstance(plain, type) and isinstance(value, Mapping):
        kinds = {field.name: field.kind for field in fields_of(plain)}
        members = {key: _converted(item, kinds.get(key, Any)) for key, item in value.items()}
        return _made(plain, **members) if dataclasses.is_dataclass(plain) else members
    if isinstance(value, list):
        return _converted_list(value, plain, arguments)
    if isinstance(value, dict) and len(arguments) == 2:
        return {key: _converted(item, arguments[1]) for key, item in value.items()}
    return float(value) if plain is float and type(value) is int else value


def _converted_list(value: list[Any], plain: object, arguments: tuple[Any, ...]) -> Any:
    if plain is tuple and arguments and arguments[-1] is not Ellipsis:
        return tuple(_converted(item, kind) for item, kind in zip(value, arguments, strict=False))
    items = [_converted(item, arguments[0]) for item in value] if arguments else value
    if plain in (tuple, set, frozenset):
        return plain(items)
    return set(items) if plain is abc.Set else items


def _first_of(value: object, kinds: tuple[Any, ...]) -> Any:
    """A value as the first type of a union that has it; as it is if none has."""
    for kind in kinds:
        if _fits(value, kind):
            try:
                return _converted(value, kind)
            except (ValueError, TypeError):
                continue
    return value


def _fits(value: object, kind: object) -> bool:
    """Whether a value of JSON may be one of a type, as far as its own type tells."""
    kind, _ = unwrapped(kind)
    plain = typing.get_origin(kind) or kind
    if plain in (str, int, float, bool, types.NoneType):
        return type(value) is plain or (plain is float and type(value) is int)
    if isinstance(value, dict):
        return plain in (dict, abc.Mapping) or hasattr(plain, "model_validate") or _has_fields(plain)
    if isinstance(plain, type) and issubclass(plain, Enum):
        return True
    return isinstance(value, list) == (isinstance(plain, type) and issubclass(plain, abc.Iterable))


def _has_fields(plain: object) -> bool:
    return dataclasses.is_dataclass(plain) or typing.is_typeddict(plain)


def _made(kind: type, *values: object, **fields: object) -> Any:
    try:
        return kind(*values, **fields)
    except (TypeError, ValueError) as error:
        refuse(_OP, "arguments", f"such that those of type {kind.__name__} are its values", Phrase(str(error)))
