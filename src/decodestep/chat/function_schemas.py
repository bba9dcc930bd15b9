"""Python functions as tools: their signatures and docstrings as JSON schemas."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import types
import typing
from collections import abc
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, Literal

from decodestep._base.checks import Phrase, refuse
from decodestep._base.signatures import read_signature

_OP = "chat"
_JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", types.NoneType: "null"}
_LISTS = (list, tuple, set, frozenset, abc.Sequence, abc.Iterable, abc.Collection, abc.Set, abc.MutableSequence)
_MAPPINGS = (dict, abc.Mapping, abc.MutableMapping)
_SECTION = re.compile(r"^(Args|Arguments|Parameters|Returns|Return|Yields|Raises|Examples?|Notes?|Attributes|See Also):\s*$")
_ENTRY = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")


def describe_function(function: Callable[..., Any]) -> dict[str, Any]:
    """The definition of a function as a tool, {"type": "function", "function": {"name", "description", "parameters"}}.

    Its parameters' schemas are those of their annotations: str, int, float, bool, None, Any, Literal, enumerations, lists,
    tuples, sets, dicts with str keys, unions, `Annotated` with a description, dataclasses, typed dicts and models of Pydantic.
    Those with a default may be left out. The descriptions are in the docstring: the text before its first section, and the
    entries of its section ``Args:`` in Google's style.

    Raises:
        RequestError: a ValueError, for parameters that cannot be passed by name, or whose types JSON does not have.
    """
    name = getattr(function, "__name__", type(function).__name__)
    described = _Docstring(inspect.getdoc(function) or "")
    schemas = _Schemas(name)
    parameters = schemas.of_fields(_fields(name, function), described.entries)
    return {
        "type": "function",
        "function": {"name": name, "description": described.text, "parameters": schemas.with_definitions(parameters)},
    }


def annotations_of(name: str, owner: Any) -> dict[str, Any]:
    """The types of a function's parameters, or of a class's fields."""
    annotated = owner if isinstance(owner, type) or inspect.isroutine(owner) else owner.__call__
    try:
        return typing.get_type_hints(annotated, include_extras=True)
    except (NameError, TypeError, SyntaxError) as error:
        refuse(_OP, "tools", f"such that the annotations of {name} are types", Phrase(str(error)))


@dataclasses.dataclass(frozen=True)
class _Field:
    """A parameter or a field of a class. default: `inspect.Parameter.empty` if it must be given."""

    name: str
    kind: object
    default: object = inspect.Parameter.empty
    required: bool = True


def _fields(name: str, function: Callable[..., Any]) -> Iterator[_Field]:
    try:
        signature = read_signature(function)
    except (TypeError, ValueError) as error:
        refuse(_OP, "tools", f"such that {name} is a mapping, or a function with a signature", Phrase(str(error)))
    kinds = annotations_of(name, function)
    for parameter in signature.parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            refuse(_OP, "tools", f"such that the parameters of {name} can be passed by name", Phrase(str(parameter)))
        required = parameter.default is parameter.empty
        yield _Field(parameter.name, kinds.get(parameter.name, Any), parameter.default, required)


class _Docstring:
    """text: what comes before the first section. entries: the descriptions in its section of arguments, by their names."""

    def __init__(self, text: str) -> None:
        before: list[str] = []
        self.entries: dict[str, str] = {}
        section, indent, entry = "", 0, ""
        for line in text.splitlines():
            found = _SECTION.match(line)
            if found:
                section, indent, entry = found[1], 0, ""
            elif not section:
                before.append(line)
            elif section in ("Args", "Arguments", "Parameters") and line.strip():
                depth = len(line) - len(line.lstrip())
                indent = indent or depth
                named = _ENTRY.match(line.strip()) if depth <= indent else None
                if named:
                    entry = named[1]
                    self.entries[entry] = named[2].strip()
                elif entry:
                    self.entries[entry] = f"{self.entries[entry]} {line.strip()}".strip()
        self.text = "\n".join(before).strip()


class _Schemas:
    """The schemas of types, for a function with this name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._within: list[type] = []  # the classes whose fields are being described
        self._definitions: dict[str, Any] = {}  # those that models of Pydantic refer to

    def with_definitions(self, schema: dict[str, Any]) -> dict[str, Any]:
        return {**schema, "$defs": self._definitions} if self._definitions else schema

    def of_fields(self, fields: Iterator[_Field], descriptions: Mapping[str, str]) -> dict[str, Any]:
        properties: dict[str, Any] = {}
        required = []
        for field in fields:
            schema = self.of(field.kind)
            if descriptions.get(field.name):
                schema = {**schema, "description": descriptions[field.name]}
            if field.required:
                required.append(field.name)
            elif _is_json(default := field.default.value if isinstance(field.default, Enum) else field.default):
                schema = {**schema, "default": default}
            properties[field.name] = schema
        found = {"type": "object", "properties": properties}
        return {**found, "required": required} if required else found

    def of(self, kind: object) -> dict[str, Any]:
        """The schema of a type."""
        kind, description = unwrapped(kind)
        schema = self._of_bare(kind)
        return {**schema, "description": description} if description else schema

    def _of_bare(self, kind: object) -> dict[str, Any]:
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        plain = origin or kind
        if kind in (Any, object, inspect.Parameter.empty):
            return {}
        if kind is None or (isinstance(kind, type) and kind in _JSON_TYPES):
            return {"type": _JSON_TYPES[kind or types.NoneType]}
        if origin is Literal:
            return self._of_values(arguments)
        if origin in (typing.Union, types.UnionType):
            return {"anyOf": [self.of(each) for each in arguments]}
        if plain in _MAPPINGS:
            return self._of_mapping(arguments)
        if plain in _LISTS:
            return self._of_list(plain, arguments)
        if isinstance(kind, type) and issubclass(kind, Enum):
            return self._of_values([member.value for member in kind])
        if hasattr(kind, "model_json_schema"):
            return self._of_model(kind.model_json_schema())
        if isinstance(kind, type) and (dataclasses.is_dataclass(kind) or typing.is_typeddict(kind)):
            return self._of_class(kind)
        refuse(_OP, "tools", f"such that JSON has the types of the parameters of {self._name}", Phrase(str(kind)))

    def _of_values(self, members: Iterable[object]) -> dict[str, Any]:
        values = [value.value if isinstance(value, Enum) else value for value in members]
        kinds = {_JSON_TYPES.get(type(value)) for value in values}
        if None in kinds:
            refuse(_OP, "tools", f"such that JSON has the values of the parameters of {self._name}", values)
        return {"type": kinds.pop(), "enum": values} if len(kinds) == 1 else {"enum": values}

    def _of_mapping(self, arguments: tuple[Any, ...]) -> dict[str, Any]:
        if arguments and unwrapped(arguments[0])[0] not in (str, Any):
            refuse(_OP, "tools", f"such that the mappings of {self._name} have str keys", Phrase(str(arguments[0])))
        values = self.of(arguments[1]) if arguments else {}
        return {"type": "object", "additionalProperties": values} if values else {"type": "object"}

    def _of_list(self, kind: object, arguments: tuple[Any, ...]) -> dict[str, Any]:
        if kind is tuple and arguments and arguments[-1] is not Ellipsis:
            items = [self.of(each) for each in arguments if each != ()]
            return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
        found: dict[str, Any] = {"type": "array", "items": self.of(arguments[0]) if arguments else {}}
        return {**found, "uniqueItems": True} if kind in (set, frozenset, abc.Set) else found

    def _of_model(self, told: dict[str, Any]) -> dict[str, Any]:
        """That of a model of Pydantic, as this tells it: what it refers to is found from the root of the schema."""
        schema = dict(told)
        for name, definition in schema.pop("$defs", {}).items():
            if self._definitions.setdefault(name, definition) != definition:
                refuse(_OP, "tools", f"such that the types of {self._name} have different names", name)
        return schema

    def _of_class(self, kind: type) -> dict[str, Any]:
        if kind in self._within:
            refuse(_OP, "tools", f"such that the types of {self._name} do not contain themselves", Phrase(kind.__name__))
        self._within.append(kind)
        described = _Docstring(inspect.getdoc(kind) or "") if kind.__doc__ else _Docstring("")
        schema = self.of_fields(iter(fields_of(kind)), described.entries)
        self._within.pop()
        return schema


