"""OpenAI's interface, through the official client and through a raw socket: answers as alone, and refusals in one form."""

from __future__ import annotations

import argparse
import copy
import gc
import json
import pickle
import re
import signal
import socket
import sys
import threading
import time
import urllib.request
from contextlib import suppress

import openai
import pytest
import uvicorn

import decodestep as ds
import processes
from decodestep._base.byte_alphabet import BYTE_OF
from decodestep._base.checks import RequestError
from decodestep.cli import serve
from decodestep.sampling.constraint import ConstraintError
from decodestep.serving import event_stream
from decodestep.serving.engine import Engine
from decodestep.serving.engine_request import EngineRequest
from decodestep.serving.errors import HttpError, http_error
from decodestep.serving.http import Server
from decodestep.serving.requests import completion_job
from decodestep.serving.responses import Choice

TEMPLATE = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}assistant:"
HELLO = [{"role": "user", "content": "hello"}]


class Running:
    """A server in a thread of this process."""

    def __init__(self, model, **options):
        self.server = Server(model, name="tiny", **options)
        listening = socket.create_server(("127.0.0.1", 0))
        self.port = listening.getsockname()[1]
        self.uvicorn = uvicorn.Server(uvicorn.Config(self.server.app, log_level="critical", lifespan="off"))
        self.thread = threading.Thread(target=self.uvicorn.run, kwargs={"sockets": [listening]})
        self.thread.start()
        while not self.uvicorn.started:
            time.sleep(0.001)

    def client(self, key="none"):
        return openai.OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key=key, max_retries=0)

    def send(self, path, data, method="POST", **headers):
        """(status, body, headers) of a request with a raw body."""
        given = {"content-type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
        asked = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, given, method=method)
        try:
            with urllib.request.urlopen(asked, timeout=60) as found:
                return found.status, found.read(), found.headers
        except urllib.error.HTTPError as found:
            return found.code, found.read(), found.headers

    def close(self):
        self.server.close()
        self.uvicorn.should_exit = True
        self.thread.join()


def load(path, **options):
    return ds.load(path, chat_template=TEMPLATE, **options)


@pytest.fixture
def running(tiny_file):
    made = Running(load(tiny_file(kind="Q8_0", context=400)), max_rows=8, max_waiting=4)
    yield made
    made.close()


