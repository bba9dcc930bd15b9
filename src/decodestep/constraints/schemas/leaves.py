"""Strings, numbers and names of members as terminals of Lark, or as schemas that llguidance has right."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from decodestep._base.checks import Phrase, is_finite, refuse
from decodestep.constraints.json_form import JSON_FORM, OPTIONS
from decodestep.constraints.schemas.formats import PATTERNS
from decodestep.constraints.schemas.shapes import FARTHEST, Number, String

# Terminals that several rules share. Numbers are such that float64 and int64 can hold them.
STRING = r'/"([^"\\\x00-\x1f\x7f]|\\["\\bfnrt])*"/'
_PLAIN = r'[^"\\\x00-\x1f\x7f]'  # a character that is written as it is
WHOLE = r"/-?(0|[1-9][0-9]{0,17})/"
NUMBER = r"/-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,24})?([eE][-+]?(0?[0-9]{1,2}|1[0-9]{2}|2[0-7][0-9]))?/"
_FAR = 10**18  # the farthest of numbers that are bounded on the other side alone
# Bounds, with the direction of the numbers that they allow. llguidance has bounds as float64, and those of integers as int64.
_BOUNDS = {"minimum": math.inf, "exclusiveMinimum": math.inf, "maximum": -math.inf, "exclusiveMaximum": -math.inf}
# The least number beyond an exclusive bound of 0, which parsers read in 0.000...1: llguidance cannot nest an expression as deep
# as the smallest float64 has zeros.
_SMALLEST = 1e-48
_FROM_ZERO = {"exclusiveMinimum": {"minimum": _SMALLEST}, "exclusiveMaximum": {"maximum": -_SMALLEST}}
_SPECIAL = re.compile(r"[^\w ]", re.ASCII)


def constant(value: object) -> str:
    """A value as literals of Lark, one for each string, number, sign and word, as rules have them: of two literals that begin
    at the same place llguidance takes the longer. A whole number that has a fraction of zero may be written without."""
    if isinstance(value, list):
        return " ".join(['"["', ' ", " '.join(map(constant, value)), '"]"'])
    if isinstance(value, dict):
        members = (f'{literal(json_text(name))} ": " {constant(each)}' for name, each in value.items())
        return " ".join(['"{"', ' ", " '.join(members), '"}"'])
    text = json_text(value)
    whole = text.removesuffix(".0") if isinstance(value, float) else text
    return literal(text) if whole == text else f'{literal(whole)} ".0"?'


def json_text(value: object) -> str:
    """A value in the form of json.dumps, with characters as they are."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isascii() or text.encode("utf-8", "ignore").decode() == text else json.dumps(value)


def literal(text: str) -> str:
    """A text as a literal of Lark."""
    return json.dumps(text, ensure_ascii=False)


def embedded(schema: dict[str, Any]) -> str:
    """A schema as llguidance compiles it itself, in Lark."""
    return f"%json {json.dumps({**schema, OPTIONS: JSON_FORM})}"


def string_schema(shape: String) -> dict[str, Any]:
    """The keywords of strings for llguidance."""
    rules: list[dict[str, Any]] = [{"pattern": each} for each in (*shape.patterns, *map(PATTERNS.__getitem__, shape.formats))]
    if shape.without:
        rules.append({"pattern": f"^{_all_but(shape.without)}$"})
    bounds = {"minLength": shape.least} | ({} if shape.most is None else {"maxLength": shape.most})
    return {"type": "string", **bounds, **({"allOf": rules} if rules else {})}


def whole_terminal(shape: Number) -> str:
    """The terminal of whole numbers between two, of any number of digits."""
    first, last = _ends(shape)
    ways = [f"-({'|'.join(_between(max(1, -last), -first))})"] if first < 0 else []
    if first < 0 <= last:
        ways.append("-0")
    ways += _between(max(0, first), last) if last >= 0 else []
    return f"/{'|'.join(ways)}/"


def _ends(shape: Number) -> tuple[int, int]:
    """The first and last whole number, also where a shape has no bound."""
    first, last = shape.whole_range
    return (
        int(first) if math.isfinite(first) else -max(_FAR, 2 * abs(int(last)) if math.isfinite(last) else 0),
        int(last) if math.isfinite(last) else max(_FAR, 2 * abs(int(first)) if math.isfinite(first) else 0),
    )


