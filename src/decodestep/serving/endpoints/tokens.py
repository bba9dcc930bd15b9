"""POST /tokenize and /detokenize: texts as token ids, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from decodestep._base.checks import ids_below
from decodestep.serving.endpoint import Endpoint
from decodestep.serving.errors import refusal, unknown_field
from decodestep.serving.request_fields import require_short
from decodestep.serving.wire import JsonResponse

if TYPE_CHECKING:
    from decodestep.models import Model
    from decodestep.serving.http import Server

_MAX_IDS = 2**16  # of /detokenize


async def _tokenize(server: Server, request: Request) -> Response:
    body = await server.read_body(request)
    for name in body.keys() - {"content", "prompt", "model"}:
        raise unknown_field(name)
    given = [body[name] for name in ("content", "prompt") if body.get(name) is not None]
    if len(given) != 1 or not isinstance(given[0], str):
        raise refusal("content", "a string, and prompt omitted")
    [text] = given
    with await server.use(body) as served:
        require_short([text], served.most_characters, "content")
        ids = await server.in_worker(_ids, served.model, text)
    return JsonResponse({"tokens": ids, "count": len(ids)})


async def _detokenize(server: Server, request: Request) -> Response:
    body = await server.read_body(request)
    for name in body.keys() - {"tokens", "count", "model"}:  # what /tokenize answers is taken as it is
        raise unknown_field(name)
    with await server.use(body) as served:
        ids, vocab = body.get("tokens"), served.model.config.vocab_size
        if not isinstance(ids, list) or len(ids) > _MAX_IDS or ids_below(vocab, ids) is None:
            raise refusal("tokens", f"at most {_MAX_IDS} token ids in [0, {vocab})")
        return await server.in_worker(_text_response, served.model, ids)


def _ids(model: Model, text: str) -> list[int]:
    """The token ids of a text, which may be empty or somewhat longer than the context."""
    try:
        return model.tokenizer.encode(text)
    except UnicodeEncodeError:
        raise refusal("content", "valid Unicode, without lone surrogates") from None


def _text_response(model: Model, ids: list[int]) -> Response:
    text = model.tokenizer.spell(ids)
    return JsonResponse({"content": text, "prompt": text})


ENDPOINTS = (Endpoint("/tokenize", _tokenize), Endpoint("/detokenize", _detokenize))
