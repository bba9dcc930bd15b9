"""JSON schemas: which texts they allow, and that what may be begun can be ended."""

from __future__ import annotations

import json
import re
from typing import Literal

import numpy as np
import pydantic
import pytest

import decodestep as ds
from decodestep.constraints.processor import ConstraintLogitsProcessor
from decodestep.constraints.schemas.formats import PATTERNS
from decodestep.constraints.schemas.numbers import decimal_terminal, whole_terminal
from decodestep.constraints.schemas.shapes import Number
from support.constrained_rows import END, run

OPEN = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
NULL = {"type": "null"}


def matcher(schema, *, order="schema", closed=True):
    """A function that tells whether texts are of a schema."""
    options = {
        "token_bytes": lambda token: bytes([token]) if token < END else b"",
        "vocab_size": END + 1,
        "ends": frozenset({END}),
    }
    text = ds.SamplingParams(json_schema=schema).json_schema
    scores = np.zeros((1, END + 1), np.float32)

    def takes(*pieces):
        processor = ConstraintLogitsProcessor("json_schema", text, 0, order=order, closed=closed, **options)
        tokens = [token for piece in pieces for token in (piece.encode() if isinstance(piece, str) else [piece])]
        return all(np.isfinite(processor(np.array([tokens[:i]], np.int64), scores)[0, token]) for i, token in enumerate(tokens))

    return takes


def check(schema, inside, outside, **options):
    takes = matcher(schema, **options)
    assert [text for text in inside if not takes(text, END)] == []
    assert [text for text in outside if takes(text, END)] == []


def named(names, **others):
    """Objects of nulls with these optional names and no others."""
    return {"type": "object", "properties": dict.fromkeys(names, NULL), "additionalProperties": False, **others}


def nulls(names):
    return json.dumps(dict.fromkeys(names), ensure_ascii=False)


def test_properties_have_the_order_of_the_schema_and_none_is_begun_that_cannot_be_written():
    for closed in (True, False):
        check(OPEN, ['{"a": 1, "b": 2}', '{"b": 2}', "{}"], ['{"b": 1, "a": 2}'], closed=closed)
        assert not matcher(OPEN, closed=closed)('{"b": 1, "a')
    assert not matcher(OPEN)('{"b": 1, ')


def test_properties_in_any_order():
    for closed in (True, False):
        check(OPEN, ['{"a": 1, "b": 2}', '{"b": 1, "a": 2}', "{}"], ['{"b": 1, "b": 2}'], order="any", closed=closed)
    names = "abcdefgh"
    eight = named(names, required=["d", "a"])
    check(
        eight,
        [nulls("hgfedcba"), nulls("da"), nulls("cad")],
        [nulls("hgfecba"), nulls(""), nulls("ad")[:-1] + ', "a": null}'],
        order="any",
    )
    many = [f"name{i}" for i in range(33)]  # the schema's order again
    check(named(many), [nulls(many)], [nulls(many[::-1])], order="any")


@pytest.mark.parametrize("order", ["schema", "any"])
@pytest.mark.parametrize(
    "schema",
    [
        OPEN,
        {**OPEN, "additionalProperties": {"type": "integer"}},
        {"type": "object", "properties": {f"a{i}": NULL for i in range(33)} | {"a": NULL}},  # too many for any order
        {**OPEN, "minProperties": 1},
        {"type": "object", "properties": {"b": NULL}, "propertyNames": {"enum": ["a", "b"]}},
        {"type": "object", "patternProperties": {"^(a|b)$": {"type": "integer"}}, "additionalProperties": {"type": "string"}},
        {"type": "object", "patternProperties": {"^a$": NULL, "^a.+$": NULL}, "additionalProperties": NULL},
    ],
)
def test_no_name_begins_with_one_that_is_listed(schema, order):
    takes = matcher(schema, order=order, closed=False)
    assert takes('{"a": 1') or takes('{"a": null')
    for begun in ('{"a', '{"b": null, "a', '{"b": 1, "a', '{"a": null, "a', '{"a": 1, "a'):
        assert not takes(begun + "x")
        assert not takes(begun + "é")


