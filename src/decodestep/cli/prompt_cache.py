"""--prompt-cache: a file from which later runs with the same beginning go on."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from decodestep.decoding.cache_file import is_cache_file
from decodestep.errors import CacheFileError, CacheFullError
from decodestep.files.checked_file import is_there
from decodestep.models import Model


def add_prompt_cache(parser: argparse.ArgumentParser) -> None:
    text = "a file that keeps what the model has read and written, from which later runs with the same beginning go on"
    parser.add_argument("--prompt-cache", type=_path, metavar="FILE", help=text)


def _path(text: str) -> Path:
    """The value of --prompt-cache. A folder that is not there is an error now and not when the text has been written."""
    folder = os.path.dirname(os.path.realpath(text))
    if not os.path.isdir(folder):
        raise argparse.ArgumentTypeError(f"must be in a folder that exists; got {text!r}: there is no folder {folder}")
    return Path(text)


@contextmanager
def prompt_cache(model: Model, path: Path | None) -> Iterator[list[list[int]]]:
    """Restores a model's cache from a file, if there is one; yields a list for texts, of which the file then gets what the
    cache has. A file that is damaged or of another model is made anew; one that is no file of a cache is an error. That it
    cannot be written is said, and no more: what the block has made is as it would be without it."""
    texts: list[list[int]] = []
    if path is not None and is_there(path):
        try:
            model.restore_cache(path)
        except CacheFullError as error:
            print(f"decodestep: {path} is not used: {error}", file=sys.stderr)
        except CacheFileError as error:
            if not is_cache_file(path):
                raise
            print(f"decodestep: {error}; it is made anew", file=sys.stderr)
    try:
        yield texts
    finally:
        if path is not None and texts:
            try:
                model.save_cache(path, texts)
            except (CacheFileError, OSError) as error:
                print(f"decodestep: {path} cannot be written: {getattr(error, 'strerror', None) or error}", file=sys.stderr)
