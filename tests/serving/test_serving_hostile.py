"""Whatever is sent to whichever endpoint: it is answered, as what it is, and leaves nothing behind."""

from __future__ import annotations

import json
import random
import socket

import pytest

from decodestep.serving.endpoints import find_endpoints
from decodestep.serving.served_models import ModelSource
from support import tiny_gguf_files
from support.servers import HELLO, LocalServer, byte_vocabulary, load, post, tool, wait_until

POSTS = [endpoint.path for endpoint in find_endpoints() if endpoint.method == "POST"]
GOOD = {
    "prompt": "ab",
    "messages": HELLO,
    "input": "ab",
    "content": "ab",
    "tokens": [1, 2],
    "input_prefix": "a",
    "input_suffix": "b",
    "input_extra": [{"filename": "a", "text": "b"}],
    "suffix": "b",
    "model": "",
    "n": 1,
    "temperature": 0.5,
    "stop": ["x"],
    "stream": True,
    "seed": 1,
    "logprobs": 1,
    "echo": False,
    "logit_bias": {"5": 1},
    "tools": [tool("f")],
    "tool_choice": "auto",
    "functions": [{"name": "f"}],
    "function_call": "auto",
    "user": "a",
    "response_format": {"type": "json_object"},
    "stream_options": {"include_usage": True},
    "metadata": {},
    "system": "a",
    "thinking": {"type": "disabled"},
    "stop_sequences": ["x"],
    "instructions": "a",
    "store": True,
    "reasoning": {"effort": "low"},
    "text": {"format": {"type": "text"}},
    "include": [],
    "output_config": {},
    "add_special": True,
    "with_pieces": True,
    "continue_final_message": False,
    "chat_template_kwargs": {},
    "repeat_penalty": 1,
    "repeat_last_n": 1,
    "n_predict": 2,
    "top_logprobs": 0,
    "prediction": None,
    "top_k": 3,
}
DEEP = json.loads("[" * 200 + "]" * 200)
PARTS = [{"role": "user", "content": [{"type": "text"}]}]
BAD = [None, True, 0, -1, 1e300, 2**70, "", "\ud800", "x" * 5000, [], [[]], {}, {"a": {}}, [None], [{}], ["a", 1], DEEP,
       {"type": "function"}, {"role": "user"}, PARTS, {"name": "f"}, [-1], [10**9]]  # fmt: skip
NO_OBJECTS = [b"", b"{", b"[]", b'"a"', b"\xff\xfe", b'{"a": NaN}', b'{"a": ' + b"[" * 10**5, b'"' + b"x" * 5_000_000 + b'"']


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Of a model that can do whatever an endpoint asks for."""
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    fim = {f"tokenizer.ggml.fim_{name}_token_id": 260 + i for i, name in enumerate(("pre", "suf", "mid"))}
    tiny_gguf_files.write(path, kind="Q8_0", context=300, **byte_vocabulary("<pad>"), **fim)
    with LocalServer(load(path), max_rows=8, ignore_unknown_fields=True) as made:
        yield made


@pytest.mark.parametrize("path", POSTS)
def test_bodies_of_any_fields_and_values_are_answered(server, path):
    """Never as a fault of the server; a stream that has begun ends."""
    rng = random.Random(path)
    statuses = set()
    for _ in range(250):
        names = rng.sample(sorted(GOOD), rng.randint(0, 8))
        body = {name: GOOD[name] if rng.random() < 0.7 else rng.choice(BAD) for name in names}
        body |= {name: GOOD[name] for name in ("messages", "prompt", "input", "content") if name in body and rng.random() < 0.5}
        status, data, _ = server.send(path, json.dumps({**body, "max_tokens": 2}).encode())
        statuses.add(status)
        assert status < 500, (body, data)
        if status != 200:
            assert isinstance(json.loads(data)["error"], dict)
    assert statuses <= {200, 400, 404} and 400 in statuses
    wait_until(lambda: server.engine.live == 0)
    wait_until(lambda: server.metrics()["decodestep_cache_pages_held"] == 0)


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("data", NO_OBJECTS, ids=range(len(NO_OBJECTS)))
def test_bodies_that_are_no_json_objects_are_refused(server, path, data):
    status, body, _ = server.send(path, data)
    assert status in (400, 413) and isinstance(json.loads(body)["error"], dict)


@pytest.mark.parametrize("path", POSTS)
def test_a_client_that_sends_no_more_gets_its_answer_or_ends_its_rows(server, path):
    """One that closes its side of the connection after its request, which others take for gone."""
    names = {"/v1/completions": ["prompt"], "/infill": ["input_prefix", "input_suffix"]}.get(path, ["messages"])
    asked = {name: GOOD[name] for name in names} | {"max_tokens": 200, "stream": True}
    data = json.dumps(asked).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
        client.sendall(head.encode() + data)
        client.shutdown(socket.SHUT_WR)
        while client.recv(2**16):
            pass
    wait_until(lambda: server.engine.live == 0)


def test_slow_readers_of_several_models_hold_no_other_up(tmp_path):
    paths = [tiny_gguf_files.write(tmp_path / f"{i}.gguf", kind="Q8_0", context=4000, hidden=96 + 32 * i) for i in range(2)]
    found = {f"m{i}": ModelSource(lambda: 0, lambda _, path=path: load(path)) for i, path in enumerate(paths)}
    with LocalServer(found, max_rows=4) as server:
        asked = {"prompt": "ab", "stream": True, "ignore_eos": True, "max_tokens": 3900, "logprobs": 20, "model": "m0"}
        silent = [post(server.port, json.dumps(asked).encode()) for _ in range(3)]
        for _ in range(3):
            status, body = server.send_json("/v1/completions", {"prompt": "ab", "max_tokens": 5, "model": "m1"})
            assert status == 200 and body["usage"]["completion_tokens"] <= 5
        for client in silent:
            client.close()
        wait_until(lambda: server.metrics()['decodestep_running{model="m0"}'] == 0)