def wait_until(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_the_official_client_gets_the_answers_of_generate(running):
    model, client = running.server.model, running.client()
    params = {"max_new_tokens": 30, "seed": 7, "temperature": 0.9, "top_p": 0.95}
    asked = {"model": "tiny", "messages": HELLO, "max_tokens": 30, "seed": 7, "temperature": 0.9, "top_p": 0.95}
    alone = ds.generate(model, [HELLO], ds.SamplingParams(**params, logprobs=2, num_return_sequences=2))
    whole = client.chat.completions.create(**asked, n=2, logprobs=True, top_logprobs=2)
    for choice, one in zip(whole.choices, alone, strict=True):
        assert choice.message.content == one.text and choice.seed == one.seed
        assert choice.finish_reason == ("length" if one.finish_reason == "length" else "stop")
        assert [entry.token_id for entry in choice.logprobs.content] == one.token_ids
        assert [entry.logprob for entry in choice.logprobs.content] == [found.raw for found in one.logprobs]
        assert [len(entry.top_logprobs) for entry in choice.logprobs.content] == [2] * len(one.token_ids)
    assert whole.usage.completion_tokens == sum(len(one.token_ids) for one in alone)
    texts, usage, entries = ["", ""], None, 0
    options = {"stream": True, "stream_options": {"include_usage": True}, "logprobs": True}
    for chunk in client.chat.completions.create(**asked, n=2, **options):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            entries += len(choice.logprobs.content) if choice.logprobs else 0
        usage = chunk.usage or usage
    assert texts == [one.text for one in alone] and usage == whole.usage and entries == usage.completion_tokens
    plain = client.completions.create(model="", prompt=["ab", [1, 2, 3]], max_tokens=9, seed=3, extra_body={"min_p": 0.01})
    expected = ds.generate(model, ["ab", [1, 2, 3]], ds.SamplingParams(max_new_tokens=9, seed=3, min_p=0.01))
    assert [choice.text for choice in plain.choices] == [one.text for one in expected]
    streamed = client.completions.create(model="", prompt="ab", max_tokens=9, seed=3, stream=True, logprobs=1)
    [alone] = ds.generate(model, ["ab"], ds.SamplingParams(max_new_tokens=9, seed=3))
    assert "".join(chunk.choices[0].text for chunk in streamed) == alone.text
    assert client.models.list().data[0].id == "tiny" == client.models.retrieve("tiny").id


def test_answers_without_chance_are_equal(running):
    """As in OpenAI's API, where n and a temperature of 0 go together."""
    asked = {"model": "", "messages": HELLO, "temperature": 0, "max_tokens": 9}
    [alone] = running.client().chat.completions.create(**asked).choices
    three = running.client().chat.completions.create(**asked, n=3)
    assert [choice.message.content for choice in three.choices] == [alone.message.content] * 3
    assert three.usage.completion_tokens == 27


CHAT = {"messages": HELLO, "max_tokens": 2}
CALL = {**CHAT, "tools": [{"type": "function", "function": {"name": "f"}}]}


def tool_of(parameters):
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


def allowed(mode, *names):
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


UNKEPT = {"properties": {"a": {"not": {}}}, "required": ["a"]}
FORM = {"response_format": {"type": "json_schema", "json_schema": {"schema": UNKEPT}}}
FORM_WITH_MORE = {"type": "json_schema", "json_schema": {"schema": {}, "shape": 1}}


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
        ("/v1/chat/completions", {"messages": [{"role": "king", "content": ""}]}, 400, "messages[0].role"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "x"}]}]}, 400, "messages[0].content"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "\ud800"}]}, 400, "messages"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 2001}]}, 400, "prompt"),
        ("/v1/chat/completions", {**CHAT, "colour": 1}, 400, "colour"),
        ("/v1/chat/completions", {**CHAT, "num_beams": 2}, 400, "num_beams"),
        ("/v1/chat/completions", {**CHAT, "temperature": "hot"}, 400, "temperature"),
        ("/v1/chat/completions", {**CHAT, "stream": "yes"}, 400, "stream"),
        ("/v1/chat/completions", {**CHAT, "stream_options": {"include_usage": True}}, 400, "stream_options"),
        ("/v1/chat/completions", {**CHAT, "n": 10**6}, 400, "n"),
        ("/v1/chat/completions", {**CHAT, "n": 0}, 400, "n"),
        ("/v1/chat/completions", {**CHAT, "max_tokens": 0}, 400, "max_tokens"),
        ("/v1/chat/completions", {**CHAT, "stop": ""}, 400, "stop"),
        ("/v1/chat/completions", {**CHAT, "logit_bias": {"300": 1}}, 400, "logit_bias"),
        ("/v1/chat/completions", {**CHAT, "tools": [{"name": "x"}]}, 400, "tools"),
        ("/v1/chat/completions", {**CHAT, "tools": {}}, 400, "tools"),
        ("/v1/chat/completions", {**CHAT, "tools": [tool_of({}), tool_of({"required": ["a"]})]}, 400, "tools"),
        ("/v1/chat/completions", {**CHAT, "tools": [tool_of({"type": "string"})]}, 400, "tools"),
        ("/v1/chat/completions", {**CHAT, "tools": [tool_of({"type": ["string", "null"]})]}, 400, "tools"),
        ("/v1/chat/completions", {**CHAT, "tool_choice": "required"}, 400, "tool_choice"),
        ("/v1/chat/completions", {**CHAT, "tool_choice": allowed("auto", "f")}, 400, "tool_choice"),
        ("/v1/chat/completions", {**CALL, "tool_choice": allowed("auto", "g")}, 400, "tool_choice.allowed_tools.tools"),
        ("/v1/chat/completions", {**CALL, "tool_choice": allowed("auto")}, 400, "tool_choice.allowed_tools.tools"),
        ("/v1/chat/completions", {**CALL, "tool_choice": allowed("none", "f")}, 400, "tool_choice.allowed_tools.mode"),
        ("/v1/chat/completions", {**CALL, "tool_choice": {"type": "allowed_tools"}}, 400, "tool_choice.allowed_tools.mode"),
        ("/v1/chat/completions", {**CALL, "tool_choice": {"type": "king"}}, 400, "tool_choice"),
        ("/v1/chat/completions", {**CHAT, "response_format": {"type": "xml"}}, 400, "response_format.type"),
        ("/v1/chat/completions", {**CHAT, "chat_template_kwargs": {"messages": []}}, 400, "chat_template_kwargs"),
        ("/v1/chat/completions", {**CHAT, "prompt": "a"}, 400, "prompt"),
        ("/v1/completions", {"prompt": "a", "messages": HELLO}, 400, "messages"),
        ("/v1/completions", {"prompt": ""}, 400, "prompt"),
        ("/v1/completions", {"prompt": [300]}, 400, "prompt"),
        ("/v1/completions", {"prompt": {"a": 1}}, 400, "prompt"),
        ("/v1/completions", {"prompt": [HELLO]}, 400, "prompt"),
        ("/v1/completions", {"prompt": "a", "tools": []}, 400, "tools"),
        ("/v1/completions", {"prompt": "a", "logprobs": 10**6}, 400, "logprobs"),
        ("/v1/completions", {"prompt": "a", "regex": "("}, 400, "regex"),
        ("/v1/completions", {"prompt": "a", "json_schema": {"type": "king"}}, 400, "json_schema"),
        ("/v1/chat/completions", {**CHAT, "response_format": {"type": "yaml"}}, 400, "response_format.type"),
        ("/v1/chat/completions", {**CHAT, "response_format": {"type": "text", "schema": {}}}, 400, "response_format.schema"),
        ("/v1/completions", {"prompt": "a", "response_format": FORM_WITH_MORE}, 400, "response_format.json_schema.shape"),
        ("/v1/chat/completions", {**CHAT, **FORM}, 400, "response_format"),
        ("/v1/completions", {"prompt": "a", **FORM}, 400, "response_format"),
        ("/v1/chat/completions", {**CHAT, "tools": [tool_of(UNKEPT)], "tool_choice": "required"}, 400, "tools"),
        ("/v1/chat/completions", {**CHAT, "tools": [tool_of({"minProperties": 2})], "tool_choice": "required"}, 400, "tools"),
        ("/detokenize", {"tokens": [300]}, 400, "tokens"),
        ("/detokenize", {"tokens": [1], "special": True}, 400, "special"),
        ("/tokenize", {"content": 3}, 400, "content"),
        ("/tokenize", {"content": "\ud800"}, 400, "content"),
        ("/tokenize", {"content": "a", "prompt": "b"}, 400, "content"),
        ("/tokenize", {"content": "a", "add_special": True}, 400, "add_special"),
        ("/v1/completions", {"prompt": ["a"] * 321, "max_tokens": 1}, 400, "n"),
        ("/v1/completions", {"prompt": "a" * 2_000_000}, 400, "prompt"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a" * 2_000_000}]}, 400, "messages"),
        ("/v1/completions", {"prompt": "a", "stop": ["x" * 17000]}, 400, "stop"),
        ("/v1/completions", {"prompt": "a", "grammar": "start: start"}, 400, "grammar"),
        ("/v1/completions", b'{"prompt": "' + b"a" * 10_000_000 + b'"}', 413, None),
        ("/v1/embeddings", {"input": "a"}, 404, None),
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
        ("/v1/chat/completions", {**CHAT, "tools": [{"description": "x" * 2_000_000}]}, 400, "tools"),
        ("/tokenize", {"content": "a" * 2_000_000}, 400, "content"),
        ("/detokenize", {"tokens": [1] * 70_000}, 400, "tokens"),
    ],
)
def test_bad_requests_are_refused_in_openais_form(shared, path, data, status, param):
    found, body, _ = shared.send(path, data if isinstance(data, bytes) else json.dumps(data).encode())
    error = json.loads(body)["error"]
    assert (found, error["param"]) == (status, param)
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    assert shared.server.engine.live == 0


