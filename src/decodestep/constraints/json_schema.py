"""JSON schemas as llguidance accepts and enforces them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

from decodestep._base.checks import Phrase, is_finite, is_real, refuse, require
from decodestep.constraints.closed_objects import close_objects
from decodestep.constraints.json_form import JSON_FORM, OPTIONS
from decodestep.constraints.property_names import write_out_patterns

_OP = "SamplingParams"

# Keys of a schema whose values are schemas by name, and values of no schema.
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_VALUES = ("const", "enum", "default", "examples", "required")
# Keywords that llguidance refuses, with the value that has no effect.
_NEUTRAL = {"uniqueItems": False, "unevaluatedProperties": True, "unevaluatedItems": True, "propertyNames": True}
# Bounds, with the direction of the numbers that they allow. llguidance has bounds as float64, and those of integers as int64.
_BOUNDS = {"minimum": math.inf, "exclusiveMinimum": math.inf, "maximum": -math.inf, "exclusiveMaximum": -math.inf}
# The least number beyond an exclusive bound of 0, which parsers read in 0.000...1: llguidance cannot nest an expression as deep
# as the smallest float64 has zeros.
_SMALLEST = 1e-48
_FROM_ZERO = {"exclusiveMinimum": {"minimum": _SMALLEST}, "exclusiveMaximum": {"maximum": -_SMALLEST}}
# Characters that JSON_FORM cannot write: llguidance leaves them out of a text that has them.
_CONTROL = re.compile(r"[\0-\x07\x0b\x0e-\x1f\x7f]")
_WIDEST = 2**53  # integers up to here are exact as float64, as which llguidance has numbers
# What makes llguidance read a class as an operation on sets; to JSON Schema these are characters.
_SETS = re.compile(r"\[|&&|--|~~")
_ONE_SET = r"of patterns whose classes have \[ for [, and no &&, -- or ~~"
# A class, which may have others too; a character by its number; another escape; a character.
_OF_PATTERN = re.compile(r"\[(?:\\.|[^]\\])*]|\\x\{?([0-9a-fA-F]{2})|\\u\{?([0-9a-fA-F]{4})|\\.|.", re.DOTALL)
# The formats that JSON Schema defines; others are annotations.
_FORMATS = {
    "date-time", "date", "time", "duration", "email", "idn-email", "hostname", "idn-hostname", "ipv4", "ipv6", "uuid", "regex",
    "uri", "uri-reference", "iri", "iri-reference", "uri-template", "json-pointer", "relative-json-pointer",
}  # fmt: skip
# llguidance's own patterns allow 29 February in every year and seconds of 60, which parsers refuse. Years start at 1, as there.
_YEAR = "([0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_FOURTH = "(0[48]|[2468][048]|[13579][26])"  # multiples of four that are not zero
_DAY = "((0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])|(0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-31)"
_DATE = f"({_YEAR}-{_DAY}|([0-9]{{2}}{_FOURTH}|{_FOURTH}00)-02-29)"
_HOUR = "([01][0-9]|2[0-3])"
_TIME = rf"{_HOUR}:[0-5][0-9]:[0-5][0-9](\.[0-9]{{1,9}})?(Z|[+-]{_HOUR}:[0-5][0-9])"
_PATTERNS = {"date": f"^{_DATE}$", "time": f"^{_TIME}$", "date-time": f"^{_DATE}T{_TIME}$"}
_LONGEST_HOSTNAME = 253  # which llguidance's pattern leaves out


def check(text: str) -> str:
    """The schema with unescaped keys, and with `close_objects`. Raises ValueError if it is not JSON, or allows texts that JSON
    parsers find invalid."""
    try:
        schema = json.loads(text)
        json.dumps(schema)
    except (ValueError, RecursionError) as error:
        refuse(_OP, "json_schema", "one that can be compiled", Phrase(short(str(error))))
    require(isinstance(schema, dict), _OP, "json_schema", "an object", schema)
    close_objects(_schemas(schema), lambda reference: named(schema, reference))
    for each in _schemas(schema):
        require(OPTIONS not in each, _OP, "json_schema", f"without {OPTIONS}", each.get(OPTIONS))
        patterns = each.get("patternProperties")
        for pattern in (each.get("pattern"), *(patterns if isinstance(patterns, dict) else ())):
            _check_pattern(pattern)
        for value in (each.get("const"), each.get("enum")):
            _check_value(value)
        for key, inward in _BOUNDS.items():
            require(_is_exact(each.get(key), inward > 0), _OP, "json_schema", f"one whose {key} fits 53 bits", each.get(key))
        step = each.get("multipleOf")  # of which llguidance takes the absolute value
        require(not is_real(step) or step > 0, _OP, "json_schema", "one whose multipleOf is above 0", step)
        # Of draft 3, whose other keywords llguidance ignores; many write it by mistake.
        require(each.get("required") is not True, _OP, "json_schema", "one whose required is a list of names", True)
        _check_least(each)
    return json.dumps(schema)


def _check_pattern(pattern: object) -> None:
    """Refuses an expression that llguidance reads as another one."""
    require_whole("json_schema", pattern)
    require(not _writes_control(pattern), _OP, "json_schema", "of patterns without control characters", pattern)
    require(not _has_sets(pattern), _OP, "json_schema", _ONE_SET, pattern)


def _check_least(schema: dict[str, Any]) -> None:
    """Refuses a minProperties that texts may miss: names that the schema does not list may be written twice, which parsers take
    as one."""
    least, required = schema.get("minProperties"), schema.get("required")
    names = len(set(map(str, required))) if isinstance(required, list) else 0
    closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
    if is_real(least) and least > max(names, 1) and not closed:  # a single one cannot be written twice
        rule = "without a minProperties above the number of required names, unless additionalProperties is false"
        refuse(_OP, "json_schema", rule, Phrase(f"{least} with {names} required"))


def check_embedded(lark: str) -> None:
    """Refuses schemas in a Lark grammar that change how they are read, other than to the form of those beside grammars."""
    for begun in re.finditer(r"%json\s*", lark):
        try:
            schema, _ = json.JSONDecoder().raw_decode(lark, begun.end())
        except (ValueError, RecursionError):  # llguidance refuses it, or it is in a string or a comment
            continue
        for each in _schemas(schema):
            require(each.get(OPTIONS, JSON_FORM) == JSON_FORM, _OP, "grammar", f"without {OPTIONS}", each.get(OPTIONS))


def require_whole(language: str, expression: object) -> None:
    """Refuses an expression that ends within an escape: llguidance leaves the backslash out."""
    if isinstance(expression, str) and (len(expression) - len(expression.rstrip("\\"))) % 2:
        refuse(_OP, language, "one that can be compiled", Phrase("a backslash at the end of an expression"))


def _check_value(value: object) -> None:
    """Refuses a value of which llguidance writes another one. Names are written with any character."""
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, str):
            require(not _CONTROL.search(found), _OP, "json_schema", "of values without control characters", found)
        elif isinstance(found, (list, dict)):
            waiting += found.values() if isinstance(found, dict) else found
        elif is_real(found):
            require(abs(found) <= _WIDEST, _OP, "json_schema", "of values that fit 53 bits", found)
            require(_is_read(found), _OP, "json_schema", "of values whose digits fit 53 bits", found)


def _writes_control(pattern: object) -> bool:
    """Whether an expression has a control character as such, by its number or by its name, outside of classes."""
    for one in _OF_PATTERN.finditer(pattern) if isinstance(pattern, str) else ():
        number = one[1] or one[2]
        if one[0] in (r"\a", r"\v") or _CONTROL.match(chr(int(number, 16)) if number else one[0]):
            return True
    return False


def _has_sets(pattern: object) -> bool:
    """Whether a class of an expression has a class within, or an operation on sets."""
    classes = (one[0] for one in _OF_PATTERN.finditer(pattern if isinstance(pattern, str) else ""))
    return any(one[0] == "[" and _SETS.search(re.sub(r"\\.", "x", one[1:-1], flags=re.DOTALL)) for one in classes)


def _is_exact(bound: object, above: bool) -> bool:
    """Whether numbers that llguidance allows are on the right side of a bound."""
    if not is_finite(bound):
        return True
    kept = max(-(2**63), min(int(float(bound)), 2**63 - 1)) if abs(bound) >= _WIDEST else bound
    return kept >= bound if above else kept <= bound


def _is_read(number: float) -> bool:
    """Whether llguidance reads a number as it is: its parser rounds the digits, without the point, to float64, and then their
    product or quotient with a power of ten."""
    if isinstance(number, int):
        return True
    text = Decimal(repr(abs(number)))
    exponent = int(text.as_tuple().exponent)
    digits, power = float(text.scaleb(-exponent)), float(f"1e{abs(exponent)}")
    return (digits * power if exponent > 0 else digits / power) == abs(number)


def enforceable(text: str) -> str:
    """A checked schema without keywords and formats that have no effect, and with what parsers ask beyond llguidance's reading
    of formats and bounds, in JSON_FORM. Patterns of property names that it may exhaust are written out."""
    schema = json.loads(text)
    write_out_patterns(schema, _schemas(schema))
    for each in _schemas(schema):
        for key in [key for key, value in _NEUTRAL.items() if each.get(key) is value]:
            del each[key]
        name = each.get("format")
        added = [*_of_bounds(each), *_of_format(name)]
        if isinstance(name, str) and (name in _PATTERNS or name not in _FORMATS):
            del each["format"]
        others = each.get("allOf", [])
        if added and isinstance(others, list):
            each["allOf"] = [*others, *added]
    return json.dumps({**schema, OPTIONS: JSON_FORM})


def _of_format(name: object) -> list[dict[str, Any]]:
    """What texts of a format also are."""
    if name == "hostname":
        return [{"maxLength": _LONGEST_HOSTNAME}]
    return [{"pattern": _PATTERNS[name]}] if isinstance(name, str) and name in _PATTERNS else []


def _of_bounds(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """Bounds within those that llguidance reads as other ones, and those of 0 that are exclusive."""
    added = []
    for key, inward in _BOUNDS.items():
        bound = schema.get(key)
        if not is_finite(bound):
            continue
        if bound == 0 and key in _FROM_ZERO:
            added.append(dict(_FROM_ZERO[key]))  # a copy, since what is added is rewritten too
        first = bound
        while math.isfinite(first) and abs(first) >= _SMALLEST and not _is_read(first):
            first = math.nextafter(first, inward)
        if first != bound:
            added.append({key: first})
    return added


def _schemas(schema: object) -> Iterator[dict[str, Any]]:
    """The schema, all schemas nested in it, and those that references name, wherever they are."""
    waiting, seen = [schema], set()
    while waiting:
        found = waiting.pop()
        if isinstance(found, list):
            waiting += found
        elif isinstance(found, dict) and id(found) not in seen:
            seen.add(id(found))
            yield found
            waiting.append(named(schema, found.get("$ref")))
            for key, value in found.items():
                if key in _BY_NAME and isinstance(value, dict):
                    waiting += value.values()
                elif key not in _VALUES:
                    waiting.append(value)


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


def short(text: str) -> str:
    """The beginning of an error's text, on one line."""
    return " ".join(text.split())[:300]
