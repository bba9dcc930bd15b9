"""OpenAI's interface through the official client: the answers are those of `generate`, in OpenAI's form."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import openai
import pytest

import decodestep as ds
from decodestep.sampling.contradictions import LANGUAGES
from decodestep.serving.endpoints.chat_completions import chat_completion_job
from support.servers import HELLO, LocalServer, load, tool


def test_the_official_client_gets_the_answers_of_generate(server):
    model, client = server.model, server.client()
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


def test_a_seed_that_javascript_has_read_gives_its_answer_again(shared_server):
    """Its numbers are doubles."""

    def choices(**more):
        asked = {"prompt": "ab", "max_tokens": 9, **more}
        return json.loads(shared_server.send("/v1/completions", json.dumps(asked).encode())[1])["choices"]

    for seed in (7, -1, 2**64 - 1):
        found = choices(n=3, seed=seed)
        for choice in found:
            [again] = choices(seed=int(float(choice["seed"])))
            assert again["text"] == choice["text"]
    assert found[0]["seed"] == -1


def test_answers_without_chance_are_equal(server):
    """As in OpenAI's API, where n and a temperature of 0 go together."""
    asked = {"model": "", "messages": HELLO, "temperature": 0, "max_tokens": 9}
    [alone] = server.client().chat.completions.create(**asked).choices
    three = server.client().chat.completions.create(**asked, n=3)
    assert [choice.message.content for choice in three.choices] == [alone.message.content] * 3
    assert three.usage.completion_tokens == 27


def test_an_answer_that_cannot_go_on_is_no_complete_one(shared_server):
    """A client that finds "stop" parses the text."""
    asked = {"prompt": "a", "json_schema": {"type": "boolean"}, "allowed_token_ids": [0], "suppress_tokens": [0]}
    [choice] = json.loads(shared_server.send("/v1/completions", json.dumps(asked).encode())[1])["choices"]
    assert (choice["text"], choice["finish_reason"], choice["ended_by"]) == ("", "length", "no_candidate")


@pytest.mark.parametrize("asked", [{}, {"stream_options": {"include_usage": True}}])
def test_a_stream_that_tells_its_usage_has_null_before(shared_server, asked):
    """As OpenAI's reference says of include_usage; other streams have no such field."""
    for path, prompt in (("/v1/completions", {"prompt": "a"}), ("/v1/chat/completions", {"messages": HELLO})):
        data = json.dumps({**prompt, "max_tokens": 2, "stream": True, **asked}).encode()
        chunks = [json.loads(event[6:]) for event in shared_server.send(path, data)[1].split(b"\n\n")[:-2]]
        *others, last = chunks if asked else [*chunks, {"usage": True}]
        assert last["usage"] and all(("usage" in chunk) == bool(asked) and not chunk.get("usage") for chunk in others)


@pytest.mark.parametrize("n", [1, 2])
def test_a_stream_may_tell_its_usage_in_every_chunk(shared_server, n):
    for path, prompt in (("/v1/completions", {"prompt": "a"}), ("/v1/chat/completions", {"messages": HELLO})):
        asked = {"include_usage": True, "continuous_usage_stats": True, "include_obfuscation": None}
        data = {**prompt, "n": n, "max_tokens": 5, "ignore_eos": True, "stream": True, "stream_options": asked}
        events = shared_server.send(path, json.dumps(data).encode())[1].split(b"\n\n")[:-2]
        counts = [json.loads(event[6:])["usage"] for event in events]
        tokens = [count["completion_tokens"] for count in counts]
        assert tokens == sorted(tokens) and tokens[-1] == 5 * n
        assert "messages" in prompt or tokens == [*range(1, 5 * n + 1), 5 * n]  # part of a character has no chunk in a chat
        assert len({count["prompt_tokens"] for count in counts}) == 1


def test_defaults_of_what_only_generate_does_are_taken(shared_server):
    """As vLLM's clients send them."""
    given = {"length_penalty": 1.0, "early_stopping": False, "num_beams": 1, "skip_special_tokens": True}
    assert shared_server.send_json("/v1/completions", {"prompt": "a", "max_tokens": 1, **given})[0] == 200


