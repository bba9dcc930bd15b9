"""POST /v1/chat/completions: answers to conversations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from starlette.requests import Request
from starlette.responses import Response

from decodestep.chat.answer_format import AnswerFormat
from decodestep.chat.answer_reader import Call, Part
from decodestep.chat.message_form import REASONING
from decodestep.chat.tool_json import read_arguments
from decodestep.sampling.params import SamplingParams
from decodestep.serving.chats import Chat, chat_job, template_variables
from decodestep.serving.choices import Choice, ChoicesWriter, Form, finite
from decodestep.serving.endpoint import Endpoint
from decodestep.serving.errors import refusal
from decodestep.serving.function_calls import NAMES, as_tools, has_functions, with_tool_calls
from decodestep.serving.jobs import NO_DEFAULTS, BuildWriter, Job
from decodestep.serving.openai_fields import known_only, read_stream_options, refuse_fields, sampling_fields, schema_of_response
from decodestep.serving.request_fields import bool_field, list_field

if TYPE_CHECKING:
    from decodestep.generation.engine_request import Delta
    from decodestep.models import Model
    from decodestep.ops.decode_step import TokenLogprobs
    from decodestep.sampling.row import Row
    from decodestep.serving.http import Server
    from decodestep.tokenizers.tokenizer import Tokenizer

_REASONING_FORMATS = ("auto", "deepseek", "deepseek-legacy", "none")
_ROLES = ("system", "developer", "user", "assistant", "tool")


def chat_completion_job(
    model: Model, body: Mapping[str, Any], most_characters: int, defaults: SamplingParams = NO_DEFAULTS
) -> Job:
    """The job of a chat completion. For the arguments, see `chat_job`."""
    refuse_fields(body, {"prompt"})
    options, functions = read_stream_options(body), has_functions(body)
    included, streamed = bool_field(body, "include_reasoning"), bool_field(body, "stream_reasoning")

    def build_writer(format_: AnswerFormat) -> BuildWriter:
        kind = FunctionChoice if functions else ChatChoice
        choice = partial(kind, format_=format_, included=included is not False, streamed=streamed is not False)
        form = Form("chatcmpl", "chat.completion", "chat.completion.chunk", choice)
        return partial(ChoicesWriter, form=form, options=options)

    return chat_job(model, read_chat(body), most_characters, defaults, build_writer)


def read_chat(body: Mapping[str, Any]) -> Chat:
    """The conversation of a request in the form of chat completions."""
    effort = body.get("reasoning_effort")
    if not isinstance(effort, str | None):
        raise refusal("reasoning_effort", "a string")
    begins, continues = bool_field(body, "add_generation_prompt"), bool_field(body, "continue_final_message")
    if begins and continues:
        raise refusal("add_generation_prompt", "false or omitted with continue_final_message")
    messages = [_message(i, message) for i, message in enumerate(with_tool_calls(list_field(body, "messages")))]
    if continues and messages[-1]["role"] != "assistant":
        raise refusal(f"messages[{len(messages) - 1}].role", "assistant with continue_final_message")
    asked: dict[str, Any] = {} if effort is None else {"reasoning_effort": effort}
    if effort == "none":
        asked["enable_thinking"] = False
    functions = has_functions(body)
    return Chat(
        messages,
        tools=as_tools(body) if functions else body,
        variables=asked | template_variables(body),
        opens=begins is not False,
        continues=bool(continues),
        separate=_is_separate(body),
        schema=schema_of_response(body),
        sampling=sampling_fields(body),
        stream=bool(body.get("stream")),
        names=NAMES if functions else {},
    )


def _is_separate(body: Mapping[str, Any]) -> bool:
    """Whether the answer's reasoning is told apart from its content."""
    given, separate = body.get("reasoning_format"), bool_field(body, "separate_reasoning")
    if given is not None and given not in _REASONING_FORMATS:
        raise refusal("reasoning_format", f"one of {', '.join(_REASONING_FORMATS)}")
    raw = given == "none" or (given == "deepseek-legacy" and bool(body.get("stream")))  # which has marks in streams alone
    return not raw and separate is not False


def _message(index: int, message: object) -> dict[str, Any]:
    """A message with its parts joined into text, a line each, and the arguments of its calls as `read_arguments` has them."""
    name = f"messages[{index}]"
    if not isinstance(message, dict) or message.get("role") not in _ROLES:
        raise refusal(f"{name}.role", f"one of {', '.join(_ROLES)}")
    for field in REASONING:
        if not isinstance(message.get(field), str | None):
            raise refusal(f"{name}.{field}", "a string")
    if message.get("audio") is not None:  # templates would drop what the message says there
        raise refusal(f"{name}.audio", "omitted: a content is text")
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


