"""`decodestep serve` as a process: it listens, serves and stops."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from contextlib import contextmanager, suppress

import pytest

import decodestep as ds
from decodestep import cli
from decodestep.cli import listening, model_sources, serve
from support import servers, tiny_gguf_files
from support.servers import HELLO, TEMPLATE, post, post_stream, wait_until


@pytest.fixture
def few_files():
    """The hard limit of open files; the soft one is lower, as that of a shell."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
    yield before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextmanager
def running(path, grace=0.0):
    """The uvicorn server of the command, in a thread of this process, and its port."""
    local = servers.new_server(servers.load(path))
    found = listening.new_uvicorn_server(local, grace)
    bound = listening.listen("127.0.0.1", 0)
    thread = threading.Thread(target=found.run, kwargs={"sockets": [bound]})
    thread.start()
    try:
        wait_until(lambda: found.started)
        yield found, bound.getsockname()[1]
    finally:
        found.should_exit = True
        thread.join()
        local.close()


def test_the_command_listens_serves_and_stops(tiny_file, tmp_path, few_files):
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE)
    path = tiny_file(kind="Q8_0", context=400)
    with servers.command(path, "--chat-template", str(template), "--grace", "0.1") as (process, port):
        alone = ds.generate(servers.load(path), HELLO, ds.SamplingParams(seed=1, max_new_tokens=5))[0]
        found = servers.connect(port).chat.completions.create(model="", messages=HELLO, seed=1, max_tokens=5)
        assert found.choices[0].message.content == alone.text
        if sys.platform == "linux":
            resource = sys.modules["resource"]
            assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (few_files, few_files)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 0 and err.splitlines()[-1] == "decodestep: stopped" and "hello" not in err


@pytest.mark.parametrize(
    ("template", "wrong"), [("{% for", "unexpected"), ("", "it renders nothing"), ("{{ raise_exception('no') }}", "no")]
)
def test_a_template_that_renders_no_message_is_refused(template, wrong, tiny_file, tmp_path, capsys):
    (tmp_path / "template").write_text(template)
    assert cli.main(["serve", str(tiny_file()), "--port", "0", "--chat-template", str(tmp_path / "template")]) == 2
    assert re.search(rf"^decodestep: serve: chat-template must be .*; got .*template: .*{wrong}", capsys.readouterr().err, re.M)


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    """That of one command, for requests that leave nothing behind."""
    path = tiny_gguf_files.write(tmp_path_factory.mktemp("model") / "tiny.gguf", kind="Q8_0", context=400)
    with servers.command(path) as (_, port):
        yield port


def test_a_request_that_offers_http_2_is_answered(port):
    """As Java's HttpClient sends it: https://docs.oracle.com/en/java/javase/21/docs/api/java.net.http, version HTTP_2."""
    client = post(port, b'{"prompt": "a", "max_tokens": 2}', connection="Upgrade, HTTP2-Settings", upgrade="h2c")
    assert client.recv(99).startswith(b"HTTP/1.1 200")
    client.close()


def test_a_connection_is_kept_for_as_long_as_by_clients(port):
    """The openai package keeps one for five seconds, nginx for sixty: on one that the server closes, a request is lost."""
    with post(port, b'{"prompt": "a", "max_tokens": 1}') as client:
        while not client.recv(2**16).endswith(b"}}"):
            pass
        time.sleep(6)
        client.sendall(servers.request(b'{"prompt": "a", "max_tokens": 1}'))
        assert client.recv(99).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("start", [b"GET / HTTP/1.1\r\nx: ", b"GET /"])
def test_a_head_without_end_is_refused(port, start):
    client = socket.create_connection(("127.0.0.1", port), timeout=30)
    received = b""
    with suppress(ConnectionError):  # it may close before all has been sent
        client.sendall(start + b"y" * 2**20)
        received = client.recv(99)
        while client.recv(2**16):  # to its end: the server keeps no more of it
            pass
    assert received[:12] in (b"", b"HTTP/1.1 400")
    client.close()