def test_messages_as_clients_send_them_back(tiny_file):
    """A refusal in parts or in place of a content, and an empty list of calls, which templates would begin to write."""
    template = "{% for m in messages %}{{ m.content }}{% if m.tool_calls is defined %}[CALLS]{% endif %};{% endfor %}"
    with LocalServer(ds.load(tiny_file(kind="Q8_0", context=400), chat_template=template)) as server:
        for refused in ({"content": [{"type": "refusal", "refusal": "No."}]}, {"content": None, "refusal": "No."}):
            sent = [{"role": "assistant", **refused, "tool_calls": []}, *HELLO]
            found = server.client().chat.completions.create(model="", messages=sent, max_tokens=1)
            assert found.usage.prompt_tokens == len(server.model.tokenizer.encode("No.;hello;"))


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"response_format": {"type": "text"}}, {}),
        ({"response_format": {"type": "json_object"}}, {"json_schema": '{"type": "object"}'}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "description": "", "more": None}}},
            {"json_schema": "{}"},
        ),
        ({"regex": "a", "tools": [tool("f", strict=True)]}, {"regex": "a"}),  # which is the user's choice beside the tools
    ],
)
def test_constraints_of_a_chat(tiny_file, asked, expected):
    params = chat_completion_job(load(tiny_file(kind="Q8_0", context=400)), {"messages": HELLO, **asked}, 10**6).params
    assert {name: value for name in LANGUAGES if (value := getattr(params, name)) is not None} == expected


def test_developers_speak_as_the_system_and_parts_are_one_text(tiny_file):
    model = load(tiny_file(kind="Q8_0", context=400))
    parts = [{"type": "text", "text": text} for text in ("a", "b")]
    job = chat_completion_job(model, {"messages": [{"role": "developer", "content": parts}, *HELLO]}, 10**6)
    assert job.prompts == [model.tokenizer.encode("system:a\nb;user:hello;assistant:")]


def test_reasoning_effort_is_the_templates(tiny_file):
    path = tiny_file(kind="Q8_0", context=400)
    with LocalServer(ds.load(path, chat_template="{{ reasoning_effort }}:{{ messages[0].content }}")) as server:
        for given, expected in (
            ({"reasoning_effort": "high"}, "high:hello"),
            ({"reasoning_effort": "high", "chat_template_kwargs": {"reasoning_effort": "low"}}, "low:hello"),
            ({"reasoning_effort": None}, ":hello"),
        ):
            _, body = server.send_json("/v1/chat/completions", {"messages": HELLO, "max_tokens": 1, **given})
            assert body["usage"]["prompt_tokens"] == len(server.model.tokenizer.encode(expected))


def test_offsets_are_those_of_the_text(shared_server):
    asked = {"model": "", "prompt": "a", "logprobs": 0, "max_tokens": 99, "extra_body": {"regex": "x🦒y"}}
    [choice] = shared_server.client().completions.create(**asked).choices
    assert choice.text == "x🦒y" and choice.logprobs.text_offset[:6] == [0, 1, 1, 1, 1, 2]


@pytest.mark.parametrize("end", ["\n", "\r", "\x0b", "\x1c", "\x85", "\u2028", "\u2029"])
def test_an_event_is_a_line_whatever_ends_lines_in_its_text(shared_server, end):
    """To httpx's iter_lines, for example, whose lines are those of str.splitlines."""
    asked = {"prompt": "a", "regex": f"a{end}b", "max_tokens": 9, "stream": True}
    lines = shared_server.send("/v1/completions", json.dumps(asked).encode())[1].decode().splitlines()
    *events, done = [line.removeprefix("data: ") for line in lines if line]
    assert done == "[DONE]" and "".join(json.loads(event)["choices"][0]["text"] for event in events) == f"a{end}b"


def test_parts_of_characters_have_names_of_their_own(shared_server):
    """A vocabulary of bytes: the most likely tokens are as many as asked, and none hides another."""
    asked = {"model": "", "prompt": "a", "logprobs": 90, "max_tokens": 99, "extra_body": {"regex": "x🦒"}}
    found = shared_server.client().completions.create(**asked).choices[0].logprobs
    assert found.tokens[:5] == ["x", r"bytes:\xf0", r"bytes:\x9f", r"bytes:\xa6", r"bytes:\x92"]
    assert [len(top) for top in found.top_logprobs] == [90] * len(found.tokens)
    for token, logprob, top in zip(found.tokens, found.token_logprobs, found.top_logprobs, strict=True):
        assert top.get(token, logprob) == logprob


def test_a_penalty_beyond_the_floats_is_answered(shared_server):
    body = {"prompt": [5] * 60, "dry_multiplier": 1e308, "dry_base": 1e308, "max_tokens": 3}
    assert shared_server.send_json("/v1/completions", body)[0] == 200


def test_tokens_there_and_back(shared_server):
    tokenizer = shared_server.model.tokenizer
    for text, count in (("ab", 2), (f"a{tokenizer.token(min(tokenizer.special))}b", 3)):
        _, tokens = shared_server.send_json("/tokenize", {"content": text})
        assert tokens["count"] == len(tokens["tokens"]) == count
        assert shared_server.send_json("/detokenize", tokens)[1]["content"] == text


