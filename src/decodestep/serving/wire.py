"""What goes over the wire: JSON, and server-sent events."""

from __future__ import annotations

import json

from starlette.responses import JSONResponse

# What JSON does not escape, and Unicode ends a line with: clients that read a stream line by line would cut an event there.
_LINE_ENDS = {"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def json_bytes(data: object, *, allow_nan: bool = True) -> bytes:
    """JSON in UTF-8; a lone surrogate, from a client or a model, becomes a question mark."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=allow_nan, separators=(",", ":"))
    for character, escape in _LINE_ENDS.items():
        text = text.replace(character, escape)
    return text.encode("utf-8", "replace")


def event(data: object, name: str = "") -> bytes:
    """A server-sent event. name: its kind, in APIs that name them."""
    kind = f"event: {name}\n".encode() if name else b""
    return b"".join((kind, b"data: ", json_bytes(data), b"\n\n"))


class JsonResponse(JSONResponse):
    def render(self, content: object) -> bytes:
        return json_bytes(content, allow_nan=False)
