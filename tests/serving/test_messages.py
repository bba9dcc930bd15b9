"""Anthropic's Messages API: requests as conversations, and answers as blocks, whole and as events."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest

from decodestep.chat.partial_json import complete_part
from decodestep.serving import answer
from decodestep.serving.endpoints.messages import message_job
from decodestep.serving.endpoints.messages.request import read_chat
from decodestep.serving.errors import HttpError
from support.servers import HELLO, LocalServer, load, with_each_value_replaced

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Bonn", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"name": "weather", "description": "The weather", "input_schema": SCHEMA}
CALL = r'<tool_call>\{"name": "weather", "arguments": \{"city": "Rome"\}\}</tool_call>'
ASKED = {"model": "any", "max_tokens": 60, "messages": HELLO}


def ask(server, **fields):
    status, body = server.send_json("/v1/messages?beta=true", {**ASKED, **fields})
    assert status == 200, body
    return body


def stream(server, **fields):
    """The events of a stream, each checked to name its kind."""
    status, data, headers = server.send("/v1/messages", json.dumps({**ASKED, **fields, "stream": True}).encode())
    assert status == 200 and headers["content-type"].startswith("text/event-stream")
    events = []
    for text in data.decode().strip().split("\n\n"):
        name, _, line = text.partition("\n")
        events.append(json.loads(line.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def assembled(events):
    """The message that a stream's events make, as a client puts it together; checks their order."""
    assert [event["type"] for event in events[:1] + events[-2:]] == ["message_start", "message_delta", "message_stop"]
    message, inputs, open_ = events[0]["message"], {}, None
    assert message["content"] == [] and message["stop_reason"] is None and message["stop_sequence"] is None
    for event in events[1:-2]:
        kind, index = event["type"], event["index"]
        if kind == "content_block_start":
            assert open_ is None and index == len(message["content"])
            open_ = index
            message["content"].append(event["content_block"])
        elif kind == "content_block_stop":
            assert open_ == index
            open_ = None
        else:
            assert kind == "content_block_delta" and open_ == index
            delta, block = dict(event["delta"]), message["content"][index]
            changed = delta.pop("type")
            [(field, text)] = delta.items()
            if changed == "input_json_delta":
                inputs[index] = inputs.get(index, "") + text
            else:
                assert changed == {"text": "text_delta", "thinking": "thinking_delta", "signature": "signature_delta"}[field]
                block[field] += text
    for index, text in inputs.items():
        message["content"][index]["input"] = json.loads(text)
    end = events[-2]
    message["usage"] |= end["usage"]
    return {**message, **end["delta"]}


def same(server, **fields):
    """An answer that is the same whole and streamed, but for its ids."""
    fields = {"seed": 1, **fields}
    whole = ask(server, **fields)
    streamed = assembled(stream(server, **fields))
    for message in (whole, streamed):
        assert message.pop("id").startswith("msg_")
        for block in message["content"]:
            block.pop("id", None)
        usage = message["usage"]
        usage["input_tokens"] += usage.pop("cache_read_input_tokens")  # the second request finds the first one's prompt
    assert whole == streamed
    assert set(whole) == {"type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"}
    assert set(whole["usage"]) == {"input_tokens", "cache_creation_input_tokens", "output_tokens", "output_tokens_details"}
    return whole


def test_a_text_is_one_block(shared_server):
    found = same(shared_server, regex="[xy]{4}")
    [block] = found["content"]
    assert block["type"] == "text" and block["text"].strip("xy") == "" and len(block["text"]) == 4
    assert (found["stop_reason"], found["stop_sequence"], found["role"], found["model"]) == (
        "end_turn",
        None,
        "assistant",
        "tiny",
    )


