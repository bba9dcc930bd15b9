"""How the answer to a request is written, in the form of its API."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from decodestep.chat.answer_reader import AnswerReader, Part
    from decodestep.generation.engine_request import Delta, EngineRequest
    from decodestep.sampling.row import Row
    from decodestep.serving.errors import HttpError

COMPLETE = ("eos", "stop")  # the reasons for an end that the model, or a stop string, has chosen: other answers are cut


class Usage(NamedTuple):
    """The tokens of an answer.

    prompt: of its prompts. cached: how many of these did not run, as the cache had them. completion: of its samples.
    reasoning: how many of these are between the marks of reasoning; None where none is told apart. drafted: how many tokens
    the rows have drafted. accepted: how many of these are in their texts; the others are not among the completion's.
    predicted, accepted_predicted: likewise of those that the request's prediction gave.
    """

    prompt: int
    cached: int
    completion: int
    reasoning: int | None
    drafted: int
    accepted: int
    predicted: int
    accepted_predicted: int


class Sample:
    """One sample of an answer, while it is generated.

    text: so far. tokens: how many have been generated. reasoning_tokens: how many of these are between the marks of reasoning;
    None where none is told apart. ended_by: the reason, once it has ended.
    """

    def __init__(self, row: Row, reader: AnswerReader | None = None) -> None:
        """reader: what reads the text; None of a completion."""
        self.row = row
        self.text = self.ended_by = ""
        self.tokens = 0
        self.reasoning_tokens = None if reader is None else 0
        self._reader = reader

    def take(self, delta: Delta) -> list[Part]:
        """The parts of the answer that are certain now; none without a reader."""
        self.text += delta.text
        self.ended_by = delta.reason
        self.tokens += delta.token is not None
        reader = self._reader
        if reader is None or self.reasoning_tokens is None:
            return []
        began_in_reasoning = reader.in_reasoning
        parts = reader.add(delta.text)
        if delta.reason:
            parts += reader.end(self.stop, cut=delta.reason not in COMPLETE)
        self.reasoning_tokens += delta.token is not None and began_in_reasoning and reader.in_reasoning
        return parts

    @property
    def cut_call(self) -> bool:
        """Whether it has ended within a call, by whatever reason, also the model's own: nobody should run that."""
        return self._reader is not None and self._reader.cut_call

    @property
    def stop(self) -> str:
        """The stop string that has ended the text; "" if none has."""
        return self.row.text.stop if self.row.text else ""


class AnswerWriter(ABC):
    """Writes the answer to a request as its API has it: whole, or as the events of a stream.

    id: of the response. samples: n for each of the prompts, in their order.
    """

    def __init__(self, answer_id: str, requests: Sequence[EngineRequest], samples: Sequence[Sample]) -> None:
        """requests: those of the prompts."""
        self.id = answer_id
        self.samples = samples
        self._requests = requests

    @abstractmethod
    def take(self, index: int, delta: Delta) -> None:
        """Adds a delta of a sample, for `whole`."""

    @abstractmethod
    def whole(self) -> bytes:
        """The response, once all samples have ended."""

    @abstractmethod
    def opening(self) -> bytes:
        """The events before those of the first delta."""

    def ping(self) -> bytes:
        """The event for a client that waits long for the first delta, in APIs that have such a one."""
        return b""

    @abstractmethod
    def events(self, index: int, delta: Delta) -> bytes:
        """The events of a delta of a sample, which this adds."""

    @abstractmethod
    def closing(self) -> bytes:
        """The events after those of the last delta."""

    @abstractmethod
    def failure(self, error: HttpError) -> bytes:
        """The events in place of `closing` if a sample has failed."""

    @property
    def usage(self) -> Usage:
        """Of the samples so far, whose rows may be running: accepted tokens are counted first, as the rows count them last."""
        rows = [sample.row for sample in self.samples]
        accepted = [list(row.accepted.values()) for row in rows]
        reasoning = [sample.reasoning_tokens for sample in self.samples if sample.reasoning_tokens is not None]
        return Usage(
            prompt=sum(len(request.prompt_ids) for request in self._requests),
            cached=sum(request.rows[0].cached_tokens for request in self._requests),  # the other samples have its pages
            completion=sum(sample.tokens for sample in self.samples),
            reasoning=sum(reasoning) if reasoning else None,
            drafted=sum(sum(list(row.drafted.values())) for row in rows),
            accepted=sum(map(len, accepted)),
            predicted=sum(row.drafted.get("prediction", 0) for row in rows),
            accepted_predicted=sum(kinds.count("prediction") for kinds in accepted),
        )
