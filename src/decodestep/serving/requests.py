"""Request bodies as prompts and `SamplingParams`. Unknown fields are refused by name."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

from decodestep._base.checks import Phrase, is_int, require
from decodestep.chat import tools
from decodestep.chat.answer_format import AnswerFormat, build_answer_format
from decodestep.chat.message_form import REASONING
from decodestep.chat.tool_json import UnreadableError, read_arguments
from decodestep.errors import RequestError
from decodestep.generation.prompts import RESERVED
from decodestep.models.sampling_defaults import with_defaults
from decodestep.sampling.field_aliases import ALIASES
from decodestep.sampling.params import LANGUAGES, SamplingParams, languages_of
from decodestep.sampling.request_formats import schema_of_format
from decodestep.serving.errors import HttpError, http_error, refusal, unknown_field
from decodestep.serving.request_fields import list_field, object_field, require_short, texts
from decodestep.serving.responses import TEXT, Form, chat_form, echo_form

if TYPE_CHECKING:
    from decodestep.models import Model

_OP = "serve"
_MAX_DEPTH = 256  # of lists and objects in each other: schemas need a few dozen, Python's recursion ends at about a thousand
_COMPLETION_TOKENS = 16  # of a completion whose request has no max_tokens, as in OpenAI's API; a chat has no such number
_MAX_LOGPROBS, _MAX_ECHO_LOGPROBS = 100, 20  # of a token; of a prompt's token, of which there are many at once
_MAX_STOPS, _MAX_STOP_CHARACTERS = 256, 2**14  # the number of stop strings; their total length
# The time and memory for a token grow with each of these fields, and with keys times the vocabulary.
_MOST_WATERMARKED = 1024  # tokens
_MAX_SYNTHID = {"ngram_len": 64, "keys": 64, "sampling_table_size": 2**20, "context_history_size": 2**16}
_NONE = SamplingParams()  # the defaults of a model that says nothing of them
_ROLES = ("system", "developer", "user", "assistant", "tool")
_STRINGS = ("model", "user", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")
_OBJECTS = ("metadata", "prompt_cache_options", "prediction")
# Fields that are read here; the rest is for `SamplingParams.from_openai`.
_TEMPLATE = {"chat_template_kwargs", "reasoning_effort", "add_generation_prompt", "continue_final_message"}
_REASONING = {"reasoning_format", "include_reasoning", "separate_reasoning", "stream_reasoning"}
_OURS = {"tools", "tool_choice", "parallel_tool_calls", "response_format", *_TEMPLATE, *_REASONING}
_REASONING_FORMATS = ("auto", "deepseek", "deepseek-legacy", "none")
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


def parse_body(data: bytes) -> dict[str, Any]:
    """The JSON object in a body. Raises HttpError."""
    try:
        body = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise HttpError(400, f"the body is not JSON: {str(error)[:200]}", code="invalid_json") from None
    if not isinstance(body, dict):
        raise HttpError(400, "the body must be a JSON object", code="invalid_json")
    if not _is_shallow(body):
        raise HttpError(400, f"the body must be nested at most {_MAX_DEPTH} deep", code="invalid_json")
    return body


def _is_shallow(body: dict[str, Any]) -> bool:
    level: list[Any] = [body]
    for _ in range(_MAX_DEPTH):
        items = (item for each in level for item in (each.values() if isinstance(each, dict) else each))
        level = [item for item in items if isinstance(item, (dict, list))]
    return not level


def max_characters(model: Model) -> int:
    """A length in characters beyond which no text fits the model's context.

    The factor 2 allows for normalizers that merge or drop characters.
    """
    tokenizer = model.tokenizer
    return 2 * model.config.context * max(len(tokenizer.token_bytes(i)) for i in range(len(tokenizer)))


def chat_job(model: Model, body: Mapping[str, Any], most_characters: int, *, defaults: SamplingParams = _NONE) -> Job:
    """The job of a chat completion. Renders and tokenizes the conversation, which may be slow.

    defaults: of the sampling fields that a request leaves out.
    most_characters: of all that the messages, the tools, the template's variables or the prediction say; what is longer is
    refused before it is tokenized.
    """
    _refuse_fields(body, {"prompt"})
    conversation = [_message(i, message) for i, message in enumerate(list_field(body, "messages"))]
    given = _template_variables(body)
    for name in ("messages", "tools", "chat_template_kwargs", "prediction"):
        require_short([*texts(body.get(name))], most_characters, name)
    called = tools.read(model, body, conversation)
    conversation, asked = tools.for_template(model, conversation, called)
    try:
        ids = model.chat_ids(conversation, tools=asked, **given)
    except UnicodeEncodeError:
        raise refusal("messages", "valid Unicode, without lone surrogates") from None
    format_ = build_answer_format(model, ids, called)
    if (called is not None and called.required) or _response_format(body):
        format_ = replace(format_, begun=False)  # the text is bound from its first token
    # What continues a message has no beginning at which reasoning could stand.
    format_ = replace(format_, separate=_is_separate(body) and not given["continue_final_message"])
    constraint = _constraint(model, body, format_)
    form = chat_form(format_, included=body.get("include_reasoning"), streamed=body.get("stream_reasoning"))
    job = _job(body, [ids], form, None, constraint, defaults, format_.spelled)
    return replace(job, answer=format_)


def completion_job(body: Mapping[str, Any], most_characters: int, *, defaults: SamplingParams = _NONE) -> Job:
    """The job of a completion: one or more prompts, as strings or token ids. most_characters: of each prompt, and of
    the prediction. defaults: as for `chat_job`."""
    prompt = body.get("prompt")
    prompts = [prompt] if isinstance(prompt, str) or (prompt and _are_ids(prompt)) else prompt
    if not isinstance(prompts, list) or not prompts or not all(isinstance(item, str) or _are_ids(item) for item in prompts):
        raise refusal("prompt", "a string, a list of token ids, or a list of either")
    for item in prompts:
        require_short([item] if isinstance(item, str) else [], most_characters, "prompt")
    require_short([*texts(body.get("prediction"))], most_characters, "prediction")
    _refuse_fields(body, _OURS - {"response_format"} | {"messages"})
    echo = body.get("echo")
    if not isinstance(echo, bool | None):
        raise refusal("echo", "a bool")
    if echo:
        return _echo_job(body, prompts, defaults)
    return _job(body, prompts, TEXT, _COMPLETION_TOKENS, _response_format(body), defaults)


def _echo_job(body: Mapping[str, Any], prompts: list[Any], defaults: SamplingParams) -> Job:
    """The job of completions that begin with their prompts, or with max_tokens 0 are these alone."""
    completes = not (is_int(body.get("max_tokens")) and body["max_tokens"] == 0)
    asked = body if completes else {**body, "max_tokens": 1}
    job = _job({**asked, "echo": None}, prompts, TEXT, _COMPLETION_TOKENS, _response_format(body), defaults)
    params, count, logprobs = job.params, job.params.num_return_sequences, job.params.logprobs
    if (logprobs or 0) > _MAX_ECHO_LOGPROBS:
        raise refusal("logprobs", f"at most {_MAX_ECHO_LOGPROBS} with echo")
    if not completes:  # a token is drawn all the same, and left out of the response
        kept = {name: getattr(params, name) for name in ("num_return_sequences", "logprobs", "max_time", "seed")}
        params = SamplingParams(do_sample=False, ignore_eos=True, **kept)
    form = echo_form([prompt for prompt in prompts for _ in range(count)], completes)
    return replace(job, params=replace(params, prompt_logprobs=logprobs), form=form, only_scored=not completes)


def _are_ids(prompt: object) -> bool:
    return isinstance(prompt, list) and all(type(item) is int for item in prompt)


def _job(
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
    given = {name: value for name, value in body.items() if name not in _OURS and value is not None}
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


def _refuse_fields(body: Mapping[str, Any], names: set[str]) -> None:
    """Refuses fields of the other kind of request, which would have no effect."""
    given = [name for name in sorted(names) if body.get(name) is not None]
    if given:
        raise unknown_field(given[0])


def _template_variables(body: Mapping[str, Any]) -> dict[str, Any]:
    """The variables that a request passes to the chat template besides the conversation, and how its text is to end."""
    given, effort = object_field(body, "chat_template_kwargs"), body.get("reasoning_effort")
    reserved = RESERVED & set(given)
    if reserved:
        raise refusal("chat_template_kwargs", f"without {', '.join(sorted(reserved))}")
    if not isinstance(effort, str | None):
        raise refusal("reasoning_effort", "a string")
    begins, continues = body.get("add_generation_prompt"), body.get("continue_final_message")
    for name, value in (("add_generation_prompt", begins), ("continue_final_message", continues)):
        if not isinstance(value, bool | None):
            raise refusal(name, "a bool")
    if begins and continues:
        raise refusal("add_generation_prompt", "false or omitted with continue_final_message")
    if not isinstance(given.get("enable_thinking"), bool | None):
        raise refusal("chat_template_kwargs", "such that enable_thinking is a bool")
    ending = {"add_generation_prompt": begins is not False, "continue_final_message": bool(continues)}
    asked: dict[str, Any] = {} if effort is None else {"reasoning_effort": effort}
    return {**asked, **({"enable_thinking": False} if effort == "none" else {}), **given, **ending}


def _is_separate(body: Mapping[str, Any]) -> bool:
    """Whether the answer's reasoning is told apart from its content."""
    given = body.get("reasoning_format")
    if given is not None and given not in _REASONING_FORMATS:
        raise refusal("reasoning_format", f"one of {', '.join(_REASONING_FORMATS)}")
    for name in _REASONING - {"reasoning_format"}:
        if not isinstance(body.get(name), bool | None):
            raise refusal(name, "a bool")
    raw = given == "none" or (given == "deepseek-legacy" and body.get("stream") is True)  # which has marks in streams alone
    return not raw and body.get("separate_reasoning") is not False