@pytest.mark.parametrize(
    ("asked", "reason", "stop"),
    [
        ({"regex": "abc[xy]{9}", "stop_sequences": ["zz", "c"]}, "stop_sequence", "c"),
        ({"max_tokens": 3, "ignore_eos": True}, "max_tokens", None),
        ({"regex": "ab", "stop_sequences": ["a"]}, "stop_sequence", "a"),
        ({"regex": CALL, "tools": [WEATHER], "stop_sequences": ['"city"']}, "stop_sequence", '"city"'),  # nobody should run it
        ({"regex": CALL, "tools": [WEATHER], "stop_sequences": ["</tool_call>"], "max_tokens": 200}, "tool_use", None),
    ],
)
def test_reasons_to_stop(shared_server, asked, reason, stop):
    found = same(shared_server, **asked)
    assert (found["stop_reason"], found["stop_sequence"]) == (reason, stop)
    if stop == "a":
        assert found["content"] == []  # which has no empty block


def test_a_full_context_is_another_reason_to_stop(server):
    for asked in ({"max_tokens": None}, {"max_tokens": 10**6}):
        assert same(server, ignore_eos=True, **asked)["stop_reason"] == "model_context_window_exceeded"


def test_calls_are_blocks_of_their_own(shared_server):
    for choice in ({"type": "any"}, {"type": "tool", "name": "weather"}, {"type": "any", "disable_parallel_tool_use": True}):
        found = same(shared_server, tools=[WEATHER], tool_choice=choice, max_tokens=200)
        [block] = found["content"]
        assert (block["type"], block["name"], found["stop_reason"]) == ("tool_use", "weather", "tool_use")
        assert block["input"]["city"] in ("Bonn", "Rome")


def test_texts_between_calls_are_blocks_in_their_order(shared_server):
    found = same(shared_server, tools=[WEATHER], regex=f"First\\.{CALL}\nThen\\.{CALL}\nEnd", max_tokens=400)
    kinds = [block["type"] for block in found["content"]]
    assert kinds == ["text", "tool_use", "text", "tool_use", "text"]
    assert [block["text"] for block in found["content"][::2]] == ["First.", "Then.", "End"]
    assert [block["input"] for block in found["content"][1::2]] == [{"city": "Rome"}] * 2
    assert found["stop_reason"] == "tool_use"


def test_thinking_is_a_block_before_the_others(shared_server):
    found = same(shared_server, regex="<think>\nI think[.]\n</think>\n\nSo[.]", max_tokens=200)
    assert found["content"] == [
        {"type": "thinking", "thinking": "I think.", "signature": ""},
        {"type": "text", "text": "So."},
    ]
    events = stream(shared_server, regex="<think>\nI think[.]\n</think>\n\nSo[.]", max_tokens=200)
    deltas = [event["delta"]["type"] for event in events if event["type"] == "content_block_delta" and event["index"] == 0]
    assert deltas[-1] == "signature_delta" and deltas.count("signature_delta") == 1


def test_usage_counts_cached_tokens_apart(shared_server):
    asked = {"messages": [{"role": "user", "content": "a long message " * 20}], "max_tokens": 1}
    prompt = shared_server.send_json("/v1/messages/count_tokens", {"model": "any", "messages": asked["messages"]})[1]
    first, second = (ask(shared_server, **asked)["usage"] for _ in range(2))
    started = stream(shared_server, **asked)[0]["message"]["usage"]
    for usage in (first, second, started):
        assert usage["input_tokens"] + usage["cache_read_input_tokens"] == prompt["input_tokens"]
        assert usage["cache_creation_input_tokens"] == 0 and usage["output_tokens"] == 1
    assert second["cache_read_input_tokens"] == started["cache_read_input_tokens"] > 0 == second["cache_read_input_tokens"] % 16


def said(body):
    """The messages of a request, by their roles."""
    return [(message["role"], message["content"]) for message in read_chat({"messages": HELLO, **body}).messages]


def test_conversations(shared_server):
    blocks = [
        {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "b", "citations": None},
    ]
    assert said({"system": "Be brief."}) == [("system", "Be brief."), ("user", "hello")]
    assert said({"system": blocks, "messages": [{"role": "user", "content": blocks}]}) == [("system", "a\nb"), ("user", "a\nb")]
    for role in ("ctx", "msg", "user"):
        assert said({"messages": [{"role": role, "content": "a"}, {"role": "user", "content": "b"}]}) == [("user", "a\nb")]
    middle = [*HELLO, {"role": "system", "content": blocks}, {"role": "user", "content": "c"}]
    assert said({"messages": middle}) == [("user", "hello"), ("system", "a\nb"), ("user", "c")]
    prompt = message_job(shared_server.model, {**ASKED, "system": "S"}, 10**6).prompts
    assert prompt == [shared_server.model.tokenizer.encode("system:S;user:hello;assistant:")]


