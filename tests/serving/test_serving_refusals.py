"""Requests that the server refuses: fields, sizes, keys, sites; all errors are in OpenAI's form."""

from __future__ import annotations

import copy
import gzip
import json
import pickle
import sys

import openai
import pytest

from decodestep._base.checks import RequestError
from decodestep.chat import template_process
from decodestep.constraints.processor import ConstraintError
from decodestep.generation.engine import Engine
from decodestep.serving.endpoints.completions import completion_job
from decodestep.serving.errors import HttpError, http_error
from support.servers import HELLO, LocalServer, allowed_tools, load, post, tool, wait_until

CHAT = {"messages": HELLO, "max_tokens": 2}
CALL = {**CHAT, "tools": [tool("f")]}
LENIENT = {"type": "object", "x-guidance": {"lenient": True}}
UNKEPT = {"properties": {"a": {"not": {"pattern": "a"}}}, "required": ["a"]}
FORM = {"response_format": {"type": "json_schema", "json_schema": {"schema": UNKEPT}}}
FORM_WITH_MORE = {"type": "json_schema", "json_schema": {"schema": {}, "shape": 1}}


def called(arguments):
    return {"function": {"name": "f", "arguments": arguments}}


@pytest.mark.parametrize(
    ("path", "data", "status", "param"),
    [
        ("/v1/chat/completions", b"{", 400, None),
        ("/v1/chat/completions", b"[1]", 400, None),
        ("/v1/chat/completions", b'{"messages": ' + b"[" * 10**5, 400, None),
        ("/v1/chat/completions", b'{"stop": ' + b"[" * 985 + b"]" * 985 + b"}" + b" " * 2**16, 400, None),
        ("/v1/chat/completions", b'{"temperature": NaN}', 400, None),
        ("/v1/chat/completions", b'{"seed": ' + b"9" * 5000 + b"}", 400, None),
        ("/v1/chat/completions", b'"' + b"x" * (4 * 2**20) + b'"', 413, None),
        ("/v1/chat/completions", {}, 400, "messages"),
        ("/v1/chat/completions", {"messages": []}, 400, "messages"),
        ("/v1/chat/completions", {"messages": [{"role": "king", "content": ""}]}, 400, "messages[0].role"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "x"}]}]}, 400, "messages[0].content"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "\ud800"}]}, 400, "messages"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 2001}]}, 400, "messages"),
        ("/v1/chat/completions", {"messages": [{"role": "assistant", "function_call": {}}]}, 400, "messages[0].function_call"),
        ("/v1/chat/completions", {"messages": [{"role": "assistant", "audio": {"id": "a"}}]}, 400, "messages[0].audio"),
        *(
            ("/v1/chat/completions", {"messages": [{"role": "assistant", "tool_calls": calls}]}, 400, "messages[0].tool_calls")
            for calls in (5, [{"function": {"name": 5}}])
        ),
        ("/v1/chat/completions", {**CHAT, "colour": 1}, 400, "colour"),
        ("/v1/chat/completions", {**CHAT, "num_beams": 2}, 400, "num_beams"),
        ("/v1/chat/completions", {**CHAT, "length_penalty": 0.9}, 400, "length_penalty"),
        ("/v1/chat/completions", {**CHAT, "temperature": "hot"}, 400, "temperature"),
        ("/v1/chat/completions", {**CHAT, "stream": "yes"}, 400, "stream"),
        ("/v1/chat/completions", {**CHAT, "stream_options": {"include_usage": True}}, 400, "stream_options"),
        ("/v1/chat/completions", {**CHAT, "stream": True, "stream_options": {"include_usage": 1}}, 400, "stream_options"),
        ("/v1/chat/completions", {**CHAT, "stream": True, "stream_options": {"every": True}}, 400, "stream_options"),
        ("/v1/chat/completions", {**CHAT, "user": 1}, 400, "user"),
        ("/v1/chat/completions", {**CHAT, "service_tier": ["auto"]}, 400, "service_tier"),
        ("/v1/chat/completions", {**CHAT, "store": "no"}, 400, "store"),
        ("/v1/completions", {"prompt": "a", "metadata": "x"}, 400, "metadata"),
        ("/v1/chat/completions", {**CHAT, "prediction": "x"}, 400, "prediction"),
        *(
            (path, {**asked, "prediction": {"type": "content", "content": content}}, 400, "prediction")
            for path, asked in (("/v1/chat/completions", CHAT), ("/v1/completions", {"prompt": "a"}))
            for content in ("\ud800", 5, [{"type": "image_url", "image_url": {"url": "x"}}], "x" * 10**6, "x" * 2001)
        ),
        *(("/v1/chat/completions", {**CHAT, "draft": draft}, 400, "draft") for draft in ("off", "lookup", 4, 0)),
        ("/v1/chat/completions", {**CHAT, "n": 10**6}, 400, "n"),
        ("/v1/chat/completions", {**CHAT, "n": 0}, 400, "n"),
        ("/v1/chat/completions", {**CHAT, "max_tokens": 0}, 400, "max_tokens"),
        ("/v1/chat/completions", {"messages": HELLO, "max_completion_tokens": 0}, 400, "max_completion_tokens"),
        ("/v1/completions", {"prompt": "a", "max_new_tokens": -1}, 400, "max_new_tokens"),
        ("/v1/completions", {"prompt": "a", "max_tokens": 2, "max_new_tokens": 3}, 400, "max_new_tokens"),
        ("/v1/completions", {"prompt": "a", "num_return_sequences": 10**6}, 400, "num_return_sequences"),
        ("/v1/completions", {"prompt": "a", "stop_strings": [""]}, 400, "stop_strings"),
        ("/v1/completions", {"prompt": "a", "stop_strings": ["\ud800"]}, 400, "stop_strings"),
        ("/v1/completions", {"prompt": "a", "stop_strings": ["x" * 17000]}, 400, "stop_strings"),
        ("/v1/chat/completions", {**CHAT, "stop": ""}, 400, "stop"),
        ("/v1/chat/completions", {**CHAT, "logit_bias": {"300": 1}}, 400, "logit_bias"),
        ("/v1/chat/completions", {**CHAT, "tools": [{"name": "x"}]}, 400, "tools"),
        ("/v1/chat/completions", {**CHAT, "tools": {}}, 400, "tools"),
        ("/v1/chat/completions", {**CHAT, "tools": [tool("files.read")]}, 400, "tools"),
        ("/v1/chat/completions", {**CHAT, "tools": [{**tool("f"), "type": "custom"}]}, 400, "tools"),
        ("/v1/chat/completions", {**CHAT, "tools": [tool("f", description=5)]}, 400, "tools"),
        ("/v1/chat/completions", {**CHAT, "tools": [tool("f", parameters=[])]}, 400, "tools"),
        ("/v1/chat/completions", {**CHAT, "tools": [tool("f", strict="yes")]}, 400, "tools"),
        ("/v1/chat/completions", {**CALL, "tool_choice": {**tool("f"), "type": "custom"}}, 400, "tool_choice"),
        (
            "/v1/chat/completions",
            {**CHAT, "tools": [tool("f", parameters={}), tool("f", parameters={"required": ["a"]})]},
            400,
            "tools",
        ),
        ("/v1/chat/completions", {**CHAT, "tools": [tool("f", parameters={"type": "string"})]}, 400, "tools"),
        ("/v1/chat/completions", {**CHAT, "tools": [tool("f", parameters={"type": ["string", "null"]})]}, 400, "tools"),
        ("/v1/chat/completions", {**CHAT, "tool_choice": "required"}, 400, "tool_choice"),
        ("/v1/chat/completions", {**CHAT, "tool_choice": allowed_tools("auto", "f")}, 400, "tool_choice"),
        ("/v1/chat/completions", {**CALL, "tool_choice": allowed_tools("auto", "g")}, 400, "tool_choice.allowed_tools.tools"),
        ("/v1/chat/completions", {**CALL, "tool_choice": allowed_tools("auto")}, 400, "tool_choice.allowed_tools.tools"),
        ("/v1/chat/completions", {**CALL, "tool_choice": allowed_tools("none", "f")}, 400, "tool_choice.allowed_tools.mode"),
        ("/v1/chat/completions", {**CALL, "tool_choice": {"type": "allowed_tools"}}, 400, "tool_choice.allowed_tools.mode"),
        ("/v1/chat/completions", {**CALL, "tool_choice": {"type": "king"}}, 400, "tool_choice"),
        ("/v1/chat/completions", {**CHAT, "response_format": {"type": "xml"}}, 400, "response_format.type"),
        ("/v1/chat/completions", {**CHAT, "chat_template_kwargs": {"messages": []}}, 400, "chat_template_kwargs"),
        ("/v1/chat/completions", {**CHAT, "prompt": "a"}, 400, "prompt"),
        ("/v1/completions", {"prompt": "a", "messages": HELLO}, 400, "messages"),
        ("/v1/completions", {"prompt": ""}, 400, "prompt"),
        ("/v1/completions", {"prompt": []}, 400, "prompt"),
        ("/v1/completions", {"prompt": [[]]}, 400, "prompt"),
        ("/v1/completions", {"prompt": [300]}, 400, "prompt"),
        ("/v1/completions", {"prompt": {"a": 1}}, 400, "prompt"),
        ("/v1/completions", {"prompt": [HELLO]}, 400, "prompt"),
        ("/v1/completions", {"prompt": "a", "tools": []}, 400, "tools"),
        ("/v1/completions", {"prompt": "a", "logprobs": 10**6}, 400, "logprobs"),
        ("/v1/completions", {"prompt": "a", "echo": True, "logprobs": 21}, 400, "logprobs"),
        ("/v1/completions", {"prompt": "a", "echo": "yes"}, 400, "echo"),
        ("/v1/completions", {"prompt": "a", "echo": True, "max_tokens": False}, 400, "max_tokens"),
        ("/v1/completions", {"prompt": "a", "max_tokens": 0}, 400, "max_tokens"),
        ("/v1/chat/completions", {**CHAT, "echo": True}, 400, "echo"),
        ("/v1/completions", {"prompt": "a", "regex": "("}, 400, "regex"),
        ("/v1/completions", {"prompt": "a", "json_schema": {"type": "king"}}, 400, "json_schema"),
        ("/v1/completions", {"prompt": "a", "json_schema": LENIENT}, 400, "json_schema"),
        ("/v1/completions", {"prompt": "a", "grammar": f"start: %json {json.dumps(LENIENT)}"}, 400, "grammar"),
        ("/v1/chat/completions", {**CHAT, "tools": [tool("f", parameters=LENIENT)], "tool_choice": "required"}, 400, "tools"),
        ("/v1/chat/completions", {**CHAT, "response_format": {"type": "yaml"}}, 400, "response_format.type"),
        ("/v1/chat/completions", {**CHAT, "response_format": {"type": "text", "schema": {}}}, 400, "response_format.schema"),
        (
            "/v1/chat/completions",
            {**CHAT, "response_format": {**FORM["response_format"], "type": "json_object"}},
            400,
            "response_format.json_schema",
        ),
        *(
            ("/v1/chat/completions", {**CALL, "regex": "a", **more}, 400, "regex")
            for more in ({"response_format": {"type": "json_object"}}, {"tool_choice": "required"})
        ),
        ("/v1/completions", {"prompt": "a", "response_format": {"json_schema": {}}}, 400, "response_format.type"),
        ("/v1/completions", {"prompt": "a", "response_format": FORM_WITH_MORE}, 400, "response_format.json_schema.shape"),
        ("/v1/chat/completions", {**CHAT, **FORM}, 400, "response_format"),
        ("/v1/completions", {"prompt": "a", **FORM}, 400, "response_format"),
        ("/v1/chat/completions", {**CHAT, "tools": [tool("f", parameters=UNKEPT)], "tool_choice": "required"}, 400, "tools"),
        (
            "/v1/chat/completions",
            {**CHAT, "tools": [tool("f", parameters={"minProperties": 2})], "tool_choice": "required"},
            400,
            "tools",
        ),
        ("/detokenize", {"tokens": [300]}, 400, "tokens"),
        ("/detokenize", {"tokens": [1], "special": True}, 400, "special"),
        ("/tokenize", {"content": 3}, 400, "content"),
        ("/tokenize", {"content": "\ud800"}, 400, "content"),
        ("/tokenize", {"content": "a", "prompt": "b"}, 400, "content"),
        ("/tokenize", {"content": "a", "add_special": 5}, 400, "add_special"),
        ("/v1/completions", {"prompt": ["a"] * 321, "max_tokens": 1}, 400, "n"),
        ("/v1/completions", {"prompt": "a" * 2_000_000}, 400, "prompt"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a" * 2_000_000}]}, 400, "messages"),
        ("/v1/completions", {"prompt": "a", "stop": ["x" * 17000]}, 400, "stop"),
        ("/v1/completions", {"prompt": "a", "grammar": "start: start"}, 400, "grammar"),
        ("/v1/completions", b'{"prompt": "' + b"a" * 10_000_000 + b'"}', 413, None),
        ("/v1/embeddings", {"input": "a"}, 400, None),
        ("/v1/images/generations", {"prompt": "a"}, 404, None),
        ("/v1/completions", b'{"prompt": "a", "\\ud800": 1}', 400, "?"),
        ("/v1/completions", {"prompt": "a", "stop": "\ud800"}, 400, "stop"),
        ("/v1/completions", {"prompt": "a", "dry_base": 10**400}, 400, "dry_base"),
        ("/v1/completions", {"prompt": "a", "logit_bias": {"9" * 5000: 1}}, 400, "logit_bias"),
        ("/v1/completions", {"prompt": "a", "samplers": [{}]}, 400, "samplers"),
        ("/v1/completions", {"prompt": "a", "watermarking_config": {"keys": 5}}, 400, "watermarking_config"),
        ("/v1/completions", {"prompt": "a", "json_schema": {"type": "integer", "multipleOf": 99999999}}, 400, "json_schema"),
        ("/v1/completions", {"prompt": "a", "json_schema": {"type": "object", "minProperties": 2}}, 400, "json_schema"),
        ("/v1/completions", {"prompt": "a", "reasoning_effort": "low"}, 400, "reasoning_effort"),
        ("/v1/chat/completions", {**CHAT, "reasoning_effort": 3}, 400, "reasoning_effort"),
        ("/v1/chat/completions", {**CHAT, "chat_template_kwargs": {"self": 1}}, 400, "chat_template_kwargs"),
        ("/v1/chat/completions", {**CHAT, "tools": [tool("f", description="x" * 2_000_000)]}, 400, "tools"),
        ("/v1/chat/completions", {**CHAT, "chat_template_kwargs": {"a": ["x" * 2_000_000]}}, 400, "chat_template_kwargs"),
        *(
            ("/v1/chat/completions", {"messages": [{"role": "assistant", **more}]}, 400, "messages")
            for more in (
                {"tool_calls": [called(json.dumps({"a": "x" * 2_000_000}))]},
                {"tool_calls": [called({"x" * 2_000_000: 1})]},
                {"reasoning_content": "x" * 2_000_000},
            )
        ),
        ("/tokenize", {"content": "a" * 2_000_000}, 400, "content"),
        ("/detokenize", {"tokens": [1] * 70_000}, 400, "tokens"),
    ],
)
def test_bad_requests_are_refused_in_openais_form(shared_server, path, data, status, param):
    found, body, _ = shared_server.send(path, data if isinstance(data, bytes) else json.dumps(data).encode())
    error = json.loads(body)["error"]
    assert (found, error["param"]) == (status, param)
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    assert shared_server.engine.live == 0


