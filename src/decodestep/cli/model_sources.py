"""The models that ``decodestep serve`` is told to serve: their names, and how each is fetched and loaded."""

from __future__ import annotations

import argparse
import copy
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from decodestep._base.checks import Phrase, require
from decodestep._base.machine_limits import memory_limit
from decodestep.cli.listening import say
from decodestep.cli.options import MODEL_HELP, load_named
from decodestep.decoding.kv_cache import PAGE
from decodestep.errors import ModelError, TemplateProcessError
from decodestep.models import DEFAULT_MODEL, hub
from decodestep.models.fetch import resolve_path

if TYPE_CHECKING:
    from decodestep.models import Model
    from decodestep.serving.served_models import ModelSource, Progress

MODELS_HELP = f"{MODEL_HELP}; several times for several models, each by a NAME if one is given [{DEFAULT_MODEL}]"


def find_sources(options: argparse.Namespace) -> dict[str, ModelSource]:
    """The sources of the models that the options name, by the names that requests may give."""
    from decodestep.serving.served_models import ModelSource

    given = [*([] if options.name is None else [options.name]), *options.models] or [DEFAULT_MODEL]
    named: dict[str, str] = {}
    for text in given:
        name, place = split_name(text)
        both = Phrase(f"{name} for {named.get(name)} and {place}")
        require(name not in named, "serve", "model", "of another name than each other model: NAME=PATH gives it one", both)
        named[name] = place
    if len(named) > 1:
        _require_general(options)
        options = copy.copy(options)
        options.cache_bytes = options.cache_bytes or memory_limit() // 4 // len(named)
        for place in named.values():
            exists = place == DEFAULT_MODEL or os.path.lexists(place) or hub.is_name(place)
            require(exists, "serve", "model", "a file, a folder or a name of the hub", place)
    sources = {}
    for name, place in named.items():
        loader = _Loader(name, place, options)
        sources[name] = ModelSource(loader.fetch, loader.load)
    return sources


def _require_general(options: argparse.Namespace) -> None:
    """Refuses options that fit one model alone."""
    require(options.chat_template is None, "serve", "chat-template", "left out with several models", options.chat_template)
    kinds = ("auto", "off", "lookup", "mtp")
    require(options.draft in kinds, "serve", "draft", f"one of {', '.join(kinds)} with several models", options.draft)


def split_name(text: str) -> tuple[str, str]:
    """What requests may call a model, and its name or path: NAME=PATH, or one alone, whose name is that on the hub, or the last
    part of the path, also where that is "."."""
    name, equals, place = text.partition("=")
    if equals and not os.path.exists(text):
        ok = name.strip() == name and name.isprintable() and bool(name and place)
        require(ok, "serve", "model", "NAME=PATH, with a name without spaces around it", text)
        return name, place
    if hub.is_name(text) and not os.path.exists(text):
        return text, text
    return Path(os.path.abspath(text)).name.removesuffix(".gguf"), text


class _Loader:
    """Fetches and loads a model, and tells the terminal of it."""

    def __init__(self, name: str, place: str, options: argparse.Namespace) -> None:
        self._name, self._place, self._options = name, place, options
        self._started = 0.0

    def fetch(self) -> int:
        say(f"loading {self._place} ...")
        self._started = time.monotonic()
        return _size(resolve_path(self._place))

    def load(self, progress: Progress) -> Model:
        model = load_named(self._place, self._options, progress)
        _check_template(self._options, model)
        seconds = time.monotonic() - self._started
        say(f"{self._name} ({model.config.name}): {model.decoder.description}, loaded in {seconds:.1f} s")
        rows = model.cache.rows
        states = "" if rows is None else f", and {rows.count} recurrent states of {rows.row_bytes / 2**20:.2f} MiB"
        say(f"cache: {model.cache.pages * PAGE} tokens, of all completions together{states}")
        return model


def _size(path: Path) -> int:
    """The bytes of a model's files: those of a folder that hold tensors, or a file with all its parts."""
    if path.is_dir():
        return sum(file.stat().st_size for file in path.glob("*.safetensors"))
    parts = path.parent.glob(f"{path.name.partition('-00001-of-')[0]}-*-of-*.gguf") if "-00001-of-" in path.name else [path]
    return sum(file.stat().st_size for file in parts if file.exists())


def _check_template(options: argparse.Namespace, model: Model) -> None:
    """Refuses a template that renders no message: every request for a chat would be told so."""
    if options.chat_template is None:
        return
    try:
        wrong = "" if model.chat_prompt([{"role": "user", "content": "Hello"}]) else "it renders nothing"
    except TemplateProcessError:
        raise
    except ModelError as error:
        wrong = str(error)
    require(not wrong, "serve", "chat-template", "a template of messages", Phrase(f"{options.chat_template}: {wrong}"))
