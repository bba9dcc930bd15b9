"""Answers in the form of Anthropic's Messages API: a message of blocks, whole or as the events of a stream."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from decodestep.chat.text_feed import UnreadableError
from decodestep.chat.tool_json import parse
from decodestep.serving.answer_writer import COMPLETE, AnswerWriter, Sample
from decodestep.serving.endpoints.messages.partial_json import complete_part
from decodestep.serving.wire import JsonResponse, event, json_bytes

if TYPE_CHECKING:
    from decodestep.chat.answer_format import AnswerFormat
    from decodestep.chat.answer_reader import Part
    from decodestep.generation.engine_request import Delta, EngineRequest
    from decodestep.serving.errors import HttpError
    from decodestep.tokenizers.tokenizer import Tokenizer

_ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
# The type of a block's deltas, and the field of their text, by the kind of its parts.
_DELTAS = {
    "reasoning": ("thinking_delta", "thinking"),
    "content": ("text_delta", "text"),
    "call": ("input_json_delta", "partial_json"),
}


class _Block:
    """A block of an answer, while it is generated: parts of one kind that follow each other, or those of one call."""

    def __init__(self, index: int, part: Part) -> None:
        self.index, self.kind, self.call = index, part.kind, part.index
        self._pieces: list[str] = []
        self._empty: dict[str, Any] = {"type": "text", "text": ""}
        if part.kind == "reasoning":
            self._empty = {"type": "thinking", "thinking": "", "signature": ""}
        elif part.kind == "call":
            self._empty = {"type": "tool_use", "id": part.id, "name": part.name, "input": {}}

    def add(self, text: str) -> bytes:
        self._pieces.append(text)
        kind, field = _DELTAS[self.kind]
        return self._delta({"type": kind, field: text})

    def start(self) -> bytes:
        return _event({"type": "content_block_start", "index": self.index, "content_block": self._empty})

    def stop(self) -> bytes:
        signature = self._delta({"type": "signature_delta", "signature": ""}) if self.kind == "reasoning" else b""
        return signature + _event({"type": "content_block_stop", "index": self.index})

    def whole(self) -> dict[str, Any]:
        text = "".join(self._pieces)
        if self.kind == "call":
            return {**self._empty, "input": _input(text)}
        return {**self._empty, _DELTAS[self.kind][1]: text}

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event({"type": "content_block_delta", "index": self.index, "delta": delta})


class MessageWriter(AnswerWriter):
    """Writes a message. format_: how the answer is read. max_tokens: that of the request; None for the room in the context."""

    def __init__(
        self,
        model: str,
        _: Tokenizer,
        requests: Sequence[EngineRequest],
        *,
        format_: AnswerFormat,
        max_tokens: int | None,
    ) -> None:
        self._sample = Sample(requests[0].rows[0], format_.reader())
        super().__init__(f"msg_{secrets.token_hex(12)}", requests, [self._sample])
        self._model, self._max_tokens = model, max_tokens
        self._blocks: list[_Block] = []
        self._started = False

    def take(self, index: int, delta: Delta) -> None:
        for part in self.samples[index].take(delta):
            self._add(part)

    def whole(self) -> bytes:
        content = [block.whole() for block in self._blocks]
        return json_bytes({**self._message(), "content": content, **self._end(), "usage": self._used()}, allow_nan=False)

    def opening(self) -> bytes:
        """None: how many tokens of the prompt are cached is known with the first delta."""
        return b""

    def events(self, index: int, delta: Delta) -> bytes:
        parts = self.samples[index].take(delta)
        found = [] if self._started else [_event({"type": "message_start", "message": self._message()})]
        self._started = True
        found += [self._add(part) for part in parts]
        if delta.reason and self._blocks:
            found.append(self._blocks[-1].stop())
        return b"".join(found)

    def closing(self) -> bytes:
        return _event({"type": "message_delta", "delta": self._end(), "usage": self._used()}) + _event({"type": "message_stop"})

    def failure(self, error: HttpError) -> bytes:
        return _event(_error_body(error, _request_id()))

    def _add(self, part: Part) -> bytes:
        """Adds a part; the events that tell of it."""
        last, text, before = self._blocks[-1] if self._blocks else None, part.text, b""
        if last is None or (part.kind, part.index) != (last.kind, last.call):
            if any(block.kind == part.kind for block in self._blocks) and part.kind != "call":
                text = text.removeprefix("\n")  # with which the reader joins it to the text of an earlier block
            block = _Block(len(self._blocks), part)
            before = (last.stop() if last is not None else b"") + block.start()
            self._blocks.append(block)
            last = block
        return before + (last.add(text) if text else b"")

    def _message(self) -> dict[str, Any]:
        """A message without content so far."""
        fields = {"id": self.id, "type": "message", "role": "assistant", "model": self._model, "content": []}
        return {**fields, "stop_reason": None, "stop_sequence": None, "usage": self._used()}

    def _end(self) -> dict[str, Any]:
        sample = self._sample
        stop = sample.stop if sample.ended_by == "stop" else ""
        if sample.ended_by not in COMPLETE:
            full = sample.ended_by == "length" and sample.tokens != self._max_tokens
            reason = "model_context_window_exceeded" if full else "max_tokens"
        elif any(block.kind == "call" for block in self._blocks):
            reason = "tool_use"
        else:
            reason = "stop_sequence" if stop else "end_turn"
        return {"stop_reason": reason, "stop_sequence": stop if reason == "stop_sequence" else None}

    def _used(self) -> dict[str, Any]:
        """The tokens so far. Those of the prompt that were in the cache are not among the input's."""
        used = self.usage
        cache = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": used.cached}
        return {"input_tokens": used.prompt - used.cached, **cache, "output_tokens": used.completion}


def error_response(error: HttpError) -> Response:
    request_id = _request_id()
    return JsonResponse(_error_body(error, request_id), error.status, {**error.headers, "request-id": request_id})


def _error_body(error: HttpError, request_id: str) -> dict[str, Any]:
    kind = _ERRORS.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": str(error)}, "request_id": request_id}


def _request_id() -> str:
    return f"req_{secrets.token_hex(12)}"


def _input(arguments: str) -> Any:
    """The arguments of a call as an object; of one that was cut, what of it is complete."""
    try:
        return parse(arguments)
    except UnreadableError:
        return complete_part(arguments)


def _event(data: dict[str, Any]) -> bytes:
    return event(data, data["type"])