def test_objects_with_properties_are_closed_unless_the_schema_says_otherwise():
    check(OPEN, ['{"a": 1}'], ['{"c": 1}'])
    check(OPEN, ['{"a": 1}', '{"c": 1}'], [], closed=False)
    check({**OPEN, "additionalProperties": True}, ['{"a": 1, "c": "x"}'], [])
    check({"allOf": [OPEN, {"properties": {"c": {"type": "integer"}}}]}, ['{"a": 1, "c": 1}'], ['{"d": 1}'])
    check({"type": "object"}, ['{"c": 1}', "{}"], [])
    check({"type": "object", "required": ["a"]}, ['{"a": 1, "c": 1}'], ["{}"])


@pytest.mark.parametrize("order", ["schema", "any"])
@pytest.mark.parametrize(
    ("schema", "inside", "outside"),
    [
        (named("abc", minProperties=2), ["ab", "ac", "bc", "abc"], ["", "a", "c"]),
        (named("abc", maxProperties=2), ["", "a", "ab", "ac", "bc"], ["abc"]),
        (named("abc", minProperties=2, maxProperties=2, required=["b"]), ["ab", "bc"], ["b", "ac", "abc"]),
        (named("abc", maxProperties=1, required=["b"]), ["b"], ["ab", "bc", "a"]),
        (named("", maxProperties=0), [""], ["a"]),
        ({"type": "object", "additionalProperties": NULL, "maxProperties": 2}, ["", "a", "ab"], ["abc"]),
        ({"type": "object", "additionalProperties": NULL, "minProperties": 1}, ["a", "abc"], [""]),
        ({"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": NULL}, ["", "ab", "ba"],
         ["c", "abc"]),
        ({"type": "object", "propertyNames": {"maxLength": 1}, "additionalProperties": NULL}, ["", "ab", "é"], ['aa']),
        ({**named("abc"), "dependentRequired": {"a": ["b"]}}, ["", "b", "c", "ab", "bc", "abc"], ["a", "ac"]),
        ({**named("abc"), "dependencies": {"a": {"required": ["c"]}}}, ["", "ac", "abc"], ["a", "ab"]),
        ({**named("ab"), "not": {"required": ["a"]}}, ["", "b"], ["a", "ab"]),
        ({**named("a"), "patternProperties": {"^x": NULL}}, ["", "a", "ax"], ["b"]),
    ],
)  # fmt: skip
def test_objects(schema, inside, outside, order):
    check(schema, map(nulls, inside), map(nulls, [*outside] if outside != ["aa"] else [["aa"]]), order=order)


