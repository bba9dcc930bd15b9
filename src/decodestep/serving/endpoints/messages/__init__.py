"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API.

`request`: requests as conversations; `answer`: answers and errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from decodestep.sampling.params import SamplingParams
from decodestep.serving.chats import chat_job, chat_prompt
from decodestep.serving.endpoint import Endpoint
from decodestep.serving.endpoints.messages.answer import MessageWriter, error_response
from decodestep.serving.endpoints.messages.request import read_chat
from decodestep.serving.jobs import NO_DEFAULTS, BuildWriter, Job
from decodestep.serving.wire import JsonResponse

if TYPE_CHECKING:
    from decodestep.chat.answer_format import AnswerFormat
    from decodestep.models import Model
    from decodestep.serving.http import Server


def message_job(model: Model, body: Mapping[str, Any], most_characters: int, defaults: SamplingParams = NO_DEFAULTS) -> Job:
    """The job of a message. For the arguments, see `chat_job`."""
    chat = read_chat(body)

    def build_writer(format_: AnswerFormat) -> BuildWriter:
        return partial(MessageWriter, format_=format_, max_tokens=body.get("max_tokens"))

    return chat_job(model, chat, most_characters, defaults, build_writer)


async def _answer(server: Server, request: Request) -> Response:
    return await server.complete(request, message_job)


async def _count_tokens(server: Server, request: Request) -> Response:
    body = await server.read_body(request)
    chat = read_chat(body)
    with await server.use(body) as served:
        ids, _ = await server.in_worker(chat_prompt, served.model, chat, served.most_characters)
    return JsonResponse({"input_tokens": len(ids)})


ENDPOINTS = (
    Endpoint("/v1/messages", _answer, error_response=error_response),
    Endpoint("/v1/messages/count_tokens", _count_tokens, error_response=error_response),
)
