"""Arguments between tags: what they are is read by their schema, and slips of models in the tags are forgiven."""

from __future__ import annotations

import json
import re

import pytest
from call_texts import ARGUMENTS, FUNCTIONS

from decodestep.chat import tool_formats as formats
from test_tool_formats import fill_in, read_calls

OPTIONAL = {"anyOf": [{"type": "string"}, {"type": "null"}]}  # as pydantic writes it
NAMED = {"$ref": "#/$defs/name"}
DEFINITIONS = {
    "name": {"type": "string"},
    "size": {"enum": ["1", "2"]},
    "sizes": {"type": "array", "items": {"$ref": "#/$defs/size"}},
    **{f"{i}": {"anyOf": [{"$ref": f"#/$defs/{i + 1}"}, {"$ref": f"#/$defs/{i + 2}"}]} for i in range(5000)},
    "loop": {"anyOf": [{"$ref": "#/$defs/loop"}, {"type": "string"}]},
}


@pytest.mark.parametrize(
    ("written", "schema", "value"),
    [
        ("12", {"type": "string"}, "12"),
        ('"12"', {"type": "string"}, '"12"'),
        ("12", {"type": "integer"}, 12),
        ("12", {}, 12),
        ("12", True, 12),
        ("12", OPTIONAL, "12"),
        ("null", OPTIONAL, None),
        ('"12"', OPTIONAL, "12"),
        ("true", {"type": ["string", "integer"]}, "true"),
        ("3", {"type": ["number", "string"]}, 3),
        ("3", {"oneOf": [{"enum": ["3"]}, {"const": None}]}, "3"),
        ("4", {"type": "integer", "enum": ["3"]}, 4),
        ("True", {"type": "boolean"}, True),
        ("FALSE", {"type": ["boolean", "string"]}, False),
        ("True", {"type": "string"}, "True"),
        ("True", {}, "True"),
        ("True", {"type": "integer"}, "True"),
        ("None", OPTIONAL, None),
        ("None", {"type": "null"}, None),
        ("none", {"type": ["array", "null"]}, None),
        ("5", NAMED, "5"),
        ('["a"]', NAMED, '["a"]'),
        ("1", {"$ref": "#/$defs/size"}, "1"),
        ("5", {"anyOf": [NAMED, {"type": "null"}]}, "5"),
        ("5", {"allOf": [NAMED], "description": "a name"}, "5"),
        ("5", {"allOf": [{"type": ["string", "integer"]}, {"enum": [5, 6]}]}, 5),
        ("5", {"$ref": "#/$defs/loop"}, "5"),
        ("5", {"$ref": "#/$defs/none"}, 5),
        ("5", {"$ref": "#/$defs/0"}, 5),
        ("['a', \"b\"]", {"type": "array"}, ["a", "b"]),
        ("['1', None, True]", {"$ref": "#/$defs/sizes"}, ["1", None, True]),
        ("('a', 1)", {"type": "array"}, ["a", 1]),
        ("{'a': {'b': None}}", {"type": "object"}, {"a": {"b": None}}),
        ("{'a', 'b'}", {"type": "array"}, "{'a', 'b'}"),
        ("['a'", {"type": "array"}, "['a'"),
        ("[1e999]", {"type": "array"}, "[1e999]"),
        ("[f()]", {"type": "array"}, "[f()]"),
        ("[" * 9000, {"type": "array"}, "[" * 9000),
        ("['a']", {"type": "string"}, "['a']"),
        ("['a']", {}, "['a']"),
        ("abc", {"type": "integer"}, "abc"),
    ],
)
def test_values_between_tags_are_of_the_types_of_their_schema(written, schema, value):
    call = f"<tool_call>f<arg_key> a </arg_key><arg_value>{written}</arg_value></tool_call>"
    more = "<arg_key>b</arg_key><arg_value>1</arg_value>"
    whole = {"properties": {"a": schema}, "$defs": DEFINITIONS}
    found = read_calls(formats.TaggedArguments({"f": whole}), call + more)
    assert json.dumps(found) == json.dumps([more, [["f", {"a": value}]]])


CITY, DAYS = "<parameter=city>\nBonn\n", "<parameter=days>\n2\n"
SLIPS = [
    (f"<tool_call>\n<function=stay>\n{CITY}{DAYS}</parameter>\n</function>\n</tool_call>", True),
    (f"<tool_call>\n<function=stay>\n{CITY}</parameter>\n{DAYS}</function>\n</tool_call>", True),
    (f"<function=stay>\n{CITY}</parameter>\n{DAYS}</parameter>\n</function>\n</tool_call>", True),
    ("<function=stay><parameter=city>Bonn</parameter><parameter=days>2</parameter></function>", True),
    ("<tool_call><function=stay><parameter=city>Bonn<parameter=days>2</tool_call>", True),
    ("<function=stay", False),
    ("<function=stay>", False),
]


@pytest.mark.parametrize(("text", "is_call"), SLIPS)
def test_slips_of_calls_with_tags_are_read(text, is_call):
    kind = formats.TaggedFunctions(FUNCTIONS)
    assert read_calls(kind, text) == (("", [("stay", ARGUMENTS)]) if is_call else (text, []))
    assert not is_call or read_calls(kind, f"So:\n{text}\n{text}") == ("So:", [("stay", ARGUMENTS)] * 2)


def test_an_argument_that_is_not_closed_ends_before_the_next():
    text = "<tool_call>stay<arg_key>city</arg_key><arg_value>Bonn\n<arg_key>days</arg_key><arg_value>2</tool_call>"
    assert read_calls(formats.TaggedArguments(FUNCTIONS), text) == ("", [("stay", ARGUMENTS)])


@pytest.mark.parametrize(
    "city", ["<parameter=x> </function> and <function=time> <arg_key>x</arg_key>", "</tool_call> and", "\n\nBonn\n"]
)
@pytest.mark.parametrize("kind", [formats.TaggedArguments, formats.TaggedFunctions])
def test_tags_within_a_closed_value_are_text(kind, city):
    text = "".join(fill_in(kind, city))
    assert read_calls(kind(FUNCTIONS), f"{text}\n{text}") == ("", [("stay", {"city": city, "days": 2})] * 2)


@pytest.mark.parametrize("kind", [formats.TaggedArguments, formats.TaggedFunctions, formats.GemmaCalls])
@pytest.mark.parametrize(
    ("schema", "form"),
    [
        (NAMED, "[^<]+"),
        ({"allOf": [NAMED]}, "[^<]+"),
        ({"$ref": "#/$defs/size"}, "1|2"),
        ({"anyOf": [{"const": "a"}, {"$ref": "#/$defs/size"}]}, "a|1|2"),
        ({"anyOf": [{"const": "a"}, NAMED]}, "[^<]+"),
        ({"type": "string", "enum": ["a", 1]}, "a"),
        ({"$ref": "#/$defs/sizes"}, None),
        (OPTIONAL, None),
    ],
)
def test_a_constrained_string_is_written_as_it_is_read(kind, schema, form):
    """Without quotes, also where its schema is a reference."""
    whole = {"properties": {"a": schema}, "$defs": DEFINITIONS}
    patterns = [piece.pattern for piece in kind({"f": whole}).call("f", whole) if isinstance(piece, re.Pattern)]
    assert patterns == ([form] if form else [])