@pytest.mark.parametrize(
    ("schema", "inside", "outside"),
    [
        (True, ["1", '{"a": [null, "x", -2.5e-3]}'], ["", "nul"]),
        ({"type": "array", "items": {"enum": ["a", "b", 1]}, "uniqueItems": True}, ['["a", 1]', "[]", '[1, "b", "a"]'],
         ['["a", "a"]']),
        ({"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 3}, "uniqueItems": True, "minItems": 2},
         ["[1, 3]", "[3, 2, 1]"], ["[1]", "[2, 2]", "[1, 2, 3, 1]"]),
        ({"type": "array", "items": {"type": "string"}, "uniqueItems": True, "maxItems": 1}, ["[]", '["a"]'], ['["a", "b"]']),
        ({"type": "array", "items": {"enum": [1, 2]}, "contains": {"const": 1}}, ["[1]", "[2, 1, 2]", "[1, 1]"],
         ["[]", "[2, 2]"]),
        ({"type": "array", "items": {"enum": [1, 2]}, "contains": {"const": 1}, "minContains": 2, "maxItems": 3},
         ["[1, 1]", "[1, 2, 1]", "[2, 1, 1]"], ["[1]", "[1, 2]", "[1, 2, 2]", "[1, 1, 2, 2]"]),
        ({"prefixItems": [{"const": 1}, False], "type": "array"}, ["[]", "[1]"], ["[1, 1]", "[2]"]),
        ({"not": {"enum": ["a", 5]}}, ['"b"', '"ab"', '""', "6", "5.5", "null"], ['"a"', "5"]),
        ({"type": "string", "pattern": "^[ab]+$", "not": {"const": "ab"}}, ['"a"', '"aba"'], ['"ab"', '"c"']),
        ({"not": {"type": ["string", "object"]}}, ["1", "[]", "null"], ['"a"', "{}"]),
        ({"type": "integer", "minimum": 0, "maximum": 9, "not": {"minimum": 3, "maximum": 6}}, ["0", "2", "7"],
         ["3", "6", "10"]),
        ({"oneOf": [{"maximum": 6, "type": "number"}, {"minimum": 5, "type": "number"}]}, ["4", "6.5"], ["5.5"]),
        ({"oneOf": [{"properties": {"k": {"const": "a"}, "x": NULL}, "required": ["k", "x"], "type": "object"},
                    {"properties": {"k": {"const": "b"}}, "required": ["k"], "type": "object"}]},
         ['{"k": "a", "x": null}', '{"k": "b"}'], ['{"k": "a"}', '{"k": "b", "x": null}']),
        ({"type": "object", "properties": {"k": {"enum": ["a", "b"]}, "x": NULL}, "required": ["k"],
          "if": {"properties": {"k": {"const": "a"}}}, "then": {"required": ["x"]}, "else": {"properties": {"x": False}}},
         ['{"k": "a", "x": null}', '{"k": "b"}'], ['{"k": "a"}', '{"k": "b", "x": null}']),
        ({"const": {"a": [1, "\x01"], "b": 2**60}}, ['{"a": [1, "\\u0001"], "b": 1152921504606846976}'], ['{"a": [1]}']),
        ({"anyOf": [{"const": [1, 2]}, {"type": "array", "items": {"type": "integer"}}]}, ["[1, 2]", "[1, 2, 3]", "[1]"],
         ["[1.5]"]),
        ({"anyOf": [{"enum": [1, True]}, {"type": "integer"}]}, ["1", "12", "true"], ["false"]),
        ({"type": "string", "format": "json-pointer"}, ['""', '"/a~0b/~1"'], ['"a"', '"/~2"', '"/~"']),
        ({"type": "string", "format": "email"}, [r'"\"a b..@\\\"\"@c.d"'], [r'"\"a\"b\"@c"', r'"\"é\"@c"', r'"\"a\"@"']),
        ({"enum": [-2.0, 1, 1e30]}, ["-2.0", "-2", "1", "1e+30"], ["-2.", "-2.00", "1.0"]),
        ({"const": [1.0, {"a": 2.0}]}, ['[1.0, {"a": 2.0}]', '[1, {"a": 2}]'], ['[1, {"a": 2.}]']),
        ({"type": "array", "items": {"enum": [1.0, 2]}, "uniqueItems": True}, ["[2, 1]", "[1.0, 2]"], ["[1, 1.0]"]),
        ({"type": "string", "format": "uri-reference"},
         ['""', '"a/b?c#d"', '"//h:80/"', '"x:y"', '"/a"'], ['" "', '"//h:x/"', '"%zz"']),
        ({"type": "string", "format": "ipv6"},
         ['"::"', '"1::8"', '"::ffff:1.2.3.4"', '"1:2:3:4:5:6:7:8"'], ['"1:2"', '"1::2::3"', '":::"']),
        ({"$id": "urn:x", "$ref": "#a", "$defs": {"one": {"$anchor": "a", "const": 1}}}, ["1"], ["2"]),
    ],
)  # fmt: skip
def test_values(schema, inside, outside):
    check(json.dumps(schema), inside, outside)


FORMATS = {
    "date": (["2024-02-29", "0001-01-01"], ["2023-02-29", "24-01-01"]),
    "time": (
        ["00:00:00Z", "23:59:59.125+02:00", "23:59:60Z", "23:59:60.5-00:00", "01:29:60+01:30", "00:14:60-23:45"],
        ["10:00:60Z", "10:00", "23:59:60+01:00", "22:59:60Z", "23:59:61Z", "23:59:60", "00:00:00." + "1" * 19 + "Z"],
    ),
    "date-time": (
        ["2024-02-29T23:59:59z", "1998-12-31T15:59:60.123-08:00", "2024-01-01T00:00:00." + "9" * 18 + "Z"],
        ["2023-02-29T00:00:00Z", "2024-01-01", "1998-12-31T15:59:60.123-07:00"],
    ),
    "duration": (
        ["P1D", "P4W", "P1Y2M3DT4H5M6S", "PT0S", "PT1M2S", "P1M2D", "P1YT1S"],
        ["P", "PT", "1D", "P1DT", "P1W1D", "P1Y2D", "PT1H2S", "P2D1Y", "PT1S2H", "P1.5D"],
    ),
    "email": (
        ["a@b", "a.b@c", "a+!#$%&'*/=?^_`{|}~-b@c.d-e", "a@[1.2.3.4]", "a@[IPv6:::1]"],
        ["a..b@c", ".a@b", "a.@b", "@a", "a@", "a@-b", "a@b_", "a@b.", "a b@c", "a@[256.1.1.1]", "a@[::1]", "é@a"],
    ),
    "hostname": (
        ["a", "A.b-c.1", "a--b", "x" * 63, ".".join(["x" * 62] * 4)],
        ["", "-a", "a-", "a_b", "a.", ".a", "a..b", "x" * 64, "é", ".".join(["x" * 62] * 4) + ".xx"],
    ),
    "ipv4": (["1.2.3.4", "255.255.255.255", "0.0.0.0"], ["01.2.3.4", "256.1.1.1", "1.2.3", "1.2.3.4.5"]),
    "ipv6": (["::", "1::8", "::ffff:1.2.3.4"], ["1:2", "1::2::3"]),
    "uri": (["x:y", "http://h:80/?q#f"], ["a/b", "//h/"]),
    "uri-reference": (["", "a/b?c#d", "//h:80/"], [" ", "//h:x/"]),
    "json-pointer": (["", "/a~0b/~1"], ["a", "/~2"]),
    "relative-json-pointer": (["0", "1/a", "2#"], ["01", "/a"]),
    "uuid": (
        ["2eb8aa08-aa98-11ea-b4aa-73B441D16380"],
        ["2eb8aa08aa9811eab4aa73b441d16380", "2eb8aa08-aa98-11ea-b4aa-73b441d1638", "{2eb8aa08-aa98-11ea-b4aa-73b441d16380}"],
    ),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_a_format_is_the_same_wherever_it_is_asked_for(name):
    of_format, (inside, outside) = {"format": name}, FORMATS[name]
    quoted = [[json.dumps(each, ensure_ascii=False) for each in several] for several in (inside, outside)]
    check({"type": "string", **of_format}, *quoted)
    texts = [*inside, *outside]
    assert [each for each in texts if matcher({"enum": texts, "type": "string", **of_format})(json.dumps(each), END)] == inside
    names = [[nulls([each]) for each in several] for several in (inside, outside)]
    check({"type": "object", "propertyNames": of_format, "additionalProperties": NULL}, *names)
    longer = {"propertyNames": {"allOf": [of_format, {"minLength": 2}]}, "additionalProperties": NULL}
    check({"type": "object", **longer}, [nulls([each]) for each in inside if len(each) > 1], names[1])
    check({"type": "object", "properties": dict.fromkeys(texts, NULL), "propertyNames": of_format}, *names)


def test_names_of_a_length_that_there_is_not():
    for names in ({"minLength": 5, "maxLength": 3}, {"format": "hostname", "minLength": 300}):
        check({"type": "object", "propertyNames": names, "additionalProperties": NULL}, ["{}"], ['{"a": null}'])


def test_numbers_are_those_that_readers_take():
    for schema in ({"type": "number"}, {"type": "integer"}, {"type": "number", "minimum": 0}, {}):
        assert not matcher(schema)("1e999") and not matcher(schema)("1" * 400)
    assert matcher({"type": "number"})("1e-07", END) and matcher({"type": "number"})("-1.5E+3", END)


@pytest.mark.parametrize(
    ("bounds", "inside", "outside"),
    [
        ({"minimum": -(2**63), "maximum": 2**63 - 1}, [-(2**63), 2**63 - 1, 0, 7], [-(2**63) - 1, 2**63]),
        ({"exclusiveMinimum": -(2**63) - 1, "exclusiveMaximum": 2**63}, [-(2**63), 2**63 - 1], [-(2**63) - 1, 2**63]),
        ({"minimum": 0, "maximum": 2**64 - 1}, [0, 2**64 - 1], [-1, 2**64]),
        ({"minimum": 2**64 - 1, "maximum": 2**64 + 1}, [2**64 - 1, 2**64, 2**64 + 1], [2**64 - 2, 2**64 + 2]),
        ({"minimum": 2**53 + 1}, [2**53 + 1, 2**54], [2**53]),
        ({"maximum": -(2**53) - 1}, [-(2**53) - 1, -(2**54)], [-(2**53)]),
        ({"minimum": 10**30, "maximum": 10**30}, [10**30], [10**30 - 1, 10**30 + 1]),
        ({"minimum": -(10**400), "maximum": 1.79e308}, [0, -5, 10**17], []),
        ({"minimum": -(2**63), "maximum": 2**63 - 1, "multipleOf": 5}, [0, 10, -5], [3]),
        ({"type": "number", "minimum": -(2**63), "maximum": 2**63 - 1}, [0, 10, -5, 0.25], []),
        ({"type": "number", "minimum": -1e30, "maximum": 1e19}, [0, 10, -5, 0.25], []),
        ({"type": "number", "minimum": 1e-300, "maximum": 1}, [1, 0.25], [0, -1, 2]),
        ({"type": "number", "minimum": -1, "maximum": 1e-300}, [0, -0.25], [1, 0.25]),
    ],
)
def test_bounds_at_and_beyond_those_of_machines(bounds, inside, outside):
    check({"type": "integer", **bounds}, map(json.dumps, inside), map(json.dumps, outside))


def test_whole_numbers_are_those_between_their_bounds(rng):
    for most in (9, 120, 10**4, 10**20):
        for _ in range(200):
            low, high = sorted(int(each * most) for each in rng.uniform(-1, 1, 2))
            expression = re.compile(whole_terminal(Number(whole=True, least=low, most=high))[1:-1])
            near = (low - 1, low, low + 1, high - 1, high, high + 1, -1, 0, 1)
            for each in (*near, *(int(each * most) for each in rng.uniform(-2, 2, 9))):
                assert bool(expression.fullmatch(str(each))) == (low <= each <= high), (low, high, each)


def test_decimal_numbers_are_those_between_their_bounds(rng):
    """As parsers read them, however many digits are written. Beyond a bound there is none that is read as the bound."""
    for _ in range(300):
        least, most = sorted(float(round(each, rng.integers(5))) for each in rng.uniform(-3, 12, 2))
        above, below = rng.random(2) < 0.5
        shape = Number(least=least, above=bool(above), most=most, below=bool(below))
        if shape.empty:
            continue
        expression = re.compile(decimal_terminal(shape)[1:-1])
        near = [f"{bound:.{digits}f}" for bound in (least, most) for digits in (0, 1, 2, 3, 5, 20)]
        near += [repr(float(np.nextafter(bound, side))) for bound in (least, most) for side in (-99, 99)]
        for text in [*near, "0", "0.0", "1", *(f"{each:.{rng.integers(1, 6)}f}" for each in rng.uniform(-3, 13, 9))]:
            value = float(text)
            inside = (least < value if above else least <= value) and (value < most if below else value <= most)
            allowed = bool(expression.fullmatch(text))
            assert inside or not allowed, (shape, text)
            if (value or not text.startswith("-")) and len(text) < 18 and "e" not in text:  # "-0.0" is one below 0
                assert allowed == inside, (shape, text)


def test_what_has_no_finite_text_is_not_begun():
    endless = {"e": {"type": "object", "properties": {"e": {"$ref": "#/$defs/e"}}, "required": ["e"]}}
    holder = {"type": "object", "properties": {"a": {"$ref": "#/$defs/e"}, "b": NULL}, "$defs": endless}
    check(holder, ["{}", '{"b": null}'], [])
    assert not matcher(holder)('{"a')
    listed = {"type": "array", "items": {"$ref": "#/$defs/e"}, "$defs": endless}
    check(listed, ["[]"], [])
    assert not matcher(listed)("[{")
    for none in ({"$ref": "#/$defs/e"}, {**holder, "required": ["a"]}, {**listed, "minItems": 1}):
        with pytest.raises(ValueError, match="got one in which # is not possible to satisfy"):
            matcher({**none, "$defs": endless})("")


@pytest.mark.slow
def test_many_optional_properties():
    names = [f"name{i}" for i in range(500)]
    listed = {"type": "object", "properties": dict.fromkeys(names, NULL)}
    further = {"patternProperties": {"^x": {"type": "integer"}}}
    for schema in (
        named(names),
        {**listed, "additionalProperties": NULL},
        {**listed, **further, "additionalProperties": False},
        {**listed, **further, "additionalProperties": NULL},
        {**named(names), "maxProperties": 3},
    ):
        takes = matcher(schema)
        assert takes(nulls(["name3", "name499"]), END) and not takes(nulls(["name4", "name3"]), END)
    more = [f"name{i}" for i in range(1200)]
    takes = matcher(named(more, required=["name7", "name900"]))
    assert takes(nulls(["name3", "name7", "name8", "name12", "name900", "name1199"]), END)
    assert not takes(nulls(["name3", "name8"])) and not takes(nulls(["name7", "name899", "name901"]))
    assert not takes(nulls(["name7", "name899"]), END)
    takes = matcher(listed, closed=False)
    assert takes(nulls(["name3", "name499", "other"]), END) and not takes(nulls(["name4", "name3"]), END)


@pytest.mark.slow
def test_many_constants():
    values = [f"v{i}" for i in range(3000)]
    for schema in (
        {"enum": values},
        {"type": "string", "enum": values, "allOf": [{"enum": values[::-1]}]},
        {"anyOf": [{"const": each} for each in values]},
    ):
        check(schema, ['"v0"', '"v599"', '"v2999"'], ['"v3000"', '"v"'])
    check({"oneOf": [{"const": each, "title": "one"} for each in values[:600]]}, ['"v0"', '"v599"'], ['"v600"'])


@pytest.mark.slow
def test_many_items_are_not_quadratic():
    for least in (10, 1000):
        takes = matcher({"type": "array", "items": {"type": "integer"}, "minItems": least})
        assert takes(json.dumps([1] * least), END) and not takes(json.dumps([1] * (least - 1)), END)


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"properties": {"a": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}}},
         "#/properties/a/uniqueItems is not false"),
        ({"items": {"not": {"pattern": "a"}}}, "#/items/not/pattern is not outside of what is negated"),
        ({"$defs": {"a/b": {"unevaluatedItems": False, "anyOf": [{}]}}, "$ref": "#/$defs/a~1b"},
         "#/$defs/a~1b is not without unevaluatedItems"),
        ({"items": {"$ref": "https://example.com/a"}}, "#/items/$ref is not a reference within the schema"),
        ({"properties": {"a": {"format": "iri", "type": "string"}}}, "#/properties/a/format is not supported: iri"),
        ({"properties": {"a": {"contains": True, "maxContains": 2}}}, "#/properties/a/maxContains is not absent"),
        ({"properties": {"a": {"type": "int"}}}, "#/properties/a/type is not one or several of JSON Schema's types"),
        ({"$ref": "#"}, "# is not free of references that lead back to it"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "# is not possible to satisfy"),
        ({"items": {"minLength": -1}}, "#/items/minLength is not a whole number"),
        ({"properties": {"id": {"type": "string", "pattern": "^(?=.*[A-Z]).+$"}}},
         "#/properties/id/pattern is not supported: look-around, including look-ahead"),
        ({"items": {"pattern": r"(a)\1"}}, "#/items/pattern is not supported: backreferences are not supported"),
        ({"anyOf": [{"pattern": "("}]}, "#/anyOf/0/pattern is not supported: unclosed group"),
        ({"pattern": r"a\b"}, "#/pattern is not supported: lookarounds not supported"),
        ({"properties": {"a": {"patternProperties": {"^(?!x)": {}}}}},
         "#/properties/a/patternProperties/^(?!x) is not supported"),
        ({"patternProperties": {"^(?!x)": {}}}, "#/patternProperties/^(?!x) is not supported: look-around"),
        ({"items": {"patternProperties": {"a(^|b)": {}}}},
         "#/items/patternProperties/a(^|b), a pattern of names, is not without ^ within it"),
        ({"propertyNames": {"pattern": "[b-a]"}}, "#/propertyNames/pattern is not supported: invalid character class range"),
    ],
)  # fmt: skip
def test_errors_name_the_place(schema, place):
    with pytest.raises(ValueError, match="json_schema must be one that can be compiled; got one in which ") as raised:
        matcher(schema)("")
    assert place in str(raised.value)
    assert "%json" not in str(raised.value) and "value:" not in str(raised.value) and "NAME" not in str(raised.value)


