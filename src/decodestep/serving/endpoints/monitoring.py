"""GET /health and /metrics: whether the server is well, and what it does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from decodestep.serving.endpoint import Endpoint
from decodestep.serving.metrics import CONTENT_TYPE
from decodestep.serving.wire import JsonResponse

if TYPE_CHECKING:
    from decodestep.serving.http import Server


async def _health(server: Server, _: Request) -> Response:
    server.engine.require_alive()
    return JsonResponse({"status": "ok", "model": server.name})


async def _metrics(server: Server, _: Request) -> Response:
    return Response(server.metrics.text(), media_type=CONTENT_TYPE)


ENDPOINTS = (Endpoint("/health", _health, "GET", open=True), Endpoint("/metrics", _metrics, "GET"))
