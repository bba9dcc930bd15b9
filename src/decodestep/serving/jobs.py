"""Requests as jobs for the engine: how the fields that all endpoints share become `SamplingParams`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from decodestep._base.checks import Phrase, require
from decodestep.chat.answer_format import AnswerFormat
from decodestep.errors import RequestError
from decodestep.models.sampling_defaults import with_defaults
from decodestep.sampling.field_aliases import ALIASES
from decodestep.sampling.params import SamplingParams, languages_of
from decodestep.sampling.request_formats import schema_of_format
from decodestep.serving.choices import Form
from decodestep.serving.errors import HttpError, http_error, refusal, unknown_field
from decodestep.serving.request_fields import object_field

_OP = "serve"
_MAX_LOGPROBS = 100  # of a token
_MAX_STOPS, _MAX_STOP_CHARACTERS = 256, 2**14  # the number of stop strings; their total length
# The time and memory for a token grow with each of these fields, and with keys times the vocabulary.
_MOST_WATERMARKED = 1024  # tokens
_MAX_SYNTHID = {"ngram_len": 64, "keys": 64, "sampling_table_size": 2**20, "context_history_size": 2**16}
NO_DEFAULTS = SamplingParams()  # of a model that says nothing of them
_STRINGS = ("model", "user", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")
_OBJECTS = ("metadata", "prompt_cache_options", "prediction")
# Fields that are read by the endpoints; the rest is for `SamplingParams.from_openai`.
TEMPLATE_FIELDS = {"chat_template_kwargs", "reasoning_effort", "add_generation_prompt", "continue_final_message"}
OWN_FIELDS = {"tools", "tool_choice", "parallel_tool_calls", "response_format", *TEMPLATE_FIELDS}
# Where a constraint comes from that is not given as such.
_SOURCES = {"json_schema": "response_format", "grammar": "tools"}
# Fields of SamplingParams that need `generate`, or whose results do not fit in a response: only their defaults are accepted.
_LIBRARY_ONLY = ("num_beams", "num_beam_groups", "diversity_penalty", "length_penalty", "early_stopping", "prompt_logprobs")


@dataclass(frozen=True)
class Job:
    """A parsed request.

    prompts: token ids or texts, which share params. form: of the responses. stream: whether to stream. usage: whether the
    stream ends with the token counts. running_usage: whether each chunk before has those so far. spelled: names of control
    tokens that appear in the text. field_of: the request's field for each field of params that it has under another name, or
    that was made from another one. only_scored: as for `Engine.submit`. answer: how the answers of a chat are
    read; None of a completion.
    """

    prompts: list[Any]
    params: SamplingParams
    form: Form
    stream: bool
    usage: bool
    running_usage: bool
    spelled: Collection[str]
    field_of: Mapping[str, str]
    only_scored: bool = False
    answer: AnswerFormat | None = None

    def refusal(self, error: RequestError) -> HttpError:
        """The response to an error of the engine, in the words of the request."""
        named, called = None, None if self.answer is None else self.answer.tools
        if called is not None and self.params.grammar is not None and self.field_of.get(error.arg) == "tools":
            named = called.refusal(self.params.grammar, error)
        return http_error(named or error, self.field_of)


def build_job(
    body: Mapping[str, Any],
    prompts: list[Any],
    form: Form,
    default_tokens: int | None,
    constraint: dict[str, Any],
    defaults: SamplingParams,
    spelled: Collection[str] = (),
) -> Job:
    """The job of these prompts.

    default_tokens: its max_new_tokens if the request has none. constraint: that of its response_format or tools,
    as a field of SamplingParams; {} without.
    """
    for name in _LIBRARY_ONLY:
        if body.get(name) not in (None, getattr(SamplingParams, name)):
            raise HttpError(400, f"{name} is for `decodestep.generate`, not for requests", param=name, code="unknown_field")
    _require_types(body)
    streaming = _stream_options(body)
    given = {name: value for name, value in body.items() if name not in OWN_FIELDS and value is not None}
    field_of = _field_names(given)
    try:
        params = with_defaults(SamplingParams.from_openai(given), given, defaults)
        _require_affordable(params)
    except RequestError as error:
        raise http_error(error, field_of) from None
    if field_of["max_new_tokens"] not in given:
        params = replace(params, max_new_tokens=default_tokens)
    for name, value in constraint.items():
        field_of[name] = _SOURCES[name]
        params = _constrained(params, name, value)
    return Job(prompts, params, form, spelled=spelled, field_of=field_of, **streaming)


def _constrained(params: SamplingParams, language: str, constraint: Any) -> SamplingParams:
    """The params with the constraint of response_format or tools. language: the field that it becomes."""
    given = languages_of(params)
    if given:
        raise refusal(given[0], "omitted with response_format or a required tool")
    if params.ignore_eos:
        raise refusal("ignore_eos", f"false beside {_SOURCES[language]}, which ends the row")
    return replace(params, **{language: constraint})


def _field_names(given: Collection[str]) -> dict[str, str]:
    """The names by which a request has the fields of SamplingParams that have several; of those that it has not, OpenAI's."""
    names = {field: name for name, field in ALIASES.items()} | {ALIASES[name]: name for name in given if name in ALIASES}
    names |= {field: field for field in names if field in given}
    return {**names, "strings": names["stop_strings"]}  # as the automaton of the stop strings calls them


