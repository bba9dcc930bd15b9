"""Conversations as jobs: the prompt, how the answer is read, and what constrains it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar

from decodestep.chat import tools
from decodestep.chat.answer_format import AnswerFormat, build_answer_format
from decodestep.chat.variable_trial import refused_variable
from decodestep.errors import ModelError, RequestError, TemplateProcessError
from decodestep.generation.prompts import RESERVED
from decodestep.sampling.contradictions import LANGUAGES
from decodestep.sampling.params import DEFAULTS, SamplingParams
from decodestep.serving.errors import http_error, refusal
from decodestep.serving.jobs import BuildWriter, Job, read_sampling
from decodestep.serving.request_fields import object_field, require_short, texts

if TYPE_CHECKING:
    from decodestep.models import Model

T = TypeVar("T")


@dataclass(frozen=True)
class Chat:
    """A conversation that is to be answered: what every endpoint of chats makes of its requests.

    messages: in the form of `Message`, their contents text or, beside calls, None, and the arguments of calls objects, or
    what is no JSON.
    tools: the fields tools, tool_choice and parallel_tool_calls of chat completions. variables: of the chat template.
    opens: whether the prompt ends with the beginning of an answer. continues: whether the answer goes on with the last message.
    separate: whether the answer's reasoning is told apart from its content. schema: that of the answer as JSON; None for text.
    sampling: the fields for `SamplingParams.from_openai`. stream: whether the answer is streamed. names: what the request calls
    messages, response_format, max_new_tokens and others, where its names are not those of chat completions.
    """

    messages: list[dict[str, Any]]
    tools: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, Any] = field(default_factory=dict)
    opens: bool = True
    continues: bool = False
    separate: bool = True
    schema: Mapping[str, Any] | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    stream: bool = False
    names: Mapping[str, str] = field(default_factory=dict)


def chat_prompt(model: Model, chat: Chat, most_characters: int) -> tuple[list[int], AnswerFormat]:
    """The token ids of a conversation, and how its answer is read. Renders and tokenizes it, which may be slow.

    most_characters: of all that the messages, the tools or the template's variables say; what is longer is refused before it is
    tokenized.
    """
    ids, called = _render(model.chat_ids, model, chat, most_characters)
    # What continues a message has no beginning at which reasoning could stand.
    return ids, replace(build_answer_format(model, ids, called), separate=chat.separate and not chat.continues)


def chat_text(model: Model, chat: Chat, most_characters: int) -> str:
    """As `chat_prompt`, the text that the chat template makes of a conversation."""
    return _render(model.chat_prompt, model, chat, most_characters)[0]


def _render(render: Callable[..., T], model: Model, chat: Chat, most_characters: int) -> tuple[T, tools.ToolFormat | None]:
    """What a method of the model's makes of a conversation, and the tools that may be called."""
    said = {"messages": chat.messages, "tools": chat.tools.get("tools"), "chat_template_kwargs": chat.variables}
    for name, value in said.items():
        require_short([*texts(value)], most_characters, chat.names.get(name, name))
    try:
        called = tools.read(model, chat.tools, chat.messages)
        messages, described = tools.for_template(model, chat.messages, called)
        ending = {"add_generation_prompt": chat.opens, "continue_final_message": chat.continues}
        return render(messages, tools=described, **ending, **chat.variables), called
    except UnicodeEncodeError:
        raise refusal(chat.names.get("messages", "messages"), "valid Unicode, without lone surrogates") from None
    except RequestError as error:
        raise http_error(error, chat.names) from error
    except ModelError as error:
        if not isinstance(error, TemplateProcessError) and (refused := refused_variable(model, chat.variables)):
            known = f"one of {', '.join(refused.known)}" if refused.known else "another value"
            rule = f"{known}, or omitted: the chat template refuses {str(chat.variables[refused.name])[:100]}"
            raise refusal(chat.names.get(refused.name, refused.name), rule) from error
        raise http_error(error, chat.names) from error


