"""Pieces of a text that say what of an answer they are: reasoning, content or calls."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from decodestep.chat.answer_reader import Part

if TYPE_CHECKING:
    from decodestep.chat.answer_format import AnswerFormat
    from decodestep.generation.completion import Completion
    from decodestep.sampling.row import Row

_COMPLETE = ("eos", "stop")  # the reasons for an end that the model, or a stop string, has chosen: other texts are cut


class Piece(str):
    """What a token adds to a text: a string, and what of the answer has become certain with it.

    The pieces of a text join to the text; their parts join to the completion's reasoning, content and calls. These begin and
    end elsewhere: a part is told when it is certain that it is no mark, and marks are parts of nothing.

    Attributes:
        parts: a `Part` for each run of reasoning, content or one call's arguments. Empty for a prompt that is no conversation.
    """

    __slots__ = ("parts",)
    parts: tuple[Part, ...]

    def __new__(cls, text: str = "", parts: Iterable[Part] = ()) -> Piece:
        made = super().__new__(cls, text)
        made.parts = tuple(parts)
        return made

    @property
    def reasoning(self) -> str:
        """The reasoning among the parts."""
        return text_of(self.parts, "reasoning")

    @property
    def content(self) -> str:
        """The content among the parts."""
        return text_of(self.parts, "content")


def text_of(parts: Iterable[Part], kind: str) -> str:
    """The text of the parts of a kind."""
    return "".join(part.text for part in parts if part.kind == kind)


class PieceReader:
    """Reads a text as the answer to a conversation.

    answer: how; None for the text of another prompt. reads: whether pieces are read, besides completions. reading: whether more
    parts may come.
    """

    def __init__(self, answer: AnswerFormat | None, *, reads: bool = True) -> None:
        self._answer = answer
        self._call_ids: dict[int, str] = {}
        self._reader = answer.reader(self._call_ids) if reads and answer is not None else None

    @property
    def reading(self) -> bool:
        return self._reader is not None

    def piece(self, text: str, reason: str, stop: str = "") -> Piece:
        """The next piece. reason: why the text has ended; "" while it goes on. stop: the stop string that has ended it."""
        if self._reader is None:
            return Piece(text)
        parts = self._reader.add(text)
        if reason:
            parts += self._reader.end(stop, cut=reason not in _COMPLETE)
            self._reader = None
        return Piece(text, parts)

    def told(self, completion: Completion, stop: str = "") -> Completion:
        """A completion with this text, and what it says. stop: as for `piece`."""
        if self._answer is None:
            return completion
        reader = self._answer.reader(self._call_ids)
        reader.add(completion.text)
        if completion.finish_reason:
            reader.end(stop, cut=completion.finish_reason not in _COMPLETE)
        calls = tuple(
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in reader.calls
        )
        return replace(completion, reasoning=reader.reasoning, content=reader.content, tool_calls=calls)


def stop_of(row: Row) -> str:
    """The stop string that has ended a row's text; "" if none has."""
    return row.text.stop if row.text else ""