@pytest.mark.parametrize("field", [{"temperature": "x" * 10**6}, {"stop_token_ids": [-1] * 10**5}, {"x" * 10**6: 1}])
def test_an_error_does_not_send_the_request_back(shared, field):
    status, body, _ = shared.send("/v1/completions", json.dumps({"prompt": "a", **field}).encode())
    assert status == 400 and len(body) < 1000


@pytest.mark.parametrize(
    ("error", "param", "code", "message"),
    [
        (RequestError("op", "Add.ids", "finite", "nan"), "Add.ids", "invalid_value", "Add.ids must be finite; got nan"),
        (RequestError("op", "stop_strings", "short", "x; got"), "stop", "invalid_value", "stop must be short; got x; got"),
        (RequestError("op", "prompt", "short", "9", "too_long"), "prompt", "too_long", "prompt must be short; got 9"),
        (RequestError("op", "body", "of fields", "x", "unknown_field"), "x", "unknown_field", "unknown field 'x'"),
        (ConstraintError("a: b", "regex"), "regex", "constraint", "a: b"),
    ],
)
def test_errors_name_the_field_and_the_kind(error, param, code, message):
    for same in (error, copy.copy(error), pickle.loads(pickle.dumps(error))):
        told = http_error(same)
        assert (told.status, told.param, told.code, str(told)) == (400, param, code, message)


@pytest.mark.parametrize("capacity", [2000, 100])  # of the context; of the cache
def test_a_prompt_that_is_too_long_has_a_code(shared, capacity, monkeypatch):
    monkeypatch.setattr(Engine, "capacity", capacity)
    status, body, _ = shared.send("/v1/completions", json.dumps({"prompt": [1] * capacity}).encode())
    error = json.loads(body)["error"]
    assert (status, error["param"], error["code"]) == (400, "prompt", "context_length_exceeded")


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One server for requests that leave nothing behind."""
    import conftest

    every_byte = [*BYTE_OF, *(f"<{i}>" for i in range(41)), "<bos>", "<eos>", "<pad>"]
    write = conftest.tiny_file.__wrapped__(tmp_path_factory.mktemp("model"))
    path = write(kind="Q8_0", context=2000, **{"tokenizer.ggml.tokens": every_byte})
    made = Running(load(path))
    yield made
    made.close()


SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Bonn", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}


def test_json_of_a_schema_and_required_tools(shared):
    client = shared.client()
    asked = {"model": "", "messages": HELLO, "seed": 1, "max_tokens": 200}
    form = {"type": "json_schema", "json_schema": {"name": "stay", "schema": SCHEMA, "strict": True}}
    found = client.chat.completions.create(**asked, response_format=form)
    assert found.choices[0].finish_reason == "stop" and set(json.loads(found.choices[0].message.content)) == {"city", "days"}
    assert client.completions.create(model="", prompt="a", extra_body={"regex": "[xy]{4}"}).choices[0].text.strip("xy") == ""
    function = {"name": "weather", "description": "The weather", "parameters": SCHEMA}
    other = {"name": "time", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}
    tools = [{"type": "function", "function": each} for each in (function, other)]
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        [called] = client.chat.completions.create(**asked, tools=tools, tool_choice=choice).choices
        [call] = called.message.tool_calls
        assert called.finish_reason == "tool_calls" and called.message.content is None
        assert call.function.name in ("weather", "time")[: 1 if choice != "required" else 2]
        chunks = list(client.chat.completions.create(**asked, tools=tools, tool_choice=choice, stream=True))
        [streamed] = [part for chunk in chunks for c in chunk.choices for part in c.delta.tool_calls or ()]
        assert streamed.function == type(streamed.function)(**call.function.model_dump())
        assert chunks[-1].choices[0].finish_reason == "tool_calls"
        assert "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices) == ""
    answer = [{"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
              {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]  # fmt: skip
    plain = client.chat.completions.create(**{**asked, "messages": [*HELLO, *answer], "max_tokens": 3}, tools=tools)
    assert plain.choices[0].message.tool_calls is None


@pytest.mark.parametrize("asked", [{}, {"stream_options": {"include_usage": True}}])
def test_a_stream_that_tells_its_usage_has_null_before(shared, asked):
    """As OpenAI's reference says of include_usage; other streams have no such field."""
    for path, prompt in (("/v1/completions", {"prompt": "a"}), ("/v1/chat/completions", {"messages": HELLO})):
        data = json.dumps({**prompt, "max_tokens": 2, "stream": True, **asked}).encode()
        chunks = [json.loads(event[6:]) for event in shared.send(path, data)[1].split(b"\n\n")[:-2]]
        *others, last = chunks if asked else [*chunks, {"usage": True}]
        assert last["usage"] and all(("usage" in chunk) == bool(asked) and not chunk.get("usage") for chunk in others)


