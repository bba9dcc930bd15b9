"""Answers in the form of OpenAI's completions: choices, whole or as chunks of a stream."""

from __future__ import annotations

import secrets
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from decodestep.serving.answer_writer import COMPLETE, AnswerWriter, Sample, Usage
from decodestep.serving.wire import event, json_bytes

if TYPE_CHECKING:
    from decodestep.chat.answer_reader import AnswerReader, Part
    from decodestep.generation.engine_request import Delta, EngineRequest
    from decodestep.ops.decode_step import TokenLogprobs
    from decodestep.sampling.row import Row
    from decodestep.serving.errors import HttpError
    from decodestep.serving.openai_fields import StreamOptions
    from decodestep.tokenizers.tokenizer import Tokenizer

_DONE = b"data: [DONE]\n\n"


class Choice(Sample):
    """One choice of a response, while it is generated. index: among them.

    Log-probabilities are the model's own, before the request's parameters change them.
    """

    def __init__(self, index: int, tokenizer: Tokenizer, row: Row, reader: AnswerReader | None = None) -> None:
        super().__init__(row, reader)
        self.index = index
        self._tokenizer = tokenizer
        self._unsent: list[int] = []  # the tokens whose log-probabilities have not been sent yet; the row holds these
        self._logprobs_sent = 0  # how many of the row's have been sent

    def take(self, delta: Delta) -> list[Part]:
        if delta.token is not None and delta.logprobs is not None:
            self._unsent.append(delta.token)
        return super().take(delta)

    @abstractmethod
    def whole(self) -> dict[str, Any]:
        """The choice in a response that is not streamed."""

    @abstractmethod
    def opening(self) -> list[dict[str, Any]]:
        """The choices of the chunks before the first token."""

    @abstractmethod
    def chunk(self, delta: Delta) -> list[dict[str, Any]]:
        """The choices of the chunks for a delta, which this adds."""

    def _end(self) -> dict[str, Any]:
        """The end of the choice. OpenAI's "stop" tells clients that the text is complete, as they parse JSON then; others are
        cut, which is "length". The additional field `ended_by` has the library's own reason."""
        reason = "stop" if self.ended_by in COMPLETE else "length"
        return {"finish_reason": reason, "ended_by": self.ended_by, "seed": _as_requested(self.row.seed)}

    def _take_logprobs(self) -> dict[str, Any] | None:
        """The log-probabilities not sent yet."""
        return None if self.row.params.logprobs is None else self._as_json(self._new_logprobs())

    def _new_logprobs(self) -> list[tuple[int, TokenLogprobs | None]]:
        """The tokens not sent yet, with their log-probabilities; None for a prompt's first token."""
        tokens, start = self._unsent, self._logprobs_sent
        self._unsent, self._logprobs_sent = [], start + len(tokens)
        return [(token, self.row.logprobs[start + i]) for i, token in enumerate(tokens)]

    @abstractmethod
    def _as_json(self, logprobs: Sequence[tuple[int, TokenLogprobs | None]]) -> dict[str, Any]:
        """The log-probabilities of tokens, in the form of OpenAI's API."""


class Form(NamedTuple):
    """The form of an endpoint's responses.

    prefix: of their ids. whole_object, chunk_object: the `object` of a response, and of a part of one that is streamed.
    choice: makes the choices, as `TextChoice` does.
    """

    prefix: str
    whole_object: str
    chunk_object: str
    choice: Callable[[int, Tokenizer, Row], Choice]


class ChoicesWriter(AnswerWriter):
    """Writes the choices of a response, and what they share."""

    def __init__(
        self, model: str, tokenizer: Tokenizer, requests: Sequence[EngineRequest], *, form: Form, options: StreamOptions
    ) -> None:
        """options: of the stream."""
        rows = [row for request in requests for row in request.rows]
        self._choices = [form.choice(i, tokenizer, row) for i, row in enumerate(rows)]
        super().__init__(f"{form.prefix}-{secrets.token_hex(12)}", requests, self._choices)
        self._form, self._model, self._options, self._created = form, model, options, int(time.time())
        self._predicted = any(row.params.prediction is not None for row in rows)

    def take(self, index: int, delta: Delta) -> None:
        self._choices[index].take(delta)

    def whole(self) -> bytes:
        """Of one choice after the other: the log-probabilities of all would be gigabytes of objects."""
        head = json_bytes(self._head(self._form.whole_object)).removesuffix(b"}")
        listed = b",".join(json_bytes(choice.whole(), allow_nan=False) for choice in self._choices)
        return b"".join((head, b',"choices":[', listed, b'],"usage":', json_bytes(self._used()), b"}"))

    def opening(self) -> bytes:
        return b"".join(self._event([part]) for choice in self._choices for part in choice.opening())

    def events(self, index: int, delta: Delta) -> bytes:
        return b"".join(self._event([part]) for part in self._choices[index].chunk(delta))

    def closing(self) -> bytes:
        return (self._event([], self._used()) if self._options.usage else b"") + _DONE

    def failure(self, error: HttpError) -> bytes:
        return event(error.body())

    def _event(self, choices: list[dict[str, Any]], used: dict[str, Any] | None = None) -> bytes:
        chunk = {**self._head(self._form.chunk_object), "choices": choices}
        if not self._options.usage:
            return event(chunk)
        if used is None and self._options.running_usage:
            used = self._used()
        return event({**chunk, "usage": used})  # else null in all but the last, as in OpenAI's API

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self._created, "model": self._model, "system_fingerprint": None}

    def _used(self) -> dict[str, Any]:
        return usage_object(self.usage, predicted=self._predicted)


def usage_object(used: Usage, *, predicted: bool) -> dict[str, Any]:
    """Usage in OpenAI's form. predicted: whether the request had a prediction."""
    counts = {"prompt_tokens": used.prompt, "completion_tokens": used.completion, "total_tokens": used.prompt + used.completion}
    found: dict[str, Any] = {**counts, "prompt_tokens_details": {"cached_tokens": used.cached}}
    details = {} if used.reasoning is None else {"reasoning_tokens": used.reasoning}
    if predicted:
        details["accepted_prediction_tokens"] = used.accepted_predicted
        details["rejected_prediction_tokens"] = used.predicted - used.accepted_predicted
    return {**found, "completion_tokens_details": details} if details else found


def _as_requested(seed: int | None) -> int | None:
    """A seed as requests may give it: the negative number that stands for one from 2^63 on, such as -1, has digits that the
    numbers of JavaScript hold."""
    return seed - 2**64 if seed is not None and seed >= 2**63 else seed


def finite(value: float) -> float:
    """A log-probability for JSON, which has no infinity: -9999 for -inf, as in other servers."""
    return max(value, -9999.0)
