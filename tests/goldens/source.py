"""Where a golden is published, its copy on this machine, and a case of it."""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import io
import json
import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch

# What goldens import for a device or a test bench that is not here; they compute without it.
_ABSENT = ("atk", "tensorflow", "torch_npu", "torchair")


class FetchError(Exception):
    """A golden cannot be brought."""


class Case(NamedTuple):
    """One case. compare: runs the golden and ours, and returns what differs, or "" if nothing does."""

    name: str
    compare: Callable[[], str]


@dataclass(frozen=True)
class Source:
    """Files or folders of a public repository at one commit."""

    repository: str  # owner/name on GitHub
    commit: str
    paths: tuple[str, ...]

    @property
    def folder(self) -> Path:
        root = os.environ.get("DECODESTEP_GOLDENS") or Path.home() / ".cache" / "decodestep" / "goldens"
        return Path(root) / self.repository.replace("/", "+")

    def is_here(self) -> bool:
        return all((self.folder / path).exists() for path in self.paths)

    def fetch(self) -> None:
        """Checks out the paths alone, without the rest of the repository. Raises FetchError with what git says."""

        def git(*arguments: str) -> None:
            ended = subprocess.run(["git", "-C", str(self.folder), *arguments], stderr=subprocess.PIPE, text=True)
            if ended.returncode:
                raise FetchError(" ".join(ended.stderr.split()))

        self.folder.mkdir(parents=True, exist_ok=True)
        git("init", "--quiet")
        git("fetch", "--quiet", "--depth=1", "--filter=blob:none", f"https://github.com/{self.repository}", self.commit)
        git("checkout", "--quiet", "FETCH_HEAD", "--", *self.paths)

    def open(self) -> Golden:
        if not any(isinstance(finder, _Absent) for finder in sys.meta_path):
            sys.meta_path.append(_Absent())  # for good: some goldens import when they are first called
        return Golden(self.folder)


@dataclass(frozen=True)
class Golden:
    """The copy of a golden."""

    folder: Path

    def module(self, path: str) -> types.ModuleType:
        """A file as a module, imported beside its neighbours."""
        file = self.folder / path
        spec = importlib.util.spec_from_file_location(f"golden_{file.stem}", file)
        assert spec is not None and spec.loader is not None
        made = importlib.util.module_from_spec(spec)
        sys.path.insert(0, str(file.parent))
        try:
            with quiet(), mock.patch.object(torch, "npu", mock.MagicMock(), create=True):  # some set options of the device
                spec.loader.exec_module(made)
        finally:
            sys.path.remove(str(file.parent))
        return made

    def json(self, path: str) -> Any:
        return json.loads((self.folder / path).read_text())


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Goldens print what they do."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield


class _Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the packages that are not here as modules in which every name is something to inherit from or to decorate with."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        known = fullname.partition(".")[0] in _ABSENT
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if known else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _AbsentModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class _AbsentModule(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name[0].isupper():
            return type(name, (), {})
        return lambda *_args, **_kwargs: lambda decorated: decorated
