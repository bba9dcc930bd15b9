"""GET /props: what llama-server tells of itself and its model, as its clients read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

import decodestep
from decodestep.serving.endpoint import Endpoint
from decodestep.serving.wire import JsonResponse

if TYPE_CHECKING:
    from decodestep.sampling.params import SamplingParams
    from decodestep.serving.http import Server

# llama-server's names of the fields of `SamplingParams`.
_NAMES = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "xtc_probability": "xtc_probability",
    "xtc_threshold": "xtc_threshold",
    "typical_p": "typical_p",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "dry_multiplier": "dry_multiplier",
}


async def _props(server: Server, request: Request) -> Response:
    """Of the model that `?model=` names, where there are several."""
    with await server.use({"model": request.query_params.get("model")}) as served:
        model, engine = served.model, served.engine
        tokenizer = model.tokenizer
        return JsonResponse(
            {
                "default_generation_settings": {"n_ctx": engine.capacity, "params": _params(served.default_params)},
                "total_slots": engine.max_rows,
                "model_alias": served.name,
                "model_path": str(model.path),
                "chat_template": model.template.text(),
                "bos_token": tokenizer.token(tokenizer.bos_token_id),
                "eos_token": tokenizer.token(tokenizer.eos_token_id),
                "modalities": {"vision": False, "audio": False},
                "build_info": f"decodestep {decodestep.__version__}",
            }
        )


def _params(params: SamplingParams) -> dict[str, Any]:
    """What requests leave out. A greedy model has the temperature 0, as llama-server says it."""
    found = {name: getattr(params, field) for name, field in _NAMES.items()}
    found["temperature"] = found["temperature"] if params.do_sample else 0.0
    return {**found, "repeat_last_n": -1, "n_predict": -1, "seed": -1}  # of all tokens; no number; a new one each time


ENDPOINTS = (Endpoint("/props", _props, "GET"),)
