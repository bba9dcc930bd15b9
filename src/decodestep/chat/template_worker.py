"""The process that renders chat templates: a separate script, started by `template_process`, that imports little but jinja2.

A template is untrusted code. The sandbox denies it access to Python's internals; the process limits its time and memory,
because no check inside the interpreter can interrupt a single long operation on objects that a template has built.
"""

from __future__ import annotations

import marshal
import os
import signal
import struct
import sys
from types import ModuleType
from typing import IO

# The first byte of every reply.
READY, TEXT, ERROR, FATAL = b"R", b"T", b"E", b"F"
LENGTH = struct.Struct("<Q")  # before every frame


def read_frame(stream: IO[bytes]) -> bytes | None:
    """The next frame; None where the stream ends."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (size,) = LENGTH.unpack(head)
    body = stream.read(size)
    return body if len(body) == size else None


def write_frame(stream: IO[bytes], *parts: bytes) -> None:
    stream.write(LENGTH.pack(sum(map(len, parts))))
    for part in parts:
        stream.write(part)
    stream.flush()


def main(memory: int, seconds: float, characters: int, *folders: str) -> None:
    """Answers one request after the other until standard input ends.

    memory: bytes of address space beyond what the process has after its imports. seconds: of processor time for a request.
    characters: the longest prompt. folders: where the packages are.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program that waits for the answer
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    sys.path += folders
    _name_packages()
    from decodestep.chat.template_renderer import renderer
    from decodestep.chat.traced_text import pack

    render = renderer(characters)
    _limit_memory(memory)
    write_frame(replies, READY)
    while (frame := read_frame(requests)) is not None:
        _limit_time(seconds)
        try:
            kind, reply = TEXT, pack(render(*marshal.loads(frame)))
        except MemoryError:
            kind, reply = FATAL, b"memory"
        except Exception as error:
            kind, reply = ERROR, words(error).encode("utf-8", "surrogatepass")
        _limit_time(0)
        write_frame(replies, kind, reply)
        if kind == FATAL:
            return


def _name_packages() -> None:
    """Makes the renderer importable by its name, without what the packages around it import and this process does not need."""
    here = os.path.dirname(os.path.abspath(__file__))
    for name, folder in (("decodestep", os.path.dirname(here)), ("decodestep.chat", here)):
        package = sys.modules[name] = ModuleType(name)
        package.__path__ = [folder]


def words(error: Exception) -> str:
    """The message of an error that the template or jinja2 raised; of any other, its type too. At most 500 characters."""
    text = str(error)[:500]
    module = type(error).__module__.split(".")[0]
    return text if text and module == "jinja2" else f"{type(error).__name__}: {text}"


def _limit_memory(size: int) -> None:
    """No more address space than now and `size` bytes, no files written, no core dumps; where the system can."""
    try:
        import resource

        limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: 0}
        with open("/proc/self/statm") as statm:
            limits[resource.RLIMIT_AS] = int(statm.read().split()[0]) * resource.getpagesize() + size
    except (ImportError, OSError):  # not Linux
        return
    for limit, value in limits.items():
        hard = resource.getrlimit(limit)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (value, value))


def _limit_time(seconds: float) -> None:
    """Ends this process after this many more seconds of processor time; 0: never."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