def _part(name: str, part: object) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    text = part.get(kind) if isinstance(part, dict) and kind in ("text", "refusal") else None
    if not isinstance(text, str):
        raise refusal(f"{name}.content", "a string or a list of text parts; other parts are not supported")
    return text


def _call(name: str, call: object) -> dict[str, Any]:
    if not isinstance(call, dict) or not isinstance(function := call.get("function"), dict):
        _refuse_calls(name)
    if not isinstance(function.get("name"), str):
        _refuse_calls(name)
    return {**call, "function": {**function, "arguments": read_arguments(function.get("arguments"))}}


def _refuse_calls(name: str) -> NoReturn:
    raise refusal(f"{name}.tool_calls", 'a list of {"function": {"name", "arguments": JSON as text}}')


class ChatChoice(Choice):
    """A choice of a chat.

    format_: how its answer is read. included: whether its reasoning is told. streamed: whether a stream tells it as it comes;
    otherwise at its end.
    """

    _called = "tool_calls"  # its finish_reason where it has calls

    def __init__(
        self, index: int, tokenizer: Tokenizer, row: Row, format_: AnswerFormat, *, included: bool = True, streamed: bool = True
    ) -> None:
        self._read = format_.reader()
        super().__init__(index, tokenizer, row, self._read)
        self._included, self._streamed = included, streamed
        self._told = 0  # how many characters of the reasoning a stream that does not tell it as it comes has told

    def whole(self) -> dict[str, Any]:
        read = self._read
        message: dict[str, Any] = {"role": "assistant"}
        if read.reasoning and self._included:
            message["reasoning_content"] = read.reasoning
        message["content"] = read.content if read.content or not (read.reasoning or read.calls) else None
        message["refusal"] = None
        if read.calls:
            message |= self._calls_of(read.calls)
        return {"index": self.index, "logprobs": self._take_logprobs(), **self._end(), "message": message}

    def _calls_of(self, calls: Sequence[Call]) -> dict[str, Any]:
        """The field of a message that has its calls, one or more."""
        return {"tool_calls": [_call_of(call) for call in calls]}

    def _delta_of(self, part: Part) -> dict[str, Any]:
        """The delta of a message: of a call, what says which it is comes with its first part alone."""
        if part.kind != "call":
            return {"reasoning_content" if part.kind == "reasoning" else "content": part.text}
        call = {"function": {"arguments": part.text}} if not part.id else _call_of(Call(part.id, part.name, part.text))
        return {"tool_calls": [{"index": part.index, **call}]}

    def opening(self) -> list[dict[str, Any]]:
        return [self._choice({"role": "assistant", "content": ""})]

    def chunk(self, delta: Delta) -> list[dict[str, Any]]:
        """Text that may still become part of a call is held back.

        Each part has a chunk of its own: a delta has either reasoning, content or a call. So has the end of a message, as in
        OpenAI's API: its client considers a call complete when the next chunk arrives.
        """
        deltas = [self._delta_of(part) for part in self._shown(self.take(delta))]
        choices = [self._choice(each) for each in deltas or ([] if delta.logprobs is None else [{}])]
        if choices:
            choices[0]["logprobs"] = self._take_logprobs()
        if delta.reason:
            choices.append({"index": self.index, "delta": {}, "logprobs": None, **self._end()})
        return choices

    def _shown(self, parts: list[Part]) -> list[Part]:
        """What a stream tells now that these parts have come."""
        if self._included and self._streamed:
            return parts
        others = [part for part in parts if part.kind != "reasoning"]
        whole = self._read.reasoning
        if not self._included or not (others or self.ended_by) or self._told == len(whole):
            return others
        start, self._told = self._told, len(whole)
        return [Part("reasoning", whole[start:]), *others]

    def _end(self) -> dict[str, Any]:
        end, read = super()._end(), self._read
        return {**end, "finish_reason": "length" if self.cut_call else self._called} if read.calls else end

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


class FunctionChoice(ChatChoice):
    """A choice of a chat whose request has functions, not tools."""

    _called = "function_call"

    def _calls_of(self, calls: Sequence[Call]) -> dict[str, Any]:
        return {"function_call": {"name": calls[0].name, "arguments": calls[0].arguments}}

    def _delta_of(self, part: Part) -> dict[str, Any]:
        if part.kind != "call":
            return super()._delta_of(part)
        return {"function_call": {**({"name": part.name} if part.id else {}), "arguments": part.text}}


async def _answer(server: Server, request: Request) -> Response:
    return await server.complete(
        request, known_only(chat_completion_job) if server.ignore_unknown_fields else chat_completion_job
    )


ENDPOINTS = (Endpoint("/v1/chat/completions", _answer),)
