"""Thinking budgets in requests and of a server: how long the reasoning of a chat may be."""

from __future__ import annotations

import json

import pytest

import decodestep as ds
from support.servers import HELLO, LocalServer, byte_vocabulary, tool

TEMPLATE = "{# </think> #}{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}assistant:<think>"
LETTERS = range(ord("a") - 33, ord("z") - 32)  # tokens
ASKED = {"messages": HELLO, "max_tokens": 40, "seed": 1, "ignore_eos": True, "logit_bias": dict.fromkeys(map(str, LETTERS), 50)}
GRAMMARS = {"regex": "[a-z]+", "grammar": 'root ::= "a"', "json_schema": {"type": "object"}}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    from support import tiny_gguf_files

    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    tiny_gguf_files.write(path, kind="Q8_0", context=500, **byte_vocabulary("<think>"))
    return ds.load(path, chat_template=TEMPLATE)


@pytest.fixture(scope="module")
def server(model):
    with LocalServer(model) as made:
        yield made


@pytest.fixture(scope="module")
def limited(model):
    thinking = ds.SamplingParams(thinking_budget_tokens=4, thinking_budget_message="!")
    with LocalServer(model, thinking=thinking) as made:
        yield made


def ask(server, **fields):
    status, found = server.send_json("/v1/chat/completions", {**ASKED, **fields})
    assert status == 200, found
    return found["choices"][0]["message"], found["usage"]


@pytest.mark.parametrize("name", ["thinking_budget_tokens", "thinking_token_budget"])
def test_a_request_has_a_budget(server, name):
    for budget in (0, 1, 9):
        message, usage = ask(server, **{name: budget})
        assert len(message.get("reasoning_content", "")) == budget and len(message["content"]) == 40 - 8 - budget
        assert usage["completion_tokens"] == 40
    free, _ = ask(server)
    assert len(free["reasoning_content"]) == 40 and free["content"] is None
    assert ask(server, **{name: -1})[0] == free
    assert (
        ask(server, **{name: 3}, thinking_budget_message="So")[0]["reasoning_content"] == free["reasoning_content"][:3] + "So"
    )


def test_a_stream_has_the_same_answer(server):
    body = {**ASKED, "thinking_budget_tokens": 5, "stream": True}
    _, data, _ = server.send("/v1/chat/completions", json.dumps(body).encode())
    deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in data.decode().split("\n\n")[:-2]]
    whole, _ = ask(server, thinking_budget_tokens=5)
    for name in ("reasoning_content", "content"):
        assert "".join(delta.get(name) or "" for delta in deltas) == whole[name]


def test_a_server_has_a_budget_for_requests_without_one(limited, server):
    assert ask(limited)[0]["reasoning_content"] == ask(server)[0]["reasoning_content"][:4] + "!"
    assert ask(limited, thinking_budget_tokens=6)[0]["reasoning_content"][6:] == "!"
    assert ask(limited, thinking_budget_tokens=-1) == ask(server)
    assert ask(limited, thinking_budget_message="?")[0]["reasoning_content"][4:] == "?"
    status, found = limited.send_json("/v1/completions", {"prompt": "a", "max_tokens": 3})
    assert status == 200, found
    for language, value in GRAMMARS.items():  # which bind the reasoning too
        status, found = limited.send_json("/v1/chat/completions", {**ASKED, "ignore_eos": False, language: value})
        assert status == 200, found


def test_tools_have_a_budget_before_them(server):
    message, _ = ask(server, tools=[tool("go", parameters={"type": "object"})], thinking_budget_tokens=2)
    assert len(message["reasoning_content"]) == 2


@pytest.mark.parametrize("language", GRAMMARS)
def test_a_budget_beside_a_constraint_of_the_whole_text_is_refused(server, language):
    body = {**ASKED, "ignore_eos": False, "thinking_budget_tokens": 3, language: GRAMMARS[language]}
    status, found = server.send_json("/v1/chat/completions", body)
    assert status == 400 and found["error"]["param"] == "thinking_budget_tokens", found


@pytest.mark.parametrize(
    ("path", "prompt"), [("/v1/completions", {"prompt": "a"}), ("/v1/chat/completions", {"messages": HELLO})]
)
def test_wrong_budgets_are_refused_by_name(server, path, prompt):
    wrong = [3] if "prompt" in prompt else [-2, 1.5, "3", True]
    for budget in wrong:
        status, found = server.send_json(path, {**prompt, "thinking_budget_tokens": budget})
        assert status == 400 and found["error"]["param"] == "thinking_budget_tokens", found
