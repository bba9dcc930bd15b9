"""The error for problems of a model, as opposed to those of a request."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class ModelError(RuntimeError):
    """A model could not be found, fetched or read; the message says which file and why."""


class TemplateProcessError(ModelError):
    """No process could be started to render a chat template, as for want of memory: neither the template is wrong nor what it
    was given."""


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Puts the path before the message of a ModelError that names no file in it: of metadata, a tokenizer or a template."""
    try:
        yield
    except ModelError as error:
        if str(error).startswith((f"{path}:", f"{path}{os.sep}")):
            raise
        raise ModelError(f"{path}: {error}") from error
