"""A server's connections: what is not HTTP is answered like any other error, and nobody is waited for without end."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from contextlib import contextmanager
from operator import attrgetter

import pytest
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from decodestep.serving.connection import Connection
from support.servers import wait_until

HEAD = b"POST / HTTP/1.1\r\nhost: x\r\n"


@contextmanager
def serving(*pieces, seconds=0.0, timeout=60.0):
    """A server that answers every request with these pieces, so many seconds apart."""

    async def app(scope, receive, send):
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for more, piece in enumerate(pieces, 1 - len(pieces)):
            await asyncio.sleep(seconds)
            await send({"type": "http.response.body", "body": piece, "more_body": bool(more)})

    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(app, http=Connection, log_level="critical", lifespan="off", timeout_keep_alive=timeout)
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield server.server_state.connections, listening.getsockname()
    finally:
        server.should_exit = server.force_exit = True
        thread.join()


@pytest.fixture(scope="module")
def address():
    with serving(b"a", b"b", seconds=0.1) as (_, found):
        yield found


def test_what_is_replaced_and_read_of_uvicorn_is_there():
    """No documentation of uvicorn's promises it."""
    for kind, names in {
        uvicorn.Server: ("startup", "shutdown", "handle_exit", "_log_started_message"),
        H11Protocol: ("connection_made", "connection_lost", "data_received", "on_response_complete", "send_400_response"),
    }.items():
        assert all(callable(getattr(kind, name, None)) for name in names)
    with serving(b"a") as (connections, address), socket.create_connection(address, 60) as client:
        client.sendall(HEAD + b"content-length: 0\r\n\r\n")
        assert client.recv(2**16)
        [connection] = connections
        for name in ("conn", "loop", "timeout_keep_alive", "transport", "cycle.more_body", "cycle.response_complete"):
            attrgetter(name)(connection)


def received(client):
    return b"".join(iter(lambda: client.recv(2**16), b""))


@pytest.mark.parametrize(
    "sent",
    [
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost x\r\n\r\n",
        HEAD + b"content-length: a\r\n\r\n",
        HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_not_http_is_refused_in_openais_form(address, sent):
    with socket.create_connection(address, timeout=30) as client:
        client.sendall(sent)
        head, _, body = received(client).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ") and b"content-type: application/json" in head
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["type"] == "invalid_request_error"


@pytest.mark.parametrize("close", [b"", b"connection: close\r\n"])
def test_what_follows_a_request_leaves_its_response_alone(address, close):
    """As the line that some clients send after a body. It was the end of a response that had begun."""
    with socket.create_connection(address, timeout=30) as client:
        client.sendall(HEAD + close + b"content-length: 2\r\n\r\n{}\r\n")
        begun = client.recv(20)
        client.sendall(b"\r\n")
        found = begun + received(client)
    assert found.startswith(b"HTTP/1.1 200 ") and b"1\r\na\r\n1\r\nb\r\n0\r\n\r\n" in found
    assert found.count(b"HTTP/1.1") == (1 if close else 2)


@pytest.mark.parametrize("close", [b"", b"connection: close\r\n"])
def test_a_client_that_does_not_read_is_waited_for_only_while_others_would_be(close):
    """One that reads slowly gets all."""
    length = 30_000_000
    with serving(b"x" * length, timeout=1.5) as (connections, address):
        request = HEAD + close + b"content-length: 0\r\n\r\n"
        silent, slow = [socket.create_connection(address, timeout=30) for _ in range(2)]
        silent.sendall(request)
        slow.sendall(request)
        size = 0
        while size < length:
            time.sleep(0.05)
            piece = slow.recv(2**20)
            assert piece
            size += len(piece)
        wait_until(lambda: not connections)
        for client in (silent, slow):
            client.close()