@pytest.mark.parametrize("field", [{"temperature": "x" * 10**6}, {"stop_token_ids": [-1] * 10**5}, {"x" * 10**6: 1}])
def test_an_error_does_not_send_the_request_back(shared_server, field):
    status, body, _ = shared_server.send("/v1/completions", json.dumps({"prompt": "a", **field}).encode())
    assert status == 400 and len(body) < 1000


@pytest.mark.parametrize(
    ("error", "param", "code", "message"),
    [
        (RequestError("op", "Add.ids", "finite", "nan"), "Add.ids", "invalid_value", "Add.ids must be finite; got nan"),
        (RequestError("op", "stop", "short", "x; got"), "stop", "invalid_value", "stop must be short; got x; got"),
        (RequestError("op", "prompt", "short", "9", "too_long"), "prompt", "too_long", "prompt must be short; got 9"),
        (RequestError("op", "x", "a field", "1", "unknown_field"), "x", "unknown_field", "unknown field 'x'"),
        (ConstraintError("a: b", "regex"), "regex", "constraint", "a: b"),
    ],
)
def test_errors_name_the_field_and_the_kind(error, param, code, message):
    for same in (error, copy.copy(error), pickle.loads(pickle.dumps(error))):
        found = http_error(same)
        assert (found.status, found.param, found.code, str(found)) == (400, param, code, message)


