"""GET /health and /metrics: whether the server is well, and what it does."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from decodestep.serving.endpoint import Endpoint
from decodestep.serving.errors import HttpError
from decodestep.serving.metrics import CONTENT_TYPE
from decodestep.serving.wire import JsonResponse

if TYPE_CHECKING:
    from decodestep.serving.http import Server


async def _health(server: Server, _: Request) -> Response:
    """503 while the only model is loaded for the first time, and once an error has stopped an engine."""
    if server.loading is not None and not server.loading.done():
        raise HttpError(503, "the model is being loaded", code="loading", Retry_After="1")
    for name in server.models.names:
        if (served := server.models.loaded(name)) is not None:
            served.engine.require_alive()
    return JsonResponse({"status": "ok", "model": server.models.names[0]})


async def _metrics(server: Server, _: Request) -> Response:
    return Response(await asyncio.to_thread(server.metrics.text), media_type=CONTENT_TYPE)


ENDPOINTS = (
    Endpoint("/health", _health, "GET", open=True),
    Endpoint("/v1/health", _health, "GET", open=True),
    Endpoint("/metrics", _metrics, "GET"),
)
