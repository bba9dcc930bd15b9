"""Strings, constants and names of members as terminals of Lark, or as schemas that llguidance has right."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from decodestep._base.checks import Phrase, refuse
from decodestep.constraints.json_form import JSON_FORM, OPTIONS
from decodestep.constraints.schemas.formats import PATTERNS
from decodestep.constraints.schemas.shapes import String

STRING = r'/"([^"\\\x00-\x1f\x7f]|\\["\\bfnrt])*"/'
_PLAIN = r'[^"\\\x00-\x1f\x7f]'  # a character that is written as it is
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
