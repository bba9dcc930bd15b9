"""What several tests share: the default model, small files of its family and servers of them, a small model of transformers."""

from __future__ import annotations

import inspect
import os
import platform
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest

import fuzz_native

# Another build of the core in place of the installed one, such as one with sanitizers (tests/core/test_sanitizers.py).
if core := os.environ.get("DECODESTEP_TEST_CORE"):
    sys.modules["decodestep._native"] = fuzz_native.load(core)

from decodestep._base.threads import default_threads

# An example may take long: the machine may be busy. Where nobody watches, the same examples every time; by hand, new ones.
hypothesis.settings.register_profile("default", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")


# Triton's kernels are interpreted where there is no GPU. Triton reads this when it is imported, by torch or transformers
# perhaps, in whichever test file comes first.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# A shell starts jobs in the background with Ctrl-C ignored, and every process of a test would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Packages that have no release for this Python: what fails to import one is skipped. A library that only looks for one, as
# torch looks for onnxruntime, skips nothing.
NO_RELEASE = ("onnxruntime", "transformers") if sys.version_info < (3, 11) else ()


@contextmanager
def _skipped_without_release() -> Iterator[None]:
    try:
        yield
    except (ModuleNotFoundError, pytest.Collector.CollectError) as error:
        missing = error if isinstance(error, ModuleNotFoundError) else error.__cause__
        name = (getattr(missing, "name", None) or "").partition(".")[0]
        if name not in NO_RELEASE:
            raise
        pytest.skip(f"{name} has no release for Python {platform.python_version()}", allow_module_level=True)


class _Module(pytest.Module):
    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        with _skipped_without_release():
            return super().collect()


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    return _Module.from_parent(parent, path=module_path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Iterator[None]:
    with _skipped_without_release():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    with _skipped_without_release():
        yield


# Files with few tests of minutes each.
LONGEST = ("test_sanitizers.py", "test_isa.py")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--first-cases", action="store_true", help="of each test that is given cases, runs the first alone")
    parser.addoption("--naming", metavar="MODULE", help="runs those tests alone that name it, or whose file begins with it")


@pytest.hookimpl(trylast=True)  # a case that another option leaves out is not the first
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts them first, so that of several processes none is left with them at the end."""
    items.sort(key=lambda item: item.path.name not in LONGEST)
    if module := config.getoption("naming"):
        _keep(config, items, {item for item in items if _names(item, module)})
    if config.getoption("first_cases"):
        _keep(config, items, set({item.nodeid.partition("[")[0]: item for item in reversed(items)}.values()))


def _keep(config: pytest.Config, items: list[pytest.Item], kept: set[pytest.Item]) -> None:
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def _names(item: Any, module: str) -> bool:
    """Whether a test, or the head of its file, names a module."""
    head = inspect.getsource(item.module).partition("\ndef ")[0]
    return module in inspect.getsource(item.function) or f'importorskip("{module}")' in head


@pytest.fixture(autouse=True, scope="session")
def _more_threads_than_cores() -> Iterator[None]:
    """Tests that name a number of threads get it, on a machine with few cores too."""
    patch = pytest.MonkeyPatch()
    patch.setattr("decodestep._base.threads.thread_limit", lambda: max(default_threads(), 8))
    yield
    patch.undo()


@pytest.fixture(scope="module")
def one_torch_thread() -> Iterator[None]:
    """Threads that wait for each other in loops take most of the time of small models."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def model() -> Any:
    """The default model; fetched once where it is not on the machine yet."""
    import decodestep as ds

    return ds.load()


@pytest.fixture(scope="session")
def model_path(model: Any) -> Path:
    return Path(model.path)


class Passes:
    """The forward passes of `generate`, counted; `at(n, action)` calls an action in the n-th."""

    def __init__(self) -> None:
        self.count = 0
        self._actions: dict[int, Callable[[], object]] = {}

    def at(self, number: int, action: Callable[[], object]) -> None:
        self._actions[number] = action

    def begin(self) -> None:
        self.count += 1
        self._actions.get(self.count, lambda: None)()


@pytest.fixture
def passes(model: Any, monkeypatch: pytest.MonkeyPatch) -> Passes:
    counted, forward = Passes(), model.decoder.logits
    model.cache.clear()  # what other tests have left there would save passes

    def logits(*arguments: Any, **options: Any) -> np.ndarray:
        counted.begin()
        return forward(*arguments, **options)

    monkeypatch.setattr(model.decoder, "logits", logits)
    return counted


@pytest.fixture
def hold_passes(monkeypatch: pytest.MonkeyPatch) -> Callable[..., threading.Event]:
    """hold_passes(model, seconds): an event for which every forward pass of the model waits, at most so long."""

    def hold(model: Any, seconds: float = 60) -> threading.Event:
        released, forward = threading.Event(), model.decoder.logits
        monkeypatch.setattr(model.decoder, "logits", lambda *arguments: (released.wait(seconds), forward(*arguments))[1])
        return released

    return hold


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20240607)


TinyFile = Callable[..., Path]


@pytest.fixture
def tiny_file(tmp_path: Path) -> TinyFile:
    """Writes a file of `tiny_files.write`, with its options."""
    from support import tiny_gguf_files

    return lambda *, kind="F32", **options: tiny_gguf_files.write(tmp_path / f"tiny-{kind}.gguf", kind=kind, **options)


@pytest.fixture
def server(tiny_file: TinyFile) -> Iterator[Any]:
    """The `servers.LocalServer` of a small model, with few rows, for one test."""
    from support import servers

    with servers.LocalServer(servers.load(tiny_file(kind="Q8_0", context=400)), max_rows=8, max_waiting=4) as made:
        yield made


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One for requests that leave nothing behind. Its vocabulary has every byte."""
    from support import servers, tiny_gguf_files

    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    tiny_gguf_files.write(path, kind="Q8_0", context=2000, **servers.byte_vocabulary("<pad>"))
    with servers.LocalServer(servers.load(path)) as made:
        yield made


@pytest.fixture(scope="module")
def deepseek() -> Any:
    """A small DeepSeek-V3 of transformers."""
    from support.latent_models import build_model

    return build_model("deepseek_v3")


@pytest.fixture
def absorbed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of queries of the calls that transformers' attention serves on the latents."""
    from decodestep.integrations.transformers import attention

    calls: list[int] = []
    serve = attention.attend_absorbed
    monkeypatch.setattr(attention, "attend_absorbed", lambda *given: calls.append(given[1].shape[2]) or serve(*given))
    return calls
