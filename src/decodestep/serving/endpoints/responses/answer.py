"""Answers in the form of OpenAI's Responses API: output items, whole or as the events of a stream."""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from decodestep.chat.partial_json import complete_part
from decodestep.serving.answer_writer import COMPLETE, AnswerWriter, Sample
from decodestep.serving.blocks import Block, add_part
from decodestep.serving.endpoints.responses.request import CUSTOM_ARGUMENT
from decodestep.serving.wire import event, json_bytes

if TYPE_CHECKING:
    from decodestep.chat.answer_format import AnswerFormat
    from decodestep.chat.answer_reader import Part
    from decodestep.generation.engine_request import Delta, EngineRequest
    from decodestep.serving.errors import HttpError
    from decodestep.tokenizers.tokenizer import Tokenizer

# What a response repeats of its request, and what it says where the request says nothing.
_REPEATED: dict[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "truncation": "disabled",
    "user": None,
}
_PREFIXES = {"reasoning": "rs", "message": "msg", "function_call": "fc", "custom_tool_call": "ctc"}
_DELTAS = {
    "reasoning": "response.reasoning_text",
    "message": "response.output_text",
    "function_call": "response.function_call_arguments",
    "custom_tool_call": "response.custom_tool_call_input",
}


class _Item:
    """An output item, while it is generated."""

    def __init__(self, block: Block, custom: Collection[str]) -> None:
        self._block = block
        called = "custom_tool_call" if block.name in custom else "function_call"
        self.kind = {"reasoning": "reasoning", "content": "message"}.get(block.kind, called)
        self._id = f"{_PREFIXES[self.kind]}_{secrets.token_hex(12)}"

    def whole(self, status: str) -> dict[str, Any]:
        """The item as it is now; what is in progress has no content yet."""
        text, begins = self._text, status == "in_progress"
        if self.kind == "reasoning":
            content = [] if begins else [{"type": "reasoning_text", "text": text}]
            return {"type": "reasoning", "id": self._id, "summary": [], "content": content, "status": status}
        if self.kind == "message":
            fields = {"type": "message", "id": self._id, "role": "assistant", "status": status}
            return {**fields, "content": [] if begins else [_output_text(text)]}
        call = {"type": self.kind, "id": self._id, "call_id": self._block.id, "name": self._block.name}
        given = "" if begins else text
        return call | ({"arguments": given, "status": status} if self.kind == "function_call" else {"input": given})

    def begin(self) -> list[dict[str, Any]]:
        added = {"type": "response.output_item.added", "output_index": self._block.index, "item": self.whole("in_progress")}
        part = self._event("response.content_part.added", part=_output_text(""))
        return [added, part] if self.kind == "message" else [added]

    def delta(self, text: str) -> list[dict[str, Any]]:
        """The events of more text. That of a custom tool's call is in its arguments: it comes at their end."""
        if not text or self.kind == "custom_tool_call":
            return []
        return [self._event(f"{_DELTAS[self.kind]}.delta", delta=text, **self._logprobs)]

    def end(self, status: str) -> list[dict[str, Any]]:
        text, found = self._text, []
        done = f"{_DELTAS[self.kind]}.done"
        if self.kind == "function_call":
            found.append(self._event(done, arguments=text, name=self._block.name))
        elif self.kind == "custom_tool_call":
            found += [self._event(f"{_DELTAS[self.kind]}.delta", delta=text), self._event(done, input=text)]
        else:
            found.append(self._event(done, text=text, **self._logprobs))
        if self.kind == "message":
            found.append(self._event("response.content_part.done", part=_output_text(text)))
        return [*found, {"type": "response.output_item.done", "output_index": self._block.index, "item": self.whole(status)}]

    @property
    def _text(self) -> str:
        if self.kind != "custom_tool_call":
            return self._block.text
        given = complete_part(self._block.text, begun=True).get(CUSTOM_ARGUMENT, "")
        return given if isinstance(given, str) else ""

    @property
    def _logprobs(self) -> dict[str, Any]:
        return {"logprobs": []} if self.kind == "message" else {}

    def _event(self, kind: str, **fields: object) -> dict[str, Any]:
        place = {"item_id": self._id, "output_index": self._block.index}
        return {"type": kind, **place, **({"content_index": 0} if self.kind in ("reasoning", "message") else {}), **fields}