def chat_job(
    model: Model,
    chat: Chat,
    most_characters: int,
    defaults: SamplingParams,
    build_writer: Callable[[AnswerFormat], BuildWriter],
) -> Job:
    """The job of an answer to a conversation.

    most_characters: as for `chat_prompt`, and of the prediction. defaults: of the sampling fields that the request leaves out,
    and of its thinking budget. build_writer: of how the answer is read, makes what a `Job` has.
    """
    require_short([*texts(chat.sampling.get("prediction"))], most_characters, "prediction")
    ids, format_ = chat_prompt(model, chat, most_characters)
    required = format_.tools is not None and format_.tools.required
    bound = any(chat.sampling.get(name) is not None for name in LANGUAGES)
    constraint: dict[str, Any] = {} if chat.schema is None else {"json_schema": chat.schema}
    if required or not bound:  # what is bound by the request itself is not bound by its tools too
        try:
            answer = None if chat.schema is None else dict(chat.schema)
            grammar = format_.grammar(model.tokenizer, answer, continues=chat.continues)
        except RequestError as error:
            json_schema = chat.names.get("response_format", "response_format")
            raise http_error(error, {**chat.names, "json_schema": json_schema}) from None
        constraint = constraint if grammar is None else {"grammar": grammar}
    names = {"prompt": chat.names.get("messages", "messages"), **chat.names}
    if format_.tools is None:
        names["tools"] = names.get("response_format", "response_format")  # from which a grammar comes then
    sampling = read_sampling(chat.sampling, defaults, constraint=constraint, names=names)
    if bound and sampling.params.thinking_budget is not None:
        budget = chat.names.get("thinking_budget_tokens", "thinking_budget_tokens")
        raise refusal(budget, f"omitted beside {', '.join(LANGUAGES[:-1])} and {LANGUAGES[-1]}, which bind the reasoning too")
    params = sampling.params if bound else _with_budget(sampling.params, defaults)
    return Job([ids], params, build_writer(format_), chat.stream, sampling.field_of, answer=format_)


def _with_budget(params: SamplingParams, defaults: SamplingParams) -> SamplingParams:
    """The params with the thinking budget and its message of `defaults`, as far as the request has none."""
    names = ("thinking_budget_tokens", "thinking_budget_message")
    return params.replace(**{name: getattr(defaults, name) for name in names if getattr(params, name) is None})


def template_variables(body: Mapping[str, Any]) -> dict[str, Any]:
    """chat_template_kwargs: the variables that a request passes to the chat template besides the conversation."""
    given = object_field(body, "chat_template_kwargs")
    reserved = RESERVED & set(given)
    if reserved:
        raise refusal("chat_template_kwargs", f"without {', '.join(sorted(reserved))}")
    if not isinstance(given.get("enable_thinking"), bool | None):
        raise refusal("chat_template_kwargs", "such that enable_thinking is a bool")
    return given


def join_neighbours(messages: Sequence[dict[str, Any]], roles: Collection[str]) -> list[dict[str, Any]]:
    """The messages, of which those of these roles that follow each other are one: their contents a line each, and so their
    reasoning, and the calls of all."""
    found: list[dict[str, Any]] = []
    for role, group in groupby(messages, lambda message: message["role"]):
        alike = list(group)
        if role not in roles or len(alike) == 1:
            found += alike
            continue
        joined: dict[str, Any] = {"role": role, "content": None}
        for name in ("content", "reasoning_content"):
            said = [message[name] for message in alike if message.get(name)]
            if said:
                joined[name] = "\n".join(said)
        if calls := [call for message in alike for call in message.get("tool_calls", ())]:
            joined["tool_calls"] = calls
        elif joined["content"] is None:
            joined["content"] = ""
        found.append(joined)
    return found


def library_fields(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of SamplingParams among those of a request whose API has few of its own. Refuses those whose results have no
    place in an answer that is one message."""
    for name in ("n", "num_return_sequences"):
        if body.get(name) not in (None, 1):
            raise refusal(name, "1 or omitted: an answer is one message")
    for name in ("logprobs", "top_logprobs", "prompt_logprobs"):
        if body.get(name) not in (None, False) and (name != "top_logprobs" or body[name] != 0):
            raise refusal(name, "omitted: an answer of this API has no log-probabilities here")
    return {name: body[name] for name in DEFAULTS.keys() & body.keys()}