def test_allowed_tools_restrict_the_calls_but_not_the_prompt(shared):
    client = shared.client()
    tools = [{"type": "function", "function": {"name": name}} for name in ("stay", "time", "go")]
    asked = {"model": "", "messages": HELLO, "max_tokens": 99, "tools": tools}
    anything = client.chat.completions.create(**asked, seed=1, tool_choice="auto")
    for seed in range(4):
        found = client.chat.completions.create(**asked, seed=seed, tool_choice=allowed("required", "go", "time"))
        [call] = found.choices[0].message.tool_calls
        assert call.function.name in ("go", "time") and found.usage.prompt_tokens == anything.usage.prompt_tokens
        free = client.chat.completions.create(**asked, seed=seed, tool_choice=allowed("auto", "go"))
        assert free.usage.prompt_tokens == anything.usage.prompt_tokens
        assert all(call.function.name == "go" for call in free.choices[0].message.tool_calls or ())
    for name, calls in (("go", 1), ("time", 0)):
        written = rf'<tool_call>\{{"name":"{name}","arguments":\{{\}}\}}</tool_call>'
        given = {**asked, "tool_choice": allowed("auto", "go"), "extra_body": {"regex": written}}
        [choice] = client.chat.completions.create(**given).choices
        assert len(choice.message.tool_calls or ()) == calls
        assert choice.finish_reason == ("tool_calls" if calls else "stop") and bool(choice.message.content) != bool(calls)


def test_a_response_format_beside_tools_is_that_of_the_answer(shared):
    form = {"type": "json_schema", "json_schema": {"name": "stay", "schema": SCHEMA, "strict": True}}
    asked = {"model": "", "messages": HELLO, "max_tokens": 400, "response_format": form}
    tools = [{"type": "function", "function": {"name": "time"}}]
    asked["parallel_tool_calls"] = False
    [begin] = shared.server.model.tokenizer.encode("<")
    for bias, reason in ((-100, "stop"), (100, "tool_calls")):
        [choice] = shared.client().chat.completions.create(**asked, tools=tools, logit_bias={begin: bias}).choices
        assert choice.finish_reason == reason
        if reason == "stop":
            assert set(json.loads(choice.message.content)) == {"city", "days"} and choice.message.tool_calls is None
    [choice] = shared.client().chat.completions.create(**asked, tools=tools, tool_choice="required").choices
    assert choice.finish_reason == "tool_calls"


def test_the_official_stream_helper_tells_when_a_call_is_complete(shared):
    """It does so with the chunk after the call's last: the end of a message must have one of its own."""
    tools = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA, "strict": True}}]
    asked = {"model": "", "messages": HELLO, "seed": 1, "max_tokens": 200, "logprobs": True}
    with shared.client().chat.completions.stream(**asked, tools=tools, tool_choice="required") as stream:
        found = {event.type: event for event in stream}
    done = found["tool_calls.function.arguments.done"]
    assert done.name == "weather" and set(json.loads(done.arguments)) == {"city", "days"} == set(done.parsed_arguments)
    choice = stream.get_final_completion().choices[0]
    assert choice.finish_reason == "tool_calls" and found["logprobs.content.done"].content == choice.logprobs.content


def test_a_function_without_parameters_has_no_arguments(shared):
    """As OpenAI's reference says of `parameters`; such a call may come back with no arguments at all."""
    tools = [{"type": "function", "function": {"name": "time"}}]
    asked = {"model": "", "max_tokens": 99, "tools": tools, "tool_choice": "required", "parallel_tool_calls": False}
    [choice] = shared.client().chat.completions.create(messages=HELLO, **asked).choices
    [call] = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls" and json.loads(call.function.arguments) == {}
    back = {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "time", "arguments": ""}}]}
    assert shared.client().chat.completions.create(messages=[*HELLO, back], model="", max_tokens=1).choices