@pytest.mark.parametrize("checksum", ["00000", "abcde"])
def test_a_billing_header_is_left_out_of_the_prompt(checksum):
    header = f"x-anthropic-billing-header: cc_version=2.1; cc_entrypoint=cli; cch={checksum};"
    expected = [("system", "You are an agent."), ("user", "hello")]
    for system in (f"{header}\nYou are an agent.", [{"type": "text", "text": text} for text in (header, "You are an agent.")]):
        assert said({"system": system}) == expected
    assert said({"system": header}) == expected[1:]
    assert said({"system": f"Not at the beginning: {header}"})[0][1].endswith(f"{checksum};")


def test_calls_and_their_results():
    use = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Rome"}}
    results = [
        {
            "type": "tool_result",
            "tool_use_id": "toolu_1",
            "content": [{"type": "text", "text": "sun"}, {"type": "text", "text": "25"}],
        },
        {"type": "text", "text": "Well?"},
        {"type": "tool_result", "tool_use_id": "other", "is_error": True},
    ]
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "x"}
    answer = [thought, {"type": "redacted_thinking", "data": "y"}, {"type": "text", "text": "I look."}, use]
    chat = read_chat({"messages": [*HELLO, {"role": "assistant", "content": answer}, {"role": "user", "content": results}]})
    function = {"name": "weather", "arguments": {"city": "Rome"}}
    assert chat.messages[1:] == [
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Hm.",
            "tool_calls": [{"id": "toolu_1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "toolu_1", "content": "sun\n25", "name": "weather"},
        {"role": "tool", "tool_call_id": "other", "content": ""},
        {"role": "user", "content": "Well?"},
    ]
    alone = read_chat({"messages": [*HELLO, {"role": "assistant", "content": [use]}, {"role": "user", "content": results[:1]}]})
    assert [message["content"] for message in alone.messages] == ["hello", None, "sun\n25"]
    apart = [{"role": "assistant", "content": [thought, use]}, {"role": "assistant", "content": "And."}]
    merged = read_chat({"messages": [*HELLO, *apart, *HELLO]}).messages[1]
    assert merged["content"] == "And." and merged["reasoning_content"] == "Hm." and len(merged["tool_calls"]) == 1


def test_an_answer_comes_back_as_it_was(shared_server):
    """The loop of an agent: the content of an answer is sent back as it came, with the results of its calls."""
    first = ask(shared_server, tools=[WEATHER], regex=f"<think>\nHm\n</think>\n\nI look[.]{CALL}", max_tokens=300)
    result = {"type": "tool_result", "tool_use_id": first["content"][-1]["id"], "content": "sunny"}
    messages = [*HELLO, {"role": "assistant", "content": first["content"]}, {"role": "user", "content": [result]}]
    assert ask(shared_server, tools=[WEATHER], messages=messages, max_tokens=3)["type"] == "message"
    _, again, after = read_chat({"messages": messages}).messages
    assert again["reasoning_content"] == "Hm" and again["content"] == "I look."
    assert after["tool_call_id"] == again["tool_calls"][0]["id"]


def test_a_last_message_of_an_assistant_is_continued(tiny_file):
    model = load(tiny_file(kind="Q8_0", context=400))
    messages = [*HELLO, {"role": "assistant", "content": [{"type": "text", "text": "The answer is"}]}]
    job = message_job(model, {**ASKED, "messages": messages}, 10**6)
    assert job.prompts == [model.tokenizer.encode("user:hello;assistant:The answer is")]
    with LocalServer(model) as server:
        counted = server.send_json("/v1/messages/count_tokens", {"messages": messages})[1]["input_tokens"]
        assert counted == len(job.prompts[0]) == ask(server, messages=messages, max_tokens=1)["usage"]["input_tokens"]


def test_tools_are_those_that_run_here():
    hosted = {"type": "web_search_20250305", "name": "web_search"}
    given = read_chat({"messages": HELLO, "tools": [hosted, {**WEATHER, "type": "custom", "strict": True}]}).tools
    function = {"name": "weather", "description": "The weather", "parameters": SCHEMA, "strict": True}
    assert given == {"tools": [{"type": "function", "function": function}]}
    for choice, expected in (
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "any"}, {"tool_choice": "required"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        ({"type": "auto", "disable_parallel_tool_use": True}, {"tool_choice": "auto", "parallel_tool_calls": False}),
        ({"type": "tool", "name": "weather"}, {"tool_choice": {"type": "function", "function": {"name": "weather"}}}),
    ):
        found = dict(read_chat({"messages": HELLO, "tools": [WEATHER], "tool_choice": choice}).tools)
        del found["tools"]
        assert found == expected


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, {}),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, {"enable_thinking": True, "thinking": True}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False, "thinking": False}),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, {}),
        ({"output_config": {"effort": "high"}}, {"reasoning_effort": "high"}),
        (
            {"thinking": {"type": "disabled"}, "chat_template_kwargs": {"thinking": 1}},
            {"enable_thinking": False, "thinking": 1},
        ),
    ],
)
def test_thinking_is_the_templates(asked, expected):
    assert read_chat({"messages": HELLO, **asked}).variables == expected


