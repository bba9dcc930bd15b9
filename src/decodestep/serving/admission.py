"""Who may ask the server: by which name, with which key, from which pages."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request

from decodestep.serving.endpoint import Endpoint
from decodestep.serving.errors import HttpError


class Admission:
    """Refuses requests by a wrong name, those without a valid key, and those from pages of other origins.

    keys, hosts, origins: as for `Server`.
    """

    def __init__(self, keys: Sequence[str], hosts: Sequence[str] | None, origins: Sequence[str]) -> None:
        self._keys = [key.encode() for key in keys]
        self._hosts = None if hosts is None else {host.lower() for host in hosts}
        self._origins = tuple(origins)

    def admit(self, request: Request, endpoint: Endpoint) -> None:
        """Raises HttpError.

        endpoint: that of the route. `request.url` is made from the Host header too, whose sender must not choose what needs no
        key.
        """
        host = request.headers.get("host", "")  # which a browser always sends
        if self._hosts is not None and host and not (_is_local(host) or _host_name(host) in self._hosts):
            raise HttpError(403, f"this server may not be called {host} (--allowed-host)", code="host")
        if not endpoint.open:
            self._require_key(request.headers)
        if request.method == "POST":
            self._require_origin(request.headers, host)
            _require_plain_json(request.headers)

    def _require_key(self, headers: Headers) -> None:
        """A key comes as OpenAI's clients send it, or as Anthropic's do."""
        sent = headers.get("authorization", "").encode("latin-1")  # as it came: clients send a key in UTF-8
        scheme, _, bearer = sent.strip().partition(b" ")
        given = (bearer.strip() if scheme.lower() == b"bearer" else b"", headers.get("x-api-key", "").encode("latin-1").strip())
        matches = [
            hmac.compare_digest(each, key) for each in given for key in self._keys
        ]  # all of them, against timing attacks
        if self._keys and not any(matches):
            message = "a valid API key is needed: Authorization: Bearer KEY, or x-api-key: KEY"
            raise HttpError(401, message, code="invalid_api_key")

    def _require_origin(self, headers: Headers, host: str) -> None:
        """host: by which a page of this server calls it."""
        origin = headers.get("origin")
        own = (None, f"http://{host}", f"https://{host}", *self._origins)
        if origin not in own and "*" not in self._origins:
            raise HttpError(403, f"pages from {origin} may not call this server (--cors-origin)", code="origin")


def _require_plain_json(headers: Headers) -> None:
    media_type, _, _ = headers.get("content-type", "").partition(";")
    if media_type.strip().lower() != "application/json":
        raise HttpError(415, "content-type must be application/json", code="content_type")
    if headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise HttpError(415, "content-encoding must be identity", code="content_encoding", Accept_Encoding="identity")


def _host_name(host: str) -> str:
    """The part of a Host header before the port, as browsers write it."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:  # of brackets
        return ""


def _is_local(host: str) -> bool:
    """Whether a Host header has an address or a name without a dot: no site of the internet has such a name."""
    name = _host_name(host)
    try:
        return bool(ip_address(name))
    except ValueError:
        return name != "" and "." not in name
