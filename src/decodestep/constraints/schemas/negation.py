"""What does not satisfy a schema, as a schema."""

from __future__ import annotations

from typing import Any

from decodestep.constraints.schemas.document import Document, Mark
from decodestep.constraints.schemas.shapes import ALL_TYPES

_FLIPPED = {
    "minimum": "exclusiveMaximum", "exclusiveMinimum": "maximum",
    "maximum": "exclusiveMinimum", "exclusiveMaximum": "minimum",
}  # fmt: skip
_SIZES = {
    "minLength": ("string", "maxLength", -1), "maxLength": ("string", "minLength", 1),
    "minItems": ("array", "maxItems", -1), "maxItems": ("array", "minItems", 1),
    "minProperties": ("object", "maxProperties", -1), "maxProperties": ("object", "minProperties", 1),
}  # fmt: skip
_SAYING_NOTHING = (
    "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "$schema", "$id", "$defs",
    "definitions", "contentMediaType", "contentEncoding", "$anchor", Mark.UNLISTED, "then", "else",
)  # fmt: skip


def negated(document: Document, part: int) -> int:
    """The part of the values that do not satisfy a part. Raises ValueError, with the place, where that is no schema."""
    if part not in document.negations:
        document.negations[part] = None
        document.negations[part] = document.implied(part, "not", _negated(document, part))
    found = document.negations[part]
    if found is None:
        document.refuse(part, "", "without references to itself where it is negated")
    return found


def _negated(document: Document, part: int) -> Any:
    schema = document.schemas[part]
    if isinstance(schema, bool):
        return not schema
    found = [each for key in schema if key not in _SAYING_NOTHING for each in _without(document, part, key)]
    return found[0] if len(found) == 1 else {"anyOf": found} if found else False


def _without(document: Document, part: int, key: str | Mark) -> list[Any]:
    """Schemas of the values that do not satisfy one keyword."""
    schema = document.schemas[part]
    value = schema[key]
    if isinstance(key, Mark):  # WITHOUT: the other one says nothing
        return [{"enum": value}]
    if key == "$ref":
        return [_schema_of(document, negated(document, document.target(part)))]
    if key in ("const", "enum"):
        return [{Mark.WITHOUT: [value] if key == "const" else value}]
    if key == "type":
        names = {value} if isinstance(value, str) else set(value)
        rest: list[Any] = [{"type": [name for name in ALL_TYPES if name not in names | {"integer"}]}]
        if "integer" in names and "number" not in names:
            document.refuse(part, key, "without integer where it is negated")
        return rest
    if key in _FLIPPED:
        return [{"type": "number", _FLIPPED[key]: value}]
    if key in _SIZES:
        kind, other, by = _SIZES[key]
        return [{"type": kind, other: int(value) + by}] if int(value) + by >= 0 else []
    if key == "required":
        return [{Mark.UNLISTED: True, "type": "object", "properties": {name: False}} for name in value]
    if key == "properties":
        inner = {name: negated(document, document.child(part, key, name)) for name in value}
        return [
            {Mark.UNLISTED: True, "type": "object", "required": [name], "properties": {name: _schema_of(document, each)}}
            for name, each in inner.items()
            if document.schemas[each] is not False
        ]
    if key in ("allOf", "anyOf", "oneOf"):
        parts = [document.child(part, key, i) for i in range(len(value))]
        if key == "oneOf":
            document.refuse(part, key, "outside of what is negated")
        inverse = [_schema_of(document, negated(document, each)) for each in parts]
        return inverse if key == "allOf" else [{"allOf": inverse}]
    if key == "not":
        return [_schema_of(document, document.child(part, key))]
    if key == "items" and isinstance(value, (dict, bool)) and "prefixItems" not in schema:
        return [{"type": "array", "contains": _schema_of(document, negated(document, document.child(part, key)))}]
    if key == "contains" and not {"minContains", "maxContains"} & schema.keys():
        return [{"type": "array", "items": _schema_of(document, negated(document, document.child(part, key)))}]
    document.refuse(part, key, "outside of what is negated, by not, oneOf or if")


def _schema_of(document: Document, part: int) -> Any:
    """A part as a schema within another: itself, so that it keeps its number."""
    return document.schemas[part]