@pytest.mark.parametrize("more", [{}, {"type": ["null", "object"]}, {"anyOf": [{"required": ["a"]}, {"enum": [1, None]}]}])
def test_arguments_are_an_object_whatever_their_schema_allows(shared, more):
    """Without a type a schema allows numbers, too; a required call that has one is none."""
    parameters = {"properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False, **more}
    asked = {"model": "", "max_tokens": 99, "tools": [tool_of(parameters)], "tool_choice": "required"}
    for seed in range(5):
        [choice] = shared.client().chat.completions.create(messages=HELLO, seed=seed, **asked).choices
        [call] = choice.message.tool_calls
        assert json.loads(call.function.arguments)["a"] in (1, 2)


def test_a_call_that_begins_with_a_control_token_is_read(tiny_file):
    """A template of Mistral's kind, and a model that is made to prefer [TOOL_CALLS] as one token."""
    names = [*BYTE_OF, *(f"<{i}>" for i in range(41)), "<bos>", "<eos>", "[TOOL_CALLS]"]
    path = tiny_file(kind="Q8_0", context=400, **{"tokenizer.ggml.tokens": names})
    running = Running(ds.load(path, chat_template="{# [TOOL_CALLS] #}{% if tools %}tools;{% endif %}" + TEMPLATE))
    try:
        asked = {"model": "", "messages": HELLO, "seed": 1, "max_tokens": 200, "logit_bias": {"299": 100}}
        tools = [{"type": "function", "function": {"name": "stay", "parameters": SCHEMA}}]
        for stream in (False, True):
            found = running.client().chat.completions.create(**asked, tools=tools, tool_choice="required", stream=stream)
            parts = [chunk.choices[0].delta for chunk in found] if stream else [found.choices[0].message]
            [call] = [call for part in parts for call in part.tool_calls or ()]
            assert set(json.loads(call.function.arguments)) == {"city", "days"} and not any(part.content for part in parts)
        [row] = running.server.engine.submit([1], ds.SamplingParams(seed=1, max_new_tokens=2, logit_bias={299: 100.0})).rows
        wait_until(lambda: row.reason)
        assert row.text.text == ""  # nobody else sees it
    finally:
        running.close()


def test_messages_as_clients_send_them_back(tiny_file):
    """A refusal in parts or in place of a content, and an empty list of calls, which templates would begin to write."""
    template = "{% for m in messages %}{{ m.content }}{% if m.tool_calls is defined %}[CALLS]{% endif %};{% endfor %}"
    running = Running(ds.load(tiny_file(kind="Q8_0", context=400), chat_template=template))
    try:
        for refused in ({"content": [{"type": "refusal", "refusal": "No."}]}, {"content": None, "refusal": "No."}):
            sent = [{"role": "assistant", **refused, "tool_calls": []}, *HELLO]
            found = running.client().chat.completions.create(model="", messages=sent, max_tokens=1)
            assert found.usage.prompt_tokens == len(running.server.model.tokenizer.encode("No.;hello;"))
    finally:
        running.close()


def test_reasoning_effort_is_the_templates(tiny_file):
    path = tiny_file(kind="Q8_0", context=400)
    running = Running(ds.load(path, chat_template="{{ reasoning_effort }}:{{ messages[0].content }}"))
    try:
        for given, expected in (
            ({"reasoning_effort": "high"}, "high:hello"),
            ({"reasoning_effort": "high", "chat_template_kwargs": {"reasoning_effort": "low"}}, "low:hello"),
            ({"reasoning_effort": None}, ":hello"),
        ):
            body = json.dumps({"messages": HELLO, "max_tokens": 1, **given}).encode()
            usage = json.loads(running.send("/v1/chat/completions", body)[1])["usage"]
            assert usage["prompt_tokens"] == len(running.server.model.tokenizer.encode(expected))
    finally:
        running.close()


def test_half_a_surrogate_pair_in_a_call_is_answered(shared):
    tools = [{"type": "function", "function": {"name": "f"}}]
    text = r'<tool_call>\{"name":"f","arguments":\{"a":"\\ud800"\}\}</tool_call>'
    asked = {"model": "", "messages": HELLO, "max_tokens": 99, "tools": tools, "extra_body": {"regex": text}}
    [choice] = shared.client().chat.completions.create(**asked).choices
    assert choice.finish_reason == "tool_calls"


def test_offsets_are_those_of_the_text(shared):
    asked = {"model": "", "prompt": "a", "logprobs": 0, "max_tokens": 99, "extra_body": {"regex": "x🦒y"}}
    [choice] = shared.client().completions.create(**asked).choices
    assert choice.text == "x🦒y" and choice.logprobs.text_offset[:6] == [0, 1, 1, 1, 1, 2]


def test_what_is_not_installed_is_told(shared, monkeypatch):
    """The extra `serve` has no torch, which watermarks need."""
    monkeypatch.setitem(sys.modules, "torch", None)
    status, body, _ = shared.send("/v1/completions", b'{"prompt": "a", "watermarking_config": {}}')
    error = json.loads(body)["error"]
    assert (status, error["code"]) == (400, "not_installed") and error["message"].endswith("pip install 'decodestep[torch]'")


def test_parts_of_characters_have_names_of_their_own(shared):
    """A vocabulary of bytes: the most likely tokens are as many as asked, and none hides another."""
    asked = {"model": "", "prompt": "a", "logprobs": 90, "max_tokens": 99, "extra_body": {"regex": "x🦒"}}
    found = shared.client().completions.create(**asked).choices[0].logprobs
    assert found.tokens[:5] == ["x", r"bytes:\xf0", r"bytes:\x9f", r"bytes:\xa6", r"bytes:\x92"]
    assert [len(top) for top in found.top_logprobs] == [90] * len(found.tokens)
    for token, logprob, top in zip(found.tokens, found.token_logprobs, found.top_logprobs, strict=True):
        assert top.get(token, logprob) == logprob


def test_a_penalty_beyond_the_floats_is_answered(shared):
    body = {"prompt": [5] * 60, "dry_multiplier": 1e308, "dry_base": 1e308, "max_tokens": 3}
    assert shared.send("/v1/completions", json.dumps(body).encode())[0] == 200


def test_prompts_of_a_costly_constraint_are_few(shared, monkeypatch):
    monkeypatch.setattr("decodestep.serving.answer.COMPILE_SECONDS", 0.0)
    for body, status in (({"prompt": ["a", "b"], "regex": "[ab]{3}"}, 400), ({"prompt": ["a", "b"]}, 200)):
        assert shared.send("/v1/completions", json.dumps({**body, "max_tokens": 1}).encode())[0] == status
    wait_until(lambda: shared.server.engine.live == 0)


def test_other_methods_types_and_sites_are_refused(shared):
    status, _, headers = shared.send("/v1/completions", None, "GET")
    assert status == 405 and headers["allow"] == "POST"
    assert shared.send("/v1/completions", b"{}", content_type="text/plain")[0] == 415
    assert shared.send("/v1/completions", b'{"prompt": "a"}', origin="http://evil.example")[0] == 403
    assert shared.send("/v1/completions", b'{"prompt": "a"}', origin=f"http://127.0.0.1:{shared.port}")[0] == 200
    _, body, headers = shared.send("/", None, "GET", origin="http://evil.example")
    assert b"<title>" in body and "default-src 'none'" in headers["content-security-policy"]
    assert "access-control-allow-origin" not in headers


def test_tokens_there_and_back_health_and_metrics(shared):
    tokens = json.loads(shared.send("/tokenize", b'{"content": "ab"}')[1])
    assert tokens["count"] == len(tokens["tokens"]) == 2
    assert json.loads(shared.send("/detokenize", json.dumps(tokens).encode())[1])["content"] == "ab"
    control = shared.server.model.tokenizer.token(min(shared.server.model.tokenizer.special))
    tokens = json.loads(shared.send("/tokenize", json.dumps({"content": f"a{control}b"}).encode())[1])
    assert tokens["count"] == 3
    assert json.loads(shared.send("/detokenize", json.dumps(tokens).encode())[1])["content"] == f"a{control}b"
    assert json.loads(shared.send("/health", None, "GET")[1])["status"] == "ok"
    shared.send("/v1/completions", b'{"prompt": "a", "max_tokens": 3, "ignore_eos": true}')
    text = shared.send("/metrics", None, "GET")[1].decode()
    assert re.search(r"decodestep_completion_tokens_total ([3-9]|\d\d)", text) and "decodestep_cache_pages_held 0.0" in text


def test_requests_need_one_of_the_keys(tiny_file):
    running = Running(load(tiny_file()), keys=["alpha", "beta", "clé à"])
    try:
        client = post(running.port, b'{"prompt": "a", "max_tokens": 1}', authorization="Bearer clé à")  # in UTF-8
        assert client.recv(99).startswith(b"HTTP/1.1 200")
        client.close()
        assert running.client("beta").completions.create(model="", prompt="a", max_tokens=1).usage.prompt_tokens == 1
        with pytest.raises(openai.AuthenticationError):
            running.client("gamma").models.list()
        assert running.send("/metrics", None, "GET")[0] == 401 and running.send("/health", None, "GET")[0] == 200
        for given, status in (("bearer alpha", 200), ("Bearer  alpha ", 200), ("Basic alpha", 401), ("alpha", 401)):
            assert running.send("/v1/models", None, "GET", authorization=given)[0] == status
    finally:
        running.close()


def post(port, data, **headers):
    """A request over a socket of its own."""
    client = socket.create_connection(("127.0.0.1", port), timeout=60)
    given = {"host": "x", "content-type": "application/json", "content-length": len(data), **headers}
    head = ["POST /v1/completions HTTP/1.1", *(f"{name}: {value}" for name, value in given.items()), "", ""]
    client.sendall("\r\n".join(head).encode() + data)
    return client


def start(running, **fields):
    """A streaming request, after its first bytes."""
    data = json.dumps({"prompt": "ab", "stream": True, "ignore_eos": True, "max_tokens": 390, **fields}).encode()
    client = post(running.port, data)
    client.recv(10)
    return client


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_vanishes_frees_its_rows_and_nobody_else_notices(running, stream, monkeypatch):
    engine, gate = running.server.engine, threading.Event()
    forward = engine.model.decoder.logits
    monkeypatch.setattr(engine.model.decoder, "logits", lambda *a: (gate.wait(0.01), forward(*a))[1])
    if stream:
        gone = start(running)
    else:
        gone = socket.create_connection(("127.0.0.1", running.port))
        data = b'{"prompt": "ab", "ignore_eos": true, "max_tokens": 390}'
        gone.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
                     % len(data) + data)  # fmt: skip
    stays = start(running, seed=3)
    wait_until(lambda: engine.running == 2)
    gone.close()
    wait_until(lambda: engine.live == 1)
    gate.set()
    received = b""
    while b"[DONE]" not in received:
        received += stays.recv(2**16)
    chunks = re.findall(rb'data: (\{.*"text_completion".*\})', received)
    text = "".join(json.loads(chunk)["choices"][0]["text"] for chunk in chunks)
    [alone] = ds.generate(engine.model, ["ab"], ds.SamplingParams(max_new_tokens=390, seed=3, ignore_eos=True))
    assert alone.text.endswith(text) and text
    stays.close()


