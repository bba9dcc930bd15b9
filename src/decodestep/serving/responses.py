"""Response bodies: whole, or as chunks of a stream."""

from __future__ import annotations

import codecs
import json
import secrets
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from decodestep.serving.tools import ToolFormat

if TYPE_CHECKING:
    from decodestep.models.tokenizer import Tokenizer
    from decodestep.ops.decode_step import TokenLogprobs
    from decodestep.serving.engine_request import Delta

# OpenAI's finish_reason; the additional field `ended_by` has the library's own.
_REASONS = {"eos": "stop", "stop": "stop", "no_candidate": "stop"}


class Choice:
    """One sample of a response, while it is generated.

    index: among the choices of the response. chat: whether it is a chat message or plain text.
    """

    def __init__(self, index: int, chat: bool, tokenizer: Tokenizer, format_: ToolFormat | None, logprobs: bool) -> None:
        self.index = index
        self.tokens = 0
        self._chat, self._tokenizer, self._format, self._wants_logprobs = chat, tokenizer, format_, logprobs
        self._written = ""  # the text so far
        self._released = 0  # how many of its characters have been sent: the rest may be the start of a call
        self._logprobs: list[tuple[int, TokenLogprobs]] = []
        self._logprobs_sent = 0  # how many of these have been sent in a chunk
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0  # of the next token in the text
        self._ended_by = ""

    def take(self, delta: Delta) -> None:
        self._written += delta.text
        self._ended_by = delta.reason
        if delta.token is not None:
            self.tokens += 1
            if delta.logprobs is not None:
                self._logprobs.append((delta.token, delta.logprobs))

    def whole(self, seed: int | None) -> dict[str, Any]:
        """The choice in a response that is not streamed."""
        text, calls = self._read(self._written)
        choice: dict[str, Any] = {"index": self.index, "logprobs": self._new_logprobs(), **self._end(calls), "seed": seed}
        if not self._chat:
            return {**choice, "text": text}
        message: dict[str, Any] = {"role": "assistant", "content": text if text or not calls else None, "refusal": None}
        return {**choice, "message": {**message, "tool_calls": calls} if calls else message}

    def first(self) -> dict[str, Any]:
        """The choice in the first chunk of a chat."""
        return {"index": self.index, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}

    def chunk(self, delta: Delta, seed: int | None) -> list[dict[str, Any]]:
        """The choices of the chunks for a delta: text that may be part of a call is held back until the end.

        The end of a message has a chunk of its own, as in OpenAI's API: its client considers a call complete when the next
        chunk arrives.
        """
        self.take(delta)
        text = delta.text
        calls: list[dict[str, Any]] = []
        if self._format is not None:
            text = self._release(delta)
            if delta.reason:
                visible, calls = self._read(self._written)
                text = visible[self._released :]
        running: dict[str, Any] = {"finish_reason": None}
        end = {**self._end(calls), "seed": seed} if delta.reason else running
        reported = self._new_logprobs()
        self._logprobs_sent = len(self._logprobs)
        if not self._chat:
            return [{"index": self.index, "text": text, "logprobs": reported, **end}]
        message: dict[str, Any] = {"content": text} if text else {}
        if calls:
            message["tool_calls"] = [{"index": i, **call} for i, call in enumerate(calls)]
        choices = []
        if message or delta.logprobs is not None:
            choices.append({"index": self.index, "delta": message, "logprobs": reported, **running})
        if delta.reason:
            choices.append({"index": self.index, "delta": {}, "logprobs": None, **end})
        return choices

    def _release(self, delta: Delta) -> str:
        """The new part of the text that cannot belong to a call."""
        assert self._format is not None
        if delta.reason:
            return ""
        start, self._released = self._released, max(self._released, self._format.text.free(self._written))
        return self._written[start : self._released]

    def _read(self, text: str) -> tuple[str, list[dict[str, Any]]]:
        return (text, []) if self._format is None else self._format.read(text)

    def _end(self, calls: Sequence[Any]) -> dict[str, Any]:
        reason = _REASONS.get(self._ended_by, "length")
        return {"finish_reason": "tool_calls" if calls else reason, "ended_by": self._ended_by}

    def _new_logprobs(self) -> dict[str, Any] | None:
        """The log-probabilities not sent yet: the model's own, before the request's parameters change them."""
        if not self._wants_logprobs:
            return None
        new = self._logprobs[self._logprobs_sent :]
        if self._chat:
            return {"content": [self._as_content(token, found) for token, found in new], "refusal": None}
        offsets = []
        for token, _ in new:
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(self._tokenizer.token_bytes(token)))
        return {
            "tokens": [self._name(token) for token, _ in new],
            "token_logprobs": [_finite(found.raw) for _, found in new],
            "top_logprobs": [self._by_name(found) for _, found in new],
            "text_offset": offsets,
        }

    def _as_content(self, token: int, found: TokenLogprobs) -> dict[str, Any]:
        return {**self._as_top(token, found.raw), "top_logprobs": [self._as_top(i, value) for i, value in found.top_raw]}

    def _as_top(self, token: int, value: float) -> dict[str, Any]:
        return {
            "token": self._text(token),
            "logprob": _finite(value),
            "bytes": list(self._tokenizer.token_bytes(token)),
            "token_id": token,
        }

    def _text(self, token: int) -> str:
        """The text of a token; for a control token, its name."""
        data = self._tokenizer.token_bytes(token)
        return data.decode("utf-8", "replace") if data else self._tokenizer.token(token)

    def _by_name(self, found: TokenLogprobs) -> dict[str, float]:
        """The most likely tokens; of two with one name, the likelier."""
        values: dict[str, float] = {}
        for token, value in found.top_raw:
            values.setdefault(self._name(token), _finite(value))
        return values

    def _name(self, token: int) -> str:
        """The text of a token where no bytes are given; a part of a character is bytes:\\xf0\\x9f, as in OpenAI's API."""
        data = self._tokenizer.token_bytes(token)
        try:
            return data.decode() or self._tokenizer.token(token)
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


class Envelope:
    """The fields that all parts of a response share."""

    def __init__(self, chat: bool, model: str) -> None:
        self.id = f"{'chatcmpl' if chat else 'cmpl'}-{secrets.token_hex(12)}"
        self._chat, self._model, self._created = chat, model, int(time.time())

    def whole(self, choices: list[dict[str, Any]], usage: dict[str, int]) -> dict[str, Any]:
        return {**self._head("chat.completion" if self._chat else "text_completion"), "choices": choices, "usage": usage}

    def chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self._head("chat.completion.chunk" if self._chat else "text_completion"), "choices": choices}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self._created, "model": self._model, "system_fingerprint": None}


def usage(prompt: int, completion: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def json_bytes(data: Any, *, allow_nan: bool = True) -> bytes:
    """JSON in UTF-8; a lone surrogate, from a client or a model, becomes a question mark."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=allow_nan, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def _finite(value: float) -> float:
    """A log-probability for JSON, which has no infinity: -9999 for -inf, as in other servers."""
    return max(value, -9999.0)