class ResponseWriter(AnswerWriter):
    """Writes a response. body: the request's. format_: how the answer is read. custom: the tools whose calls are a text."""

    def __init__(
        self,
        model: str,
        _: Tokenizer,
        requests: Sequence[EngineRequest],
        *,
        body: Mapping[str, Any],
        format_: AnswerFormat,
        custom: Collection[str],
    ) -> None:
        row = requests[0].rows[0]
        self._sample = Sample(row, format_.reader())
        super().__init__(f"resp_{secrets.token_hex(12)}", requests, [self._sample])
        self._custom = custom
        self._blocks: list[Block] = []
        self._items: list[_Item] = []
        self._events_sent = 0
        given = {name: value if body.get(name) is None else body[name] for name, value in _REPEATED.items()}
        given["reasoning"] = {**_REPEATED["reasoning"], **given["reasoning"]}
        given["text"] = {**_REPEATED["text"], **{name: value for name, value in given["text"].items() if value is not None}}
        given["tools"] = [_repeated_tool(tool) for tool in given["tools"]]
        self._head = {
            "id": self.id,
            "object": "response",
            "created_at": int(time.time()),
            "model": model,
            **given,
            "background": False,
            "previous_response_id": None,
            "service_tier": "default",
            "store": False,  # whatever the request says: nothing is
            "temperature": row.params.temperature,
            "top_logprobs": 0,
            "top_p": row.params.top_p,
        }

    def take(self, index: int, delta: Delta) -> None:
        for part in self.samples[index].take(delta):
            self._add(part)

    def whole(self) -> bytes:
        return json_bytes(self._response(self._status), allow_nan=False)

    def opening(self) -> bytes:
        response = self._response("in_progress")
        return self._sent({"type": f"response.{state}", "response": response} for state in ("created", "in_progress"))

    def events(self, index: int, delta: Delta) -> bytes:
        found: list[dict[str, Any]] = []
        for part in self.samples[index].take(delta):
            found += self._add(part)
        if delta.reason and self._items:
            found += self._items[-1].end(self._status)
        return self._sent(found)

    def closing(self) -> bytes:
        return self._sent([{"type": f"response.{self._status}", "response": self._response(self._status)}])

    def failure(self, error: HttpError) -> bytes:
        failed = {**self._response("failed"), "error": {"code": "server_error", "message": str(error)}}
        return self._sent([{"type": "response.failed", "response": failed}])

    def _add(self, part: Part) -> list[dict[str, Any]]:
        """Adds a part; the events that tell of it."""
        text, found = add_part(self._blocks, part), []
        if len(self._items) < len(self._blocks):
            found += self._items[-1].end("completed") if self._items else []
            self._items.append(_Item(self._blocks[-1], self._custom))
            found += self._items[-1].begin()
        return [*found, *self._items[-1].delta(text)]

    @property
    def _status(self) -> str:
        """Of the whole, and of its last item, once the sample has ended."""
        return "completed" if self._sample.ended_by in COMPLETE and not self._sample.cut_call else "incomplete"

    def _response(self, status: str) -> dict[str, Any]:
        last = len(self._items) - 1
        ended = "incomplete" if status == "failed" else status
        runs = status == "in_progress"
        return {
            **self._head,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "output": [item.whole(ended if i == last else "completed") for i, item in enumerate(self._items)],
            "usage": None if runs else self._used(),
        }

    def _used(self) -> dict[str, Any]:
        used = self.usage
        return {
            "input_tokens": used.prompt,
            "input_tokens_details": {"cached_tokens": used.cached, "cache_write_tokens": 0},
            "output_tokens": used.completion,
            "output_tokens_details": {"reasoning_tokens": used.reasoning},
            "total_tokens": used.prompt + used.completion,
        }

    def _sent(self, events: Iterable[Mapping[str, Any]]) -> bytes:
        """Events with their numbers, from 0 without gaps."""
        written = []
        for each in events:
            written.append(event({**each, "sequence_number": self._events_sent}, each["type"]))
            self._events_sent += 1
        return b"".join(written)


def _output_text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _repeated_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool as a response repeats it: of a function, with all that clients expect."""
    if tool.get("type") != "function":
        return dict(tool)
    return {"description": None, "parameters": None, **tool, "strict": tool.get("strict") is True}