def fields_of(kind: type) -> list[_Field]:
    """The fields of a dataclass that its instances are made of, or of a typed dict."""
    kinds = annotations_of(kind.__name__, kind)
    if typing.is_typeddict(kind):
        # Where annotations are text, `__required_keys__` knows nothing of what they are wrapped in.
        told = {"Required": True, "NotRequired": False}
        given: frozenset[str] = kind.__required_keys__  # type: ignore[attr-defined]
        required = {name: told.get(_wrapper(each), name in given) for name, each in kinds.items()}
        return [_Field(name, each, required=required[name]) for name, each in kinds.items()]
    return [
        _Field(
            field.name,
            kinds[field.name],
            field.default,
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
        )
        for field in dataclasses.fields(kind)
        if field.init
    ]


def unwrapped(kind: Any) -> tuple[Any, str]:
    """A type without its wrappers and other names, and the description that one of them gives."""
    description = ""
    while True:
        if isinstance(kind, typing.NewType):
            kind = kind.__supertype__
        elif type(kind).__name__ == "TypeAliasType":
            kind = kind.__value__
        elif hasattr(kind, "__metadata__"):
            texts = [each if isinstance(each, str) else getattr(each, "description", None) for each in kind.__metadata__]
            description = description or next((text for text in texts if isinstance(text, str)), "")
            kind = kind.__origin__
        elif _wrapper(kind) in ("Required", "NotRequired", "ReadOnly"):
            (kind,) = typing.get_args(kind)
        else:
            return kind, description


def _wrapper(kind: object) -> str:
    """The name of what a type is wrapped in, such as "NotRequired"; "" if it is not."""
    return str(getattr(typing.get_origin(kind), "_name", ""))


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True