def test_a_pydantic_class(rng):
    class Person(pydantic.BaseModel):
        name: Literal["Ada", "Alan"]
        tags: set[Literal["x", "y"]]
        sizes: dict[Literal["s", "m"], int]

    assert ds.SamplingParams(json_schema=Person) == ds.SamplingParams(json_schema=Person.model_json_schema())
    ended = 0
    for seed in range(5):
        row = run(ds.SamplingParams(json_schema=Person, seed=seed, max_new_tokens=None), rng)
        if row.reason == "eos":
            ended += 1
            assert len(Person.model_validate_json(row.text.text).tags) == row.text.text.split("sizes")[0].count(
                '"x"'
            ) + row.text.text.split("sizes")[0].count('"y"')
    assert ended


def test_a_choice(rng):
    for seed in range(4):
        row = run(ds.SamplingParams(choice=["yes", "yes and no", 'a "q"\n'], seed=seed), rng)
        assert row.reason == "eos" and row.text.text in ("yes", "yes and no", 'a "q"\n')


def test_schemas_of_a_grammar_are_read_as_those_beside_it(rng):
    grammar = f'start: "%json {{}}" A? x // %json {{"const": 1}}\nA: /%json/\nx: %json {json.dumps(OPEN)} | %json 1'
    grammar = grammar.replace(" | %json 1", ' | %json {"const": 5}')
    texts = {run(ds.SamplingParams(grammar=grammar, seed=seed, max_new_tokens=None), rng).text.text for seed in range(8)}
    for text in texts:
        left = text.removeprefix("%json {}").removeprefix("%json")
        assert left == "5" or list(json.loads(left)) in ([], ["a"], ["b"], ["a", "b"])
