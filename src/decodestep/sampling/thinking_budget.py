"""Thinking budgets: how many tokens a row may write between the marks of reasoning before the closing one is forced."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from decodestep._base.arrays import Array
from decodestep.ops.decode_step import steps as s

_SPACES = tuple(chr(i).encode() for i in range(0x3001) if chr(i).isspace())  # Unicode's, as readers of answers skip it
_SPACE = re.compile(b"(?:%s)*" % b"|".join(map(re.escape, _SPACES)))


class ReasoningMarks(NamedTuple):
    """What begins and ends the reasoning in an answer.

    opening, closing: the marks; control tokens are spelled. begun: whether the prompt ends within reasoning. again: whether
    more reasoning may follow, and where: "next", after white space; "later", anywhere; "" for none.
    """

    opening: str
    closing: str
    begun: bool = False
    again: str = ""


class ThinkingBudget:
    """Ends a row's reasoning after a number of tokens, by forcing the tokens of a message and of the closing mark.

        while the text is within reasoning and has `budget` tokens after the opening mark, or more, and no begun character:
            force the tokens of `message` and of the closing mark, one after the other; then the row goes on freely

    budget: how many tokens, >= 0; parts of reasoning that follow each other share it. forced: those tokens. prompt_length:
    where the generated tokens begin. spelled_bytes: token id -> its bytes, or the name of a control token.

    The text has reasoning only where it begins with the opening mark, after white space, or the prompt has that. All generated
    tokens after it count, up to the closing one: also those of a mark that the model writes after the prompt's. An end token
    ends the row within reasoning as anywhere, and so does `max_new_tokens`.

    Keeps the state of one row.
    """

    stateful = True

    def __init__(
        self,
        budget: int,
        marks: ReasoningMarks,
        forced: Sequence[int],
        prompt_length: int,
        spelled_bytes: Callable[[int], bytes],
    ) -> None:
        self.budget, self.marks = budget, marks
        self._forced, self._prompt_length, self._spelled_bytes = tuple(forced), prompt_length, spelled_bytes
        self._opening, self._closing = marks.opening.encode(), marks.closing.encode()
        self._read = prompt_length  # how many tokens of the row have been read, or precede it
        self._tail = b""  # the text since the last mark; of reasoning no more of it than may become the closing one
        self._place = "within" if marks.begun else "before"  # or "after"
        self._spent = 0
        self._due: tuple[int, ...] = ()  # the tokens that must follow
        self._anywhere = False  # whether the opening mark counts where text precedes it
        self._force_if_spent()

    def steps(self, tokens: Sequence[int]) -> tuple[s.Step, ...]:
        """What is forced after these tokens, the whole row: the next token that is due, if any is."""
        self._follow(tokens)
        return (s.Force(np.array(self._due[:1], np.int64)),) if self._due else ()

    def forced_tokens(self, tokens: Sequence[int]) -> list[int]:
        """The tokens that must follow these."""
        self._follow(tokens)
        return list(self._due)

    def __call__(self, input_ids: Array, scores: Array) -> Array:
        result = np.array(scores)
        if due := self.forced_tokens([int(token) for token in input_ids[0]]):
            result[:] = -np.inf
            result[:, due[0]] = 0
        return result

    def __deepcopy__(self, memo: dict[int, Any]) -> ThinkingBudget:
        """One at the beginning of the row: its next call reads all tokens, which leads to the same state."""
        return ThinkingBudget(self.budget, self.marks, self._forced, self._prompt_length, self._spelled_bytes)

    def _follow(self, tokens: Sequence[int]) -> None:
        for token in tokens[self._read :]:
            self._take(token)
        self._read = len(tokens)

    def _take(self, token: int) -> None:
        if self._due:
            self._due = self._due[1:]
            if not self._due:
                self._leave(b"")
            return
        self._tail += self._spelled_bytes(token)
        if self._place == "within":
            self._spent += 1
            self._read_within()
        elif self._place == "before":
            self._read_before()
        else:
            self._tail = b""

    def _read_before(self) -> None:
        space = _SPACE.match(self._tail)
        text = self._tail[space.end() if space else 0 :]
        at = text.find(self._opening) if self._anywhere else 0
        if at >= 0 and text.startswith(self._opening, at):
            self._place, self._tail = "within", text[at + len(self._opening) :]
            self._read_within()
        elif self._anywhere:
            self._tail = self._tail[-len(self._opening) :]
        elif not any(each.startswith(text) for each in (self._opening, *_SPACES)):
            self._place, self._tail = "after", b""

    def _read_within(self) -> None:
        if (at := self._tail.find(self._closing)) >= 0:
            self._leave(self._tail[at + len(self._closing) :])
            return
        self._tail = self._tail[-max(len(self._closing) - 1, 4) :]
        self._force_if_spent()

    def _force_if_spent(self) -> None:
        if self._place == "within" and self._spent >= self.budget and not _ends_within_character(self._tail):
            self._due = self._forced

    def _leave(self, rest: bytes) -> None:
        """The reasoning has ended. rest: the text after its closing mark."""
        self._anywhere = self.marks.again == "later"
        self._place, self._tail = "before" if self.marks.again else "after", b""
        if self._place == "before" and rest:
            self._tail = rest
            self._read_before()


def _ends_within_character(text: bytes) -> bool:
    """Whether the last character of UTF-8 is not complete."""
    for back in range(1, min(4, len(text) + 1)):
        byte = text[-back]
        if byte >> 6 != 0b10:
            return back < (1 if byte < 0xC0 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4 if byte < 0xF8 else 1)
    return False