def test_a_connection_without_a_request_is_closed(tiny_file, monkeypatch):
    """Also where a few bytes keep coming, and not during a request, however long it takes."""
    monkeypatch.setattr(listening, "IDLE", 0.5)
    with running(tiny_file(context=4000)) as (_, port):
        silent, dripping, again = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(3)]
        again.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        while not again.recv(999).endswith(b"}"):
            pass
        busy = post_stream(port, max_tokens=3900)
        for client in (dripping, again):
            with suppress(OSError):
                for byte in b"GET /health HTTP/1.1\r\nx: " + b"y" * 12:
                    client.sendall(bytes([byte]))
                    time.sleep(0.05)
        for client in (silent, dripping, again):
            with suppress(ConnectionResetError):
                assert client.recv(1) == b""
            client.close()
        with busy, busy.makefile("rb") as events:
            assert b"data: [DONE]\n" in events


def test_requests_that_come_while_it_stops_get_503(tiny_file):
    path = tiny_file(kind="Q8_0", context=4000)
    with servers.command(path, "--grace", "2") as (process, port):
        runs = post_stream(port, max_tokens=3900)
        process.send_signal(signal.SIGTERM)
        next(line for line in process.stderr if "stopping" in line)
        late = post(port, b'{"prompt": "a"}')
        got = late.recv(99)
        runs.close()
        late.close()
        process.communicate(timeout=30)
    assert got.startswith(b"HTTP/1.1 503") and process.returncode == 0


def test_a_request_whose_end_comes_after_the_last_row_gets_503(tiny_file, caplog):
    with running(tiny_file(kind="Q8_0", context=400)) as (server, port):
        client = post(port, b'{"prompt": ', content_length=15)
        wait_until(lambda: server.server_state.tasks)
        server.handle_exit(signal.SIGTERM, None)
        wait_until(lambda: server.should_exit)
        client.sendall(b'"a"}')
        assert client.recv(99).startswith(b"HTTP/1.1 503") and not caplog.records
        client.close()


@pytest.mark.skipif(sys.platform != "linux", reason="the limits of another process")
def test_connections_beyond_the_limit_of_open_files_wait_and_the_log_says_so_once(tiny_file):
    resource, health = pytest.importorskip("resource"), b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
    with servers.command(tiny_file(kind="Q8_0", context=400)) as (process, port):
        first = socket.create_connection(("127.0.0.1", port), timeout=30)
        first.sendall(health)
        assert first.recv(99).startswith(b"HTTP/1.1 200")
        files, limit = {int(name) for name in os.listdir(f"/proc/{process.pid}/fd")}, resource.RLIMIT_NOFILE
        unused = min({*range(len(files) + 1)} - files)
        resource.prlimit(process.pid, limit, (unused, resource.getrlimit(limit)[1]))
        second = socket.create_connection(("127.0.0.1", port), timeout=30)
        assert process.stderr.readline() == "decodestep: new connections wait until others end: Too many open files\n"
        time.sleep(2.5)  # in which it tries twice more
        first.close()
        second.sendall(health)
        assert second.recv(99).startswith(b"HTTP/1.1 200")
        second.close()
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
    assert [line.partition(":")[2][:9] for line in err.splitlines()] == [" stopping", " stopped"]


def test_rows_finish_where_nobody_reads_the_log(tiny_file):
    path = tiny_file(kind="Q8_0", context=4000)
    with servers.command(path) as (process, port):
        process.stderr.close()
        client = post(port, b'{"prompt": "ab", "stream": true, "ignore_eos": true, "max_tokens": 500}')
        received = client.recv(10)
        process.send_signal(signal.SIGTERM)
        while piece := client.recv(2**16):
            received += piece
        client.close()
        assert process.wait(timeout=30) == 0
    assert b"data: [DONE]" in received


@pytest.mark.parametrize("signals", [2, 1])
def test_the_end_waits_for_no_client_and_logs_no_failure(tiny_file, signals):
    """A second signal ends at once; after the first one, what was written waits a few seconds for a client that reads."""
    path = tiny_file(kind="Q8_0", context=4000)
    with servers.command(path, "--grace", "60" if signals == 2 else "0") as (process, port):
        asked = {"prompt": "ab", "ignore_eos": True, "max_tokens": 3900, "n": 8, "logprobs": 100}
        clients = [post(port, json.dumps({**asked, "stream": stream}).encode()) for stream in (True, False)]
        clients[0].recv(10)
        process.send_signal(signal.SIGTERM)
        next(line for line in process.stderr if "stopping" in line)
        if signals == 2:
            process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
        for client in clients:
            client.close()
    lines = [line for line in err.splitlines() if not line.startswith("{")]  # without the log of requests
    assert process.returncode == 0 and lines == ["decodestep: stopped"]


