"""GET /: the chat page."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from decodestep.serving.endpoint import Endpoint

if TYPE_CHECKING:
    from decodestep.serving.http import Server

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"


async def _page(_: Server, __: Request) -> Response:
    page = (resources.files("decodestep.serving") / "page.html").read_bytes()
    return Response(page, media_type="text/html", headers={"content-security-policy": _POLICY})


ENDPOINTS = (Endpoint("/", _page, "GET", open=True),)
