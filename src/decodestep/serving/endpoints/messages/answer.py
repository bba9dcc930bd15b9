"""Answers in the form of Anthropic's Messages API: a message of blocks, whole or as the events of a stream."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from decodestep.chat.partial_json import complete_part
from decodestep.serving.answer_writer import COMPLETE, AnswerWriter, Sample
from decodestep.serving.blocks import Block, add_part
from decodestep.serving.endpoints.messages.request import NO_THREADS
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
_SIGNATURE = ""  # of thinking: this server believes what comes back


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
        self._blocks: list[Block] = []
        self._started = False

    def take(self, index: int, delta: Delta) -> None:
        for part in self.samples[index].take(delta):
            add_part(self._blocks, part)

    def whole(self) -> bytes:
        content = [_whole(block) for block in self._blocks]
        return json_bytes({**self._message(), "content": content, **self._end(), "usage": self._used()}, allow_nan=False)

    def opening(self) -> bytes:
        """None: how many tokens of the prompt were in the cache is known with the first delta."""
        return b""

    def ping(self) -> bytes:
        return _event({"type": "ping"})

    def events(self, index: int, delta: Delta) -> bytes:
        parts = self.samples[index].take(delta)
        found = [] if self._started else [{"type": "message_start", "message": self._message()}]
        self._started = True
        for part in parts:
            found += self._add(part)
        if delta.reason and self._blocks:
            found += _stop(self._blocks[-1])
        return b"".join(map(_event, found))

    def closing(self) -> bytes:
        return _event({"type": "message_delta", "delta": self._end(), "usage": self._used()}) + _event({"type": "message_stop"})

    def failure(self, error: HttpError) -> bytes:
        return _event(_error_body(error, _request_id()))

    def _add(self, part: Part) -> list[dict[str, Any]]:
        """Adds a part; the events that tell of it."""
        before = self._blocks[-1] if self._blocks else None
        text = add_part(self._blocks, part)
        block, found = self._blocks[-1], []
        if block is not before:
            found += [] if before is None else _stop(before)
            found.append({"type": "content_block_start", "index": block.index, "content_block": _empty(block)})
        if text:
            kind, field = _DELTAS[block.kind]
            found.append(_delta(block, {"type": kind, field: text}))
        return found

    def _message(self) -> dict[str, Any]:
        """The message, without content and end so far."""
        fields = {"id": self.id, "type": "message", "role": "assistant", "model": self._model, "content": []}
        return {**fields, "stop_reason": None, "stop_sequence": None, "usage": self._used()}

    def _end(self) -> dict[str, Any]:
        sample = self._sample
        if sample.ended_by not in COMPLETE:
            full = sample.ended_by == "length" and sample.tokens != self._max_tokens
            reason = "model_context_window_exceeded" if full else "max_tokens"
        elif sample.cut_call:
            reason = "stop_sequence" if sample.stop else "max_tokens"
        elif any(block.kind == "call" for block in self._blocks):
            reason = "tool_use"
        else:
            reason = "stop_sequence" if sample.stop else "end_turn"
        return {"stop_reason": reason, "stop_sequence": sample.stop if reason == "stop_sequence" else None}

    def _used(self) -> dict[str, Any]:
        """The tokens so far. Those of the prompt that were in the cache are not among the input's."""
        used = self.usage
        cache = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": used.cached}
        details = {"output_tokens_details": {"thinking_tokens": used.reasoning}}
        return {"input_tokens": used.prompt - used.cached, **cache, "output_tokens": used.completion, **details}


def error_response(error: HttpError) -> Response:
    request_id = _request_id()
    return JsonResponse(_error_body(error, request_id), error.status, {**error.headers, "request-id": request_id})


def _error_body(error: HttpError, request_id: str) -> dict[str, Any]:
    kind = _ERRORS.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    details = {"details": {"error_code": error.code, "unsupported": ["thread"]}} if error.code == NO_THREADS else {}
    return {"type": "error", "error": {"type": kind, "message": str(error), **details}, "request_id": request_id}


def _request_id() -> str:
    return f"req_{secrets.token_hex(12)}"


def _whole(block: Block) -> dict[str, Any]:
    if block.kind == "call":
        return {**_empty(block), "input": complete_part(block.text)}
    return {**_empty(block), _DELTAS[block.kind][1]: block.text}


def _empty(block: Block) -> dict[str, Any]:
    """A block as it begins."""
    if block.kind == "call":
        return {"type": "tool_use", "id": block.id, "name": block.name, "input": {}}
    return (
        {"type": "thinking", "thinking": "", "signature": _SIGNATURE}
        if block.kind == "reasoning"
        else {"type": "text", "text": ""}
    )


def _stop(block: Block) -> list[dict[str, Any]]:
    signature = [_delta(block, {"type": "signature_delta", "signature": _SIGNATURE})] if block.kind == "reasoning" else []
    return [*signature, {"type": "content_block_stop", "index": block.index}]


def _delta(block: Block, delta: dict[str, Any]) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": block.index, "delta": delta}


def _event(data: dict[str, Any]) -> bytes:
    return event(data, data["type"])
