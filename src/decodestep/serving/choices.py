"""Response bodies in OpenAI's form: choices, whole or as chunks of a stream."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from decodestep.serving.wire import json_bytes

if TYPE_CHECKING:
    from decodestep.generation.engine_request import Delta
    from decodestep.ops.decode_step import TokenLogprobs
    from decodestep.sampling.row import Row
    from decodestep.tokenizers.tokenizer import Tokenizer

# OpenAI's finish_reason: "stop" tells clients that the text is complete, as they parse JSON then; others are cut, which is
# "length". The additional field `ended_by` has the library's own.
COMPLETE = ("eos", "stop")


class Choice(ABC):
    """One sample of a response, while it is generated. index: among the choices of the response.

    text: so far. tokens: how many have been generated. reasoning_tokens: how many of these are between the marks of reasoning;
    None where none is told apart. Log-probabilities are the model's own, before the request's parameters
    change them.
    """

    def __init__(self, index: int, tokenizer: Tokenizer, row: Row) -> None:
        self.index = index
        self.text = ""
        self.tokens = 0
        self.reasoning_tokens: int | None = None
        self._tokenizer, self._row = tokenizer, row
        self._unsent: list[int] = []  # the tokens whose log-probabilities have not been sent yet; the row holds these
        self._logprobs_sent = 0  # how many of the row's have been sent
        self._ended_by = ""
        self._sent = 0  # how many characters of the text a stream has sent

    def take(self, delta: Delta) -> None:
        self.text += delta.text
        self._ended_by = delta.reason
        if delta.token is not None:
            self.tokens += 1
            if delta.logprobs is not None:
                self._unsent.append(delta.token)

    @abstractmethod
    def whole(self) -> dict[str, Any]:
        """The choice in a response that is not streamed."""

    @abstractmethod
    def opening(self) -> list[dict[str, Any]]:
        """The choices of the chunks before the first token."""

    @abstractmethod
    def chunk(self, delta: Delta) -> list[dict[str, Any]]:
        """The choices of the chunks for a delta."""

    def _end(self, calls: Sequence[Any] = ()) -> dict[str, Any]:
        reason = "stop" if self._ended_by in COMPLETE else "length"
        named = "tool_calls" if calls else reason
        return {"finish_reason": named, "ended_by": self._ended_by, "seed": _as_requested(self._row.seed)}

    def _take_logprobs(self) -> dict[str, Any] | None:
        """The log-probabilities not sent yet."""
        return None if self._row.params.logprobs is None else self._as_json(self._new_logprobs())

    def _new_logprobs(self) -> list[tuple[int, TokenLogprobs | None]]:
        """The tokens not sent yet, with their log-probabilities; None for a prompt's first token."""
        tokens, start = self._unsent, self._logprobs_sent
        self._unsent, self._logprobs_sent = [], start + len(tokens)
        return [(token, self._row.logprobs[start + i]) for i, token in enumerate(tokens)]

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


class Drafts(NamedTuple):
    """drafted: how many tokens the rows of a response have drafted. accepted: how many of these are in their texts; the others
    are not among the completion's tokens."""

    accepted: int
    drafted: int


def count_drafts(rows: Sequence[Row]) -> Drafts:
    """Of rows that may be running: accepted tokens are counted first, as the rows count them last."""
    return Drafts(sum(len(row.accepted) for row in rows), sum(row.drafted for row in rows))


class Envelope:
    """The fields that all parts of a response share."""

    def __init__(self, form: Form, model: str) -> None:
        self.id = f"{form.prefix}-{secrets.token_hex(12)}"
        self._form, self._model, self._created = form, model, int(time.time())

    def whole(self, choices: Iterable[dict[str, Any]], usage: dict[str, int]) -> bytes:
        """The response as JSON. Of one choice after the other: the log-probabilities of all would be gigabytes of objects."""
        head = json_bytes(self._head(self._form.whole_object)).removesuffix(b"}")
        listed = b",".join(json_bytes(choice, allow_nan=False) for choice in choices)
        return b"".join((head, b',"choices":[', listed, b'],"usage":', json_bytes(usage), b"}"))

    def chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self._head(self._form.chunk_object), "choices": choices}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self._created, "model": self._model, "system_fingerprint": None}


def usage(prompt: int, choices: Sequence[Choice], cached: int, drafts: Drafts | None) -> dict[str, Any]:
    """cached: how many tokens of the prompt did not run, as the cache had them. drafts: None without a prediction."""
    completion = sum(choice.tokens for choice in choices)
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    used = {**counts, "prompt_tokens_details": {"cached_tokens": cached}}
    reasoning = [choice.reasoning_tokens for choice in choices if choice.reasoning_tokens is not None]
    details = {"reasoning_tokens": sum(reasoning)} if reasoning else {}
    if drafts is not None:
        details |= {
            "accepted_prediction_tokens": drafts.accepted,
            "rejected_prediction_tokens": drafts.drafted - drafts.accepted,
        }
    return {**used, "completion_tokens_details": details} if details else used


def _as_requested(seed: int | None) -> int | None:
    """A seed as requests may give it: the negative number that stands for one from 2^63 on, such as -1, has digits that the
    numbers of JavaScript hold."""
    return seed - 2**64 if seed is not None and seed >= 2**63 else seed


def finite(value: float) -> float:
    """A log-probability for JSON, which has no infinity: -9999 for -inf, as in other servers."""
    return max(value, -9999.0)
