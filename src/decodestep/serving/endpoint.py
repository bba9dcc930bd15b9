"""What an endpoint is: a path, and what answers its requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

if TYPE_CHECKING:
    from decodestep.serving.http import Server


class Endpoint(NamedTuple):
    """A path of the server; each file of `endpoints` has a tuple ENDPOINTS of its own.

    path: as Starlette's routes write it; it may end with a slash in requests. answer: answers a request that has been admitted;
    what it raises becomes an error response. open: whether it needs no key, as it reveals nothing about requests.
    """

    path: str
    answer: Callable[[Server, Request], Awaitable[Response]]
    method: str = "POST"
    open: bool = False