def _message(index: int, message: object) -> dict[str, Any]:
    """A message with its parts joined into text, a line each, and the arguments of its calls as objects."""
    name = f"messages[{index}]"
    if not isinstance(message, dict) or message.get("role") not in _ROLES:
        raise refusal(f"{name}.role", f"one of {', '.join(_ROLES)}")
    for field in REASONING:
        if not isinstance(message.get(field), str | None):
            raise refusal(f"{name}.{field}", "a string")
    for field in ("function_call", "audio"):  # templates would drop what the message says there
        if message.get(field) is not None:
            raise refusal(f"{name}.{field}", "omitted; calls are in tool_calls, and a content is text")
    taken, calls = {**message, "content": _content(name, message)}, message.get("tool_calls")
    if message["role"] == "developer":
        taken["role"] = "system"
    if calls == []:
        del taken["tool_calls"]  # templates write the beginning of a call if there is a list
    elif calls is not None:
        taken["tool_calls"] = [_call(name, call) for call in calls] if isinstance(calls, list) else _refuse_calls(name)
    return taken


def _content(name: str, message: Mapping[str, Any]) -> str | None:
    """The text of a message; an assistant's may be a refusal, or None, which is nothing beside calls."""
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(_part(name, part) for part in content)
    if content is None and message["role"] == "assistant":
        content = message.get("refusal")
        if content is None:
            return None
    if not isinstance(content, str):
        raise refusal(f"{name}.content", "a string")
    return content