@pytest.mark.parametrize(
    ("capacity", "prompt"),
    [(2000, [1] * 2000), (100, [1] * 100), (2000, "a" * 2_000_000)],  # of the context; of the cache; of any text that fits
)
def test_clients_know_a_prompt_that_is_too_long(shared_server, capacity, prompt, monkeypatch):
    """By its code, or, as litellm, by OpenAI's words."""
    monkeypatch.setattr(Engine, "capacity", capacity)
    status, body = shared_server.send_json("/v1/completions", {"prompt": prompt})
    assert (status, body["error"]["param"], body["error"]["code"]) == (400, "prompt", "context_length_exceeded")
    assert "this model's maximum context length is" in body["error"]["message"]


@pytest.mark.parametrize(
    ("asked", "name"), [(FORM, "response_format"), ({"tools": [tool("f", strict=True)]}, "tools")], ids=["answer", "call"]
)
def test_ignore_eos_is_refused_beside_what_the_request_has(shared_server, asked, name):
    status, body = shared_server.send_json("/v1/chat/completions", {**CHAT, **asked, "ignore_eos": True})
    assert status == 400 and body["error"]["param"] == "ignore_eos" and name in body["error"]["message"]


def test_what_is_not_installed_is_named(shared_server, monkeypatch):
    """The extra `serve` has no torch, which watermarks need."""
    monkeypatch.setitem(sys.modules, "torch", None)
    status, body = shared_server.send_json("/v1/completions", {"prompt": "a", "watermarking_config": {}})
    assert (status, body["error"]["code"]) == (400, "not_installed")
    assert body["error"]["message"].endswith("pip install 'decodestep[torch]'")


