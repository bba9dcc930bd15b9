"""The bodies of requests: how they are received and parsed."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect, Request

from decodestep.serving.errors import HttpError

SECONDS = 30.0  # for a body to come
_MAX_DISCARDED = 2**26  # bytes of a too large body that are read before the connection is closed
_MAX_DEPTH = 256  # of lists and objects in each other: schemas need a few dozen, Python's recursion ends at about a thousand


async def receive(request: Request, most: int) -> bytes:
    """A body of at most `most` bytes. Raises HttpError for a larger one, which is read all the same.

    Also for one that is not read to its end; the connection is then closed, which would read on for ever.
    """
    data = bytearray()
    size = 0

    async def read() -> None:
        nonlocal size
        async for piece in request.stream():
            size += len(piece)
            if size <= most:
                data.extend(piece)
            elif size > _MAX_DISCARDED:  # a smaller body is read to its end, so that the client reads the response
                raise _too_large(most, connection="close")

    try:
        await asyncio.wait_for(read(), SECONDS)
    except ClientDisconnect:
        raise HttpError(499, "the client has disconnected", code="cancelled") from None
    except asyncio.TimeoutError:
        message = f"the body was not received within {SECONDS:.0f} s"
        raise HttpError(408, message, code="timeout", connection="close") from None
    if size > most:
        raise _too_large(most)
    return bytes(data)


def _too_large(most: int, **headers: str) -> HttpError:
    return HttpError(413, f"the body must be at most {most} bytes", code="body_too_large", **headers)


def parse(data: bytes) -> dict[str, Any]:
    """The JSON object in a body. Raises HttpError."""
    try:
        body = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise HttpError(400, f"the body is not JSON: {str(error)[:200]}", code="invalid_json") from None
    if not isinstance(body, dict):
        raise HttpError(400, "the body must be a JSON object", code="invalid_json")
    if not _is_shallow(body):
        raise HttpError(400, f"the body must be nested at most {_MAX_DEPTH} deep", code="invalid_json")
    return body


def _is_shallow(body: dict[str, Any]) -> bool:
    level: list[Any] = [body]
    for _ in range(_MAX_DEPTH):
        items = (item for each in level for item in (each.values() if isinstance(each, dict) else each))
        level = [item for item in items if isinstance(item, (dict, list))]
    return not level


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")