@pytest.mark.parametrize(
    ("words", "address", "keys", "names"),
    [
        ([], "127.0.0.1", [], {"127.0.0.1"}),
        (["--host", "here"], "::1", [], {"here"}),
        (["--allowed-host", "a.example"], "127.0.0.1", [], {"a.example", "127.0.0.1"}),
        (["--allowed-host", "a.example"], "0.0.0.0", ["key"], {"a.example", "127.0.0.1"}),
        (["--allowed-host", "*"], "127.0.0.1", [], None),
        ([], "127.0.0.1", ["key"], None),
        ([], "192.168.1.2", [], None),
    ],
)
def test_names_by_which_the_command_may_be_called(words, address, keys, names):
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    found = serve._hosts(parser.parse_args(words), address, keys)
    assert (found and set(found)) == names


def test_the_command_serves_several_models_by_their_names(tmp_path):
    paths = [tiny_gguf_files.write(tmp_path / f"{name}.gguf", kind="Q8_0", context=400, hidden=hidden) for name, hidden in
             (("first", 96), ("second", 128))]  # fmt: skip
    texts = [ds.generate(ds.load(path), "ab", ds.SamplingParams(seed=1, max_new_tokens=5))[0].text for path in paths]
    words = [
        "-m",
        f"other={paths[1]}",
        "--max-models",
        "1",
        "--unload-after",
        "60",
        "--grace",
        "0.1",
        "--ignore-unknown-fields",
    ]
    with servers.command(paths[0], *words) as (process, port):
        client = servers.connect(port)
        assert [model.id for model in client.models.list()] == ["first", "other"]
        for name, text in (("first", texts[0]), ("other", texts[1]), ("first", texts[0])):
            asked = {"model": name, "prompt": "ab", "seed": 1, "max_tokens": 5, "extra_body": {"colour": "blue"}}
            assert client.completions.create(**asked).choices[0].text == text
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
    lines = [line for line in err.splitlines() if not line.startswith("{")]
    assert process.returncode == 0 and lines[-1] == "decodestep: stopped"
    assert [line for line in lines if "unloaded" in line] == [f"the model {name} is unloaded" for name in ("first", "other")]


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (
            ["a.gguf", "-m", "b/a.gguf"],
            "model must be of another name than each other model: NAME=PATH gives it one; got",
        ),
        (["-m", "x=a.gguf", "-m", "x=b.gguf"], "model must be of another name than each other model"),
        (["-m", "=a.gguf"], "model must be NAME=PATH, with a name without spaces around it; got '=a.gguf'"),
        (["-m", "a="], "model must be NAME=PATH"),
        (["-m", "a =b.gguf"], "model must be NAME=PATH"),
        (["-m", "a=x.gguf", "-m", "b=missing.gguf"], "model must be a file, a folder or a name of the hub; got 'x.gguf'"),
        (["-m", "a=x", "-m", "b=y", "--chat-template", "t"], "chat-template must be left out with several models; got 't'"),
        (["-m", "a=x", "-m", "b=y", "--draft", "z.gguf"], "draft must be one of auto, off, lookup, mtp with several models"),
        (["-m", "a=x", "--max-models", "0"], "max-models must be >= 1; got 0"),
        (["-m", "a=x", "--unload-after", "-1"], "unload-after must be >= 0; got -1.0"),
    ],
)
def test_models_that_cannot_be_served_together_are_refused(words, wrong, capsys):
    assert cli.main(["serve", "--port", "0", *words]) == 2
    assert f"serve: {wrong}" in capsys.readouterr().err


def test_a_model_that_cannot_be_loaded_ends_the_command(tmp_path, capsys):
    """It is found once the command listens."""
    (tmp_path / "a.gguf").write_bytes(b"no model")
    assert cli.main(["serve", str(tmp_path / "a.gguf"), "--port", "0"]) == 1
    err = capsys.readouterr().err
    assert (
        err.splitlines()[-1]
        == f"decodestep: {tmp_path / 'a.gguf'}: not a GGUF file (a checkpoint of safetensors is named by its folder)"
    )
    assert "listening" not in err and err.count("not a GGUF") == 1


def test_a_model_in_the_current_folder_has_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    named = {".": tmp_path.name, "..": tmp_path.parent.name, "a/b.gguf": "b", "SmolLM2": "SmolLM2", "folder/": "folder"}
    assert {path: model_sources.split_name(path) for path in named} == {path: (name, path) for path, name in named.items()}
