"""Response bodies: whole, or as chunks of a stream."""

from __future__ import annotations

import codecs
import json
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from decodestep.chat.answer_reader import Call, Part

if TYPE_CHECKING:
    from decodestep.chat.answer_format import AnswerFormat
    from decodestep.generation.engine_request import Delta
    from decodestep.ops.decode_step import TokenLogprobs
    from decodestep.sampling.row import Row
    from decodestep.tokenizers.tokenizer import Tokenizer

# OpenAI's finish_reason: "stop" tells clients that the text is complete, as they parse JSON then; others are cut, which is
# "length". The additional field `ended_by` has the library's own.
_REASONS = {"eos": "stop", "stop": "stop"}
# What JSON does not escape, and Unicode ends a line with: clients that read a stream line by line would cut an event there.
_LINE_ENDS = {"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"}


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
        reason = _REASONS.get(self._ended_by, "length")
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


class TextChoice(Choice):
    """A choice of a completion."""

    def __init__(self, index: int, tokenizer: Tokenizer, row: Row) -> None:
        super().__init__(index, tokenizer, row)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0  # of the next token in the text

    def whole(self) -> dict[str, Any]:
        return {"index": self.index, "logprobs": self._take_logprobs(), **self._end(), "text": self.text}

    def opening(self) -> list[dict[str, Any]]:
        return []

    def chunk(self, delta: Delta) -> list[dict[str, Any]]:
        self.take(delta)
        start, self._sent = self._sent, len(self.text)
        end = self._end() if delta.reason else {"finish_reason": None}
        return [{"index": self.index, "text": self.text[start:], "logprobs": self._take_logprobs(), **end}]

    def _as_json(self, logprobs: Sequence[tuple[int, TokenLogprobs | None]]) -> dict[str, Any]:
        return {
            "tokens": [self._name(token) for token, _ in logprobs],
            "token_logprobs": [found and _finite(found.raw) for _, found in logprobs],
            "top_logprobs": [found and self._by_name(found) for _, found in logprobs],
            "text_offset": [self._next_offset(token) for token, _ in logprobs],
        }

    def _next_offset(self, token: int) -> int:
        """Where the next token begins in the text."""
        offset = self._offset
        self._offset += len(self._decoder.decode(self._tokenizer.token_bytes(token)))
        return offset

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


class EchoChoice(TextChoice):
    """A choice of a completion that begins with its prompt, which comes with the first token.

    prompts: those of all choices, as in the request. completes: False if the text is the prompt alone.
    """

    def __init__(self, index: int, tokenizer: Tokenizer, row: Row, prompts: Sequence[str | list[int]], completes: bool) -> None:
        super().__init__(index, tokenizer, row)
        self._completes = completes
        self._ids = row.history.tokens[: row.history.prompt_length]
        prompt, spelled = prompts[index], tokenizer.spell(self._ids)
        self.text = prompt if isinstance(prompt, str) else spelled
        self._offset = len(self.text)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        lengths = [len(decoder.decode(tokenizer.spelled_bytes(token))) for token in self._ids[:-1]]
        self._prompt_offsets = accumulate(lengths, initial=len(self.text) - len(spelled))

    def take(self, delta: Delta) -> None:
        super().take(delta if self._completes else delta._replace(text="", token=None, logprobs=None))

    def _new_logprobs(self) -> list[tuple[int, TokenLogprobs | None]]:
        """The first time with those of the prompt, fewer than its tokens if the row ended within it."""
        ids, self._ids = self._ids, []
        return [*zip(ids, self._row.prompt_logprobs, strict=False), *super()._new_logprobs()]

    def _next_offset(self, token: int) -> int:
        offset = next(self._prompt_offsets, None)
        # Below 0 where the tokenizer has put something before the prompt.
        return super()._next_offset(token) if offset is None else max(0, offset)