def test_a_thinking_budget_is_that_of_the_params(shared_server):
    for kind, budget in (("enabled", 5), ("enabled", 0), ("disabled", None), ("adaptive", None)):
        job = message_job(shared_server.model, {**ASKED, "thinking": {"type": kind, "budget_tokens": budget}}, 10**6)
        assert job.params.thinking_budget_tokens == budget
    status, body = shared_server.send_json(
        "/v1/messages", {**ASKED, "regex": "a", "thinking": {"type": "enabled", "budget_tokens": 5}}
    )
    assert status == 400 and body["error"]["message"].startswith("thinking.budget_tokens must be omitted beside")


def test_structured_output_and_our_own_fields(shared_server):
    form = {"format": {"type": "json_schema", "schema": SCHEMA}}
    found = same(shared_server, output_config=form, seed=3, temperature=0.5, top_p=0.9, top_k=40, min_p=0.01)
    assert json.loads(found["content"][0]["text"])["city"] in ("Bonn", "Rome")
    ignored = {
        "metadata": {"user_id": "a"},
        "service_tier": "auto",
        "container": None,
        "context_management": {},
        "new_field": 1,
    }
    params = message_job(shared_server.model, {**ASKED, **ignored, "seed": 5, "min_p": 0.1}, 10**6).params
    assert (params.seed, params.min_p, params.max_new_tokens) == (5, 0.1, 60)


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}


@pytest.mark.parametrize(
    ("asked", "place"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "king", "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        *(
            ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, block]}]}, "messages[0].content[1]")
            for block in (IMAGE, {"type": "document"}, {"type": "search_result"}, {"type": "container_upload"}, {})
        ),
        *(
            ({"messages": [*HELLO, {"role": "assistant", "content": [{"type": kind}]}]}, "messages[1].content[0]")
            for kind in ("server_tool_use", "web_search_tool_result", "mcp_tool_use", "image")
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [IMAGE]}]}]},
            "messages[0].content[0].content[0]",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages[0].content[0].tool_use_id"),
        (
            {
                "messages": [
                    *HELLO,
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": "x"}]},
                ]
            },
            "messages[1].content[0].input",
        ),
        (
            {
                "messages": [
                    *HELLO,
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]},
                ]
            },
            "messages",
        ),
        ({"system": [IMAGE]}, "system[0]"),
        ({"system": 5}, "system"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{**WEATHER, "name": "a b"}]}, "tools"),
        ({"tools": [WEATHER, WEATHER]}, "tools"),
        (
            {"tools": [{"type": "bash_20250124", "name": "bash"}], "tool_choice": {"type": "tool", "name": "bash"}},
            "tool_choice.name",
        ),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "f"}}, "tool_choice.name"),
        ({"tools": [WEATHER], "tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"thinking": {"type": "often"}}, "thinking.type"),
        ({"output_config": {"effort": 5}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "king"}}}}, "output_config.format"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"n": 2}, "n"),
        ({"thread": {"type": "create"}}, "thread"),
        ({"logprobs": 2}, "logprobs"),
        ({"stream": "yes"}, "stream"),
        ({"messages": [{"role": "user", "content": "x" * 3000}]}, "messages"),
    ],
)
def test_bad_requests_are_refused_in_anthropics_form(shared_server, asked, place):
    status, data, headers = shared_server.send("/v1/messages", json.dumps({**ASKED, **asked}).encode())
    body = json.loads(data)
    assert (status, body["type"], body["error"]["type"]) == (400, "error", "invalid_request_error")
    assert body["error"]["message"].startswith(f"{place} must be ")
    assert body["request_id"] == headers["request-id"] and body["request_id"].startswith("req_")
    assert shared_server.engine.live == 0


