"""Fields of requests that OpenAI's completions and chat completions share, besides those of sampling."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from decodestep.errors import RequestError
from decodestep.sampling.params import DEFAULTS, SamplingParams
from decodestep.sampling.request_formats import OPENAI_FIELDS, schema_of_format
from decodestep.serving.errors import http_error, refusal, unknown_field
from decodestep.serving.request_fields import bool_field, object_field

if TYPE_CHECKING:
    from decodestep.models import Model
    from decodestep.serving.http import BuildJob
    from decodestep.serving.jobs import Job

_STRINGS = ("model", "user", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")
_OBJECTS = ("metadata", "prompt_cache_options", "prediction")
# Fields of chats alone, and those that are read here; the rest is for `SamplingParams.from_openai`.
_TEMPLATE = {"chat_template_kwargs", "reasoning_effort", "add_generation_prompt", "continue_final_message"}
_TOOLS = {"tools", "tool_choice", "parallel_tool_calls", "functions", "function_call"}
_REASONING = {"reasoning_format", "include_reasoning", "separate_reasoning", "stream_reasoning"}
CHAT_FIELDS = {"messages", *_TOOLS, *_TEMPLATE, *_REASONING}
_OWN_FIELDS = {"response_format", *CHAT_FIELDS}
_KNOWN_FIELDS = frozenset({*_OWN_FIELDS, *OPENAI_FIELDS, *DEFAULTS})


class StreamOptions(NamedTuple):
    """usage: whether the stream ends with the token counts. running_usage: whether each chunk before has those so far."""

    usage: bool
    running_usage: bool


def known_only(build_job: BuildJob, others: Collection[str] = ()) -> BuildJob:
    """Of a function that reads requests, one that ignores the fields that neither it nor `SamplingParams.from_openai` knows.

    others: fields beside those of completions and chats.
    """

    def build(model: Model, body: dict[str, Any], most_characters: int, defaults: SamplingParams) -> Job:
        known = {name: value for name, value in body.items() if name in _KNOWN_FIELDS or name in others}
        return build_job(model, known, most_characters, defaults)

    return build


def sampling_fields(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields for `SamplingParams.from_openai`. Refuses wrong types of those that change nothing here."""
    for name in _STRINGS:
        if not isinstance(body.get(name), str | None):
            raise refusal(name, "a string")
    bool_field(body, "store")
    for name in _OBJECTS:
        object_field(body, name)
    return {name: value for name, value in body.items() if name not in _OWN_FIELDS}


def read_stream_options(body: Mapping[str, Any]) -> StreamOptions:
    stream, options = bool_field(body, "stream"), object_field(body, "stream_options")
    if options and not stream:
        raise refusal("stream_options", "omitted without stream")
    known = {"include_usage", "continuous_usage_stats", "include_obfuscation"}
    if options.keys() - known or not all(isinstance(value, bool | None) for value in options.values()):
        raise refusal("stream_options", '{"include_usage": a bool, "continuous_usage_stats": a bool}')
    usage = bool(options.get("include_usage"))
    return StreamOptions(usage, usage and bool(options.get("continuous_usage_stats")))  # which is vLLM's, and part of the first


def refuse_fields(body: Mapping[str, Any], names: set[str]) -> None:
    """Refuses fields of the other kind of request, which would have no effect."""
    given = [name for name in sorted(names) if body.get(name) is not None]
    if given:
        raise unknown_field(given[0])


def schema_of_response(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The JSON schema of response_format; None for text."""
    given = object_field(body, "response_format")
    try:
        return schema_of_format("serve", given) if given else None
    except RequestError as error:
        raise http_error(error) from None
