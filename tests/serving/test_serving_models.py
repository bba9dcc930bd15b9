"""Several models behind one server: each is found by its name, loaded when it is asked for, and answers as alone."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

import decodestep as ds
from decodestep.errors import ModelError
from decodestep.serving import served_models
from decodestep.serving.served_models import ModelSource
from support import tiny_gguf_files
from support.servers import HELLO, LocalServer, load, wait_until

HIDDEN = {"a": 96, "b": 128, "org/c:Q8_0": 160}
ASKED = {"prompt": "ab", "max_tokens": 9, "seed": 3}


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {
        name: tiny_gguf_files.write(folder / f"{i}.gguf", kind="Q8_0", context=400, hidden=hidden)
        for i, (name, hidden) in enumerate(HIDDEN.items())
    }


@pytest.fixture(scope="module")
def alone(paths):
    params = ds.SamplingParams(max_new_tokens=9, seed=3)
    return {name: ds.generate(load(path), "ab", params)[0].text for name, path in paths.items()}


def sources(paths):
    return {name: ModelSource(path.stat().st_size.__int__, lambda _, path=path: load(path)) for name, path in paths.items()}


def get(server, path):
    status, data, _ = server.send(path, None, "GET")
    return status, json.loads(data)


def test_each_name_gets_its_model(paths, alone):
    with LocalServer(sources(paths)) as server:
        for name in paths:
            status, found = server.send_json("/v1/completions", {**ASKED, "model": name})
            assert (status, found["choices"][0]["text"], found["model"]) == (200, alone[name], name)
        for name in ("", None):  # the first one
            assert server.send_json("/v1/completions", {**ASKED, "model": name})[1]["model"] == "a"
        chat = server.client().chat.completions.create(model="b", messages=HELLO, max_tokens=3, seed=1)
        assert chat.model == "b"
        counts = {name: server.send_json("/tokenize", {"model": name, "content": "ab"})[1]["count"] for name in paths}
        assert set(counts.values()) == {2}
        found = get(server, "/props?model=org/c:Q8_0")[1]
        assert (found["model_alias"], found["model_path"]) == ("org/c:Q8_0", str(paths["org/c:Q8_0"]))
        metrics = server.metrics()
        for name in paths:
            assert metrics[f'decodestep_model_loaded{{model="{name}"}}'] == 1
            assert metrics[f'decodestep_completion_tokens_total{{model="{name}"}}'] >= 9


def test_the_list_has_the_fields_of_openai_and_of_anthropic(paths):
    with LocalServer(sources(paths)) as server:
        server.send_json("/v1/completions", {**ASKED, "model": "b"})
        for path in ("/v1/models", "/v1/models/"):
            found = get(server, path)[1]
            assert found["object"] == "list" and [each["id"] for each in found["data"]] == [*paths]
            assert (found["has_more"], found["first_id"], found["last_id"]) == (False, "a", "org/c:Q8_0")
        for each in found["data"]:
            assert each["object"] == each["type"] == "model" and each["display_name"] == each["id"]
            assert isinstance(each["created"], int) and each["created_at"].endswith("Z")
            loaded = each["id"] == "b"
            assert each["status"] == {"value": "loaded" if loaded else "unloaded"} and ("context_length" in each) is loaded
        for name in paths:  # a name may have slashes
            assert get(server, f"/v1/models/{name}")[1]["id"] == get(server, f"/v1/models/{name}/")[1]["id"] == name
        assert [model.id for model in server.client().models.list()] == [*paths]
        assert server.client().models.retrieve("b").id == "b"
        status, error = get(server, "/v1/models/d")
        assert (status, error["error"]["code"]) == (404, "model_not_found")


def test_an_unknown_name_gets_404_with_the_list(paths):
    with LocalServer(sources(paths)) as server:
        for path, asked in (
            ("/v1/completions", ASKED),
            ("/v1/chat/completions", {"messages": HELLO, "max_tokens": 1}),
            ("/tokenize", {"content": "a"}),
            ("/apply-template", {"messages": HELLO}),
        ):
            status, body = server.send_json(path, {**asked, "model": "gpt-4"})
            error = body["error"]
            assert (status, error["param"], error["code"]) == (404, "model", "model_not_found")
            assert error["message"] == "model must be one of a, b, org/c:Q8_0; got 'gpt-4'"
        with pytest.raises(openai.NotFoundError):
            server.client().chat.completions.create(model="gpt-4", messages=HELLO)
        assert server.send_json("/v1/completions", {**ASKED, "model": 5})[0] == 400
        for i in range(1000):  # none of which is remembered
            assert server.send_json("/v1/completions", {"prompt": "a", "model": f"{i}" * 300})[0] == 404
        assert len(server.send("/metrics", None, "GET")[1]) < 60_000
    with LocalServer(load(paths["a"])) as server:  # the only model has every name
        assert server.send_json("/v1/completions", {**ASKED, "model": "gpt-4"})[1]["model"] == "tiny"


def test_a_load_holds_up_no_other_model(paths, alone):
    held, found = threading.Event(), sources(paths)
    found["b"] = ModelSource(lambda: 0, lambda _: (held.wait(30), load(paths["b"]))[1])
    with LocalServer(found) as server, ThreadPoolExecutor(40) as clients:
        server.send_json("/v1/completions", {**ASKED, "model": "a"})
        late = [clients.submit(server.send_json, "/v1/completions", {**ASKED, "model": "b"}) for _ in range(30)]
        wait_until(lambda: get(server, "/v1/models/b")[1]["status"] == {"value": "loading"})
        for _ in range(3):  # although more wait than there are worker threads
            assert server.send_json("/v1/completions", {**ASKED, "model": "a"})[1]["choices"][0]["text"] == alone["a"]
        assert get(server, "/health")[0] == 200
        assert [each.result(0) for each in late if each.done()] == []
        held.set()
        assert {each.result(30)[1]["choices"][0]["text"] for each in late} == {alone["b"]}


def test_a_load_that_fails_is_an_error_of_that_request(paths, alone, monkeypatch):
    broken = [True]

    def read(_):
        if broken[0]:
            raise ModelError("/secret/b.gguf: corrupt")
        return load(paths["b"])

    with LocalServer({**sources(paths), "b": ModelSource(lambda: 0, read)}) as server:
        for path, asked in (("/v1/completions", ASKED), ("/tokenize", {"content": "a"})):
            status, body = server.send_json(path, {**asked, "model": "b"})
            assert (status, body["error"]["code"]) == (503, "model_not_loaded") and "secret" not in body["error"]["message"]
        assert get(server, "/health")[0] == 200 and get(server, "/v1/models/b")[1]["status"] == {"value": "unloaded"}
        assert server.send_json("/v1/completions", {**ASKED, "model": "a"})[1]["choices"][0]["text"] == alone["a"]
        broken[0] = False
        monkeypatch.setattr(served_models, "_AGAIN", 0.0)
        assert server.send_json("/v1/completions", {**ASKED, "model": "b"})[1]["choices"][0]["text"] == alone["b"]


def test_health_waits_for_the_only_model(paths):
    held = threading.Event()
    source = ModelSource(lambda: 0, lambda _: (held.wait(30), load(paths["a"]))[1])
    with LocalServer({"a": source}, wait=False) as server, ThreadPoolExecutor(1) as client:
        for path in ("/health", "/v1/health"):
            status, body = get(server, path)
            assert (status, body["error"]["code"]) == (503, "loading")
        early = client.submit(server.send_json, "/v1/completions", ASKED)
        held.set()
        assert early.result(30)[0] == 200 and get(server, "/health") == (200, {"status": "ok", "model": "a"})


def test_clients_that_leave_while_a_model_is_loaded_hold_nothing(paths):
    from support.servers import post

    held = threading.Event()
    found = {**sources(paths), "b": ModelSource(lambda: 0, lambda _: (held.wait(30), load(paths["b"]))[1])}
    with LocalServer(found, unload_after=0.05) as server:
        for stream in (False, True):
            # Enough work that the model has not done it when the server sees that nobody reads.
            asked = {"prompt": "a", "n": 64, "max_tokens": 300, "ignore_eos": True, "model": "b", "stream": stream}
            post(server.port, json.dumps(asked).encode()).close()
        wait_until(lambda: get(server, "/v1/models/b")[1]["status"] == {"value": "loading"})
        held.set()
        wait_until(lambda: server.metrics().get('decodestep_completions_total{model="b",reason="cancelled"}') == 128)
        wait_until(lambda: get(server, "/v1/models/b")[1]["status"] == {"value": "unloaded"})


@pytest.mark.parametrize("stream", [False, True])
def test_models_come_and_go_under_load(paths, alone, stream):
    """Whole answers and streams, of clients that read all and of some that leave."""

    def ask(server, i):
        for turn in range(5):
            name = [*paths][(i + turn) % 3]
            data = json.dumps({**ASKED, "model": name, "stream": stream}).encode()
            status, body, _ = server.send("/v1/completions", data)
            assert status == 200, body
            events = [json.loads(event[6:]) for event in body.split(b"\n\n")[:-2]] if stream else [json.loads(body)]
            assert "".join(event["choices"][0]["text"] for event in events) == alone[name]

    with LocalServer(sources(paths), most_loaded=1, unload_after=0.01) as server, ThreadPoolExecutor(8) as clients:
        for each in [clients.submit(ask, server, i) for i in range(8)]:
            each.result(120)
        wait_until(lambda: not any(server.metrics()[f'decodestep_model_loaded{{model="{name}"}}'] for name in paths))
