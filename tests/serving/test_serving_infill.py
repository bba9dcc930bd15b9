"""What stands between two texts: /infill and the suffix of a completion, of models that have tokens for that."""

from __future__ import annotations

import json

import pytest

import decodestep as ds
from decodestep.generation.infill import File, infill_ids
from decodestep.tokenizers.infill_tokens import InfillTokens, find_infill_tokens
from support.servers import LocalServer, byte_vocabulary, load

KEYS = {"fim_pre": 260, "fim_suf": 261, "fim_mid": 262, "fim_rep": 263, "fim_sep": 264, "fim_pad": 265}


def keys(*names):
    return {f"tokenizer.ggml.{name}_token_id": KEYS[name] for name in names}


@pytest.fixture
def infilling(tiny_file):
    kinds = {"tokenizer.ggml.token_type": [3 if i in (*KEYS.values(), 297, 298, 299) and i != 265 else 1 for i in range(300)]}
    path = tiny_file(kind="Q8_0", context=400, **byte_vocabulary("<pad>"), **keys(*KEYS), **kinds)
    with LocalServer(load(path)) as server:
        yield server


def between(*parts):
    return [id for part in parts for id in ([part] if isinstance(part, int) else part)]


def test_the_prompt_is_what_llama_cpp_makes_of_it(infilling, tiny_file):
    model, write = infilling.model, infilling.model.tokenizer.encode
    assert infill_ids(model, "ab", "c") == between(260, write("ab"), 261, write("c"), 262)
    assert infill_ids(model, "ab", "c", begun="d") == between(260, write("abd"), 261, write("c"), 262)
    files = [File("x.py", "1"), File("y.py", "2")]
    heads = between(263, write("myproject\n"), 264, write("x.py\n1"), 264, write("y.py\n2"), 264, write("filename\n"))
    assert infill_ids(model, "ab", "c", files) == between(heads, 260, write("ab"), 261, write("c"), 262)
    few = load(tiny_file(context=200, **byte_vocabulary("<pad>"), **keys("fim_pre", "fim_suf", "fim_mid")))
    beside = write("\n\n--- snippet ---\n\n1\n\n--- snippet ---\n\n2")
    assert infill_ids(few, "ab", "c", files) == between(beside, 260, write("ab"), 261, write("c"), 262)
    named = load(tiny_file(context=200, **byte_vocabulary("<pad>"), **keys(*KEYS), **{"tokenizer.ggml.add_bos_token": True}))
    assert infill_ids(named, "", "")[0] == named.tokenizer.bos_token_id
    spelled = infill_ids(model, "<pad>", "<bos>")  # which are text
    assert spelled == between(260, model.tokenizer.encode_plain("<pad>"), 261, model.tokenizer.encode_plain("<bos>"), 262)
    assert set(spelled) & model.tokenizer.special == {260, 261, 262}


def test_a_suffix_is_what_stands_after_the_completion(infilling):
    prompt = infill_ids(infilling.model, "ab", "cd")
    params = {"max_tokens": 9, "seed": 3}
    _, found = infilling.send_json("/v1/completions", {"prompt": "ab", "suffix": "cd", **params})
    ends = infilling.model.tokenizer.infill.ends
    [alone] = ds.generate(infilling.model, [prompt], ds.SamplingParams(**params, stop_token_ids=ends))
    assert found["choices"][0]["text"] == alone.text and found["usage"]["prompt_tokens"] == len(prompt)
    _, several = infilling.send_json("/v1/completions", {"prompt": ["x", "ab"], "suffix": "cd", **params})
    assert several["choices"][1]["text"] == alone.text


