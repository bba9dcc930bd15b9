"""POST /v1/completions: texts that go on."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from decodestep._base.checks import is_int
from decodestep.sampling.params import SamplingParams
from decodestep.serving.choices import Choice, ChoicesWriter, Form, finite
from decodestep.serving.endpoint import Endpoint
from decodestep.serving.errors import refusal
from decodestep.serving.infilling import ending_infill, read_infill
from decodestep.serving.jobs import NO_DEFAULTS, Job, Sampling, read_sampling
from decodestep.serving.openai_fields import (
    CHAT_FIELDS,
    known_only,
    read_stream_options,
    refuse_fields,
    sampling_fields,
    schema_of_response,
)
from decodestep.serving.request_fields import bool_field, require_short, texts

if TYPE_CHECKING:
    from decodestep.chat.answer_reader import Part
    from decodestep.generation.engine_request import Delta
    from decodestep.models import Model
    from decodestep.ops.decode_step import TokenLogprobs
    from decodestep.sampling.row import Row
    from decodestep.serving.http import Server
    from decodestep.tokenizers.tokenizer import Tokenizer

_COMPLETION_TOKENS = 16  # of a completion whose request has no max_tokens, as in OpenAI's API; a chat has no such number
_MAX_ECHO_LOGPROBS = 20  # of a prompt's token, of which there are many at once


def completion_job(model: Model, body: Mapping[str, Any], most_characters: int, defaults: SamplingParams = NO_DEFAULTS) -> Job:
    """The job of a completion: one or more prompts, as strings or token ids.

    most_characters: of each prompt, and of the prediction. defaults: of the sampling fields that the request leaves out.
    """
    prompt = body.get("prompt")
    prompts = [prompt] if isinstance(prompt, str) or (prompt and _are_ids(prompt)) else prompt
    if not isinstance(prompts, list) or not prompts or not all(isinstance(item, str) or _are_ids(item) for item in prompts):
        raise refusal("prompt", "a string, a list of token ids, or a list of either")
    for item in prompts:
        require_short([item] if isinstance(item, str) else [], most_characters, "prompt")
    require_short([*texts(body.get("prediction"))], most_characters, "prediction")
    refuse_fields(body, CHAT_FIELDS)
    echo, suffix = bool_field(body, "echo"), body.get("suffix")
    if not isinstance(suffix, str | None):
        raise refusal("suffix", "a string")
    if suffix:
        if echo or not all(isinstance(item, str) for item in prompts):
            raise refusal("suffix", "left out with echo, and with a prompt of token ids")
        return _infill_job(model, body, [read_infill(model, item, suffix, most_characters) for item in prompts], defaults)
    if echo:
        return _echo_job(body, prompts, defaults)
    return _job(body, prompts, _sampling(body, defaults), TextChoice)


def _infill_job(model: Model, body: Mapping[str, Any], prompts: list[list[int]], defaults: SamplingParams) -> Job:
    """The job of what stands between a prompt and the suffix."""
    sampling = _sampling({**body, "suffix": None}, defaults)
    return _job(body, prompts, sampling._replace(params=ending_infill(model, sampling.params)), TextChoice)


def _echo_job(body: Mapping[str, Any], prompts: list[Any], defaults: SamplingParams) -> Job:
    """The job of completions that begin with their prompts, or with max_tokens 0 are these alone."""
    completes = not (is_int(body.get("max_tokens")) and body["max_tokens"] == 0)
    asked = body if completes else {**body, "max_tokens": 1}
    sampling = _sampling({**asked, "echo": None}, defaults)
    params, count, logprobs = sampling.params, sampling.params.num_return_sequences, sampling.params.logprobs
    if (logprobs or 0) > _MAX_ECHO_LOGPROBS:
        raise refusal("logprobs", f"at most {_MAX_ECHO_LOGPROBS} with echo")
    if not completes:  # a token is drawn all the same, and left out of the response
        kept = {name: getattr(params, name) for name in ("num_return_sequences", "logprobs", "max_time", "seed")}
        params = SamplingParams(do_sample=False, ignore_eos=True, **kept)
    sampling = sampling._replace(params=replace(params, prompt_logprobs=logprobs))
    every = [prompt for prompt in prompts for _ in range(count)]
    job = _job(body, prompts, sampling, partial(EchoChoice, prompts=every, completes=completes))
    return replace(job, only_scored=not completes)


def _sampling(body: Mapping[str, Any], defaults: SamplingParams) -> Sampling:
    schema = schema_of_response(body)
    constraint = {} if schema is None else {"json_schema": schema}
    return read_sampling(sampling_fields(body), defaults, max_tokens=_COMPLETION_TOKENS, constraint=constraint)


def _job(body: Mapping[str, Any], prompts: list[Any], sampling: Sampling, choice: Callable[..., Choice]) -> Job:
    form = Form("cmpl", "text_completion", "text_completion", choice)
    writer = partial(ChoicesWriter, form=form, options=read_stream_options(body))
    return Job(prompts, sampling.params, writer, bool(body.get("stream")), sampling.field_of)


def _are_ids(prompt: object) -> bool:
    return isinstance(prompt, list) and all(type(item) is int for item in prompt)


class TextChoice(Choice):
    """A choice of a completion."""

    def __init__(self, index: int, tokenizer: Tokenizer, row: Row) -> None:
        super().__init__(index, tokenizer, row)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0  # of the next token in the text
        self._sent = 0  # how many characters of the text a stream has sent

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
            "token_logprobs": [found and finite(found.raw) for _, found in logprobs],
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
            values.setdefault(self._name(token), finite(value))
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

    def take(self, delta: Delta) -> list[Part]:
        return super().take(delta if self._completes else delta._replace(text="", token=None, logprobs=None))

    def _new_logprobs(self) -> list[tuple[int, TokenLogprobs | None]]:
        """The first time with those of the prompt, fewer than its tokens if the row ended within it."""
        ids, self._ids = self._ids, []
        return [*zip(ids, self.row.prompt_logprobs, strict=False), *super()._new_logprobs()]

    def _next_offset(self, token: int) -> int:
        offset = next(self._prompt_offsets, None)
        # Below 0 where the tokenizer has put something before the prompt.
        return super()._next_offset(token) if offset is None else max(0, offset)


async def _answer(server: Server, request: Request) -> Response:
    return await server.complete(request, known_only(completion_job) if server.ignore_unknown_fields else completion_job)


ENDPOINTS = (Endpoint("/v1/completions", _answer),)