def test_a_path_may_end_with_a_slash(shared_server, tiny_file):
    """Clients put paths together from parts. They would not follow a redirection with a body."""
    for path in ("/v1/models", "/v1/models/tiny", "/health", "/metrics"):
        assert shared_server.send(f"{path}/", None, "GET")[0] == shared_server.send(path, None, "GET")[0] == 200
    assert json.loads(shared_server.send("/v1/models/", None, "GET")[1])["data"][0]["id"] == "tiny"
    assert shared_server.send("/v1/models/other/", None, "GET")[0] == shared_server.send("/health//", None, "GET")[0] == 404
    bodies = {"completions": {"prompt": "a"}, "chat/completions": {"messages": [{"role": "user", "content": "a"}]}}
    for path, body in bodies.items():
        assert shared_server.send_json(f"/v1/{path}/", {**body, "max_tokens": 1})[0] == 200
    assert shared_server.send_json("/tokenize/", {"content": "ab"}) == shared_server.send_json("/tokenize", {"content": "ab"})
    assert shared_server.send_json("/detokenize/", {"tokens": [1]})[0] == 200
    assert 'route="/v1/models",status="200"' in str(shared_server.metrics().keys())
    with LocalServer(load(tiny_file()), keys=["alpha"]) as server:
        assert server.send("/v1/models/", None, "GET")[0] == 401 and server.send("/health/", None, "GET")[0] == 200


def test_health_and_metrics(shared_server):
    assert json.loads(shared_server.send("/health", None, "GET")[1])["status"] == "ok"
    shared_server.send_json("/v1/completions", {"prompt": "a", "max_tokens": 3, "ignore_eos": True})
    shared_server.send("/v1/images/generations", b"{}")
    shared_server.send("/v1/completions", None, "GET")
    metrics = shared_server.metrics()
    for status in (404, 405):
        assert metrics[f'decodestep_requests_total{{route="other",status="{status}"}}'] >= 1
    for seconds in ("first_token", "request"):
        assert metrics[f"decodestep_{seconds}_seconds_count"] >= 1
    assert metrics["decodestep_completion_tokens_total"] >= 3 and metrics["decodestep_cache_pages_held"] == 0


def score(model, ids):
    """The log-probability of each token, and of the most likely one in its place; float64, from the library's logits."""
    logits = model.logits(ids).astype(np.float64)
    every = logits - logits.max(-1, keepdims=True)
    every -= np.log(np.exp(every).sum(-1, keepdims=True))
    return every[np.arange(len(ids) - 1), ids[1:]], every[:-1].max(-1)


@pytest.mark.parametrize("max_tokens", [0, 1, 3])
def test_echo_scores_the_prompts_whatever_runs_beside_them(server, max_tokens):
    """As clients such as lm-evaluation-harness ask: several prompts as ids, of which one is long and two begin alike."""
    prompts = [list(range(5, 200)), list(range(5, 60)), [7]]
    asked = {"model": "", "prompt": prompts, "temperature": 0, "logprobs": 1, "seed": 1234, "max_tokens": max_tokens}
    with ThreadPoolExecutor() as others:
        beside = others.submit(server.send_json, "/v1/completions", {"prompt": "ab", "max_tokens": 300, "ignore_eos": True})
        answers = [server.client().completions.create(**asked, echo=True) for _ in range(2)]
        assert beside.result()[0] == 200
    assert answers[0].choices == answers[1].choices
    plain = ds.generate(server.model, prompts, ds.SamplingParams(do_sample=False, max_new_tokens=max(1, max_tokens)))
    for choice, ids, alone in zip(answers[0].choices, prompts, plain, strict=True):
        found, length = choice.logprobs, len(ids)
        assert choice.finish_reason == "length" and choice.text.endswith(alone.text if max_tokens else "")
        assert found.token_logprobs[0] is None and found.top_logprobs[0] is None
        assert {len(values) for values in (found.tokens, found.token_logprobs, found.top_logprobs)} == {length + max_tokens}
        expected, most = score(server.model, ids)
        np.testing.assert_allclose(found.token_logprobs[1:length], expected, rtol=1e-6)
        np.testing.assert_allclose([max(top.values()) for top in found.top_logprobs[1:length]], most, rtol=1e-6)
        assert len(found.text_offset) == length + max_tokens
    usage = answers[0].usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (sum(map(len, prompts)), max_tokens * len(prompts))


