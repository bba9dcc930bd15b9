"""Rendering a model's chat template, in jinja2's sandbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from decodestep.models.errors import ModelError

Message = Mapping[str, str]

# For a file without a template: the contents, a line each.
_PLAIN = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"


def render(template: str | None, messages: Sequence[Message], *, bos_token: str, eos_token: str) -> str:
    """The prompt of a conversation, up to where the assistant's answer begins."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = _raise
    try:
        return environment.from_string(template or _PLAIN).render(
            messages=[dict(message) for message in messages],
            add_generation_prompt=True,
            bos_token=bos_token,
            eos_token=eos_token,
        )
    except TemplateError as error:
        raise ModelError(f"the chat template cannot render these messages: {error}") from error


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)
