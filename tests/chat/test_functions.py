"""Python functions as tools: their schemas, and calls of them with what a model has written."""

from __future__ import annotations

import enum
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NewType, Optional, TypedDict, Union

import jsonschema
import pydantic
import pytest

import decodestep as ds
from decodestep.chat import call_function, describe_function
from decodestep.generation.prompts import prompt_ids
from support import late_annotations
from support.servers import HELLO, load

Place = NewType("Place", str)
INTEGER, STRING, NULL = {"type": "integer"}, {"type": "string"}, {"type": "null"}


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class Range:
    """Numbers.

    Args:
        low: The first.
    """

    low: int
    high: int = 9
    tags: list[str] = field(default_factory=list)


class Options(TypedDict):
    deep: bool
    name: typing.NotRequired[str] if hasattr(typing, "NotRequired") else str


class Address(pydantic.BaseModel):
    """Where."""

    street: str = pydantic.Field(description="The street")
    number: int = 1


class Person(pydantic.BaseModel):
    home: Address


def parameters(kind, **annotations):
    """The schema of the parameter of a function that has this annotation."""

    def made(x):
        raise AssertionError

    made.__annotations__ = {"x": kind, **annotations}
    schema = describe_function(made)["function"]["parameters"]
    jsonschema.Draft202012Validator.check_schema(schema)
    return schema


def of(kind):
    schema = parameters(kind)
    assert schema["required"] == ["x"] and schema["type"] == "object"
    return schema["properties"]["x"]


@pytest.mark.parametrize(
    ("kind", "schema"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (None, {"type": "null"}),
        (Any, {}),
        (Place, {"type": "string"}),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Literal[1, "b", None], {"enum": [1, "b", None]}),
        (Literal[Colour.RED], {"type": "string", "enum": ["red"]}),
        (Colour, {"type": "string", "enum": ["red", "blue"]}),
        (Level, {"type": "integer", "enum": [1, 2]}),
        (list, {"type": "array", "items": {}}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (Sequence[str], {"type": "array", "items": {"type": "string"}}),
        (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}),
        (tuple[int, str], {"type": "array", "prefixItems": [INTEGER, STRING], "minItems": 2, "maxItems": 2}),
        (set[str], {"type": "array", "items": {"type": "string"}, "uniqueItems": True}),
        (dict, {"type": "object"}),
        (dict[str, Any], {"type": "object"}),
        (Mapping[str, list[int]], {"type": "object", "additionalProperties": {"type": "array", "items": INTEGER}}),
        (Optional[int], {"anyOf": [INTEGER, NULL]}),  # noqa: UP045 - as people write it
        (Union[int, str], {"anyOf": [INTEGER, STRING]}),  # noqa: UP007
        (int | list[str] | None, {"anyOf": [INTEGER, {"type": "array", "items": STRING}, NULL]}),
        (Annotated[int, "How many"], {"type": "integer", "description": "How many"}),
        (Annotated[int, pydantic.Field(description="How many")], {"type": "integer", "description": "How many"}),
        (Range, {"type": "object", "required": ["low"], "properties": {
            "low": {"type": "integer", "description": "The first."}, "high": {"type": "integer", "default": 9},
            "tags": {"type": "array", "items": {"type": "string"}}}}),
        (Options, {"type": "object", "required": ["deep"], "properties": {"deep": {"type": "boolean"}, "name": STRING}}),
    ],
)  # fmt: skip
def test_the_schema_of_a_type(kind, schema):
    assert of(kind) == schema


def test_models_refer_to_the_root_of_the_schema():
    schema = parameters(Person, y=list[Address])
    assert set(schema["$defs"]) == {"Address"} and schema["properties"]["x"]["properties"]["home"] == {
        "$ref": "#/$defs/Address"
    }
    jsonschema.validate({"x": {"home": {"street": "a"}}}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"x": {"home": {}}}, schema)


def weather(city: str, days: int = 1, *, unit: Literal["C", "F"] = "C", note: str | None = None) -> str:
    """The weather
    of a city.

    Some more.

    Args:
        city (str): The city: its name,
            in English.
        days: How many.

    Returns:
        A text.
    """
    return f"{city} {days} {unit} {note}"


