"""Clients that vanish, stop reading, or come in crowds: nobody else notices, and nothing is left behind."""

from __future__ import annotations

import gc
import json
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
import uvicorn

import decodestep as ds
from decodestep.generation.engine_request import EngineRequest
from decodestep.serving import bodies, event_stream
from decodestep.serving.endpoints.completions import TextChoice
from support.servers import LocalServer, load, post, post_stream, request, wait_until


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_vanishes_frees_its_rows_and_nobody_else_notices(server, stream, hold_passes):
    engine, released = server.engine, hold_passes(server.model, 0.01)
    body = {"prompt": "ab", "stream": stream, "ignore_eos": True, "max_tokens": 390}
    gone = post(server.port, json.dumps(body).encode())
    if stream:
        gone.recv(10)
    stays = post_stream(server.port, seed=3)
    wait_until(lambda: engine.running == 2)
    gone.close()
    wait_until(lambda: engine.live == 1)
    wait_until(lambda: server.metrics().get('decodestep_completions_total{reason="cancelled"}') == 1)
    released.set()
    received = b""
    while b"[DONE]" not in received:
        received += stays.recv(2**16)
    chunks = re.findall(rb'data: (\{.*"text_completion".*\})', received)
    text = "".join(json.loads(chunk)["choices"][0]["text"] for chunk in chunks)
    [alone] = ds.generate(server.model, ["ab"], ds.SamplingParams(max_new_tokens=390, seed=3, ignore_eos=True))
    assert alone.text.endswith(text) and text
    stays.close()


@pytest.mark.parametrize("stream", [True, False])
def test_metrics_and_log_tell_of_a_client_that_vanished(server, stream, caplog):
    caplog.set_level("INFO")
    body = {"prompt": "ab", "stream": stream, "ignore_eos": True, "max_tokens": 390, "n": 2}
    client = post(server.port, json.dumps(body).encode())
    wait_until(lambda: server.engine.passes > 3)
    client.close()
    wait_until(lambda: server.engine.live == 0)
    wait_until(lambda: "ended_by" in caplog.text)
    found = server.metrics()
    entry = json.loads(caplog.messages[-1])
    assert found["decodestep_prompt_tokens_total"] == entry["prompt_tokens"] == 2
    assert found["decodestep_completion_tokens_total"] == entry["completion_tokens"] > 3
    ended = {reason: entry["ended_by"].count(reason) for reason in entry["ended_by"]}
    assert {reason: found[f'decodestep_completions_total{{reason="{reason}"}}'] for reason in ended} == ended


def test_metrics_count_what_is_sent_at_once(server):
    data = b'{"prompt": "ab", "stream": true, "ignore_eos": true, "max_tokens": 5, "n": 6}'
    server.send("/v1/completions", data)
    assert server.metrics()['decodestep_completions_total{reason="length"}'] == 6


def test_metrics_count_a_request_whose_client_vanishes_while_its_end_is_written(server, monkeypatch):
    begun, released, written = threading.Event(), threading.Event(), TextChoice.chunk
    monkeypatch.setattr(TextChoice, "chunk", lambda *given: (begun.set(), released.wait(5), written(*given))[-1])
    client = post(server.port, b'{"prompt": "ab", "max_tokens": 1, "stream": true, "echo": true, "logprobs": 1}')
    assert begun.wait(60)
    client.close()
    wait_until(lambda: server.metrics()["decodestep_prompt_tokens_total"] == 2)
    released.set()


def test_a_client_that_vanishes_while_it_sends_is_no_failure_of_the_server(server, caplog):
    post(server.port, b"{", content_length=99).close()
    answered = 'decodestep_requests_total{route="/v1/completions",status="%d"}'
    wait_until(lambda: answered % 499 in server.metrics())
    assert answered % 500 not in server.metrics() and "a request failed" not in caplog.text


@pytest.mark.parametrize(
    ("path", "wrong"),
    [("completions", {"content_type": "text/plain"}), ("completions", {"origin": "http://evil.example"}), ("images", {})],
)
def test_a_refusal_reaches_a_client_that_sends_all_before_it_reads(server, path, wrong):
    """On a connection that is closed with bytes unread, it may get a reset in place of the response."""
    data = request(b" " * 3_000_000, connection="close", **wrong).replace(b"completions", path.encode(), 1)
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        client.sendall(data)
        received = b"".join(iter(lambda: client.recv(2**16), b""))
    assert received.startswith(b"HTTP/1.1 4") and received.endswith(b"}}")


def test_a_client_that_asks_whether_to_send_is_told_at_once(server):
    with post(server.port, b"", content_length=9, content_type="text/plain", expect="100-continue") as client:
        assert client.recv(99).startswith(b"HTTP/1.1 415")


COSTLY = "[ab]{3}(a{1000}){1000}"  # not at its first token, with which it would be refused


@pytest.mark.parametrize("asked", [{}, {"stream": True}, {"regex": COSTLY}, {"regex": COSTLY, "stream": True}])
def test_an_answered_request_leaves_nothing_to_the_garbage_collector(server, asked):
    """A row may have 100 MB of a constraint's states, of which the collector knows nothing."""
    gc.collect()
    gc.disable()
    try:
        status, _, _ = server.send("/v1/completions", json.dumps({"prompt": "a", "max_tokens": 99, **asked}).encode())
        assert status == (400 if set(asked) == {"regex"} else 200)
        wait_until(lambda: not any(isinstance(found, EngineRequest) for found in gc.get_objects()))
    finally:
        gc.enable()


