"""The process that renders chat templates: a separate script, started by `template_process`, that imports only jinja2.

A template is untrusted code. The sandbox denies it access to Python's internals; the process limits its time and memory,
because no check inside the interpreter can interrupt a single long operation on objects that a template has built.
"""

from __future__ import annotations

import json
import marshal
import os
import signal
import struct
import sys
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from typing import IO, Any, NoReturn

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
    render = _renderer()
    _limit_memory(memory)
    write_frame(replies, READY)
    while (frame := read_frame(requests)) is not None:
        _limit_time(seconds)
        try:
            text = render(*marshal.loads(frame))
            if len(text) > characters:
                raise ValueError(f"the prompt is longer than {characters} characters")
            kind, reply = TEXT, text.encode("utf-8", "surrogatepass")
        except MemoryError:
            kind, reply = FATAL, b"memory"
        except Exception as error:
            kind, reply = ERROR, _words(error).encode("utf-8", "surrogatepass")
        _limit_time(0)
        write_frame(replies, kind, reply)
        if kind == FATAL:
            return


class _Dict:
    """`dict`, but not the type itself: its attributes stay out of reach."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """JSON without jinja's escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


# jinja2 is imported inside the functions: its folder is an argument of `main`.


def _renderer() -> Callable[[str, dict[str, Any]], str]:
    """render(template, variables), with the environment that transformers gives to chat templates."""
    from jinja2 import Template
    from jinja2.exceptions import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_generation(), loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals.update(
        dict=_Dict(), namespace=_public_namespace(), raise_exception=raise_exception, strftime_now=_strftime_now
    )

    @lru_cache(maxsize=8)
    def compile_template(template: str) -> Template:
        return environment.from_string(template)

    def render(template: str, variables: dict[str, Any]) -> str:
        return compile_template(template).render(variables)

    return render


def _generation() -> type[Any]:
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser

    class Generation(Extension):
        """{% generation %}: marks what the model wrote, for training; the text is that of its body."""

        tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

        def parse(self, parser: Parser) -> nodes.CallBlock:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_text"), [], [], body, lineno=line)

        def _text(self, caller: Callable[[], str]) -> str:
            return caller()

    return Generation


def _public_namespace() -> type[Any]:
    from jinja2.exceptions import SecurityError
    from jinja2.utils import Namespace

    def check(name: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise SecurityError(f"an attribute of a namespace must not begin with an underscore; got {name!r}")

    class PublicNamespace(Namespace):
        """`namespace` without names that begin with an underscore."""

        def __init__(*args: Any, **kwargs: Any) -> None:
            self, *given = args  # no parameter of that name: a template may name an attribute `self`
            attributes = dict(*given, **kwargs)
            for name in attributes:
                check(name)
            Namespace.__init__(self, attributes)

        def __setitem__(self, name: str, value: Any) -> None:
            check(name)
            super().__setitem__(name, value)

    return PublicNamespace


def _words(error: Exception) -> str:
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
