"""Errors in the form of OpenAI's API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from decodestep.errors import ConstraintError, EngineClosedError, ModelError, QueueFullError, RequestError, TemplateProcessError

_LONGEST_NAME = 200  # characters of a field's name in an error


class HttpError(Exception):
    """An error response: status, message, the request's field that it is about, and a code for programs."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None, **headers: str) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    def body(self) -> dict[str, Any]:
        """{"error": {"message", "type", "param", "code"}}"""
        kinds = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
        kind = kinds.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


def refusal(param: str, rule: str) -> HttpError:
    return HttpError(400, f"{param} must be {rule}", param=param, code="invalid_value")


def unknown_field(name: str) -> HttpError:
    name = name[:_LONGEST_NAME]
    return HttpError(400, f"unknown field {name!r}", param=name, code="unknown_field")


def too_long(param: str, message: str) -> HttpError:
    """The error of a prompt that does not fit, in the words by which clients such as litellm know it."""
    words = f"{message}: this model's maximum context length is exceeded"
    return HttpError(400, words, param=param, code="context_length_exceeded")


def http_error(error: BaseException, field_of: Mapping[str, str] | None = None) -> HttpError:
    """The response to an exception. field_of: the request's field for each argument that it has under another name."""
    field_of = field_of or {}
    match error:
        case HttpError():
            return error
        case QueueFullError():
            return HttpError(429, str(error), code="queue_full", Retry_After=str(error.retry_after))
        case EngineClosedError():
            return HttpError(503, str(error), code="stopping", Retry_After="10")
        case RequestError():
            return _bad_request(error, field_of)
        case ConstraintError():
            return HttpError(400, str(error), param=field_of.get(error.language, error.language), code="constraint")
        case ModelError() if not isinstance(error, TemplateProcessError):
            return HttpError(400, str(error), param="messages", code="chat_template")
        case ModuleNotFoundError():
            return HttpError(400, str(error), code="not_installed")
    return HttpError(500, "the request failed inside the server; its log says why", code="internal_error")


def _bad_request(error: RequestError, field_of: Mapping[str, str]) -> HttpError:
    """The library's error without its operator, which means nothing to the client."""
    if error.code == "unknown_field":
        return unknown_field(error.arg)
    param = field_of.get(error.arg, error.arg)
    message = error.sentence or f"{param} must be {error.rule}; got {error.got}"
    if error.code == "context_length_exceeded":
        return too_long(param, message)
    if error.code == "model_not_found":
        return HttpError(404, message, param="model", code=error.code)
    return HttpError(400, message, param=param, code=error.code or "invalid_value")