class ChatChoice(Choice):
    """A choice of a chat.

    format_: how its answer is read. included: whether its reasoning is told. streamed: whether a stream tells it as it comes;
    otherwise at its end.
    """

    def __init__(
        self,
        index: int,
        tokenizer: Tokenizer,
        row: Row,
        format_: AnswerFormat,
        *,
        included: bool = True,
        streamed: bool = True,
    ) -> None:
        super().__init__(index, tokenizer, row)
        self._included, self._streamed = included, streamed
        self.reasoning_tokens = 0
        self._reader = format_.reader()
        self._parts: list[Part] = []  # those that the last delta has added

    def take(self, delta: Delta) -> None:
        super().take(delta)
        was_reasoning = self._reader.in_reasoning
        self._parts = self._reader.add(delta.text)
        if delta.reason:
            stop = self._row.text.stop if self._row.text else ""
            self._parts += self._reader.end(stop, cut=delta.reason not in _REASONS)
        self.reasoning_tokens += delta.token is not None and was_reasoning and self._reader.in_reasoning

    def whole(self) -> dict[str, Any]:
        read = self._reader
        message: dict[str, Any] = {"role": "assistant"}
        if read.reasoning and self._included:
            message["reasoning_content"] = read.reasoning
        message["content"] = read.content if read.content or not (read.reasoning or read.calls) else None
        message["refusal"] = None
        if read.calls:
            message["tool_calls"] = [_call_of(call) for call in read.calls]
        return {"index": self.index, "logprobs": self._take_logprobs(), **self._end(read.calls), "message": message}

    def opening(self) -> list[dict[str, Any]]:
        return [self._choice({"role": "assistant", "content": ""})]

    def chunk(self, delta: Delta) -> list[dict[str, Any]]:
        """Text that may still become part of a call is held back.

        Each part has a chunk of its own: a delta has either reasoning, content or a call. So has the end of a message, as in
        OpenAI's API: its client considers a call complete when the next chunk arrives.
        """
        self.take(delta)
        deltas = [_delta_of(part) for part in self._told()]
        choices = [self._choice(each) for each in deltas or ([] if delta.logprobs is None else [{}])]
        if choices:
            choices[0]["logprobs"] = self._take_logprobs()
        if delta.reason:
            choices.append({"index": self.index, "delta": {}, "logprobs": None, **self._end(self._reader.calls)})
        return choices

    def _told(self) -> list[Part]:
        """The parts of the last delta that a stream tells now."""
        others = [part for part in self._parts if part.kind != "reasoning"]
        if not self._included:
            return others
        if self._streamed:
            return self._parts
        if not (others or self._ended_by) or self._sent == len(self._reader.reasoning):
            return others
        start, self._sent = self._sent, len(self._reader.reasoning)
        return [Part("reasoning", self._reader.reasoning[start:]), *others]

    def _choice(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"index": self.index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _as_json(self, logprobs: Sequence[tuple[int, TokenLogprobs | None]]) -> dict[str, Any]:
        return {"content": [self._with_top(token, found) for token, found in logprobs if found], "refusal": None}

    def _with_top(self, token: int, found: TokenLogprobs) -> dict[str, Any]:
        return {**self._entry(token, found.raw), "top_logprobs": [self._entry(i, value) for i, value in found.top_raw]}

    def _entry(self, token: int, value: float) -> dict[str, Any]:
        data = self._tokenizer.token_bytes(token)
        text = data.decode("utf-8", "replace") if data else self._tokenizer.token(token)  # for a control token, its name
        return {"token": text, "logprob": _finite(value), "bytes": list(data), "token_id": token}


def _call_of(call: Call) -> dict[str, Any]:
    """A call of a message."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _delta_of(part: Part) -> dict[str, Any]:
    """The delta of a message: of a call, what says which it is comes with its first part alone."""
    if part.kind != "call":
        return {"reasoning_content" if part.kind == "reasoning" else "content": part.text}
    call = {"function": {"arguments": part.text}} if not part.id else _call_of(Call(part.id, part.name, part.text))
    return {"tool_calls": [{"index": part.index, **call}]}


class Form(NamedTuple):
    """The form of an endpoint's responses.

    prefix: of their ids. whole_object, chunk_object: the `object` of a response, and of a part of one that is streamed.
    choice: makes the choices, as `TextChoice` does.
    """

    prefix: str
    whole_object: str
    chunk_object: str
    choice: Callable[[int, Tokenizer, Row], Choice]


TEXT = Form("cmpl", "text_completion", "text_completion", TextChoice)


def echo_form(prompts: Sequence[str | list[int]], completes: bool) -> Form:
    """The form of completions that begin with their prompts. For the arguments, see `EchoChoice`."""
    return TEXT._replace(choice=partial(EchoChoice, prompts=prompts, completes=completes))


def chat_form(format_: AnswerFormat, *, included: bool | None = None, streamed: bool | None = None) -> Form:
    """The form of a chat's responses. For the arguments, see `ChatChoice`; None for what they are without being given."""
    choice = partial(ChatChoice, format_=format_, included=included is not False, streamed=streamed is not False)
    return Form("chatcmpl", "chat.completion", "chat.completion.chunk", choice)


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


def json_bytes(data: object, *, allow_nan: bool = True) -> bytes:
    """JSON in UTF-8; a lone surrogate, from a client or a model, becomes a question mark."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=allow_nan, separators=(",", ":"))
    for character, escape in _LINE_ENDS.items():
        text = text.replace(character, escape)
    return text.encode("utf-8", "replace")


def _as_requested(seed: int | None) -> int | None:
    """A seed as requests may give it: the negative number that stands for one from 2^63 on, such as -1, has digits that the
    numbers of JavaScript hold."""
    return seed - 2**64 if seed is not None and seed >= 2**63 else seed


def _finite(value: float) -> float:
    """A log-probability for JSON, which has no infinity: -9999 for -inf, as in other servers."""
    return max(value, -9999.0)
