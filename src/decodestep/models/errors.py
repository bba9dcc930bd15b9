"""The error for problems of a model, as opposed to those of a request."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from decodestep.errors import ModelError as ModelError
from decodestep.errors import TemplateProcessError as TemplateProcessError


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Puts the path before the message of a ModelError that names no file in it: of metadata, a tokenizer or a template."""
    try:
        yield
    except ModelError as error:
        if str(error).startswith((f"{path}:", f"{path}{os.sep}")):
            raise
        raise ModelError(f"{path}: {error}") from error
