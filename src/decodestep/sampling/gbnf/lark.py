"""A GBNF grammar as llguidance's kind of Lark."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from decodestep.sampling.gbnf.lexemes import lexemes_of
from decodestep.sampling.gbnf.syntax import Characters, Choice, Name, Node, Repeat, Sequence, read_gbnf
from decodestep.sampling.gbnf.texts import with_texts

_TIMES = {(0, None): "*", (1, None): "+", (0, 1): "?"}


def lark_of(text: str) -> str:
    """A Lark grammar of the same texts; raises ValueError, with the line, for what is not GBNF."""
    rules = with_texts(read_gbnf(text))
    start = Name("root")
    writer = _Writer(rules, lexemes_of(rules, start))
    lines = [f"start: {writer.in_rule(start)}"]
    for name, node, is_lexeme in writer.named():
        lines.append(f"{name}: {writer.in_lexeme(node) if is_lexeme else writer.in_rule(node)}")
    return "\n".join(lines) + "\n"


class _Writer:
    """Writes expressions, and remembers what they name.

    Rules are r0, r1 ..., or R0, R1 ... where they are lexemes or parts of them; other lexemes are L0, L1 ... Lark's names have
    other characters than GBNF's, and those of lexemes are in capitals.
    """

    def __init__(self, rules: dict[str, Node], lexemes: frozenset[Node]) -> None:
        self._rules = rules
        self._lexemes = lexemes
        self._numbers = {name: number for number, name in enumerate(rules)}
        self._names: set[str] = set()
        self._left: list[tuple[str, Node, bool]] = []

    def named(self) -> Iterator[tuple[str, Node, bool]]:
        """All that has been named, also meanwhile, each once, and whether it is a lexeme."""
        while self._left:
            yield self._left.pop()

    def in_lexeme(self, node: Node) -> str:
        return self._rule(node, is_lexeme=True) if isinstance(node, Name) else self._expression(node, self.in_lexeme)

    def in_rule(self, node: Node) -> str:
        if isinstance(node, Name):
            return self._rule(node, is_lexeme=node in self._lexemes)
        if isinstance(node, Characters) or node not in self._lexemes:
            return self._expression(node, self.in_rule)
        return self._name(f"L{len(self._names)}", node, is_lexeme=True)

    def _rule(self, node: Name, *, is_lexeme: bool) -> str:
        letter = "R" if is_lexeme else "r"
        return self._name(f"{letter}{self._numbers[node.rule]}", self._rules[node.rule], is_lexeme=is_lexeme)

    def _name(self, name: str, node: Node, *, is_lexeme: bool) -> str:
        if name not in self._names:
            self._names.add(name)
            self._left.append((name, node, is_lexeme))
        return name

    def _expression(self, node: Characters | Repeat | Choice | Sequence, part: Callable[[Node], str]) -> str:
        if isinstance(node, Characters):
            return f"/[{''.join(map(_range, node.ranges))}]/"
        if isinstance(node, Repeat):
            most = "" if node.most is None else node.most
            return f"({part(node.part)})" + _TIMES.get((node.least, node.most), f"{{{node.least},{most}}}")
        if isinstance(node, Choice):
            return f"({' | '.join(map(part, node.parts))})"
        return f"({' '.join(map(part, node.parts))})" if node.parts else '""'


def _range(codes: tuple[int, int]) -> str:
    first, last = map(_plain, codes)
    return first if first == last else f"{first}-{last}"


def _plain(code: int) -> str:
    """A character that has no other meaning in a class."""
    character = chr(code)
    return character if not character.isascii() or character.isalnum() else f"\\x{code:02x}"
