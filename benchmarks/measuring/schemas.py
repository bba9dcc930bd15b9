"""JSON schemas as people write them, each with a text of it, and vocabularies of several sizes."""

from __future__ import annotations

import json
from functools import lru_cache
from itertools import islice, product
from typing import Any, NamedTuple

import decodestep as ds


class Sample(NamedTuple):
    """A schema, by a name, and an instance whose members have the schema's order."""

    name: str
    schema: dict[str, Any]
    instance: Any

    @property
    def text(self) -> bytes:
        return json.dumps(self.instance, ensure_ascii=False).encode()


def _object(properties: dict[str, Any], required: tuple[str, ...] | None = None, **more: Any) -> dict[str, Any]:
    needed = list(properties) if required is None else list(required)
    return {"type": "object", "properties": properties, "required": needed, "additionalProperties": False, **more}


_TEXT, _WHOLE, _NUMBER, _FLAG = {"type": "string"}, {"type": "integer"}, {"type": "number"}, {"type": "boolean"}
_ADDRESS = _object({"street": _TEXT, "city": _TEXT, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}, "country": _TEXT})
_FIELDS = {f"field_{i}": [_TEXT, _WHOLE, _FLAG, {"enum": ["low", "medium", "high"]}][i % 4] for i in range(60)}
_TREE = {"$defs": {"node": _object({"label": _TEXT, "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}})},
         "$ref": "#/$defs/node"}  # fmt: skip
SAMPLES = (
    Sample(
        "person",
        _object({"name": _TEXT, "age": {"type": "integer", "minimum": 0, "maximum": 130}, "city": _TEXT, "member": _FLAG}),
        {"name": "Ada Lovelace", "age": 36, "city": "London", "member": True},
    ),
    Sample(
        "reasoning before the answer",
        _object({"reasoning": {"type": "array", "items": _TEXT, "maxItems": 5}, "answer": {"enum": ["yes", "no"]}}),
        {"reasoning": ["The clause covers goods.", "A service is none."], "answer": "no"},
    ),
    Sample(
        "event",
        _object(
            {"title": {"type": "string", "maxLength": 80}, "start": {"type": "string", "format": "date-time"},
             "attendees": {"type": "array", "items": {"type": "string", "format": "email"}, "minItems": 1},
             "address": _ADDRESS},
            ("title", "start", "attendees"),
        ),
        {"title": "Planning", "start": "2026-03-01T09:30:00Z", "attendees": ["ada@example.org", "b.c@example.com"],
         "address": {"street": "1 High Street", "city": "Leeds", "zip": "12345", "country": "UK"}},
    ),
    Sample(
        "order",
        _object({
            "id": {"type": "string", "format": "uuid"},
            "items": {"type": "array", "items": _object({"sku": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"},
                                                         "quantity": {"type": "integer", "minimum": 1, "maximum": 99},
                                                         "price": {"type": "number", "minimum": 0}})},
            "total": _NUMBER, "currency": {"enum": ["EUR", "GBP", "USD", "JPY"]}, "note": {"type": ["string", "null"]},
        }),
        {"id": "2eb8aa08-aa98-11ea-b4aa-73b441d16380", "items": [{"sku": "ABC-1234", "quantity": 2, "price": 19.99},
                                                                 {"sku": "XYZ-0001", "quantity": 1, "price": 5}],
         "total": 44.98, "currency": "EUR", "note": None},
    ),
    Sample(
        "tools",
        {"anyOf": [
            _object({"tool": {"const": "search"}, "query": _TEXT, "limit": {"type": "integer", "minimum": 1, "maximum": 50}}),
            _object({"tool": {"const": "weather"}, "place": _TEXT, "unit": {"enum": ["celsius", "fahrenheit"]}}),
            _object({"tool": {"const": "reply"}, "text": _TEXT}),
        ]},
        {"tool": "weather", "place": "Kyoto", "unit": "celsius"},
    ),
    Sample("tree", _TREE, {"label": "root", "children": [{"label": "a", "children": []}, {"label": "b", "children": [
        {"label": "c", "children": []}]}]}),
    Sample("sixty optional fields", _object(_FIELDS, ()), {
        name: ["some words", 7, False, "high"][i % 4] for i, name in enumerate(_FIELDS) if i % 3}),
    Sample(
        "matrix",
        {"type": "array", "minItems": 3, "maxItems": 3,
         "items": {"type": "array", "items": _NUMBER, "minItems": 3, "maxItems": 3}},
        [[1.5, 0, -2.25], [0.125, 1, 3e-5], [12, 4.75, 0]],
    ),
    Sample(
        "settings by name",
        {"type": "object", "additionalProperties": {"type": "array", "items": _object({"value": _NUMBER, "on": _FLAG})}},
        {"left": [{"value": 0.5, "on": True}], "right": [{"value": 1, "on": False}, {"value": 2, "on": True}]},
    ),
    Sample(
        "document",
        _object({
            "title": {"type": "string", "minLength": 1}, "language": {"type": "string", "pattern": "^[a-z]{2}(-[A-Z]{2})?$"},
            "sections": {"type": "array", "items": _object({"heading": _TEXT, "paragraphs": {"type": "array", "items": _TEXT},
                                                            "rating": {"type": "number", "minimum": 0, "maximum": 5}})},
            "tags": {"type": "array", "items": {"enum": ["news", "sport", "science", "art", "music"]}},
        }),
        {"title": "On tides", "language": "en-GB", "sections": [{"heading": "Causes", "paragraphs": [
            "The moon pulls the sea towards it, and the earth turns below.", "Twice a day the water rises."], "rating": 4.5}],
         "tags": ["science", "news"]},
    ),
)  # fmt: skip


@lru_cache(maxsize=4)
def vocabulary(size: int) -> tuple[bytes, ...]:
    """The bytes of as many tokens: the default model's, of which the first ones are the most frequent, then pairs of these; the
    last is an end token."""
    tokenizer = ds.load().tokenizer
    single = [bytes([i]) for i in range(256)]
    own = (tokenizer.token_bytes(i) for i in range(len(tokenizer)))
    frequent = [data for data in map(tokenizer.token_bytes, range(300, 1500)) if data]
    pairs = (first + second for first, second in product(frequent, frequent))
    several = dict.fromkeys([*single, *filter(None, own)])
    found = list(islice(several, size - 1))
    found += islice((pair for pair in pairs if pair not in several), size - 1 - len(found))
    return (*found, b"")


def tokens_of(text: bytes, token_ids: dict[bytes, int]) -> list[int]:
    """The longest token that the rest begins with, again and again."""
    longest, ids, at = max(map(len, token_ids)), list[int](), 0
    while at < len(text):
        size = next(size for size in range(longest, 0, -1) if text[at : at + size] in token_ids)
        ids.append(token_ids[text[at : at + size]])
        at += size
    return ids