def counted(running):
    """The server's counters, by name and labels."""
    lines = running.send("/metrics", None, "GET")[1].decode().splitlines()
    return {name: float(value) for line in lines if line[0] != "#" for name, value in [line.rsplit(" ", 1)]}


@pytest.mark.parametrize("stream", [True, False])
def test_metrics_and_log_tell_of_a_client_that_vanished(running, stream, caplog):
    caplog.set_level("INFO")
    body = {"prompt": "ab", "stream": stream, "ignore_eos": True, "max_tokens": 390, "n": 2}
    client = post(running.port, json.dumps(body).encode())
    wait_until(lambda: running.server.engine.passes > 3)
    client.close()
    wait_until(lambda: running.server.engine.live == 0)
    wait_until(lambda: "ended_by" in caplog.text)
    found = counted(running)
    entry = json.loads(caplog.messages[-1])
    assert found["decodestep_prompt_tokens_total"] == entry["prompt_tokens"] == 2
    assert found["decodestep_completion_tokens_total"] == entry["completion_tokens"] > 3
    ended = {reason: entry["ended_by"].count(reason) for reason in entry["ended_by"]}
    assert {reason: found[f'decodestep_completions_total{{reason="{reason}"}}'] for reason in ended} == ended


def test_metrics_count_what_is_sent_at_once(running):
    data = b'{"prompt": "ab", "stream": true, "ignore_eos": true, "max_tokens": 5, "n": 6}'
    running.send("/v1/completions", data)
    assert counted(running)['decodestep_completions_total{reason="length"}'] == 6


