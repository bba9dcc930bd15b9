"""llama.cpp's GBNF: the rules of a grammar, read as llama.cpp reads them."""

from __future__ import annotations

import re
import sys
from typing import NoReturn

from decodestep.constraints.gbnf.nodes import (
    SURROGATES,
    Characters,
    Name,
    Node,
    Repeat,
    choice_of,
    others_than,
    sequence_of,
    united,
)

_DEEPEST = 50  # parentheses within each other
_MOST_REPETITIONS = 3  # of one part, one after the other, as in x+?
_ESCAPED = {"t": "\t", "r": "\r", "n": "\n", "\\": "\\", '"': '"', "[": "[", "]": "]"}
_TIMES: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_ONE = r"\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\U[0-9a-fA-F]{8}|\\.|[^\\]"
_CHARACTER = re.compile(_ONE, re.DOTALL)
_RANGE = re.compile(rf"({_ONE})(?:-({_ONE}))?", re.DOTALL)
# A beginning without an end is a piece with all that follows: looking for the end again from each of many takes for ever.
_PIECE = re.compile(
    r"(?P<space>[ \t]+|#[^\r\n]*)|(?P<line>[\r\n]+)|(?P<name>[\w-]+)|(?P<defined>::=)"
    r'|"(?P<literal>(?:\\.|[^"\\])*)"|\[(?P<negated>\^|(?!\^))(?P<set>(?:\\.|[^]\\])+)]'
    r'|\{\s*(?P<least>\d{1,9})\s*(?P<more>,\s*(?P<most>\d{0,9})\s*)?}|(?P<sign>[()|.*+?])|["[].*|.',
    re.DOTALL | re.ASCII,
)
# From its own line on: looking through all empty lines before it, from each of them, would take for ever too.
_LARK = re.compile(r"^[^\S\n]*(%llguidance\b|start\s*:(?!:=))", re.MULTILINE)


def is_lark(text: str) -> bool:
    """Whether a grammar is llguidance's kind of Lark. Every other one is GBNF, in which `start` is a rule like any other."""
    return _LARK.search(text) is not None


def read_gbnf(text: str) -> dict[str, Node]:
    """The rules of a grammar by name, of several of one name the last; raises ValueError, with the line, for what is not GBNF.

    Source: llama.cpp's parser of grammars, without its tokens in angle brackets. Names may have underscores.
    """
    return _Reader(text).rules()


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._pieces = [piece for piece in _PIECE.finditer(text) if piece["space"] is None]
        self._at = 0
        self._references: dict[str, int] = {}  # the first piece that names each rule

    def rules(self) -> dict[str, Node]:
        rules: dict[str, Node] = {}
        self._pass_lines()
        while self._at < len(self._pieces):
            name = self._take("name")
            if name is None or self._take("defined") is None:
                self._refuse("the name of a rule and ::=")
            self._pass_lines()
            rules[name] = self._choice(0)
            if self._at < len(self._pieces) and self._take("line") is None:
                self._refuse("a part of a rule or the end of the line")
            self._pass_lines()
        for name, at in {**self._references, "root": self._at}.items():
            if name not in rules:
                self._at = at
                self._refuse(f"a rule named {name}")
        return rules

    def _choice(self, depth: int) -> Node:
        parts = [self._sequence(depth)]
        while self._take("sign", "|"):
            self._pass_lines()
            parts.append(self._sequence(depth))
        return choice_of(parts)

    def _sequence(self, depth: int) -> Node:
        parts: list[Node] = []
        while (part := self._part(depth)) is not None:
            parts.append(part)
            for _ in range(_MOST_REPETITIONS):
                if (times := self._times(depth)) is not None:
                    parts[-1] = Repeat(parts[-1], *times)
        return sequence_of(parts)

    def _part(self, depth: int) -> Node | None:
        if depth:
            self._pass_lines()
        if (literal := self._take("literal")) is not None:
            codes = [self._code(one) for one in _CHARACTER.findall(literal)]
            return sequence_of([Characters(((code, code),)) for code in codes])
        if characters := self._take("set"):
            return self._set(characters, negated=self._last()["negated"] != "")
        if name := self._take("name"):
            self._references.setdefault(name, self._at - 1)
            return Name(name)
        if self._take("sign", "."):
            return Characters(others_than([]))
        if not self._take("sign", "("):
            return None
        if depth == _DEEPEST:
            self._refuse(f"at most {_DEEPEST} parentheses within each other")
        inner = self._choice(depth + 1)
        if not self._take("sign", ")"):
            self._refuse("a part of a rule or )")
        return inner

    def _times(self, depth: int) -> tuple[int, int | None] | None:
        if depth:
            self._pass_lines()
        for sign, times in _TIMES.items():
            if self._take("sign", sign):
                return times
        if not (least := self._take("least")):
            return None
        piece = self._last()
        most = piece["most"] if piece["more"] else least
        if most and int(most) < int(least):
            self._refuse("a repetition whose second number is not below its first", piece)
        return int(least), int(most) if most else None

    def _set(self, text: str, negated: bool) -> Characters:
        ranges = []
        for first, last in _RANGE.findall(text):
            ranges.append((self._code(first), self._code(last or first)))
            if ranges[-1][1] < ranges[-1][0]:
                self._refuse("a range whose second character is not before its first", self._last())
        return Characters(others_than(ranges) if negated else united(ranges))

    def _code(self, one: str) -> int:
        if len(one) > 2:
            code = int(one[2:], 16)
        elif len(one) == 2:
            code = ord(_ESCAPED.get(one[1]) or self._refuse("an escape of llama.cpp's", self._last()))
        else:
            code = ord(one)
        if code > sys.maxunicode or SURROGATES[0] <= code <= SURROGATES[1]:
            self._refuse("a character of Unicode", self._last())
        return code

    def _pass_lines(self) -> None:
        while self._take("line"):
            pass

    def _take(self, kind: str, sign: str | None = None) -> str | None:
        """The next piece, passed, if it is of a kind (and is this sign)."""
        if self._at == len(self._pieces):
            return None
        found = self._pieces[self._at][kind]
        if found is None or sign not in (None, found):
            return None
        self._at += 1
        return found

    def _last(self) -> re.Match[str]:
        return self._pieces[self._at - 1]

    def _refuse(self, expected: str, piece: re.Match[str] | None = None) -> NoReturn:
        if piece is None and self._at < len(self._pieces):
            piece = self._pieces[self._at]
        line = self._text.count("\n", 0, piece.start() if piece else None) + 1
        raise ValueError(f"line {line}: expected {expected}; got {repr(piece[0][:20]) if piece else 'the end'}")
