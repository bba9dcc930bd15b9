"""Objects are closed to properties that their schema does not name, unless it says that there are others."""

from __future__ import annotations

import json

import pytest

from decodestep.constraints.json_schema import check

NULL = {"type": "null"}
A, B = {"properties": {"a": NULL}}, {"properties": {"b": NULL}}
SHUT = {"additionalProperties": False}


def closed(schema):
    return json.loads(check(json.dumps(schema)))


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (A, {**A, **SHUT}),
        ({"type": "object", **A, "required": ["a"]}, {"type": "object", **A, "required": ["a"], **SHUT}),
        ({"properties": {"x": A}}, {"properties": {"x": {**A, **SHUT}}, **SHUT}),
        ({"type": "array", "items": A}, {"type": "array", "items": {**A, **SHUT}}),
        ({"anyOf": [A, B]}, {"anyOf": [{**A, **SHUT}, {**B, **SHUT}]}),
        ({"oneOf": [A, NULL]}, {"oneOf": [{**A, **SHUT}, NULL]}),
        ({"allOf": [A]}, {"allOf": [{**A, **SHUT}]}),
        ({"$ref": "#/$defs/t", "$defs": {"t": A}}, {"$ref": "#/$defs/t", "$defs": {"t": {**A, **SHUT}}}),
        (
            {"properties": {"next": {"$ref": "#"}, "a": NULL}},
            {"properties": {"next": {"$ref": "#"}, "a": NULL}, **SHUT},
        ),
        ({"properties": {"properties": NULL}}, {"properties": {"properties": NULL}, **SHUT}),
        ({**A, "minProperties": 1}, {**A, "minProperties": 1, **SHUT}),
    ],
)
def test_objects_that_name_properties_have_no_others(schema, expected):
    assert closed(schema) == expected


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object"},
        {"type": "object", "properties": {}},
        {"required": ["a"]},
        *({**A, **says} for says in ({"additionalProperties": True}, {"additionalProperties": NULL}, {"propertyNames": True})),
        {**A, "patternProperties": {"^b": NULL}},
        {**A, "required": ["a", "b"]},
        {**A, "minProperties": 2, "required": ["a", "b"]},
        {"allOf": [A, B]},
        {**A, "allOf": [B]},
        {**A, "anyOf": [B, {"properties": {"c": NULL}}]},
        {**A, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {**A, "$ref": "#/$defs/t", "$defs": {"t": B}},
        {"anyOf": [A, B], "oneOf": [{"properties": {"c": NULL}}, {"properties": {"d": NULL}}]},
        {"allOf": [{"$ref": "#/$defs/t"}, {"properties": {"b": {"const": 1}}}], "$defs": {"t": {"anyOf": [A, {"allOf": [B]}]}}},
        {"not": A},
        {"if": A, "then": {"required": ["b"]}},
        {**A, "dependentSchemas": {"a": B}},
        {"const": A},
        {"enum": [A], "default": A, "examples": [A]},
    ],
)
def test_objects_stay_open_where_others_may_be_meant(schema):
    assert closed(schema) == schema


def test_a_schema_that_is_used_in_both_ways_stays_open():
    """It is one schema, and a closed one could not be part of the whole."""
    schema = {"$defs": {"t": A}, "properties": {"x": {"$ref": "#/$defs/t"}, "y": {"allOf": [{"$ref": "#/$defs/t"}, B]}}}
    assert closed(schema) == {**schema, **SHUT}


def test_long_chains_of_references_cost_little():
    links = {f"t{i}": {"$ref": f"#/$defs/t{i + 1}"} for i in range(5000)}
    found = closed({"$ref": "#/$defs/t0", "$defs": {**links, "t5000": A}})
    assert found["$defs"]["t5000"] == {**A, **SHUT}
