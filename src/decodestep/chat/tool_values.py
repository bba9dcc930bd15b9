"""The values of arguments that calls have between tags, where strings have no quotes."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from decodestep.chat.long_text import LongText
from decodestep.chat.text_feed import TextFeed, UnreadableError
from decodestep.chat.tool_json import COMPACT_JSON, parse
from decodestep.chat.tool_notation import as_json, escaped
from decodestep.constraints.json_schema import named

# The types of JSON Schema that a value of Python's has, the narrowest first.
_TYPES: Mapping[type, tuple[str, ...]] = {
    bool: ("boolean",),
    int: ("integer", "number"),
    float: ("number",),
    str: ("string",),
    list: ("array",),
    dict: ("object",),
    type(None): ("null",),
}
_DEEPEST = 32  # of references and choices in each other
_LONGEST_LITERAL = 2**16  # characters; Python takes its time for more
_WORDS = {"true": True, "false": False, "null": None, "none": None}


def properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    found = schema.get("properties")
    return found if isinstance(found, dict) else {}


def constrained_arguments(schema: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The arguments of a constrained call, each with its schema: the required ones, or all if the schema does not say."""
    known, required = properties(schema), schema.get("required")
    names = [name for name in known if name in required] if isinstance(required, list) else list(known)
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    return [(name, {**known[name], **shared} if isinstance(known[name], dict) else {}) for name in names]


def is_string(schema: object, whole: Mapping[str, Any]) -> bool:
    """Whether a schema allows strings alone. whole: the schema whose parts it may refer to."""
    return _types(schema, whole) == {"string"}


def tagged_form(schema: dict[str, Any]) -> dict[str, Any] | re.Pattern[str]:
    """The form of a value between tags: a string without quotes, anything else as JSON."""
    if not is_string(schema, schema):
        return schema
    values = [value for value in _values(schema, schema) if isinstance(value, str)]
    if not values:
        return re.compile(r"[^<]+")
    # Within the slashes of a Lark expression, on one line: re.escape leaves a slash, and a line's end after a backslash.
    return re.compile("|".join(re.escape(value).replace("/", r"\/").replace("\n", "n") for value in values))


def tagged_value(text: str, schema: object, whole: Mapping[str, Any]) -> Any:
    """The value between tags: verbatim if a string is expected, or it is nothing else that the schema allows.

    schema: of the value. whole: the schema whose parts it may refer to. JSON is read, and where the schema says so the words
    and the lists and objects of Python, as models write them. Where a string may stand too, the text is one if the schema does
    not allow what it would be as JSON; of a schema that does not say, it is what it is as JSON.
    """
    types = _types(schema, whole)
    if types == {"string"}:
        return text
    try:
        value = parse(text)
    except UnreadableError:
        value = _python_value(text.strip())
        return text if types.isdisjoint(_TYPES[type(value)]) else value
    return text if "string" in types and types.isdisjoint(_TYPES[type(value)]) else value


class TaggedValue:
    """A value between tags that comes in pieces. It becomes JSON meanwhile, so that the end of a long one takes no time.

    schema, whole: as for `tagged_value`.
    """

    def __init__(self, schema: object, whole: Mapping[str, Any]) -> None:
        self._schema, self._whole = schema, whole
        self._text, self._escaped, self._json = LongText(), LongText(), LongText()
        self._feed = TextFeed()
        self._read: Iterator[str | None] | None = _whole_json(self._feed)  # None once it is no list and no object of JSON

    def add(self, text: str) -> None:
        self._text.write(text)
        self._escaped.write(escaped(text))
        self._feed.add(text)
        self._advance()

    def end(self) -> str:
        """The value as JSON."""
        self._feed.ended = True
        self._advance()
        if self._read is not None:
            found = str(self._json)
            types = _types(self._schema, self._whole)
            if "string" not in types or _TYPES[list if found[0] == "[" else dict][0] in types:
                return found
        else:
            text = str(self._text)
            value = tagged_value(text, self._schema, self._whole)
            if value is not text:
                return as_json(value)
        return f'"{self._escaped!s}"'

    def _advance(self) -> None:
        try:
            for piece in self._read or ():
                if piece is None:
                    self._feed.begin()
                    return
                self._json.write(piece)
        except UnreadableError:
            self._read = None


def _whole_json(feed: TextFeed) -> Iterator[str | None]:
    """A list or an object of JSON, which is all of a text."""
    yield from feed.space()
    if not (yield from feed.comes("[", "{")):
        raise UnreadableError
    yield from COMPACT_JSON.value(feed)
    yield from feed.space()
    if not (yield from feed.done()):
        raise UnreadableError


def _python_value(text: str) -> Any:
    """A word, a list or an object as Python writes it; the text if it is none."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if not text.startswith(("[", "{", "(")) or len(text) > _LONGEST_LITERAL:
        return text
    try:
        return parse(json.dumps(ast.literal_eval(text)))  # as JSON has it: a list for a tuple, no sets, nothing infinite
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return text


def _types(schema: object, whole: Mapping[str, Any], seen: set[str] | None = None, depth: int = 0) -> set[str]:
    """The types of the values that a schema allows, as far as it says so. seen: references that have been followed."""
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return set()
    given = schema.get("type")
    if given is not None:
        return {name for name in (given if isinstance(given, list) else [given]) if isinstance(name, str)}
    seen = set() if seen is None else seen
    said = [{_TYPES[type(value)][0] for value in _listed(schema)}]
    said += (_types(each, whole, seen, depth + 1) for each in _parts(schema, whole, seen))
    said += (set().union(*(_types(each, whole, seen, depth + 1) for each in choices)) for choices in _choices(schema))
    return set.intersection(*filter(None, said)) if any(said) else set()


def _values(schema: object, whole: Mapping[str, Any], seen: set[str] | None = None, depth: int = 0) -> list[Any]:
    """The values that a schema lists; [] if it allows others. seen: references that have been followed."""
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return []
    seen = set() if seen is None else seen
    found = [_listed(schema), *(_values(each, whole, seen, depth + 1) for each in _parts(schema, whole, seen))]
    for choices in _choices(schema):
        lists = [_values(each, whole, seen, depth + 1) for each in choices]
        found.append([value for values in lists for value in values] if all(lists) else [])
    return next(filter(None, found), [])


def _parts(schema: Mapping[str, Any], whole: Mapping[str, Any], seen: set[str]) -> list[Any]:
    """The schemas all of which a value matches too."""
    reference, parts = schema.get("$ref"), schema.get("allOf")
    found = list(parts) if isinstance(parts, list) else []
    if isinstance(reference, str) and reference not in seen:
        seen.add(reference)
        found.append(named(whole, reference))
    return found


def _choices(schema: Mapping[str, Any]) -> list[list[Any]]:
    """The lists of schemas of each of which a value matches one."""
    return [found for key in ("anyOf", "oneOf") if isinstance(found := schema.get(key), list)]


def _listed(schema: Mapping[str, Any]) -> list[Any]:
    """The values of a schema's own const or enum; [] without."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return values if isinstance(values, list) else []
