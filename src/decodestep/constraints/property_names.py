"""Patterns of property names that have few names, as properties of these names.

After the properties that a schema names, llguidance allows those of its patterns without asking whether a name is left: in
{"properties": {"a": {}}, "patternProperties": {"^a$": {}}} none is left after "a", and a comma leads nowhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from decodestep._base.checks import Words, refuse
from decodestep.constraints.json_form import JSON_FORM, OPTIONS
from decodestep.constraints.trial import first_names

# Beside properties with names, patterns of so many names are written out too, so that no name is written twice.
_FEW = 16
_SHORT = 64  # bytes of those names, as JSON
_MOST_CHARACTERS = 2**20  # of a schema that is written out: patterns within each other may multiply it
# Keywords that put schemas together, and those of objects.
_JOINING = {"anyOf", "oneOf", "$ref"}
_OF_OBJECTS = {"properties", "required", "patternProperties", "additionalProperties"}


def write_out_patterns(schema: dict[str, Any], parts: Iterable[dict[str, Any]]) -> None:
    """Changes a schema, of the same objects, so that no pattern has only names that may all be taken by properties.

    parts: the schema, and those within it. Patterns that are wrong stay.
    Raises ValueError if that costs too much.
    """
    parts = list(parts)
    given = set().union(*map(_given_names, parts))
    maps = ("patternProperties", "properties")
    objects = [each for each in parts if maps[0] in each and all(isinstance(each.get(key, {}), dict) for key in maps)]
    probes = [_probe(each["patternProperties"], others=True) for each in objects]
    probes += [_probe([pattern], others=False) for each in objects for pattern in each["patternProperties"]]
    probes = list(dict.fromkeys(probes))
    if not probes:
        return
    longest = max([_SHORT, *(len(json.dumps(name)) for name in given)])
    names = dict(zip(probes, first_names(tuple(probes), max(len(given), _FEW), longest), strict=True))
    merged = any(map(_merges, parts))  # then an object may have the names of any other
    for each in objects:
        own = _given_names(each)
        taken = len(given if merged else own)
        # Not beside bounds on their number, for which llguidance has all properties with names be required.
        _write_out(each, names, max(taken, _FEW) if own and not {"minProperties", "maxProperties"} & each.keys() else taken)
    size = 0
    for piece in json.JSONEncoder().iterencode(schema):
        size += len(piece)
        if size > _MOST_CHARACTERS:
            refuse("SamplingParams", "json_schema", "one that can be compiled", Words("one that costs too much"))


def _write_out(schema: dict[str, Any], names: dict[str, list[str] | None], most: int) -> None:
    """Makes properties of the patterns that have at most so many names; and of the other names, if they are that few."""
    patterns, properties, left = schema["patternProperties"], dict(schema.get("properties", {})), {}
    for pattern, value in patterns.items():
        own = names[_probe([pattern], others=False)]
        if own is None or len(own) > most:
            left[pattern] = value
            continue
        for name in own:
            properties[name] = {"allOf": [properties[name], value]} if name in properties else value
    others = names[_probe(patterns, others=True)]
    if others is not None and len(others) <= most:
        for name in others:
            properties.setdefault(name, schema.get("additionalProperties", True))
        schema["additionalProperties"] = False
    schema["properties"], schema["patternProperties"] = properties, left


def _probe(patterns: Iterable[str], *, others: bool) -> str:
    """The schema of objects that have a property, whose name is of the patterns, or of none of them."""
    null = {"type": "null"}
    named, unnamed = (False, null) if others else (null, False)
    by_pattern = dict.fromkeys(patterns, named)
    names = {"patternProperties": by_pattern, "additionalProperties": unnamed}
    return json.dumps({"type": "object", "minProperties": 1, **names, OPTIONS: JSON_FORM})


def _given_names(schema: dict[str, Any]) -> set[str]:
    lists = (schema.get(key) for key in ("properties", "required"))
    return {str(name) for names in lists if isinstance(names, (dict, list)) for name in names}


def _merges(schema: dict[str, Any]) -> bool:
    """Whether the objects of a schema may be of several schemas at once."""
    joining = _JOINING & schema.keys()
    return "allOf" in schema or len(joining) > 1 or bool(joining and _OF_OBJECTS & schema.keys())
