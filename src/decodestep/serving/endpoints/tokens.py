"""POST /tokenize and /detokenize: texts and conversations as token ids, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from decodestep._base.checks import ids_below
from decodestep.serving.chats import chat_prompt
from decodestep.serving.endpoint import Endpoint
from decodestep.serving.endpoints.chat_completions import read_chat
from decodestep.serving.errors import refusal, unknown_field
from decodestep.serving.openai_fields import CHAT_FIELDS
from decodestep.serving.request_fields import bool_field, require_short
from decodestep.serving.wire import JsonResponse

if TYPE_CHECKING:
    from decodestep.serving.http import Server
    from decodestep.serving.served_models import ServedModel
    from decodestep.tokenizers.tokenizer import Tokenizer

_MAX_IDS = 2**16  # of /detokenize
_OF_TEXT = {"content", "prompt", "add_special", "add_special_tokens", "parse_special"}
_OF_ANSWER = {"model", "with_pieces", "return_token_strs"}


async def _tokenize(server: Server, request: Request) -> Response:
    body = await server.read_body(request)
    is_chat = body.get("messages") is not None
    for name in body.keys() - _OF_ANSWER - (CHAT_FIELDS if is_chat else _OF_TEXT):
        raise unknown_field(name)
    with await server.use(body) as served:
        return await server.in_worker(_tokens_response, served, body)


def _tokens_response(served: ServedModel, body: Mapping[str, Any]) -> Response:
    """In the forms of llama-server and vLLM."""
    tokenizer = served.model.tokenizer
    if body.get("messages") is not None:
        ids, _ = chat_prompt(served.model, read_chat(body), served.most_characters)
    else:
        ids = _text_ids(tokenizer, body, served.most_characters)
    found: dict[str, Any] = {"tokens": ids, "count": len(ids), "max_model_len": served.engine.capacity}
    if bool_field(body, "return_token_strs"):
        found["token_strs"] = [tokenizer.token(i) for i in ids]
    if bool_field(body, "with_pieces"):
        found["tokens"] = [{"id": i, "piece": _piece(tokenizer.spelled_bytes(i))} for i in ids]
    return JsonResponse(found)


def _text_ids(tokenizer: Tokenizer, body: Mapping[str, Any], most_characters: int) -> list[int]:
    """The token ids of a text, which may be empty or somewhat longer than the context."""
    given = [name for name in ("content", "prompt") if body.get(name) is not None]
    if len(given) != 1 or not isinstance(body[given[0]], str):
        raise refusal("content", "a string, and prompt and messages omitted")
    [name] = given
    text = body[name]
    require_short([text], most_characters, name)
    adds = bool_field(body, "add_special"), bool_field(body, "add_special_tokens")
    whole = name == "prompt" if adds == (None, None) else any(adds)  # by default as llama-server, and as vLLM, has it
    parsed = bool_field(body, "parse_special") is not False
    try:
        if parsed:
            return tokenizer.encode(text) if whole else tokenizer.encode_plain(text, with_control_tokens=True)
        return tokenizer.encode_whole(text) if whole else tokenizer.encode_plain(text)
    except UnicodeEncodeError:
        raise refusal(name, "valid Unicode, without lone surrogates") from None


def _piece(data: bytes) -> str | list[int]:
    """The text of a token, or its bytes where it is a part of a character."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


async def _detokenize(server: Server, request: Request) -> Response:
    body = await server.read_body(request)
    for name in body.keys() - {"tokens", "count", "max_model_len", "model"}:  # what /tokenize answers is taken as it is
        raise unknown_field(name)
    with await server.use(body) as served:
        ids, vocab = body.get("tokens"), served.model.config.vocab_size
        if not isinstance(ids, list) or len(ids) > _MAX_IDS or ids_below(vocab, ids) is None:
            raise refusal("tokens", f"at most {_MAX_IDS} token ids in [0, {vocab})")
        return await server.in_worker(_text_response, served.model.tokenizer, ids)


def _text_response(tokenizer: Tokenizer, ids: list[int]) -> Response:
    text = tokenizer.spell(ids)
    return JsonResponse({"content": text, "prompt": text})


ENDPOINTS = (Endpoint("/tokenize", _tokenize), Endpoint("/detokenize", _detokenize))
