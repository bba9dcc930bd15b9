"""Processes that render chat templates within time and memory limits; they run `template_worker`.

Where DECODESTEP_PYTHON says so, this process renders them itself, in the same sandbox but without those limits.
"""

from __future__ import annotations

import atexit
import marshal
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from decodestep._base.worker_python import worker_python
from decodestep.chat import template_worker
from decodestep.chat.traced_text import TracedText, spans, unpack
from decodestep.errors import ModelError, TemplateProcessError

MAX_TEMPLATE = 1 << 18  # characters of a template; real ones have up to 30 thousand
MAX_PROMPT = 1 << 23  # characters of a rendered prompt
MEMORY = 128 << 20  # bytes that a worker may add to what it has after its imports
CPU_SECONDS = 1.0  # of processor time for one request
WALL_SECONDS = 1.5  # for one request, waiting included
START_SECONDS = 60.0  # for a worker's start, on however busy a machine
_OUT_OF_MEMORY = f"it needs more than {MEMORY >> 20} MiB of memory"

# Workers without a request. Taking one and putting one back are single operations, so threads need no lock.
_idle: list[_Worker] = []
_MAX_IDLE = 2


def render(template: str, variables: dict[str, Any], own: Mapping[str, str] | None = None) -> TracedText:
    """The text of a template with variables made of None, bool, int, float, str, list, tuple and dict alone.

    own: further variables, which count as the template's own text, such as the special tokens.
    Raises ModelError if the template fails, or exceeds a limit of time, memory or length.
    """
    text = _rendered(template, variables, own or {})
    if isinstance(text, TracedText):
        return text
    raise ModelError(f"the chat template cannot render these messages: {text}")


def attempt(template: str, variables: dict[str, Any], own: Mapping[str, str]) -> TracedText | None:
    """As `render`, but None if the template fails for these variables."""
    text = _rendered(template, variables, own)
    return text if isinstance(text, TracedText) else None


def _rendered(template: str, variables: dict[str, Any], own: Mapping[str, str]) -> TracedText | str:
    """The text, or as a plain string what failed."""
    if len(template) > MAX_TEMPLATE:
        raise ModelError(f"the chat template is longer than {MAX_TEMPLATE} characters")
    request = (template, dict(own), variables)
    python = _python()
    if python is None:
        return _rendered_here(*request)
    worker = _take(python)
    try:
        text = worker.ask(marshal.dumps(request))
    except ModelError:
        _put_back(worker)
        raise
    except BaseException:  # Ctrl-C above all: the reply to this request must not answer the next one
        worker.end()
        raise
    _put_back(worker)
    return text


def _rendered_here(template: str, own: dict[str, str], variables: dict[str, Any]) -> TracedText | str:
    """In this process, whose memory and time are not limited."""
    try:
        text = _renderer()(template, own, variables)
    except Exception as error:
        return template_worker.words(error)
    return TracedText(text, spans(text))


@cache
def _renderer() -> Callable[[str, dict[str, str], dict[str, Any]], str]:
    from decodestep.chat.template_renderer import renderer  # jinja2 is an extra

    return renderer(MAX_PROMPT)


def prepare() -> None:
    """Starts a worker if none is idle, and does not wait for it: the first `render` finds it ready."""
    if not _idle:
        with suppress(ModelError):  # `render` tries again, and says what is wrong
            python = _python()
            if python is not None:
                _idle.append(_Worker(python))


def _python() -> str | None:
    try:
        return worker_python()
    except RuntimeError as error:
        raise TemplateProcessError(f"no process could be started to render the chat template: {error}") from None


def _take(python: str) -> _Worker:
    while _idle:
        try:
            worker = _idle.pop()
        except IndexError:  # another thread was faster
            break
        if worker.alive():
            return worker
    return _Worker(python)


def _put_back(worker: _Worker) -> None:
    if worker.alive() and len(_idle) < _MAX_IDLE:
        _idle.append(worker)
    else:
        worker.end()


@atexit.register
def _end_all() -> None:
    while _idle:
        _idle.pop().end()


def _leave_to_the_parent() -> None:
    while _idle:
        _idle.pop().leave()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_the_parent)


class _Worker:
    """One process, started at once and ready when it says so; one request at a time."""

    def __init__(self, python: str) -> None:
        limits = (str(MEMORY), str(CPU_SECONDS), str(MAX_PROMPT))
        # -I -S: neither the user's environment nor site packages; the worker gets the folders of what it imports.
        command = [python, "-I", "-S", template_worker.__file__, *limits, *_folders()]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=os.path.abspath(os.sep)
            )
        except OSError as error:
            raise TemplateProcessError(f"no process could be started to render the chat template: {error}") from error
        self._expired = False
        self._ready = False

    def alive(self) -> bool:
        return not self._expired and self._process.poll() is None

    def end(self) -> None:
        self._process.kill()
        self._close_pipes()
        self._process.wait()

    def leave(self) -> None:
        """In a forked child: the process is the parent's, and the pipes are copies."""
        self._close_pipes()
        self._process.returncode = 0  # it cannot be waited for, and a destructor would warn that it still runs

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):  # of a request that could not be sent
                    pipe.close()

    def ask(self, request: bytes) -> TracedText | str:
        """The text, or as a plain string what failed. ModelError if the template was stopped."""
        if not self._ready:
            if self._exchange(None, START_SECONDS) is None:
                self.end()  # it may have closed its pipes and not be gone yet
                raise TemplateProcessError("the process that renders chat templates did not start")
            self._ready = True
        reply = self._exchange(request, WALL_SECONDS)
        if reply is None:
            raise ModelError(f"the chat template was stopped: {self._death()}")
        kind, body = reply[:1], reply[1:]
        if kind == template_worker.FATAL:
            self.end()
            raise ModelError(f"the chat template was stopped: {_OUT_OF_MEMORY}")
        return body.decode("utf-8", "surrogatepass") if kind == template_worker.ERROR else unpack(body)

    def _exchange(self, request: bytes | None, seconds: float) -> bytes | None:
        """Sends a request, if any, and waits for a reply; None if the worker ended first, or was killed for its time."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        timer = threading.Timer(seconds, self._expire)
        timer.daemon = True
        try:
            timer.start()
            if request is not None:
                template_worker.write_frame(stdin, request)
            reply = template_worker.read_frame(stdout)
        except BrokenPipeError:
            reply = None
        finally:
            timer.cancel()
            if timer.is_alive():  # not where an interrupt came while it started
                timer.join()
        return None if self._expired else reply

    def _expire(self) -> None:
        self._expired = True
        self._process.kill()

    def _death(self) -> str:
        code = self._process.wait()
        if self._expired:
            return f"it takes more than {WALL_SECONDS:g} s"
        if code == -getattr(signal, "SIGPROF", 0):
            return f"it takes more than {CPU_SECONDS:g} s of processor time"
        if code == -getattr(signal, "SIGKILL", 0):
            return _OUT_OF_MEMORY
        return f"the process that rendered it crashed with code {code}"


def _folders() -> list[str]:
    """Where jinja2 and what it needs are installed."""
    folders = []
    for name in ("jinja2", "markupsafe"):
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        folders.append(str(Path(spec.origin).absolute().parent.parent))
    return sorted(set(folders))
