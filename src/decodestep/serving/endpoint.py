"""What an endpoint is: a path, and what answers its requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from decodestep.serving.wire import JsonResponse

if TYPE_CHECKING:
    from decodestep.serving.errors import HttpError
    from decodestep.serving.http import Server


def openai_error(error: HttpError) -> Response:
    return JsonResponse(error.body(), error.status, error.headers)


class Endpoint(NamedTuple):
    """A path of the server; each file of `endpoints` has a tuple ENDPOINTS of its own.

    path: as Starlette's routes write it; it may end with a slash in requests. answer: answers a request that has been admitted;
    what it raises becomes an error response, in the form of error_response. open: whether it needs no key, as it reveals
    nothing about requests.
    """

    path: str
    answer: Callable[[Server, Request], Awaitable[Response]]
    method: str = "POST"
    open: bool = False
    error_response: Callable[[HttpError], Response] = openai_error