def test_the_definition_of_a_function():
    assert describe_function(weather) == {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather\nof a city.\n\nSome more.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "The city: its name, in English."},
                    "days": {"type": "integer", "description": "How many.", "default": 1},
                    "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
                    "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
                },
                "required": ["city"],
            },
        },
    }

    class Named:
        def look(self, place: str) -> str:
            """Looks."""
            return place

    method = describe_function(Named().look)["function"]
    assert method["name"] == "look" and list(method["parameters"]["properties"]) == ["place"]
    nothing = describe_function(lambda: 1)["function"]
    assert nothing["parameters"] == {"type": "object", "properties": {}} and nothing["description"] == ""


@dataclass
class Tree:
    children: list[Tree]


def test_functions_that_cannot_be_tools_are_refused():
    def several(*names: str): ...
    def named(**names: str): ...
    def first(x, /): ...
    def complicated(x: complex): ...
    def keys(x: dict[int, str]): ...
    def unknown(x: Nowhere): ...  # noqa: F821
    def tree(x: Tree): ...

    late = late_annotations.define("def made(x: Nowhere): ...")
    for function in (several, named, first, complicated, keys, unknown, tree, late):
        with pytest.raises(ValueError, match=function.__name__):
            describe_function(function)
    with pytest.raises(ValueError, match="tools must be"):
        describe_function(3)


def test_arguments_become_what_the_annotations_say():
    assert call_function(weather, '{"city": "Bonn", "days": 2}') == "Bonn 2 C None"

    def echo(
        colour: Colour, span: Range, both: tuple[int, str], some: set[str], by_name: dict[str, Range], person: Person,
        choice: Level | Range | None, number: float, options: Options, plain: Any, many: list[Colour | None],
    ):  # fmt: skip
        return locals()

    span = {"low": 1, "tags": ["a"]}
    given = {"colour": "red", "span": span, "both": [1, "a"], "some": ["a", "a"], "by_name": {"k": span}, "choice": span,
             "number": 3, "person": {"home": {"street": "s"}}, "options": {"deep": True}, "plain": [{"a": 1}],
             "many": ["blue", None]}  # fmt: skip
    found = call_function(echo, given)
    assert found["colour"] is Colour.RED and found["span"] == Range(1, 9, ["a"]) and found["both"] == (1, "a")
    assert found["some"] == {"a"} and found["by_name"] == {"k": Range(1, 9, ["a"])} and found["choice"] == Range(1, 9, ["a"])
    assert found["person"] == Person(home=Address(street="s")) and type(found["number"]) is float
    assert found["options"] == {"deep": True} and found["plain"] == [{"a": 1}] and found["many"] == [Colour.BLUE, None]
    assert call_function(echo, {**given, "choice": 2})["choice"] is Level.HIGH
    assert call_function(echo, {**given, "choice": None})["choice"] is None

    def paint(x): return x  # fmt: skip

    other = late_annotations.define("class made:\n    x: Nowhere")
    paint.__annotations__["x"] = other | Range
    assert call_function(paint, {"x": span}) == Range(1, 9, ["a"])


@pytest.mark.parametrize("arguments", ["{", "[1]", '{"colour": "green"}', [1]])
def test_arguments_that_are_none_are_refused(arguments):
    def paint(colour: Colour): ...

    with pytest.raises(ValueError, match="arguments must be"):
        call_function(paint, arguments)


def test_a_prompt_takes_functions(tiny_file):
    model = load(tiny_file(kind="Q8_0", context=2000))
    given = {"messages": HELLO, "tools": [weather, {"type": "function", "function": {"name": "go"}}]}
    described = {"messages": HELLO, "tools": [describe_function(weather), {"type": "function", "function": {"name": "go"}}]}
    assert prompt_ids(model, given) == prompt_ids(model, described)
    params = ds.SamplingParams(max_new_tokens=2, seed=1)
    assert ds.generate(model, given, params) == ds.generate(model, described, params)
    with ds.Engine(model) as engine:
        assert engine.submit(given, params).result() == ds.generate(model, described, params)
    with pytest.raises(ValueError, match="name"):
        prompt_ids(model, {"messages": HELLO, "tools": [lambda: 1]})