def test_errors_by_status(tiny_file, monkeypatch):
    with LocalServer(load(tiny_file(kind="Q8_0", context=400)), keys=["alpha"], max_body=2000) as server:
        data = json.dumps({**ASKED, "max_tokens": 1}).encode()
        for headers in ({"x_api_key": "alpha"}, {"authorization": "Bearer alpha", "anthropic_version": "2023-06-01"}):
            assert server.send("/v1/messages", data, anthropic_beta="a,b", **headers)[0] == 200
        for sent, headers, status, kind in (
            (data, {}, 401, "authentication_error"),
            (data, {"x_api_key": "beta"}, 401, "authentication_error"),
            (data, {"x_api_key": "alpha", "origin": "http://evil.example"}, 403, "permission_error"),
            (b" " * 3000, {"x_api_key": "alpha"}, 413, "request_too_large"),
            (b"{", {"x_api_key": "alpha"}, 400, "invalid_request_error"),
        ):
            for path in ("/v1/messages", "/v1/messages/count_tokens"):
                found, body, _ = server.send(path, sent, **headers)
                assert (found, json.loads(body)["error"]["type"]) == (status, kind)
        monkeypatch.setattr(server.model, "chat_ids", lambda *a, **k: 1 // 0)
        found, body, _ = server.send("/v1/messages", data, x_api_key="alpha")
        assert (found, json.loads(body)["error"]["type"]) == (500, "api_error")
        monkeypatch.undo()
        server.engine.close()
        found, body, _ = server.send("/v1/messages", data, x_api_key="alpha")
        assert (found, json.loads(body)["error"]["type"]) == (503, "overloaded_error")


def test_a_stream_that_fails_ends_with_an_error(server, monkeypatch):
    monkeypatch.setattr(server.model.decoder, "logits", lambda *arguments: 1 / 0)
    events = stream(server)
    assert [event["type"] for event in events] == ["message_start", "error"]
    assert events[-1]["error"]["type"] == "api_error"


def test_a_client_that_waits_for_the_first_token_is_told_to(server, monkeypatch, hold_passes):
    monkeypatch.setattr(answer, "PING_SECONDS", 0.05)
    hold_passes(server.model, 0.3)
    kinds = [event["type"] for event in stream(server, max_tokens=1)]
    begins = kinds.index("message_start")
    assert begins > 0 and set(kinds[:begins]) == {"ping"} and "ping" not in kinds[begins:]


def test_counted_tokens_are_those_of_the_message(shared_server):
    more = {"system": "Be brief.", "tools": [WEATHER], "thinking": {"type": "enabled", "budget_tokens": 1024}}
    counted = shared_server.send_json("/v1/messages/count_tokens?beta=true", {"model": "x", "messages": HELLO, **more})
    usage = ask(shared_server, **more)["usage"]
    assert counted == (200, {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]})


