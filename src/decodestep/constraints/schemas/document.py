"""A JSON schema as parts that are told apart by their place in it, and what references name."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from contextlib import suppress
from enum import Enum
from typing import Any, NoReturn
from urllib.parse import unquote, urldefrag, urljoin

from decodestep._base.checks import Phrase, refuse
from decodestep.constraints.schemas.shapes import All
from decodestep.errors import RequestError

# Keywords whose values are schemas by name, one schema, lists of schemas, and one schema or a list of them.
BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
ONE = ("additionalProperties", "propertyNames", "items", "additionalItems", "contains", "not", "if", "then", "else",
       "unevaluatedProperties", "unevaluatedItems")  # fmt: skip
SEVERAL = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_OLD = ("draft-03", "draft-04", "draft-06", "draft-07")  # in which nothing beside a $ref counts
_MOST_PARTS = 20_000


class Mark(Enum):
    """Keys of parts that keywords imply, which no JSON has."""

    UNLISTED = 0  # its properties are not those that objects are meant to have
    WITHOUT = 1  # the values that it leaves out


class Document:
    """The parts of a schema, numbered. Parts that keywords imply are added to those that are written.

    Attributes:
        schemas: of each part, a bool or a mapping.
        paths: of each part, its place as a JSON pointer after "#".
    """

    def __init__(self, schema: object) -> None:
        self.schemas: list[Any] = []
        self.paths: list[str] = []
        self._bases: list[str] = []
        self._numbers: dict[int, int] = {}  # by the identity of what is written, which the root keeps alive
        self._named: dict[str, int] = {}  # by absolute reference
        self._root = schema
        dialect = schema.get("$schema") if isinstance(schema, dict) else None
        self.ref_alone = isinstance(dialect, str) and any(old in dialect for old in _OLD)
        self.negations: dict[int, int | None] = {}  # of parts; None while it is being found
        self.root = self._add(schema, "#", "")
        self._reach()

    def part(self, schema: object, path: str, base: str = "") -> int:
        """The number of a part that a keyword implies or a reference has reached."""
        return self._numbers[id(schema)] if id(schema) in self._numbers else self._add(schema, path, base)

    def combined(self, parts: Iterable[int]) -> All:
        """Parts that hold at once, each once, without those that say nothing."""
        return tuple(part for part in dict.fromkeys(parts) if self.schemas[part] is not True and self.schemas[part] != {})

    def child(self, part: int, *keys: str | int) -> int:
        """The number of the part that the keys lead to."""
        schema, path = self.schemas[part], self.paths[part]
        for key in keys:
            schema = schema[key]
            path += "/" + str(key).replace("~", "~0").replace("/", "~1")
        return self.part(schema, path, self._bases[part])

    def implied(self, part: int, keyword: str, schema: object) -> int:
        """The number of a part that a keyword of another implies."""
        return self.part(schema, f"{self.paths[part]}/{keyword}", self._bases[part])

    def target(self, part: int) -> int:
        """The part that another one's $ref names."""
        reference = self.schemas[part]["$ref"]
        if not isinstance(reference, str):
            self.refuse(part, "$ref", "a string")
        address = _joined(self._bases[part], reference)
        if address in self._named or address.rstrip("#") in self._named:
            return self._named.get(address, self._named.get(address.rstrip("#"), 0))
        place, fragment = urldefrag(address)
        start = self._named.get(place)
        if start is None or (fragment and not fragment.startswith("/")):
            self.refuse(part, "$ref", f"a reference within the schema, not {reference}")
        found, path, base = self.schemas[start], self.paths[start], self._bases[start]
        for name in unquote(fragment).split("/")[1:]:
            try:
                found = found[int(name)] if isinstance(found, list) else found[name.replace("~1", "/").replace("~0", "~")]
            except (LookupError, TypeError, ValueError):
                self.refuse(part, "$ref", f"a reference to a part of the schema, not {reference}")
            path += f"/{name}"
        return self.part(found, path, base)

    def _reach(self) -> None:
        """Numbers what references name wherever it is; those that name nothing are refused where they are read."""
        for part in itertools.count():
            if part == len(self.schemas):
                return
            if isinstance(self.schemas[part], dict) and "$ref" in self.schemas[part]:
                with suppress(RequestError):
                    self.target(part)

    def refuse(self, part: int, keyword: str, rule: str) -> NoReturn:
        """Raises ValueError: the schema at a place must have a keyword be so."""
        place = self.paths[part] + (f"/{keyword}" if keyword else "")
        refuse("SamplingParams", "json_schema", "one that can be compiled", Phrase(f"one in which {place} is not {rule}"))

    def _add(self, schema: object, path: str, base: str) -> int:
        """Numbers a part and, of what is written, all parts within it."""
        root: int | None = None
        waiting = [(schema, path, base)]
        while waiting:
            found, at, base = waiting.pop()
            if id(found) in self._numbers:
                continue
            number = len(self.schemas)
            root = number if root is None else root
            self.schemas.append(found)
            self.paths.append(at)
            if number >= _MOST_PARTS:
                self.refuse(0, "", f"of at most {_MOST_PARTS} parts")
            if not isinstance(found, (dict, bool)):
                self.refuse(number, "", "a schema, an object or a bool")
            self._numbers[id(found)] = number  # of a bool, the first: all are alike
            if isinstance(found, bool):
                self._bases.append(base)
                continue
            base = self._name(number, found, at, base)
            self._bases.append(base)
            waiting += reversed([(inner, f"{at}/{key}", base) for key, inner in _inner(found)])
        assert root is not None
        return root

    def _name(self, number: int, schema: dict[str, Any], path: str, base: str) -> str:
        """Notes the names of a part; returns the address that references within it start from."""
        own = schema.get("$id", schema.get("id") if path == "#" else None)
        if path == "#":
            self._named[""] = number
        if isinstance(own, str) and not (self.ref_alone and "$ref" in schema):
            if own.startswith("#"):
                self._named[_joined(base, own)] = number
            else:
                base = urldefrag(_joined(base, own))[0]
                self._named[base] = number
        for key in ("$anchor", "$dynamicAnchor"):
            if isinstance(schema.get(key), str):
                self._named[f"{base}#{schema[key]}"] = number
        return base


def _inner(schema: dict[str, Any]) -> list[tuple[str, Any]]:
    """The schemas right within one, where keywords say so, by their place."""
    found: list[tuple[str, Any]] = []
    for key, value in schema.items():
        if key in BY_NAME and isinstance(value, dict):
            found += [(f"{key}/{_escaped(name)}", each) for name, each in value.items() if isinstance(each, (dict, bool))]
        elif key in SEVERAL and isinstance(value, list):
            found += [(f"{key}/{i}", each) for i, each in enumerate(value) if isinstance(each, (dict, bool))]
        elif key in ONE and isinstance(value, dict):
            found.append((key, value))
    return found


def _joined(base: str, reference: str) -> str:
    """The absolute address of a reference; urljoin leaves out bases of schemes that it does not know."""
    return urldefrag(base)[0] + reference if reference.startswith("#") else urljoin(base, reference)


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
