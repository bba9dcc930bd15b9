"""POST /v1/responses: OpenAI's Responses API. Nothing is stored: a conversation is sent whole with each request.

`request`: requests as conversations; `answer`: answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from decodestep.sampling.params import SamplingParams
from decodestep.serving.chats import chat_job
from decodestep.serving.endpoint import Endpoint
from decodestep.serving.endpoints.responses.answer import ResponseWriter
from decodestep.serving.endpoints.responses.request import custom_tools, read_chat
from decodestep.serving.jobs import NO_DEFAULTS, BuildWriter, Job

if TYPE_CHECKING:
    from decodestep.chat.answer_format import AnswerFormat
    from decodestep.models import Model
    from decodestep.serving.http import Server


def response_job(model: Model, body: Mapping[str, Any], most_characters: int, defaults: SamplingParams = NO_DEFAULTS) -> Job:
    """The job of a response. For the arguments, see `chat_job`."""
    chat = read_chat(body)

    def build_writer(format_: AnswerFormat) -> BuildWriter:
        return partial(ResponseWriter, body=body, format_=format_, custom=custom_tools(body))

    return chat_job(model, chat, most_characters, defaults, build_writer)


async def _answer(server: Server, request: Request) -> Response:
    return await server.complete(request, response_job)


ENDPOINTS = (Endpoint("/v1/responses", _answer),)
