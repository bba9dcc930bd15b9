"""A GBNF grammar as llguidance's kind of Lark."""

from __future__ import annotations

from collections.abc import Iterator

from decodestep.constraints.gbnf.lexemes import lexemes_of
from decodestep.constraints.gbnf.nodes import Characters, Choice, Name, Node, Repeat, parts_of
from decodestep.constraints.gbnf.syntax import read_gbnf
from decodestep.constraints.gbnf.texts import with_texts

_DEEPEST = 8  # parentheses within each other; llguidance has a limit, and llama.cpp writes numbers as (d (d (d ...)?)?)?
_TIMES = {(0, None): "*", (1, None): "+", (0, 1): "?"}


def lark_of(text: str) -> str:
    """A Lark grammar of the same texts; raises ValueError, with the line, for what is not GBNF."""
    rules = with_texts(read_gbnf(text))
    start = Name("root")
    writer = _Writer(rules, lexemes_of(rules, start))
    lines = [f"start: {writer.written(start, in_lexeme=False)}"]
    lines += [f"{name}: {writer.written(node, in_lexeme=name.isupper())}" for name, node in writer.named()]
    return "\n".join(lines) + "\n"


class _Writer:
    """Writes expressions, and remembers what they name.

    Rules of GBNF are r0, r1 ..., or R0, R1 ... where they are lexemes or parts of them. Other nodes that need a name are p0,
    p1 ... and P0, P1 ... Lark's names have other characters than GBNF's, and those of lexemes are in capitals.
    """

    def __init__(self, rules: dict[str, Node], lexemes: frozenset[Node]) -> None:
        self._rules = rules
        self._lexemes = lexemes
        self._numbers = {name: number for number, name in enumerate(rules)}
        self._names: set[str] = set()
        self._left: list[tuple[str, Node]] = []

    def named(self) -> Iterator[tuple[str, Node]]:
        """All that has been named, each once, also what is named meanwhile."""
        while self._left:
            yield self._left.pop()

    def written(self, node: Node, *, in_lexeme: bool, depth: int = 0) -> str:
        """The expression of a node, in `depth` parentheses."""
        if isinstance(node, Characters):
            return f"/[{''.join(map(_range, node.ranges))}]/"
        begins_lexeme = not in_lexeme and node in self._lexemes
        if isinstance(node, Name):
            return self._name(f"r{self._numbers[node.rule]}", self._rules[node.rule], in_lexeme or begins_lexeme)
        if begins_lexeme or depth == _DEEPEST:
            return self._name(f"p{len(self._names)}", node, in_lexeme or begins_lexeme)
        parts = [self.written(part, in_lexeme=in_lexeme, depth=depth + 1) for part in parts_of(node)]
        if isinstance(node, Repeat):
            most = "" if node.most is None else node.most
            return f"({parts[0]})" + _TIMES.get((node.least, node.most), f"{{{node.least},{most}}}")
        return f"({(' | ' if isinstance(node, Choice) else ' ').join(parts)})" if parts else '""'

    def _name(self, name: str, node: Node, is_lexeme: bool) -> str:
        name = name.upper() if is_lexeme else name
        if name not in self._names:
            self._names.add(name)
            self._left.append((name, node))
        return name


def _range(codes: tuple[int, int]) -> str:
    first, last = map(_plain, codes)
    return first if first == last else f"{first}-{last}"


def _plain(code: int) -> str:
    """A character that has no other meaning in a class."""
    character = chr(code)
    return character if not character.isascii() or character.isalnum() else f"\\x{code:02x}"
