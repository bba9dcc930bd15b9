"""GET /v1/models: what is served."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from decodestep.serving.endpoint import Endpoint
from decodestep.serving.errors import HttpError
from decodestep.serving.wire import JsonResponse

if TYPE_CHECKING:
    from decodestep.serving.http import Server


async def _models(server: Server, _: Request) -> Response:
    return JsonResponse({"object": "list", "data": [_model_object(server)]})


async def _one_model(server: Server, request: Request) -> Response:
    if request.path_params["id"] != server.name:
        raise HttpError(404, f"the only model is {server.name!r}", param="model", code="model_not_found")
    return JsonResponse(_model_object(server))


def _model_object(server: Server) -> dict[str, Any]:
    sizes = {"context_length": server.engine.capacity, "vocab_size": server.model.config.vocab_size}
    return {"id": server.name, "object": "model", "created": server.started, "owned_by": "decodestep", **sizes}


ENDPOINTS = (Endpoint("/v1/models", _models, "GET"), Endpoint("/v1/models/{id:path}", _one_model, "GET"))