def test_a_client_that_vanishes_while_it_sends_is_no_failure_of_the_server(running, caplog):
    client = socket.create_connection(("127.0.0.1", running.port))
    client.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{")
    client.close()
    wait_until(lambda: b'status="499"' in running.send("/metrics", None, "GET")[1])
    assert b'status="500"' not in running.send("/metrics", None, "GET")[1] and "a request failed" not in caplog.text


@pytest.mark.parametrize(
    "asked", [{}, {"stream": True}, {"regex": "(a{1000}){1000}"}, {"regex": "(a{1000}){1000}", "stream": True}]
)
def test_an_answered_request_leaves_nothing_to_the_garbage_collector(running, asked):
    """A row may have 100 MB of a constraint's states, of which the collector knows nothing."""
    gc.collect()
    gc.disable()
    try:
        status, _, _ = running.send("/v1/completions", json.dumps({"prompt": "a", "max_tokens": 99, **asked}).encode())
        assert status == (400 if set(asked) == {"regex"} else 200)
        wait_until(lambda: not any(isinstance(found, EngineRequest) for found in gc.get_objects()))
    finally:
        gc.enable()


def test_a_full_queue_is_429_and_says_when_to_come_again(running, monkeypatch):
    gate = threading.Event()
    forward = running.server.model.decoder.logits
    monkeypatch.setattr(running.server.model.decoder, "logits", lambda *a: (gate.wait(60), forward(*a))[1])
    data = json.dumps({"prompt": "a", "n": 12, "max_tokens": 3, "seed": 1}).encode()
    first = threading.Thread(target=running.send, args=("/v1/completions", data))
    first.start()
    wait_until(lambda: running.server.engine.live == 12)
    status, body, headers = running.send("/v1/completions", b'{"prompt": "a"}')
    gate.set()
    first.join()
    assert status == 429 and int(headers["retry-after"]) >= 1 and json.loads(body)["error"]["code"] == "queue_full"


def test_a_client_that_reads_nothing_is_dropped(running, monkeypatch):
    monkeypatch.setattr(event_stream, "SEND_SECONDS", 0.05)
    monkeypatch.setattr(uvicorn.protocols.http.flow_control, "HIGH_WATER_LIMIT", 1)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    client.connect(("127.0.0.1", running.port))
    data = b'{"prompt": "a", "stream": true, "ignore_eos": true, "max_tokens": 390, "logprobs": 100, "n": 8, "seed": 1}'
    client.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
                   % len(data) + data)  # fmt: skip
    wait_until(lambda: running.server.engine.live == 8)
    wait_until(lambda: running.server.engine.live == 0)
    client.close()


def test_a_client_that_waits_for_its_first_token_is_not_dropped(running, monkeypatch):
    monkeypatch.setattr(event_stream, "SEND_SECONDS", 0.05)
    gate, forward = threading.Event(), running.server.model.decoder.logits
    monkeypatch.setattr(running.server.model.decoder, "logits", lambda *a: (gate.wait(0.5), forward(*a))[1])
    status, body, _ = running.send("/v1/completions", b'{"prompt": "a", "stream": true, "max_tokens": 1, "seed": 1}')
    assert status == 200 and body.endswith(b"[DONE]\n\n")


def test_a_stream_that_fails_inside_the_server_is_in_its_log(running, monkeypatch, caplog):
    monkeypatch.setattr(Choice, "chunk", lambda *a: 1 // 0)
    client = post(running.port, b'{"prompt": "a", "stream": true, "max_tokens": 1}')
    received = b""
    with suppress(ConnectionError):
        while piece := client.recv(2**16):
            received += piece
    client.close()
    assert received.startswith(b"HTTP/1.1 200") and b"[DONE]" not in received
    assert "ZeroDivisionError" in caplog.text
    wait_until(lambda: running.server.engine.live == 0)


def test_the_command_listens_serves_and_stops(tiny_file, tmp_path):
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE)
    path = tiny_file(kind="Q8_0", context=400)
    command = [sys.executable, "-m", "decodestep", "serve", str(path), "--port", "0", "--chat-template", str(template)]
    with processes.started([*command, "--grace", "0.1"]) as process:
        port = next(int(m[1]) for line in process.stderr if (m := re.search(r"listening on http://127.0.0.1:(\d+)", line)))
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="x", max_retries=0)
        alone = ds.generate(load(path), HELLO, ds.SamplingParams(seed=1, max_new_tokens=5))[0]
        found = client.chat.completions.create(model="", messages=HELLO, seed=1, max_tokens=5)
        assert found.choices[0].message.content == alone.text
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 0 and err.splitlines()[-1] == "decodestep: stopped" and "hello" not in err


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """The port of the command, listening."""
    import conftest

    path = conftest.tiny_file.__wrapped__(tmp_path_factory.mktemp("model"))(kind="Q8_0", context=400)
    with processes.started([sys.executable, "-m", "decodestep", "serve", str(path), "--port", "0"]) as process:
        yield next(int(m[1]) for line in process.stderr if (m := re.search(r"listening on http://127.0.0.1:(\d+)", line)))


