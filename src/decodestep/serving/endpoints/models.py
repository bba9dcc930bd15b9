"""GET /v1/models: what is served, with the fields of OpenAI's API and of Anthropic's."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from decodestep.serving.endpoint import Endpoint
from decodestep.serving.errors import HttpError
from decodestep.serving.wire import JsonResponse

if TYPE_CHECKING:
    from decodestep.serving.http import Server


async def _models(server: Server, _: Request) -> Response:
    names = server.models.names
    pages = {"has_more": False, "first_id": names[0], "last_id": names[-1]}
    return JsonResponse({"object": "list", "data": [_model_object(server, name) for name in names], **pages})


async def _one_model(server: Server, request: Request) -> Response:
    name = request.path_params["id"]
    if name not in server.models.names:
        raise HttpError(
            404, f"no model here is called {name[:200]!r}; /v1/models lists them", param="model", code="model_not_found"
        )
    return JsonResponse(_model_object(server, name))


def _model_object(server: Server, name: str) -> dict[str, Any]:
    """state: as llama-server has it. The sizes are known once the model is loaded."""
    created = datetime.fromtimestamp(server.started, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    found = {"id": name, "object": "model", "created": server.started, "owned_by": "decodestep"}
    found |= {"type": "model", "display_name": name, "created_at": created, "status": {"value": server.models.state(name)}}
    served = server.models.loaded(name)
    if served is not None:
        found |= {"context_length": served.engine.capacity, "vocab_size": served.model.config.vocab_size}
    return found


ENDPOINTS = (Endpoint("/v1/models", _models, "GET"), Endpoint("/v1/models/{id:path}", _one_model, "GET"))
