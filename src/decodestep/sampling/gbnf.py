"""llama.cpp's GBNF, rewritten such that llguidance's converter to Lark reads it as llama.cpp does."""

from __future__ import annotations

import re
import sys

_CHARACTER = r"\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\U[0-9a-fA-F]{8}|\\.|[^\\]"
_ONE = re.compile(_CHARACTER, re.DOTALL)
_RANGE = re.compile(rf"({_CHARACTER})(?:-({_CHARACTER}))?", re.DOTALL)
# A comment, a literal, a class, a repetition, whose numbers are no names, the name of a rule, and what else is rewritten. After
# a beginning without an end all is one piece: from each of many, looking for the end again would take for ever.
_PIECE = re.compile(
    r'#[^\r\n]*|"(?P<literal>(?:\\.|[^"\\])*)"|(?P<bracket>\[\^?)(?P<set>(?:\\.|[^]\\])*)]'
    r'|\{[^}]*}|(?P<name>[\w-]+)|[.(]|["[{].*',
    re.DOTALL | re.ASCII,
)
# From its own line on: looking through all empty lines before it, from each of them, would take for ever too.
_LARK = re.compile(r"^[^\S\n]*(%llguidance\b|start\s*:(?!:=))", re.MULTILINE)
_ANY = "[\\x00-\U0010ffff]"  # a line's end too, which Lark's dot leaves out


def is_lark(text: str) -> bool:
    """Whether a grammar is llguidance's kind of Lark. Every other one is GBNF, in which `start` is a rule like any other."""
    return _LARK.search(text) is not None


def plain_gbnf(text: str) -> str:
    """A grammar of the same texts, in which the converter and Lark find nothing that means something else to them.

    A rule gets a number before its name: the converter merges names that differ only in case, `-` and `_`, and `start` and
    names that begin with a digit are refused. The root is a rule as the others: if it does not lead to itself, all of it
    becomes one regular expression, and no part of it takes characters that the next one needs.
    """
    numbers: dict[str, int] = {}

    def rewritten(found: re.Match[str]) -> str:
        name, literal, bracket = found["name"], found["literal"], found["bracket"]
        if name:
            return f"r{numbers.setdefault(name, len(numbers))}-{name}"
        if literal:
            return '"' + _ONE.sub(lambda one: _plain(one[0]), literal) + '"'
        if bracket:
            return bracket + _RANGE.sub(_plain_range, found["set"]) + "]"
        if found[0] == "(":
            return '("" '  # without which the converter drops the parentheses between two repetitions
        return _ANY if found[0] == "." else found[0]

    plain = _PIECE.sub(rewritten, text)
    return f"{plain}\nroot ::= r{numbers['root']}-root\n" if "root" in numbers else plain


def _plain_range(found: re.Match[str]) -> str:
    first, last = found.groups()
    return f"{_plain(first)}-{_plain(last)}" if last else _plain(first)


def _plain(character: str) -> str:
    """A character with no other meaning in literals and classes; escapes of one letter, and wrong ones, are the converter's."""
    if len(character) == 2:
        return character
    code = int(character[2:], 16) if len(character) > 1 else ord(character)
    if code > sys.maxunicode:
        return character  # which is refused
    plain = chr(code)
    return plain if not plain.isascii() or plain.isalnum() else f"\\x{code:02x}"