def test_a_page_that_dns_leads_here_is_refused(tiny_file):
    """It names the server as its own site, so that its origin is no other one."""
    running = Running(load(tiny_file(kind="Q8_0", context=400)), hosts=["here.example"])
    try:
        for path, data in (("/", None), ("/metrics", None), ("/v1/completions", b'{"prompt": "a", "max_tokens": 1}')):
            for name in (
                "LocalHost",
                "127.0.0.1",
                "[::1]",
                "box",
                "Here.example",
                "evil.example",
                "localhost.evil.example",
                "[::1",
                "localhost@evil.example",
            ):
                named = {"host": f"{name}:{running.port}", "origin": f"http://{name}:{running.port}"}
                status, body, _ = running.send(path, data, "POST" if data else "GET", **named)
                assert status == (403 if "evil" in name or name == "[::1" else 200)
                assert status == 200 or json.loads(body)["error"]["code"] == "host"
    finally:
        running.close()


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


def test_a_request_that_offers_http_2_is_answered(command):
    """As Java's HttpClient sends it: https://docs.oracle.com/en/java/javase/21/docs/api/java.net.http, version HTTP_2."""
    client = post(command, b'{"prompt": "a", "max_tokens": 2}', connection="Upgrade, HTTP2-Settings", upgrade="h2c")
    assert client.recv(99).startswith(b"HTTP/1.1 200")
    client.close()


@pytest.mark.parametrize("start", [b"GET / HTTP/1.1\r\nx: ", b"GET /"])
def test_a_head_without_end_is_refused(command, start):
    client = socket.create_connection(("127.0.0.1", command), timeout=30)
    received = b""
    with suppress(ConnectionError):  # it may close before all has been sent
        client.sendall(start + b"y" * 2**20)
        received = client.recv(99)
        while client.recv(2**16):  # to its end: the server keeps no more of it
            pass
    assert received[:12] in (b"", b"HTTP/1.1 400")
    client.close()


def test_requests_that_come_while_it_stops_get_503(tiny_file):
    path = tiny_file(kind="Q8_0", context=4000)
    command = [sys.executable, "-m", "decodestep", "serve", str(path), "--port", "0", "--grace", "2"]
    with processes.started(command) as process:
        port = next(int(m[1]) for line in process.stderr if (m := re.search(r"listening on http://127.0.0.1:(\d+)", line)))
        body = {"prompt": "ab", "stream": True, "ignore_eos": True, "max_tokens": 3900}
        runs = post(port, json.dumps(body).encode())
        runs.recv(10)
        process.send_signal(signal.SIGTERM)
        next(line for line in process.stderr if "stopping" in line)
        late = post(port, b'{"prompt": "a"}')
        got = late.recv(99)
        runs.close()
        late.close()
        process.communicate(timeout=30)
    assert got.startswith(b"HTTP/1.1 503") and process.returncode == 0


def test_a_model_in_the_current_folder_has_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    named = {".": tmp_path.name, "..": tmp_path.parent.name, "a/b.gguf": "b", "SmolLM2": "SmolLM2", "folder/": "folder"}
    assert {path: serve._name_of(path) for path in named} == named


def test_rows_finish_where_nobody_reads_the_log(tiny_file):
    path = tiny_file(kind="Q8_0", context=4000)
    with processes.started([sys.executable, "-m", "decodestep", "serve", str(path), "--port", "0"]) as process:
        port = next(int(m[1]) for line in process.stderr if (m := re.search(r"listening on http://127.0.0.1:(\d+)", line)))
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
    command = [sys.executable, "-m", "decodestep", "serve", str(path), "--port", "0"]
    with processes.started([*command, "--grace", "60" if signals == 2 else "0"]) as process:
        port = next(int(m[1]) for line in process.stderr if (m := re.search(r"listening on http://127.0.0.1:(\d+)", line)))
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
    told = [line for line in err.splitlines() if not line.startswith("{")]
    assert process.returncode == 0 and told == ["decodestep: stopped"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("ngram_len", 10**6), ("keys", [1] * 1000), ("sampling_table_size", 2**31 - 1), ("context_history_size", 2**31 - 1)],
)
def test_a_watermark_of_any_size_is_refused(name, value):
    config = {"ngram_len": 5, "keys": [1, 2], "sampling_table_size": 64, "sampling_table_seed": 0, "context_history_size": 8}
    completion_job({"prompt": [1, 2], "watermarking_config": config}, 16)
    with pytest.raises(HttpError, match=f"such that {name} is at most"):
        completion_job({"prompt": [1, 2], "watermarking_config": {**config, name: value}}, 16)
