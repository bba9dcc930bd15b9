"""How the keywords of `SamplingParams` become its fields."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache, wraps
from inspect import signature
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from decodestep._base.checks import refuse, require
from decodestep.sampling.field_aliases import rename_fields
from decodestep.sampling.rules import RULES

_Init = TypeVar("_Init", bound=Callable[..., None])
_Class = TypeVar("_Class", bound=type)
_Fields = ParamSpec("_Fields")
_Object = TypeVar("_Object")


def sets_fields(op: str, check: Callable[[Any], None]) -> Callable[[_Init], _Init]:
    """Makes of a signature the `__init__` of a dataclass that sets the fields, each as its rule holds it.

    The signature is for editors and type checkers, and has the defaults. Its own body would not know which keywords were given:
    of two names of one field, the one that has its default might be meant. check: called with the object, for what several
    fields must be together.
    """

    def decorate(declared: _Init) -> _Init:
        @wraps(declared)
        def init(self: Any, *positional: object, **given: object) -> None:
            defaults = read_defaults(self.__class__)
            named = {**_named(op, positional, defaults, given), **given}
            for name, value in (defaults | rename_fields(named, defaults.keys())).items():
                # A default is legal and held as it is: a test says so of each.
                held = value if value is defaults[name] else RULES[name].take(op, name, value, defaults[name])
                object.__setattr__(self, name, held)
            check(self)

        return cast("_Init", init)

    return decorate


def takes_fields(
    init: Callable[Concatenate[Any, _Fields], None],
) -> Callable[[Callable[..., _Object]], Callable[Concatenate[_Object, _Fields], _Object]]:
    """Gives a method the keywords of `init`, for editors and type checkers: each may be left out."""
    return lambda method: method


def _named(op: str, positional: tuple[object, ...], defaults: Mapping[str, Any], given: Mapping[str, object]) -> dict[str, Any]:
    """Positional arguments, which were fields in their order before all had names."""
    if positional:
        warnings.warn(f"{op}: positional arguments are deprecated; name them", DeprecationWarning, stacklevel=3)
    require(len(positional) <= len(defaults), op, "the positional arguments", f"at most {len(defaults)}", len(positional))
    named = dict(zip(defaults, positional, strict=False))
    for name in named.keys() & given.keys():
        refuse(op, name, "given once", given[name])
    return named


def with_defaults(cls: _Class) -> _Class:
    """The class with the defaults of its `__init__` as attributes, where `dataclass` looks for those of the fields."""
    for name, parameter in signature(cls.__init__).parameters.items():  # type: ignore[misc]
        if name in cls.__annotations__:
            setattr(cls, name, parameter.default)
    return cls


@cache
def read_defaults(cls: type[Any]) -> dict[str, Any]:
    return {each.name: each.default for each in fields(cls)}
