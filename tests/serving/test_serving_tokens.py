"""/tokenize, /detokenize, /apply-template and /props, in the forms that clients of llama-server and vLLM send and read."""

from __future__ import annotations

import json

import pytest

import decodestep as ds
from support.servers import HELLO, TEMPLATE, LocalServer, load, tool


@pytest.fixture(scope="module")
def beginning(tmp_path_factory):
    """A server of a model whose texts begin with a token."""
    from support import tiny_gguf_files

    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    tiny_gguf_files.write(path, kind="Q8_0", context=400, **{"tokenizer.ggml.add_bos_token": True})
    with LocalServer(load(path)) as made:
        yield made


def tokens(server, **asked):
    status, body = server.send_json("/tokenize", asked)
    assert status == 200, body
    return body["tokens"]


def test_a_beginning_token_is_added_as_each_server_does_it(beginning):
    """llama-server adds none to a content unless asked; vLLM adds it to a prompt unless asked not to."""
    bos = beginning.model.tokenizer.bos_token_id
    assert tokens(beginning, prompt="ab") == [bos, *tokens(beginning, content="ab")] == beginning.model.tokenizer.encode("ab")
    for name in ("add_special", "add_special_tokens"):
        for given in ({"content": "ab"}, {"prompt": "ab"}):
            assert tokens(beginning, **given, **{name: True}) == tokens(beginning, prompt="ab")
            assert tokens(beginning, **given, **{name: False}) == tokens(beginning, content="ab")


def test_control_tokens_are_parsed_unless_a_client_asks_for_text(beginning):
    tokenizer = beginning.model.tokenizer
    name = tokenizer.token(min(tokenizer.special))
    assert tokens(beginning, content=f"a{name}") == [*tokenizer.encode_plain("a"), min(tokenizer.special)]
    for parse in (True, None):
        assert tokens(beginning, content=name, parse_special=parse) == [min(tokenizer.special)]
    text = tokens(beginning, content=name, parse_special=False)
    assert not tokenizer.special & set(text) and tokenizer.decode(text) == name
    assert tokens(beginning, prompt=name, parse_special=False) == [tokenizer.bos_token_id, *text]


def test_pieces_are_texts_or_bytes(shared_server):
    found = tokens(shared_server, content="a🦒", with_pieces=True)
    assert found[0] == {"id": shared_server.model.tokenizer.encode("a")[0], "piece": "a"}
    assert [piece["piece"] for piece in found[1:]] == [[byte] for byte in "🦒".encode()]
    assert [piece["id"] for piece in found] == tokens(shared_server, content="a🦒")


def test_conversations_are_tokenized_as_they_are_answered(shared_server):
    tools = {"tools": [tool("f")], "tool_choice": "auto"}
    for asked in ({}, tools, {"add_generation_prompt": False}, {"chat_template_kwargs": {"x": 1}}):
        _, found = shared_server.send_json("/tokenize", {"model": "", "messages": HELLO, **asked, "return_token_strs": True})
        _, answer = shared_server.send_json("/v1/chat/completions", {"messages": HELLO, **asked, "max_tokens": 1})
        assert found["count"] == len(found["tokens"]) == len(found["token_strs"]) == answer["usage"]["prompt_tokens"]
        assert found["max_model_len"] == shared_server.engine.capacity
        _, prompt = shared_server.send_json("/apply-template", {"messages": HELLO, **asked})
        assert shared_server.model.tokenizer.encode(prompt["prompt"]) == found["tokens"]
    assert shared_server.send_json("/apply-template", {"messages": HELLO})[1] == {"prompt": "user:hello;assistant:"}
    talk = [*HELLO, {"role": "assistant", "content": "ab"}]
    _, goes_on = shared_server.send_json("/apply-template", {"messages": talk, "continue_final_message": True})
    assert goes_on["prompt"] == "user:hello;assistant:ab"


@pytest.mark.parametrize(
    ("path", "asked", "param"),
    [
        ("/tokenize", {}, "content"),
        ("/tokenize", {"content": "a", "add_special": "yes"}, "add_special"),
        ("/tokenize", {"content": "a", "messages": HELLO}, "content"),
        ("/tokenize", {"messages": HELLO, "add_special": True}, "add_special"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"content": "a", "colour": 1}, "colour"),
        ("/tokenize", {"content": "a", "model": 5}, "model"),
        ("/apply-template", {}, "messages"),
        ("/apply-template", {"messages": [{"role": "king"}]}, "messages[0].role"),
        ("/apply-template", {"messages": [{"role": "user", "content": "\ud800"}]}, None),
        ("/apply-template", {"messages": [{"role": "user", "content": "a" * 2_000_000}]}, "messages"),
    ],
)
def test_wrong_requests_are_refused(shared_server, path, asked, param):
    status, body = shared_server.send_json(path, asked)
    if param is None:  # half a pair becomes a question mark, as nothing is tokenized
        assert (status, body) == (200, {"prompt": "user:?;assistant:"})
    else:
        assert (status, body["error"]["param"]) == (400, param)


def test_props_tell_what_clients_of_llama_server_read(tiny_file):
    path = tiny_file(kind="Q8_0", context=400, **{"general.sampling.temp": 0.3, "general.sampling.top_k": 7})
    with LocalServer(ds.load(path, chat_template=TEMPLATE), max_rows=3) as server:
        found = json.loads(server.send("/props", None, "GET")[1])
        assert found["default_generation_settings"]["n_ctx"] == server.engine.capacity and found["total_slots"] == 3
        params = found["default_generation_settings"]["params"]
        assert (round(params["temperature"], 6), params["top_k"], params["repeat_penalty"]) == (0.3, 7, 1)
        assert found["chat_template"] == TEMPLATE and found["model_path"] == str(path)
        assert (found["bos_token"], found["eos_token"]) == ("<bos>", "<eos>")
        assert found["modalities"] == {"vision": False, "audio": False} and found["build_info"].startswith("decodestep ")
        asked = {
            "prompt": "a",
            "max_tokens": 2,
            **{name: params[name] for name in ("repeat_penalty", "repeat_last_n", "n_predict")},
        }
        del asked["max_tokens"]
        assert server.send_json("/v1/completions", {**asked, **params, "n_predict": 2})[0] == 200  # what it tells, it takes
    with LocalServer(ds.load(path, chat_template=TEMPLATE), keys=["alpha"]) as server:
        assert server.send("/props", None, "GET")[0] == 401 and server.send("/v1/health", None, "GET")[0] == 200
