"""Rules of a grammar as they are written."""

from __future__ import annotations

from decodestep.constraints.schemas.shapes import All


class Rules:
    """The lines of a grammar, whose names begin with a prefix.

    Attributes:
        of_values: the rules of the values that satisfy parts of a schema at once.
        done: the names of rules that are written.
    """

    def __init__(self, prefix: str) -> None:
        self.lines: list[str] = []
        self.of_values: dict[All, str] = {}
        self.done: set[str] = set()
        self._prefix = prefix
        self._count = 0
        self._terminals: dict[str, str] = {}  # by what they are

    def new(self, kind: str) -> str:
        """A new name."""
        self._count += 1
        return f"{self._prefix}_{kind}{self._count}"

    def add(self, name: str, *ways: str) -> str:
        """Writes a rule that is one of several ways; one with a parameter has `::_` in its name. Returns the name."""
        self.done.add(name)
        self.lines.append(f"{name}: " + "\n  | ".join(ways))
        return name

    def terminal(self, name: str, expression: str) -> str:
        """The name of a terminal, with the prefix, of an expression that is written once."""
        if expression not in self._terminals:
            prefix = self._prefix.upper()
            self._terminals[expression] = name if name.startswith(prefix) else f"{prefix}_{name}"
            self.lines.append(f"{self._terminals[expression]}: {expression}")
        return self._terminals[expression]