def test_prompts_of_a_costly_constraint_are_few(shared_server, monkeypatch):
    monkeypatch.setattr("decodestep.serving.answer.COMPILE_SECONDS", 0.0)
    for body, status in (({"prompt": ["a", "b"], "regex": "[ab]{3}"}, 400), ({"prompt": ["a", "b"]}, 200)):
        assert shared_server.send_json("/v1/completions", {**body, "max_tokens": 1})[0] == status
    wait_until(lambda: shared_server.engine.live == 0)


def test_a_prompt_that_is_refused_ends_those_before_it(shared_server):
    before = shared_server.engine.passes
    asked = {"prompt": [[5], [5] * 2000], "max_tokens": 1900, "ignore_eos": True}
    status, body = shared_server.send_json("/v1/completions", asked)
    assert (status, body["error"]["code"]) == (400, "context_length_exceeded")
    wait_until(lambda: not shared_server.engine.live)
    assert shared_server.engine.passes < before + 1900


@pytest.mark.parametrize("asked", [{"prompt": [[5] * 1999] * 25}, {"prompt": [[5] * 1999] * 5, "n": 5}])
def test_scores_beyond_what_an_answer_may_hold_are_refused(shared_server, asked):
    """As 1999 tokens, 25 times, each with 21 log-probabilities: each of these alone is accepted."""
    scored = {**asked, "echo": True, "logprobs": 20, "max_tokens": 0}
    status, body = shared_server.send_json("/v1/completions", scored)
    assert (status, body["error"]["param"], body["error"]["code"]) == (400, "logprobs", "invalid_value")
    wait_until(lambda: not shared_server.engine.live)


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("completions", {"prompt": "a", "max_tokens": 10**9, "n": 21, "logprobs": 100}),
        ("completions", {"prompt": ["a"] * 7, "max_tokens": 2000, "n": 3, "logprobs": 100}),
        ("chat/completions", {**CHAT, "max_tokens": None, "n": 102, "logprobs": True, "top_logprobs": 20}),
    ],
)
def test_log_probabilities_beyond_what_an_answer_may_hold_are_refused(shared_server, path, asked):
    """Of 2000 tokens at most, some fewer after a prompt."""
    status, body = shared_server.send_json(f"/v1/{path}", {**asked, "ignore_eos": True})
    assert (status, body["error"]["param"], body["error"]["code"]) == (400, "logprobs", "invalid_value")
    assert f"at most {2**22}" in body["error"]["message"]
    wait_until(lambda: not shared_server.engine.live)
    status, body = shared_server.send_json(f"/v1/{path}", {**asked, "max_tokens": 3})
    assert status == 200 and len(body["choices"]) >= asked["n"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("ngram_len", 10**6), ("keys", [1] * 1000), ("sampling_table_size", 2**31 - 1), ("context_history_size", 2**31 - 1)],
)
def test_a_watermark_of_any_size_is_refused(name, value):
    config = {"ngram_len": 5, "keys": [1, 2], "sampling_table_size": 64, "sampling_table_seed": 0, "context_history_size": 8}
    completion_job(None, {"prompt": [1, 2], "top_k": 50, "watermarking_config": config}, 16)
    with pytest.raises(HttpError, match=f"such that {name} is at most"):
        completion_job(None, {"prompt": [1, 2], "top_k": 50, "watermarking_config": {**config, name: value}}, 16)
    for top_k in (None, 0, 1025):
        with pytest.raises(HttpError, match=r"top_k must be in \[1, 1024\] beside a watermark with keys"):
            completion_job(None, {"prompt": [1, 2], "top_k": top_k, "watermarking_config": config}, 16)