def test_a_prompt_that_is_only_scored_may_fill_the_context(server):
    """As the last of a text's windows does; a completion needs room for a token."""
    ids = [token % 250 for token in range(server.model.config.context)]
    asked = {"prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 0}
    status, body = server.send_json("/v1/completions", asked)
    assert status == 200 and {**body["usage"], "prompt_tokens_details": None} == {
        "prompt_tokens": 400,
        "completion_tokens": 0,
        "total_tokens": 400,
        "prompt_tokens_details": None,
    }
    np.testing.assert_allclose(body["choices"][0]["logprobs"]["token_logprobs"][1:], score(server.model, ids)[0], rtol=1e-6)
    for more in ({"prompt": [*ids, 1]}, {"max_tokens": 1}):
        status, body = server.send_json("/v1/completions", {**asked, **more})
        assert (status, body["error"]["code"], body["error"]["param"]) == (400, "context_length_exceeded", "prompt")


def test_echo_begins_with_the_prompt_as_it_was_sent(shared_server):
    """Each token's offset is where its text is, also where the tokenizer reads a name as a control token."""
    tokenizer = shared_server.model.tokenizer
    control = tokenizer.token(min(tokenizer.special))
    for prompt in (f"x🦒{control}yz", tokenizer.encode(f"x🦒{control}yz")):
        asked = {"model": "", "prompt": prompt, "max_tokens": 9, "n": 2, "echo": True, "extra_body": {"regex": "ab"}}
        whole = shared_server.client().completions.create(**asked, logprobs=0)
        assert [choice.text for choice in whole.choices] == [f"x🦒{control}yzab"] * 2
        found = whole.choices[0].logprobs
        assert found.tokens == whole.choices[1].logprobs.tokens and found.tokens[0] == "x" and control in found.tokens
        for token, offset in zip(found.tokens, found.text_offset, strict=True):
            assert token.startswith("bytes:") or whole.choices[0].text[offset:].startswith(token) or token == "<eos>"
        texts, entries = ["", ""], [[], []]
        for chunk in shared_server.client().completions.create(**asked, logprobs=0, stream=True):
            for choice in chunk.choices:
                texts[choice.index] += choice.text
                entries[choice.index] += choice.logprobs.token_logprobs
        assert texts == [choice.text for choice in whole.choices]
        assert entries == [choice.logprobs.token_logprobs for choice in whole.choices]
        [without, _] = shared_server.client().completions.create(**asked).choices
        assert without.logprobs is None and without.text == texts[0]


def test_offsets_after_a_prompt_that_ends_within_a_character(shared_server):
    """The completion's text begins anew there."""
    ids = shared_server.model.tokenizer.encode("🦒")[:2]
    asked = {"model": "", "prompt": [ids], "max_tokens": 3, "echo": True, "logprobs": 0, "extra_body": {"regex": "ab"}}
    [choice] = shared_server.client().completions.create(**asked).choices
    assert choice.text == "\ufffdab" and choice.logprobs.text_offset == [0, 0, 1, 2, 3]


def test_usage_counts_the_tokens_of_a_prompt_that_did_not_run(server):
    client = server.client()
    prompt = [i % 290 for i in range(40)]
    used = [client.completions.create(model="tiny", prompt=prompt, max_tokens=1).usage for _ in range(2)]
    assert [one.prompt_tokens_details.cached_tokens for one in used] == [0, 32]  # two pages


def test_what_a_request_leaves_out_is_the_models(tiny_file):
    path = tiny_file(kind="Q8_0", context=400, **{"general.sampling.temp": 0.0})
    body = {"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 12, "seed": 3}
    texts = []
    for options in ({}, {"default_params": ds.SamplingParams()}):
        with LocalServer(load(path), max_rows=8, max_waiting=4, **options) as server:
            client = server.client()
            texts.append([client.completions.create(**body, **more).choices[0].text for more in ({}, {"temperature": 1})])
            greedy = client.completions.create(**body, temperature=0).choices[0].text
    assert texts[0] == [greedy, texts[1][0]]
    assert texts[1][0] == texts[1][1] != greedy


def test_a_chat_goes_on_with_its_last_message(server):
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "bcd"}]
    ids = server.model.chat_ids(talk, continue_final_message=True)
    answer = server.client().chat.completions.create(
        model="tiny", messages=talk, max_tokens=3, extra_body={"continue_final_message": True, "add_generation_prompt": False}
    )
    assert answer.usage.prompt_tokens == len(ids)
    with pytest.raises(openai.BadRequestError, match="add_generation_prompt must be false or omitted"):
        server.client().chat.completions.create(
            model="tiny", messages=talk, extra_body={"continue_final_message": True, "add_generation_prompt": True}
        )