def test_a_full_queue_is_429_and_says_when_to_come_again(server, hold_passes):
    released = hold_passes(server.model)
    data = json.dumps({"prompt": "a", "n": 12, "max_tokens": 3, "seed": 1}).encode()
    first = threading.Thread(target=server.send, args=("/v1/completions", data))
    first.start()
    wait_until(lambda: server.engine.live == 12)
    status, body, headers = server.send("/v1/completions", b'{"prompt": "a"}')
    released.set()
    first.join()
    assert status == 429 and int(headers["retry-after"]) >= 1 and json.loads(body)["error"]["code"] == "queue_full"


@pytest.mark.parametrize(
    ("sent", "headers", "status"),
    [
        (b"a", {}, b"408"),
        (b"a" * 6000, {}, b"413"),
        (b"a", {"content_type": "text/plain"}, b"415"),
        (b"", {"content_type": "text/plain", "expect": "100-continue"}, b"415"),
    ],
)
def test_a_connection_whose_body_is_not_read_to_its_end_is_closed(tiny_file, monkeypatch, sent, headers, status):
    """The server would read on for ever, and serve it before others."""
    monkeypatch.setattr(bodies, "SECONDS", 0.2)
    monkeypatch.setattr(bodies, "_MAX_DISCARDED", 5000)
    server = LocalServer(load(tiny_file(kind="Q8_0", context=400)), max_body=1000)
    with server, post(server.port, sent, content_length=10**9, **headers) as client:
        client.settimeout(10)
        response = b"".join(iter(lambda: client.recv(2**16), b""))
    assert response.split()[1] == status and b"\r\nconnection: close\r\n" in response.lower()


@pytest.mark.parametrize(("method", "asked"), [("whole", {}), ("chunk", {"stream": True, "echo": True, "logprobs": 1})])
def test_a_large_answer_does_not_hold_up_the_others(server, monkeypatch, method, asked):
    begun, released, written = threading.Event(), threading.Event(), getattr(TextChoice, method)
    monkeypatch.setattr(TextChoice, method, lambda *given: (begun.set(), released.wait(5), written(*given))[-1])
    with ThreadPoolExecutor() as others:
        data = json.dumps({"prompt": "ab", "max_tokens": 1, **asked}).encode()
        large = others.submit(server.send, "/v1/completions", data)
        assert begun.wait(60) and server.send("/health", None, "GET")[0] == 200 and not large.done()
        released.set()
        assert large.result()[0] == 200


def test_a_client_that_reads_nothing_is_dropped(server, monkeypatch, hold_passes):
    hold_passes(server.model, 0.01)
    monkeypatch.setattr(event_stream, "SEND_SECONDS", 0.05)
    monkeypatch.setattr(uvicorn.protocols.http.flow_control, "HIGH_WATER_LIMIT", 1)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    client.connect(("127.0.0.1", server.port))
    data = b'{"prompt": "a", "stream": true, "ignore_eos": true, "max_tokens": 390, "logprobs": 100, "n": 8, "seed": 1}'
    client.sendall(request(data))
    wait_until(lambda: server.engine.live == 8)
    wait_until(lambda: server.engine.live == 0)
    wait_until(lambda: server.metrics().get('decodestep_completions_total{reason="cancelled"}') == 8)
    client.close()


def test_a_client_that_waits_for_its_first_token_is_not_dropped(server, monkeypatch, hold_passes):
    monkeypatch.setattr(event_stream, "SEND_SECONDS", 0.05)
    hold_passes(server.model, 0.5)
    status, body, _ = server.send("/v1/completions", b'{"prompt": "a", "stream": true, "max_tokens": 1, "seed": 1}')
    assert status == 200 and body.endswith(b"[DONE]\n\n")


def test_a_stream_whose_row_fails_ends_with_the_error(server, monkeypatch):
    monkeypatch.setattr(server.model.decoder, "logits", lambda *arguments: 1 / 0)
    status, body, headers = server.send("/v1/completions", b'{"prompt": "a", "stream": true}')
    assert status == 200 and headers["x-accel-buffering"] == "no" and headers["cache-control"] == "no-cache"
    *_, last = body.decode().strip().split("\n\n")
    assert json.loads(last.removeprefix("data: "))["error"]["type"] == "server_error"


def test_a_stream_that_fails_inside_the_server_is_in_its_log(server, monkeypatch, caplog):
    monkeypatch.setattr(TextChoice, "chunk", lambda *a: 1 // 0)
    client = post(server.port, b'{"prompt": "a", "stream": true, "max_tokens": 1}')
    received = b""
    with suppress(ConnectionError):
        while piece := client.recv(2**16):
            received += piece
    client.close()
    assert received.startswith(b"HTTP/1.1 200") and b"[DONE]" not in received
    assert "ZeroDivisionError" in caplog.text
    wait_until(lambda: server.engine.live == 0)