def _part(name: str, part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    text = part.get(kind) if kind in ("text", "refusal") else None
    if not isinstance(text, str):
        raise refusal(f"{name}.content", "a string or a list of text parts; other parts are not supported")
    return text


def _call(name: str, call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        _refuse_calls(name)
    try:
        arguments = read_arguments(function.get("arguments"))
    except UnreadableError:
        _refuse_calls(name)
    return {**call, "function": {**function, "arguments": arguments}}


def _refuse_calls(name: str) -> NoReturn:
    raise refusal(f"{name}.tool_calls", 'a list of {"function": {"name", "arguments": JSON as text}}')


def _constraint(model: Model, body: Mapping[str, Any], format_: AnswerFormat) -> dict[str, Any]:
    """The constraint of a chat's response_format and tools, as a field of SamplingParams; none beside one that is given as such
    a field, if no tool is required."""
    answer = _response_format(body)
    if not (format_.tools is not None and format_.tools.required) and _has_language(body):
        return answer
    try:
        grammar = format_.grammar(model.tokenizer, answer.get("json_schema"))
    except RequestError as error:
        raise http_error(error, {"json_schema": "response_format"}) from None
    return answer if grammar is None else {"grammar": grammar}


def _has_language(body: Mapping[str, Any]) -> bool:
    """Whether a request has a constraint as a field of SamplingParams."""
    return any(body.get(name) is not None for name in LANGUAGES)


def _response_format(body: Mapping[str, Any]) -> dict[str, Any]:
    """response_format as a field of SamplingParams."""
    given = object_field(body, "response_format")
    try:
        schema = schema_of_format(_OP, given) if given else None
    except RequestError as error:
        raise http_error(error) from None
    return {} if schema is None else {"json_schema": schema}


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")