@pytest.mark.parametrize("more", ["[xy]{200}", ""])  # cut by max_tokens, or ended by the model
def test_a_call_that_is_cut_has_what_is_complete(shared_server, more):
    tool = {"name": "f", "input_schema": {"type": "object"}}
    call = r'<tool_call>\{"name": "f", "arguments": \{"a": 12, "b": \[1, "x'
    asked = {"tools": [tool], "regex": rf"So[.]{call}{more}", "max_tokens": 80, "seed": 1}
    whole = ask(shared_server, **asked)
    said, use = whole["content"]
    assert (said["text"], use["input"], whole["stop_reason"]) == ("So.", {"a": 12, "b": [1]}, "max_tokens")
    pieces = [event["delta"].get("partial_json", "") for event in stream(shared_server, **asked) if "delta" in event]
    assert complete_part("".join(pieces)) == use["input"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("{", {}),
        ('{"a', {}),
        ('{"a": ', {}),
        ('{"a": 12', {}),
        ('{"a": 12,', {"a": 12}),
        ('{"a": "x\\"', {}),
        ('{"a": "x\\"}", "b": tru', {"a": 'x"}'}),
        ('{"a": [1, "b", {"c": 2}, {"d": "e', {"a": [1, "b", {"c": 2}, {}]}),
        ('{"a": {"b": [', {"a": {"b": []}}),
        ('{"a": NaN, "b', {}),
        ("[1, 2", {}),
        ("}", {}),
        ('{"a": 1} and', {"a": 1}),
        ('{"a": "b\\', {}),
    ],
)
def test_what_is_complete_of_json(text, expected):
    assert complete_part(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": "b', {"a": "b"}),
        ('{"a": "', {"a": ""}),
        ('{"a": "b"', {"a": "b"}),
        ('{"a": "b", "c": ["d\\n', {"a": "b", "c": ["d\n"]}),
        ('{"a": "b\\\\', {"a": "b\\"}),
        ('{"a": "b\\\\ud83d', {"a": "b\\ud83d"}),
        ('{"a": "b", "c', {"a": "b"}),
        *(('{"a": "b' + escape, {"a": "b"}) for escape in ("\\", "\\u", "\\u00e", "\\ud83d", "\\ud83d\\", "\\ud83d\\ude0")),
        ('{"a": "\\u00e9', {"a": "é"}),
        ('{"a": "\\ud83d\\ude00', {"a": "😀"}),
    ],
)
def test_what_has_come_of_json(text, expected):
    assert complete_part(text, begun=True) == expected


def test_many_neighbours_and_deep_arguments_take_no_long_time():
    """As large as a body or an answer may be; what grows with the square of that would take minutes, and time out."""
    [message] = read_chat({"messages": [{"role": "user", "content": "x"}] * 100_000}).messages
    assert len(message["content"]) == 199_999
    assert complete_part('{"a": ' + "[" * 500_000) == {} and len(complete_part('{"a": [' + "1, " * 300_000)["a"]) == 300_000
    assert len(complete_part('{"a": "' + "\\u00e9" * 300_000, begun=True)["a"]) == 300_000


def test_errors_of_a_request_alone():
    with pytest.raises(HttpError, match=r"messages\[0\]\.content must be a string or a list of blocks"):
        read_chat({"messages": [{"role": "user", "content": None}]})


EVERY_FIELD = {
    "system": [{"type": "text", "text": "S"}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "b", "signature": ""},
                {"type": "tool_use", "id": "c", "name": "weather", "input": {"city": "Rome"}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "d"}]}]},
    ],
    "tools": [{**WEATHER, "strict": True}, {"type": "web_search", "name": "web"}],
    "tool_choice": {"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 5},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
    "chat_template_kwargs": {"enable_thinking": True},
    "stop_sequences": ["x"],
    "stream": True,
    "thread": None,
}


@pytest.mark.parametrize(
    "wrong", [None, True, 5, -0.5, "x", [], {}, [[]], [{}], {"type": []}, {"type": {}}, ["x", None]], ids=repr
)
def test_whatever_a_field_is_the_request_is_read_or_refused(tiny_file, wrong):
    """Never an error of the server's own."""
    model = load(tiny_file(kind="Q8_0", context=2000))
    assert message_job(model, EVERY_FIELD, 10**6)
    for body in with_each_value_replaced(EVERY_FIELD, wrong):
        with suppress(HttpError):
            read_chat(body)
