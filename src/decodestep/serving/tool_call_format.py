"""The base class of function-call formats."""

from __future__ import annotations

import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

from decodestep.serving.tool_json import UnreadableError

Calls = list[tuple[str, Any]]  # the name and the arguments of each
Functions = Mapping[str, Mapping[str, Any]]  # the JSON schema of each function's arguments
# The parts of a constrained text: literal text, JSON that matches a schema, or a regular expression with literal text after it.
Pieces = list[str | dict[str, Any] | re.Pattern[str]]


class CallFormat(ABC):
    """A format of function calls. functions: those that may be called.

    marks: strings that begin a call, anywhere in the text. always_marked: whether nothing else begins one, and `call` contains
    all of them. spelled: the names of the control tokens that calls contain.
    """

    marks: tuple[str, ...] = ()
    always_marked: bool = True
    spelled: tuple[str, ...] = ()

    def __init__(self, functions: Functions) -> None:
        self.functions = functions

    def plain_length(self, text: str) -> int:
        """How many characters of the text so far cannot belong to a call or to the whitespace before one."""
        at = self._first_mark(text)
        if at is not None:
            return len(text[:at].rstrip())
        kept = max(n for mark in self.marks for n in range(len(mark)) if text.endswith(mark[:n]))
        return len(text[: len(text) - kept].rstrip())

    def read(self, text: str) -> tuple[str, Calls]:
        """The visible text and the calls. Raises UnreadableError."""
        at = self._first_mark(text)
        if at is None:
            return text, []  # with the whitespace at its end, which may be part of a constrained answer
        calls = list(self.calls(text[at:]))
        if not calls:
            raise UnreadableError
        return text[:at].rstrip(), calls

    def new_id(self, name: str, number: int) -> str:
        """An id that the chat template accepts when the call comes back. number: of the calls before it in the conversation."""
        return f"call_{secrets.token_hex(12)}"

    @abstractmethod
    def calls(self, text: str) -> Iterator[tuple[str, Any]]:
        """The calls of a text that begins with a mark. Raises UnreadableError."""

    @abstractmethod
    def call(self, name: str, schema: dict[str, Any]) -> Pieces:
        """The whole text of one call."""

    def _first_mark(self, text: str) -> int | None:
        """Where the first mark in a text begins; None if it has none."""
        return min((at for mark in self.marks if (at := text.find(mark)) >= 0), default=None)