def _between(low: int, high: int) -> list[str]:
    """Regular expressions of the numbers between two that are not negative: of ranges of one digit, before which the digits are
    the same and after which they are free."""
    ways = []
    while low <= high:
        free = 0
        while low and low % 10 ** (free + 1) == 0 and low + 10 ** (free + 1) <= high + 1:
            free += 1
        before, digit = divmod(low // 10**free, 10)
        last = min(9, digit + (high + 1 - low) // 10**free - 1)
        ways.append(f"{before or ''}[{digit}-{last}]" + (f"[0-9]{{{free}}}" if free else ""))
        low += (last - digit + 1) * 10**free
    return ways


def number_schema(shape: Number) -> dict[str, Any]:
    """The keywords of numbers for llguidance: bounds on both sides, within those that it reads as other ones."""
    found: dict[str, Any] = {"type": "integer" if shape.whole else "number"}
    if shape.whole:
        first, last = _ends(shape)
        found |= {"minimum": max(first, -FARTHEST), "maximum": min(last, FARTHEST)}
    else:
        far = max(_FAR, *(2 * abs(bound) for bound in (shape.least, shape.most) if math.isfinite(bound)), 0)
        found |= {"exclusiveMinimum" if shape.above else "minimum": _inward(max(shape.least, -far, -FARTHEST), least=True)}
        found |= {"exclusiveMaximum" if shape.below else "maximum": _inward(min(shape.most, far, FARTHEST), least=False)}
    rules = [{"multipleOf": each} for each in shape.multiples]
    if len(rules) == 1:
        found |= rules.pop()
    rules += _tighter(found)
    return {**found, **({"allOf": rules} if rules else {})}


def _inward(bound: float, *, least: bool) -> float:
    """A bound; one that is nearer to 0 than llguidance can read is the next one that it can, or 0."""
    if bound == 0 or abs(bound) >= _SMALLEST:
        return bound
    return math.copysign(_SMALLEST, bound) if (bound > 0) == least else 0


def _tighter(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """Bounds within those that llguidance reads as other ones, and those of 0 that are exclusive."""
    added = []
    for key, inward in _BOUNDS.items():
        bound = schema.get(key)
        if not is_finite(bound):
            continue
        if bound == 0 and key in _FROM_ZERO:
            added.append(dict(_FROM_ZERO[key]))
        first = bound
        while math.isfinite(first) and abs(first) >= _SMALLEST and not _is_read(first):
            first = math.nextafter(first, inward)
        if first != bound:
            added.append({key: first})
    return added


def _is_read(number: float) -> bool:
    """Whether llguidance reads a number as it is: its parser rounds the digits, without the point, to float64, and then their
    product or quotient with a power of ten."""
    if isinstance(number, int):
        return True
    text = Decimal(repr(abs(number)))
    exponent = int(text.as_tuple().exponent)
    digits, power = float(text.scaleb(-exponent)), float(f"1e{abs(exponent)}")
    return (digits * power if exponent > 0 else digits / power) == abs(number)


def _all_but(words: Iterable[str]) -> str:
    """The regular expression of all texts but these words."""
    next_: dict[str, list[str]] = {}
    ends = False
    for word in words:
        if word:
            next_.setdefault(word[0], []).append(word[1:])
        else:
            ends = True
    if not next_:
        return r"[\s\S]+" if ends else r"[\s\S]*"
    others = "".join(map(_escaped, next_))
    ways = [rf"[^{others}][\s\S]*", *(_escaped(first) + _all_but(rest) for first, rest in next_.items())]
    return f"({'|'.join(ways)})" + ("" if ends else "?")


def _escaped(character: str) -> str:
    return rf"\x{{{ord(character):X}}}" if _SPECIAL.match(character) or not character.isascii() else character


def name_terminal(
    shape: String, inside: Iterable[str], outside: Iterable[str], taken: Iterable[str], begun: Iterable[str]
) -> str:
    """The terminal of names of members, in quotes.

    shape: what propertyNames says. inside, outside: patterns that they are of, and not of. taken: names that they are not.
    begun: names that they do not begin with.
    """
    inside = [*inside, *shape.patterns, *map(PATTERNS.__getitem__, shape.formats)]
    outside = list(outside)
    long = shape.least > 0 or shape.most is not None
    if inside or outside or long:
        size = f"{{{shape.least},{'' if shape.most is None else shape.most}}}" if long else "*"
        parts = [f'/"{_PLAIN}{size}"/']
    else:
        parts = [STRING]
    parts += [_quoted(each) for each in inside] + [f"~{_quoted(each)}" for each in outside]
    but = [literal(json_text(name)) for name in (*taken, *sorted(shape.without))]
    but += map(beginning, begun)
    return " & ".join([*parts, *([f"~({' | '.join(but)})"] if but else [])])


def beginning(name: str) -> str:
    """The terminal of all texts that begin with a name in quotes but for the last one."""
    return f"({literal(json_text(name)[:-1])} /(.|\\n)*/)"


def _quoted(pattern: str) -> str:
    """The terminal of quoted texts in which a pattern is found."""
    ways = []
    for branch in _branches(pattern)[0]:
        begin = "" if branch.startswith("^") else r"[\s\S]*"
        inner = branch.removeprefix("^")
        ends = inner.endswith("$") and (len(inner) - 1 - len(inner[:-1].rstrip("\\"))) % 2 == 0
        ways.append(begin + (inner[:-1] if ends else inner + r"[\s\S]*"))
    slashed = re.sub(r"(\\.)|/", lambda found: found[1] or r"\/", "|".join(f"({way})" for way in ways), flags=re.DOTALL)
    return f'/"({slashed})"/'.replace("\n", r"\n")


def require_plain(pattern: str, place: str) -> None:
    """Refuses a pattern of names with an anchor within it. place: where it is in the schema."""
    if sign := _branches(pattern)[1]:
        what = Phrase(f"one in which {place}, a pattern of names, is not without {sign} within it")
        refuse("SamplingParams", "json_schema", "one that can be compiled", what)


def _branches(pattern: str) -> tuple[list[str], str]:
    """The sides of the bars of an expression that are in no group; and an anchor that is at no end of one, or ""."""
    found, depth, last, within = [], 0, 0, ""
    for piece in re.finditer(r"\\.|\[\^?\]?(?:\\.|[^]\\])*]|.", pattern, re.DOTALL):
        sign = piece[0]
        depth += (sign == "(") - (sign == ")")
        if sign == "|" and depth == 0:
            found.append(pattern[last : piece.start()])
            last = piece.end()
        elif sign in "^$" and not (
            depth == 0 and (piece.start() == last or piece.end() == len(pattern) or pattern[piece.end()] == "|")
        ):
            within = sign
    return [*found, pattern[last:]], within