def _require_types(body: Mapping[str, Any]) -> None:
    """Refuses wrong types of the fields that OpenAI's clients send and that change nothing here."""
    for name in _STRINGS:
        if not isinstance(body.get(name), str | None):
            raise refusal(name, "a string")
    if not isinstance(body.get("store"), bool | None):
        raise refusal("store", "a bool")
    for name in _OBJECTS:
        object_field(body, name)


def _stream_options(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `Job` that are about its stream."""
    stream, options = body.get("stream"), object_field(body, "stream_options")
    if not isinstance(stream, bool | None):
        raise refusal("stream", "a bool")
    if options and not stream:
        raise refusal("stream_options", "omitted without stream")
    known = {"include_usage", "continuous_usage_stats", "include_obfuscation"}
    if options.keys() - known or not all(isinstance(value, bool | None) for value in options.values()):
        raise refusal("stream_options", '{"include_usage": a bool, "continuous_usage_stats": a bool}')
    usage = bool(options.get("include_usage"))
    running_usage = usage and bool(options.get("continuous_usage_stats"))  # which is vLLM's, and part of the first
    return {"stream": bool(stream), "usage": usage, "running_usage": running_usage}


def _require_affordable(params: SamplingParams) -> None:
    """Refuses values with which one request would cost the others more than a few rows do."""
    require((params.logprobs or 0) <= _MAX_LOGPROBS, _OP, "logprobs", f"at most {_MAX_LOGPROBS}", params.logprobs)
    watermark = params.watermarking_config or {}
    for name, largest in _MAX_SYNTHID.items():
        value = watermark.get(name)
        size = len(value) if name == "keys" and value is not None else value
        require(size is None or size <= largest, _OP, "watermarking_config", f"such that {name} is at most {largest}", size)
    if "keys" in watermark:  # each token that is left costs a hash for each key
        few = 0 < (params.top_k or 0) <= _MOST_WATERMARKED
        require(few, _OP, "top_k", f"in [1, {_MOST_WATERMARKED}] beside a watermark with keys", params.top_k)
    count, length = len(params.stop_strings), sum(map(len, params.stop_strings))
    rule = f"at most {_MAX_STOPS} strings of {_MAX_STOP_CHARACTERS} characters in total"
    require(count <= _MAX_STOPS and length <= _MAX_STOP_CHARACTERS, _OP, "stop_strings", rule, Phrase(f"{count} of {length}"))


def refuse_fields(body: Mapping[str, Any], names: set[str]) -> None:
    """Refuses fields of the other kind of request, which would have no effect."""
    given = [name for name in sorted(names) if body.get(name) is not None]
    if given:
        raise unknown_field(given[0])


def response_format_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """response_format as a field of SamplingParams."""
    given = object_field(body, "response_format")
    try:
        schema = schema_of_format(_OP, given) if given else None
    except RequestError as error:
        raise http_error(error) from None
    return {} if schema is None else {"json_schema": schema}
