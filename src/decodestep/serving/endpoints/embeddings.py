"""POST /v1/embeddings: refused by name, so that clients are told why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from decodestep.serving.endpoint import Endpoint
from decodestep.serving.errors import HttpError

if TYPE_CHECKING:
    from decodestep.serving.http import Server


async def _refuse(server: Server, request: Request) -> Response:
    await server.read_body(request)
    message = (
        "there are no embeddings here: the models served are made to generate text, and have no vector of a text as a whole"
    )
    raise HttpError(400, message, code="no_embeddings")


ENDPOINTS = (Endpoint("/v1/embeddings", _refuse),)
