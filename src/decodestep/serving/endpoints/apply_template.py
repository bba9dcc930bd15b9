"""POST /apply-template: the text that a chat template makes of a conversation, as the model would read it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from decodestep.serving.chats import chat_text
from decodestep.serving.endpoint import Endpoint
from decodestep.serving.endpoints.chat_completions import read_chat
from decodestep.serving.wire import JsonResponse

if TYPE_CHECKING:
    from decodestep.serving.http import Server


async def _answer(server: Server, request: Request) -> Response:
    """The fields of chat completions that are about the answer are of no consequence."""
    body = await server.read_body(request)
    chat = read_chat(body)
    with await server.use(body) as served:
        return JsonResponse({"prompt": await server.in_worker(chat_text, served.model, chat, served.most_characters)})


ENDPOINTS = (Endpoint("/apply-template", _answer),)