def test_other_methods_types_and_sites_are_refused(shared_server):
    status, _, headers = shared_server.send("/v1/completions", None, "GET")
    assert status == 405 and headers["allow"] == "POST"
    assert shared_server.send("/v1/completions", b"{}", content_type="text/plain")[0] == 415
    status, body, headers = shared_server.send("/v1/completions", gzip.compress(b"{}"), content_encoding="gzip")
    assert status == 415 and b"content-encoding" in body and headers["accept-encoding"] == "identity"
    assert shared_server.send("/v1/completions", b'{"prompt": "a"}', origin="http://evil.example")[0] == 403
    assert shared_server.send("/v1/completions", b'{"prompt": "a"}', origin=f"http://127.0.0.1:{shared_server.port}")[0] == 200
    _, body, headers = shared_server.send("/", None, "GET", origin="http://evil.example")
    assert b"<title>" in body and "default-src 'none'" in headers["content-security-policy"]
    assert "access-control-allow-origin" not in headers
    assert b"fetch(" in body and b'fetch("/' not in body  # a proxy may have the page below a path of its own


def test_requests_need_one_of_the_keys(tiny_file):
    with LocalServer(load(tiny_file()), keys=["alpha", "beta", "clé à"]) as server:
        client = post(server.port, b'{"prompt": "a", "max_tokens": 1}', authorization="Bearer clé à")  # in UTF-8
        assert client.recv(99).startswith(b"HTTP/1.1 200")
        client.close()
        assert server.client("beta").completions.create(model="", prompt="a", max_tokens=1).usage.prompt_tokens == 1
        with pytest.raises(openai.AuthenticationError):
            server.client("gamma").models.list()
        assert server.send("/metrics", None, "GET")[0] == 401 and server.send("/health", None, "GET")[0] == 200
        for given, status in (("bearer alpha", 200), ("Bearer  alpha ", 200), ("Basic alpha", 401), ("alpha", 401)):
            assert server.send("/v1/models", None, "GET", authorization=given)[0] == status
        for host in ("x/?", "x/health?", "x/health#"):  # which early releases of Starlette read as the path
            assert server.send("/v1/models", None, "GET", host=host)[0] == 401


