"""JSON schemas as grammars: what is refused before it is read, and the rules of what is left."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from decodestep._base.checks import Phrase, refuse, require
from decodestep.constraints.json_form import OPTIONS
from decodestep.constraints.schemas.document import Document
from decodestep.constraints.schemas.families import Families
from decodestep.constraints.schemas.formats import PATTERNS
from decodestep.constraints.schemas.patterns import Patterns
from decodestep.constraints.schemas.writing import write_rules
from decodestep.constraints.trial import short

_OP = "SamplingParams"
# Characters that llguidance cannot write in a string of a pattern.
_CONTROL = re.compile(r"[\0-\x07\x0b\x0e-\x1f\x7f]")
# What makes llguidance read a class as an operation on sets; to JSON Schema these are characters.
_SETS = re.compile(r"\[|&&|--|~~")
_ONE_SET = r"of patterns whose classes have \[ for [, and no &&, -- or ~~"
# A class, which may have others too; a character by its number; another escape; a character.
_OF_PATTERN = re.compile(r"\[(?:\\.|[^]\\])*]|\\x\{?([0-9a-fA-F]{2})|\\u\{?([0-9a-fA-F]{4})|\\.|.", re.DOTALL)
_NAMING = ("properties", "dependentRequired", "dependentSchemas", "dependencies")  # keywords whose keys are names of members


def check(text: str) -> None:
    """Raises ValueError for a schema that is not JSON, wrong, not supported or impossible to satisfy."""
    schema_rules(text, "json", closed=True, order="schema")


@lru_cache(maxsize=64)
def schema_rules(text: str, prefix: str, *, closed: bool, order: str) -> tuple[str, ...]:
    """The rules of a schema's texts, in llguidance's kind of Lark; that of the whole text is named as the prefix.

    closed: whether objects with properties and without additionalProperties have no other members. order: "schema", or "any"
        for properties in any order. Raises ValueError as `check` does.
    """
    try:
        schema = json.loads(text)
        json.dumps(schema)
    except (ValueError, RecursionError) as error:
        refuse(_OP, "json_schema", "one that can be compiled", Phrase(short(str(error))))
    require(isinstance(schema, (dict, bool)), _OP, "json_schema", "an object or a bool", schema)
    document = Document(schema)
    for each in _written(document):
        require(OPTIONS not in each, _OP, "json_schema", f"without {OPTIONS}", each.get(OPTIONS))
    formats = (each.get("format") for each in _written(document))
    known_formats = {each for each in formats if isinstance(each, str) and each in PATTERNS}
    patterns, texts = dict(_patterns(document)), list(_texts(document))
    known = Patterns(patterns | ({PATTERNS[each]: each for each in sorted(known_formats)} if texts else {}), texts)
    try:
        families = Families(document, known, closed=closed)
        return tuple(write_rules(families, prefix, in_order=order == "schema"))
    except RecursionError:
        refuse(_OP, "json_schema", "one that can be compiled", Phrase("one whose parts are too deep within each other"))


def require_whole(language: str, expression: str) -> None:
    """Refuses an expression that ends within an escape: llguidance leaves the backslash out."""
    if (len(expression) - len(expression.rstrip("\\"))) % 2:
        refuse(_OP, language, "one that can be compiled", Phrase("a backslash at the end of an expression"))


def _written(document: Document) -> Iterator[dict[str, Any]]:
    return (each for each in document.schemas if isinstance(each, dict))


def _patterns(document: Document) -> Iterator[tuple[str, str]]:
    """All patterns, with their places; raises ValueError for one that llguidance reads as another one."""
    for each, path in zip(document.schemas, document.paths, strict=True):
        if not isinstance(each, dict):
            continue
        by_name = each.get("patternProperties")
        for pattern in (each.get("pattern"), *(by_name if isinstance(by_name, dict) else ())):
            if isinstance(pattern, str):
                keyword = "pattern" if pattern == each.get("pattern") else f"patternProperties/{pattern}"
                require_whole("json_schema", pattern)
                require(not _writes_control(pattern), _OP, "json_schema", "of patterns without control characters", pattern)
                require(not _has_sets(pattern), _OP, "json_schema", _ONE_SET, pattern)
                yield pattern, f"{path}/{keyword}"


def _texts(document: Document) -> Iterator[str]:
    """All texts of which a schema may ask whether they are of its patterns: names and strings of constants."""
    for schema in _written(document):
        for key in _NAMING:
            if isinstance(schema.get(key), dict):
                yield from schema[key]
                yield from (name for names in schema[key].values() if isinstance(names, list) for name in map(str, names))
        waiting = [schema.get("const"), schema.get("enum"), schema.get("required")]
        while waiting:
            found = waiting.pop()
            if isinstance(found, str):
                yield found
            elif isinstance(found, dict):
                yield from found
                waiting += found.values()
            elif isinstance(found, list):
                waiting += found


def _writes_control(pattern: str) -> bool:
    """Whether an expression has a control character as such, by its number or by its name, outside of classes."""
    for one in _OF_PATTERN.finditer(pattern):
        number = one[1] or one[2]
        if one[0] in (r"\a", r"\v") or _CONTROL.match(chr(int(number, 16)) if number else one[0]):
            return True
    return False


def _has_sets(pattern: str) -> bool:
    """Whether a class of an expression has a class within, or an operation on sets."""
    classes = (one[0] for one in _OF_PATTERN.finditer(pattern))
    return any(one[0] == "[" and _SETS.search(re.sub(r"\\.", "x", one[1:-1], flags=re.DOTALL)) for one in classes)


def named(schema: Any, reference: object) -> Any:
    """What a reference within a schema names, or None."""
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    found = schema
    for name in unquote(reference[2:]).split("/"):
        try:
            found = found[int(name)] if isinstance(found, list) else found[name.replace("~1", "/").replace("~0", "~")]
        except (LookupError, TypeError, ValueError):
            return None
    return found
