"""POST /v1/chat/completions: answers to conversations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from starlette.requests import Request
from starlette.responses import Response

from decodestep.chat import tools
from decodestep.chat.answer_format import AnswerFormat, build_answer_format
from decodestep.chat.answer_reader import Call, Part
from decodestep.chat.tool_json import UnreadableError, read_arguments
from decodestep.errors import RequestError
from decodestep.generation.prompts import RESERVED
from decodestep.sampling.params import LANGUAGES, SamplingParams
from decodestep.serving.choices import COMPLETE, Choice, Form, finite
from decodestep.serving.endpoint import Endpoint
from decodestep.serving.errors import http_error, refusal
from decodestep.serving.jobs import NO_DEFAULTS, Job, build_job, refuse_fields, response_format_of
from decodestep.serving.request_fields import list_field, object_field, require_short, texts

if TYPE_CHECKING:
    from decodestep.generation.engine_request import Delta
    from decodestep.models import Model
    from decodestep.ops.decode_step import TokenLogprobs
    from decodestep.sampling.row import Row
    from decodestep.serving.http import Server
    from decodestep.tokenizers.tokenizer import Tokenizer

_ROLES = ("system", "developer", "user", "assistant", "tool")


def chat_job(model: Model, body: Mapping[str, Any], most_characters: int, defaults: SamplingParams = NO_DEFAULTS) -> Job:
    """The job of a chat completion. Renders and tokenizes the conversation, which may be slow.

    defaults: of the sampling fields that a request leaves out.
    most_characters: of all that the messages, the tools, the template's variables or the prediction say; what is longer is
    refused before it is tokenized.
    """
    refuse_fields(body, {"prompt"})
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
    if (called is not None and called.required) or response_format_of(body) or _has_language(body):
        format_ = replace(format_, begun=False)  # the text is bound from its first token
    constraint = _constraint(model, body, format_)
    job = build_job(body, [ids], chat_form(format_), None, constraint, defaults, format_.spelled)
    return replace(job, answer=format_)


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
    ending = {"add_generation_prompt": begins is not False, "continue_final_message": bool(continues)}
    return {**({} if effort is None else {"reasoning_effort": effort}), **given, **ending}


def _message(index: int, message: object) -> dict[str, Any]:
    """A message with its parts joined into text, a line each, and the arguments of its calls as objects."""
    name = f"messages[{index}]"
    if not isinstance(message, dict) or message.get("role") not in _ROLES:
        raise refusal(f"{name}.role", f"one of {', '.join(_ROLES)}")
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
    answer = response_format_of(body)
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


class ChatChoice(Choice):
    """A choice of a chat. format_: how its answer is read."""

    def __init__(self, index: int, tokenizer: Tokenizer, row: Row, format_: AnswerFormat) -> None:
        super().__init__(index, tokenizer, row)
        self.reasoning_tokens = 0
        self._reader = format_.reader()
        self._parts: list[Part] = []  # those that the last delta has added

    def take(self, delta: Delta) -> None:
        super().take(delta)
        was_reasoning = self._reader.in_reasoning
        self._parts = self._reader.add(delta.text)
        if delta.reason:
            stop = self._row.text.stop if self._row.text else ""
            self._parts += self._reader.end(stop, cut=delta.reason not in COMPLETE)
        self.reasoning_tokens += delta.token is not None and was_reasoning and self._reader.in_reasoning

    def whole(self) -> dict[str, Any]:
        read = self._reader
        message: dict[str, Any] = {"role": "assistant"}
        if read.reasoning:
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
        deltas = [_delta_of(part) for part in self._parts]
        choices = [self._choice(each) for each in deltas or ([] if delta.logprobs is None else [{}])]
        if choices:
            choices[0]["logprobs"] = self._take_logprobs()
        if delta.reason:
            choices.append({"index": self.index, "delta": {}, "logprobs": None, **self._end(self._reader.calls)})
        return choices

    def _choice(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"index": self.index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _as_json(self, logprobs: Sequence[tuple[int, TokenLogprobs | None]]) -> dict[str, Any]:
        return {"content": [self._with_top(token, found) for token, found in logprobs if found], "refusal": None}

    def _with_top(self, token: int, found: TokenLogprobs) -> dict[str, Any]:
        return {**self._entry(token, found.raw), "top_logprobs": [self._entry(i, value) for i, value in found.top_raw]}

    def _entry(self, token: int, value: float) -> dict[str, Any]:
        data = self._tokenizer.token_bytes(token)
        text = data.decode("utf-8", "replace") if data else self._tokenizer.token(token)  # for a control token, its name
        return {"token": text, "logprob": finite(value), "bytes": list(data), "token_id": token}


def _call_of(call: Call) -> dict[str, Any]:
    """A call of a message."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _delta_of(part: Part) -> dict[str, Any]:
    """The delta of a message: of a call, what says which it is comes with its first part alone."""
    if part.kind != "call":
        return {"reasoning_content" if part.kind == "reasoning" else "content": part.text}
    call = {"function": {"arguments": part.text}} if not part.id else _call_of(Call(part.id, part.name, part.text))
    return {"tool_calls": [{"index": part.index, **call}]}


def chat_form(format_: AnswerFormat) -> Form:
    """The form of a chat's responses. format_: as in `ChatChoice`."""
    return Form("chatcmpl", "chat.completion", "chat.completion.chunk", partial(ChatChoice, format_=format_))


async def _answer(server: Server, request: Request) -> Response:
    return await server.complete(request, chat_job)


ENDPOINTS = (Endpoint("/v1/chat/completions", _answer),)