def test_a_page_that_dns_leads_here_is_refused(tiny_file):
    """It names the server as its own site, so that its origin is no other one."""
    own = ("LocalHost", "127.0.0.1", "[::1]", "box", "Here.example")
    others = ("evil.example", "localhost.evil.example", "[::1", "localhost@evil.example")
    with LocalServer(load(tiny_file(kind="Q8_0", context=400)), hosts=["here.example"]) as server:
        for path, data in (("/", None), ("/metrics", None), ("/v1/completions", b'{"prompt": "a", "max_tokens": 1}')):
            for name in (*own, *others):
                named = {"host": f"{name}:{server.port}", "origin": f"http://{name}:{server.port}"}
                status, body, _ = server.send(path, data, "POST" if data else "GET", **named)
                assert status == (200 if name in own else 403)
                assert status == 200 or json.loads(body)["error"]["code"] == "host"


def test_a_process_for_templates_that_does_not_start_is_no_fault_of_the_request(tiny_file, monkeypatch, caplog):
    """A client repeats a request after 500, and gives one up after 400."""
    with LocalServer(load(tiny_file(kind="Q8_0", context=400))) as server:
        template_process._end_all()
        monkeypatch.setenv("DECODESTEP_PYTHON", "/no/such/program")
        status, answer = server.send_json("/v1/chat/completions", CHAT)
        monkeypatch.undo()
        assert status == 500 and answer["error"]["type"] == "server_error" and "no process could be started" in caplog.text
        assert server.send_json("/v1/chat/completions", CHAT)[0] == 200