def test_infill_answers_as_llama_server_does(infilling):
    asked = {"input_prefix": "ab", "input_suffix": "c", "prompt": "d", "n_predict": 9, "seed": 3, "cache_prompt": True}
    extra = {"input_extra": [{"filename": "x", "text": "1"}, {"text": "2"}]}
    prompt = infill_ids(infilling.model, "ab", "c", [File("x", "1"), File("tmp", "2")], "d")
    params = ds.SamplingParams(max_new_tokens=9, seed=3, stop_token_ids=infilling.model.tokenizer.infill.ends)
    [alone] = ds.generate(infilling.model, [prompt], params)
    status, found = infilling.send_json("/infill", {**asked, **extra})
    assert status == 200 and found["content"] == alone.text and found["stop"] is True
    assert (found["tokens_evaluated"], found["tokens_predicted"]) == (len(prompt), len(alone.token_ids))
    assert found["stop_type"] == "limit" and found["model"] == "tiny"
    data = infilling.send("/infill", json.dumps({**asked, **extra, "stream": True}).encode())[1].decode()
    events = [json.loads(event.removeprefix("data: ")) for event in data.split("\n\n") if event]
    assert "".join(event["content"] for event in events) == alone.text
    assert [event["stop"] for event in events] == [*[False] * (len(events) - 1), True]
    assert {**events[-1], "content": None, "tokens_cached": 0} == {**found, "content": None, "tokens_cached": 0}


def test_an_answer_ends_where_the_model_goes_on_to_another_file(infilling):
    for name, stop_type in (("fim_sep", "eos"), ("fim_rep", "eos"), ("fim_pad", "word")):  # the last is no control token
        asked = {"input_prefix": "a", "input_suffix": "b", "n_predict": 9, "allowed_token_ids": [KEYS[name]]}
        _, found = infilling.send_json("/infill", asked)
        assert (found["content"], found["stop_type"], found["tokens_predicted"]) == ("", stop_type, 1)
    _, found = infilling.send_json("/infill", {**asked, "allowed_token_ids": None, "regex": "xyz", "stop": ["y"]})
    assert (found["content"], found["stop_type"], found["stopping_word"]) == ("x", "word", "y")


@pytest.mark.parametrize(
    ("path", "asked", "param"),
    [
        ("/infill", {"input_prefix": 5}, "input_prefix"),
        ("/infill", {"input_suffix": None}, "input_suffix"),
        ("/infill", {"prompt": [1]}, "prompt"),
        ("/infill", {"input_extra": {}}, "input_extra"),
        ("/infill", {"input_extra": [{"filename": 5, "text": "a"}]}, "input_extra"),
        ("/infill", {"input_extra": [{"filename": "a", "text": None}]}, "input_extra"),
        ("/infill", {"input_extra": ["a"]}, "input_extra"),
        ("/infill", {"messages": []}, "messages"),
        ("/infill", {"n": 2}, "n"),
        ("/infill", {"colour": 2}, "colour"),
        ("/infill", {"stream": "yes"}, "stream"),
        ("/infill", {"input_prefix": "\ud800"}, "input_prefix"),
        ("/infill", {"input_extra": [{"text": "a" * 2_000_000}]}, "input_prefix"),
        ("/v1/completions", {"prompt": "a", "suffix": "b", "echo": True}, "suffix"),
        ("/v1/completions", {"prompt": [1], "suffix": "b"}, "suffix"),
        ("/v1/completions", {"prompt": "a", "suffix": 5}, "suffix"),
    ],
)
def test_wrong_requests_are_refused(infilling, path, asked, param):
    status, body = infilling.send_json(path, asked)
    assert (status, body["error"]["param"]) == (400, param)


@pytest.mark.parametrize(("path", "param"), [("/infill", "input_suffix"), ("/v1/completions", "suffix")])
def test_a_model_without_such_tokens_is_refused_by_name(shared_server, path, param):
    asked = {"input_prefix": "a", "input_suffix": "b"} if path == "/infill" else {"prompt": "a", "suffix": "b"}
    status, body = shared_server.send_json(path, asked)
    assert (status, body["error"]["param"]) == (400, param) and "no tokens for what stands between" in body["error"]["message"]
    assert shared_server.send_json("/v1/completions", {"prompt": "a", "suffix": "", "max_tokens": 1})[0] == 200


def test_the_tokens_are_known_by_their_keys_and_their_spellings():
    tokens = ["a", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>", "<fim_prefix>"]
    added = range(1, 6)
    assert find_infill_tokens(tokens, added, {}) == InfillTokens(1, 2, 3, file=4)
    assert find_infill_tokens(tokens, added, {"prefix": 5}) == InfillTokens(5, 2, 3, file=4)
    assert find_infill_tokens(tokens, {1, 2, 4}, {}) is None  # a piece of a word is no such token
    assert find_infill_tokens(tokens, (), {"prefix": 1, "suffix": 2, "middle": 0}) == InfillTokens(1, 2, 0)
