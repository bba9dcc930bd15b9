"""Servers that tests talk to: in a thread of the test's process, or as the command; parts of requests, and plain sockets."""

from __future__ import annotations

import json
import re
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

import openai
import uvicorn

import decodestep as ds
from decodestep._base.byte_alphabet import BYTE_OF
from decodestep.serving.http import Server
from decodestep.serving.served_models import ModelSource, ServedModels
from support import processes

TEMPLATE = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}assistant:"
HELLO = [{"role": "user", "content": "hello"}]


OF_MODELS = ("max_rows", "max_waiting", "draft", "default_params", "thinking", "most_loaded", "unload_after")


def new_server(models: ds.Model | dict[str, ModelSource], **options: Any) -> Server:
    """A server of a model, called tiny, or of several. options: of both `ServedModels` and `Server`."""
    sources = models if isinstance(models, dict) else {"tiny": ModelSource.of(models)}
    of_models = {name: options.pop(name) for name in OF_MODELS if name in options}
    return Server(ServedModels(sources, **of_models), **options)


class LocalServer:
    """A server in a thread of this process. The end of the `with` block stops it.

    model, engine: of the only model, for which it waits if `wait`. around: makes what is served of the server's application.
    """

    def __init__(
        self,
        models: ds.Model | dict[str, ModelSource],
        *,
        wait: bool = True,
        around: Callable[[Any], Any] | None = None,
        **options: Any,
    ) -> None:
        self._server = new_server(models, **options)
        if self._server.loading is not None and wait:
            served = self._server.loading.result(60).served
            self.model, self.engine = served.model, served.engine
        listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = listening.getsockname()[1]
        app = self._server.app if around is None else around(self._server.app)
        self._uvicorn = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off"))
        self._thread = threading.Thread(target=self._uvicorn.run, kwargs={"sockets": [listening]})
        self._thread.start()
        wait_until(lambda: self._uvicorn.started)

    def client(self, key: str = "none") -> openai.OpenAI:
        return connect(self.port, key)

    def send(self, path: str, data: bytes | None, method: str = "POST", **headers: str) -> tuple[int, bytes, Any]:
        """(status, body, headers) of a request with a raw body."""
        given = {"content-type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, given, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, response.read(), response.headers
        except urllib.error.HTTPError as error:
            return error.code, error.read(), error.headers

    def send_json(self, path: str, body: Any) -> tuple[int, Any]:
        """(status, body) of a request and a response in JSON."""
        status, data, _ = self.send(path, json.dumps(body).encode())
        return status, json.loads(data)

    def metrics(self) -> dict[str, float]:
        """The values of /metrics, by name and labels; without that of the model tiny."""
        text = self.send("/metrics", None, "GET")[1].decode()
        lines = text.replace('{model="tiny"}', "").replace('model="tiny",', "").splitlines()
        return {name: float(value) for line in lines if line[0] != "#" for name, value in [line.rsplit(" ", 1)]}

    def __enter__(self) -> LocalServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()
        self._uvicorn.should_exit = True
        self._thread.join()


@contextmanager
def command(path: Path, *options: str) -> Iterator[tuple[Popen[str], int]]:
    """The process of `decodestep serve`, and the port on which it listens."""
    with processes.started([sys.executable, "-m", "decodestep", "serve", str(path), "--port", "0", *options]) as process:
        assert process.stderr is not None
        found = (re.search(r"listening on http://127.0.0.1:(\d+)", line) for line in process.stderr)
        yield process, next(int(match[1]) for match in found if match)


def connect(port: int, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=key, max_retries=0)


def load(path: Path, **options: Any) -> ds.Model:
    return ds.load(path, chat_template=TEMPLATE, **options)


def byte_vocabulary(last: str) -> dict[str, list[str]]:
    """The metadata of a vocabulary with a token for every byte, and `last` as token 299."""
    return {"tokenizer.ggml.tokens": [*BYTE_OF, *(f"<{i}>" for i in range(41)), "<bos>", "<eos>", last]}


def tool(name: str, **function: object) -> dict[str, Any]:
    """A tool of a chat's request. function: its other fields."""
    return {"type": "function", "function": {"name": name, **function}}


def allowed_tools(mode: str, *names: str) -> dict[str, Any]:
    """A tool_choice of some of the tools."""
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [tool(name) for name in names]}}


def with_each_value_replaced(body: Any, wrong: object) -> Iterator[Any]:
    """A body, with one of its values after the other replaced by another."""
    for key in body if isinstance(body, dict) else range(len(body)) if isinstance(body, list) else ():
        for value in (wrong, *with_each_value_replaced(body[key], wrong)):
            changed = body.copy()
            changed[key] = value
            yield changed


def request(data: bytes, **headers: object) -> bytes:
    """The bytes of a request for a completion."""
    given = {"host": "x", "content_type": "application/json", "content_length": len(data), **headers}
    lines = (f"{name.replace('_', '-')}: {value}" for name, value in given.items())
    return "\r\n".join(["POST /v1/completions HTTP/1.1", *lines, "", ""]).encode() + data


def post(port: int, data: bytes, **headers: object) -> socket.socket:
    """The socket of a request for a completion, which has been sent."""
    client = socket.create_connection(("127.0.0.1", port), timeout=60)
    client.sendall(request(data, **headers))
    return client


def post_stream(port: int, **fields: object) -> socket.socket:
    """The socket of a request for a stream, after its first bytes."""
    client = post(port, json.dumps({"prompt": "ab", "stream": True, "ignore_eos": True, "max_tokens": 390, **fields}).encode())
    client.recv(10)
    return client


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)
