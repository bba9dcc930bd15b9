"""OpenAI's Responses API: requests as conversations, and answers as output items, whole and as events."""

from __future__ import annotations

import json
import re
from contextlib import suppress

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from decodestep.serving.endpoints.responses import response_job
from decodestep.serving.endpoints.responses.request import read_chat
from decodestep.serving.errors import HttpError
from support.servers import load, with_each_value_replaced

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Bonn", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "name": "weather", "description": "The weather", "parameters": SCHEMA}
PATCH = {"type": "custom", "name": "patch", "description": "Applies a patch.", "format": {"type": "text"}}
CALL = r'<tool_call>\{"name": "weather", "arguments": \{"city": "Rome"\}\}</tool_call>'
ASKED = {"model": "any", "input": "hello", "max_output_tokens": 300, "seed": 1}
EVENT = TypeAdapter(ResponseStreamEvent)


def ask(server, **fields):
    status, body = server.send_json("/v1/responses", {**ASKED, **fields})
    assert status == 200, body
    Response.model_validate(body)
    return body


def stream(server, **fields):
    """The events of a stream, each checked to name its kind, to have the next number, and against the client's types."""
    status, data, _ = server.send("/v1/responses", json.dumps({**ASKED, **fields, "stream": True}).encode())
    assert status == 200
    events = []
    for number, text in enumerate(data.decode().strip().split("\n\n")):
        name, _, line = text.partition("\n")
        event = json.loads(line.removeprefix("data: "))
        assert name == f"event: {event['type']}" and event["sequence_number"] == number
        assert EVENT.validate_python(event).type == event["type"]
        events.append(event)
    return events


def assembled(events):
    """The response at the end of a stream, whose events before it are checked to tell of its items, in order."""
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    for event in events[:2]:
        assert (event["response"]["status"], event["response"]["output"], event["response"]["usage"]) == (
            "in_progress",
            [],
            None,
        )
    response = events[-1]["response"]
    assert (
        kinds[-1] == f"response.{response['status']}"
        and len({event["response"]["id"] for event in (*events[:2], events[-1])}) == 1
    )
    items, texts = [], {}
    for event in events[2:-1]:
        kind, index = event["type"].removeprefix("response."), event["output_index"]
        if kind == "output_item.added":
            assert (
                index == len(items)
                and not event["item"].get("content")
                and event["item"].get("status") in (None, "in_progress")
            )
            items.append(event["item"])
            continue
        assert index == len(items) - 1
        if kind == "output_item.done":
            assert event["item"]["id"] == items[-1]["id"]
            items[-1] = event["item"]
            continue
        assert event["item_id"] == items[-1]["id"]
        if kind.endswith(".delta"):
            texts[index] = texts.get(index, "") + event["delta"]
        elif kind.endswith(".done") and kind != "content_part.done":
            [text] = [event[name] for name in ("text", "arguments", "input") if name in event]
            assert text == texts.get(index, "")
    assert items == response["output"]
    return response


def same(server, **fields):
    """A response that is the same whole and streamed, but for its ids and times."""
    whole, streamed = ask(server, **fields), assembled(stream(server, **fields))
    for response in (whole, streamed):
        del response["created_at"]
        assert response.pop("id").startswith("resp_")
        response["usage"]["input_tokens_details"]["cached_tokens"] = 0
        for item in response["output"]:
            assert item.pop("id") != item.pop("call_id", None)
    assert whole == streamed
    return whole


def test_a_text_is_a_message(shared_server):
    found = same(shared_server, regex="[xy]{4}")
    [item] = found["output"]
    [part] = item.pop("content")
    assert item == {"type": "message", "role": "assistant", "status": "completed"}
    assert part.pop("text").strip("xy") == "" and part == {"type": "output_text", "annotations": [], "logprobs": []}
    assert (found["status"], found["error"], found["incomplete_details"], found["model"]) == ("completed", None, None, "tiny")


def test_items_are_in_the_order_of_the_text(shared_server):
    text = f"<think>\nHm[.]\n</think>\n\nFirst[.]{CALL}\nThen[.]{CALL}\nEnd[.]"
    found = same(shared_server, tools=[WEATHER], regex=text)
    reasoning, *others = found["output"]
    thought = [{"type": "reasoning_text", "text": "Hm."}]
    assert reasoning == {"type": "reasoning", "summary": [], "content": thought, "status": "completed"}
    assert [item["content"][0]["text"] for item in others[::2]] == ["First.", "Then.", "End."]
    for item in others[1::2]:
        assert item == {"type": "function_call", "name": "weather", "arguments": '{"city": "Rome"}', "status": "completed"}
    used = found["usage"]
    assert used["total_tokens"] == used["input_tokens"] + used["output_tokens"]
    assert 0 < used["output_tokens_details"]["reasoning_tokens"] < used["output_tokens"]
    assert used["input_tokens_details"] == {"cached_tokens": 0, "cache_write_tokens": 0}


def test_the_events_of_each_kind_of_item(shared_server):
    def kinds(**fields):
        found = [event["type"].removeprefix("response.") for event in stream(shared_server, **fields)[2:-1]]
        return [kind for i, kind in enumerate(found) if found[i - 1 : i] != [kind]]  # deltas once

    message = ["output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done"]
    assert kinds(regex="abc") == [*message, "output_item.done"]
    call = ["function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
    assert kinds(regex=CALL, tools=[WEATHER]) == ["output_item.added", *call]
    thought = ["output_item.added", "reasoning_text.delta", "reasoning_text.done", "output_item.done"]
    assert kinds(regex="<think>\nHm[.]\n</think>\n\nabc") == [*thought, *message, "output_item.done"]
    custom = ["custom_tool_call_input.delta", "custom_tool_call_input.done", "output_item.done"]
    patch = r'<tool_call>\{"name": "patch", "arguments": \{"input": "ab"\}\}</tool_call>'
    assert kinds(regex=patch, tools=[PATCH]) == ["output_item.added", *custom]


def test_calls_of_custom_tools_are_a_text(shared_server):
    text = r'<tool_call>\{"name": "patch", "arguments": \{"input": "a\\n\\"b\\""\}\}</tool_call>'
    [item] = same(shared_server, tools=[PATCH, WEATHER], regex=text)["output"]
    assert item == {"type": "custom_tool_call", "name": "patch", "input": 'a\n"b"'}
    chosen = {"type": "custom", "name": "patch"}
    [item] = same(shared_server, tools=[PATCH, WEATHER], tool_choice=chosen, max_output_tokens=1500)["output"]
    assert (item["type"], item["name"]) == ("custom_tool_call", "patch")


@pytest.mark.parametrize("choice", [{"type": "custom", "name": "patch"}, "required"])
def test_the_expression_of_a_custom_tool_binds_its_text(shared_server, choice):
    grammar = {"type": "grammar", "syntax": "regex", "definition": r"[ab]{3}\n\"c|[de]{4}"}
    for seed in range(4):
        asked = {"tools": [{**PATCH, "format": grammar}], "tool_choice": choice, "seed": seed}
        [item] = same(shared_server, **asked)["output"]
        assert item["name"] == "patch" and re.fullmatch(grammar["definition"], item["input"])


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "function", "name": "weather"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]},
    ],
)
def test_required_calls(shared_server, choice):
    time = {"type": "function", "name": "time", "parameters": None, "strict": None}
    found = same(shared_server, tools=[WEATHER, time, {"type": "web_search"}], tool_choice=choice)
    [item] = found["output"]
    assert item["type"] == "function_call" and (item["name"] == "weather" or choice == "required")
    assert found["tool_choice"] == choice and [tool["type"] for tool in found["tools"]] == [
        "function",
        "function",
        "web_search",
    ]


def test_an_answer_that_is_cut_is_incomplete(shared_server):
    found = same(shared_server, max_output_tokens=5, ignore_eos=True)
    assert (found["status"], found["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert found["output"][-1]["status"] == "incomplete" and found["usage"]["output_tokens"] == 5
    cut = same(shared_server, tools=[WEATHER], regex=f"So: {CALL}", max_output_tokens=60)
    assert cut["status"] == "incomplete" and cut["output"][0]["content"][0]["text"].startswith("So:")
    for cut in (  # the second by the model's own end
        same(shared_server, tools=[WEATHER], regex=CALL, stop_strings=['"city"']),
        same(shared_server, tools=[WEATHER], regex=CALL.partition("Rome")[0]),
    ):
        assert cut["status"] == cut["output"][0]["status"] == "incomplete" and cut["output"][0]["type"] == "function_call"
    whole = same(shared_server, tools=[WEATHER], regex=CALL, stop_strings=["</tool_call>"])
    assert whole["status"] == whole["output"][0]["status"] == "completed"
    patch = r'<tool_call>\{"name": "patch", "arguments": \{"input": "a\\n[bc]{300}"\}\}</tool_call>'
    cut = same(shared_server, tools=[PATCH], regex=patch, max_output_tokens=120)
    [item] = cut["output"]
    assert cut["status"] == "incomplete" and item["input"].startswith(("a\nb", "a\nc"))


def test_structured_output(shared_server):
    form = {"type": "json_schema", "name": "stay", "schema": SCHEMA, "strict": True}
    for given in (form, {"type": "json_object"}, {"type": "text"}):
        found = same(shared_server, text={"format": given, "verbosity": "low"}, max_output_tokens=90)
        assert found["text"] == {"format": given, "verbosity": "low"}
        if given is form:
            assert json.loads(found["output"][0]["content"][0]["text"])["city"] in ("Bonn", "Rome")
    assert read_chat({**ASKED, "text": {"format": {"type": "json_object"}}}).schema == {"type": "object"}


def test_a_response_repeats_its_request(shared_server):
    given = {
        "instructions": "Be brief.",
        "max_output_tokens": 3,
        "metadata": {"a": "b"},
        "parallel_tool_calls": False,
        "prompt_cache_key": "k",
        "reasoning": {"effort": "low", "summary": "auto"},
        "temperature": 0.5,
        "tool_choice": "none",
        "tools": [{**WEATHER, "strict": False}],
        "top_p": 0.9,
        "truncation": "auto",
        "user": "me",
    }
    found = ask(shared_server, **given, store=True)
    assert {name: found[name] for name in given} == given
    assert found["store"] is False and found["previous_response_id"] is None and found["background"] is False
    plain = ask(shared_server, max_output_tokens=1)
    assert (plain["temperature"], plain["top_p"], plain["tools"], plain["tool_choice"]) == (1.0, 1.0, [], "auto")
    assert plain["text"] == {"format": {"type": "text"}} and plain["reasoning"] == {"effort": None, "summary": None}


def test_cached_tokens(shared_server):
    asked = {"input": "a long message " * 20, "max_output_tokens": 1}
    first, second = (ask(shared_server, **asked)["usage"] for _ in range(2))
    assert first["input_tokens"] == second["input_tokens"] > second["input_tokens_details"]["cached_tokens"] > 0


def test_conversations(tiny_file):
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    items = [
        {"role": "developer", "content": "Be kind."},
        {"type": "message", "role": "user", "content": parts},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "weather", "arguments": '{"city": "Rome"}'},
        {"type": "custom_tool_call", "call_id": "call_2", "name": "patch", "input": "x"},
        {"type": "function_call_output", "call_id": "call_1", "output": "sunny"},
        {"type": "custom_tool_call_output", "call_id": "call_2", "output": parts},
        {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "?"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"role": "system", "content": "Go on."},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Dropped."}]},
        {"role": "user", "content": "Well?"},
    ]
    chat = read_chat({"instructions": "Be brief.", "input": items})
    calls = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for call_id, name, arguments in (("call_1", "weather", {"city": "Rome"}), ("call_2", "patch", {"input": "x"}))
    ]
    assert chat.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "I look.", "reasoning_content": "Hm.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny", "name": "weather"},
        {"role": "tool", "tool_call_id": "call_2", "content": "a\nb", "name": "patch"},
        {"role": "assistant", "content": "No."},
        {"role": "system", "content": "Go on."},
        {"role": "user", "content": "Well?"},
    ]
    model = load(tiny_file(kind="Q8_0", context=400))
    assert response_job(model, {"instructions": "S", "input": "hello"}, 10**6).prompts == [
        model.tokenizer.encode("system:S;user:hello;assistant:")
    ]


def test_an_answer_comes_back_as_it_was(shared_server):
    """The loop of an agent: output items are sent back as they came, with the results of their calls."""
    tools = [WEATHER, PATCH]
    patch = r'<tool_call>\{"name": "patch", "arguments": \{"input": "x"\}\}</tool_call>'
    first = ask(shared_server, tools=tools, regex=f"<think>\nHm\n</think>\n\nI look[.]{CALL}{patch}")
    calls = [item for item in first["output"] if "call_id" in item]
    results = [{"type": f"{call['type']}_output", "call_id": call["call_id"], "output": "done"} for call in calls]
    sent = [{"role": "user", "content": "hello"}, *first["output"], *results]
    sent = [{**item, "type": "function_call_output"} if item.get("type") == "function_call_output" else item for item in sent]
    _, message, *after = read_chat({"input": sent}).messages
    assert message["reasoning_content"] == "Hm" and message["content"] == "I look." and len(message["tool_calls"]) == 2
    assert [result["tool_call_id"] for result in after] == [call["call_id"] for call in calls]
    assert ask(shared_server, tools=tools, input=sent, max_output_tokens=3)["object"] == "response"


@pytest.mark.parametrize("arguments", ['{"city": "B', '{"city": "A",', "{", '{"a": NaN}', ""])
def test_a_call_that_was_cut_comes_back(tiny_file, arguments):
    items = [
        {"type": "message", "role": "user", "content": "hello"},
        {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": arguments},
        {"type": "function_call_output", "call_id": "call_1", "output": "The arguments were no JSON."},
    ]
    assert read_chat({"input": items}).messages[1]["tool_calls"][0]["function"]["arguments"] == (arguments or {})
    model = load(tiny_file(kind="Q8_0", context=400))
    complete = [items[0], {**items[1], "arguments": '{"city": "A"}' if "A" in arguments else "{}"}, items[2]]
    found, expected = (response_job(model, {"input": each}, 10**6).prompts for each in (items, complete))
    assert found == expected


def test_what_codex_sends_is_accepted(shared_server):
    asked = {
        "client_metadata": {"x": "y"},
        "include": ["reasoning.encrypted_content"],
        "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}],
        "instructions": "You are an agent.",
        "parallel_tool_calls": True,
        "prompt_cache_key": "k",
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "tool_choice": "auto",
        "tools": [{**WEATHER, "strict": False}, PATCH, {"type": "web_search"}, {"type": "local_shell"}],
    }
    events = stream(shared_server, **asked, max_output_tokens=5)
    assert events[-1]["response"]["id"].startswith("resp_")


IMAGE = [{"type": "input_image", "image_url": "x"}]


@pytest.mark.parametrize(
    ("asked", "place"),
    [
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"n": 2}, "n"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [5]}, "input[0]"),
        *(
            ({"input": [{"type": kind, "id": "x"}]}, "input[0]")
            for kind in ("item_reference", "web_search_call", "local_shell_call")
        ),
        ({"input": [{"role": "king", "content": "a"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": 5}]}, "input[0].content"),
        *(
            (
                {"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": kind}]}]},
                "input[0].content[1]",
            )
            for kind in ("input_image", "input_file", "input_audio", "input_text", None)
        ),
        ({"input": [{"type": "function_call_output", "call_id": "a", "output": IMAGE}]}, "input[0].output[0]"),
        ({"input": [{"type": "function_call_output", "output": "a"}]}, "input[0].call_id"),
        ({"input": [{"type": "custom_tool_call", "call_id": "a", "name": "f"}]}, "input[0].input"),
        ({"instructions": 5}, "instructions"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{**WEATHER, "name": "a b"}]}, "tools"),
        ({"tools": [WEATHER, {**PATCH, "name": "weather"}]}, "tools"),
        ({"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "mcp", "server_label": "s"}}, "tool_choice"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format"),
        ({"tools": [{**PATCH, "format": {"type": "grammar", "syntax": "lark"}}]}, "tools[0].format.syntax"),
        ({"tools": [{**PATCH, "format": {"type": "grammar", "syntax": "regex"}}]}, "tools[0].format.definition"),
        (
            {
                "tools": [{**PATCH, "format": {"type": "grammar", "syntax": "regex", "definition": "("}}],
                "tool_choice": "required",
            },
            "tools",
        ),
        ({"tools": [{**PATCH, "format": {"type": "json"}}]}, "tools[0].format.type"),
        ({"tools": [{**PATCH, "description": 3}]}, "tools[0].description"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "king"}}}}, "text.format"),
        ({"reasoning": {"effort": 5}}, "reasoning.effort"),
        ({"stream": 1}, "stream"),
        ({"temperature": 5}, "temperature"),
        ({"input": "x" * 3000}, "input"),
    ],
)
def test_bad_requests_are_refused_in_openais_form(shared_server, asked, place):
    status, body = shared_server.send_json("/v1/responses", {**ASKED, **asked})
    assert (status, body["error"]["param"]) == (400, place) and place in body["error"]["message"]
    assert shared_server.engine.live == 0


def test_no_effort_switches_thinking_off():
    assert read_chat({**ASKED, "reasoning": {"effort": "none"}}).variables == {
        "reasoning_effort": "none",
        "enable_thinking": False,
    }


def test_a_stream_that_fails_ends_with_a_failed_response(server, monkeypatch):
    monkeypatch.setattr(server.model.decoder, "logits", lambda *arguments: 1 / 0)
    events = stream(server)
    assert [event["type"] for event in events] == ["response.created", "response.in_progress", "response.failed"]
    assert events[-1]["response"]["error"]["code"] == "server_error" and events[-1]["response"]["status"] == "failed"


EVERY_FIELD = {
    "instructions": "S",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "b"}]},
        {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "d", "name": "patch", "input": "e"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "f"}]},
        {"type": "custom_tool_call_output", "call_id": "d", "output": "g"},
    ],
    "tools": [{**WEATHER, "strict": True}, {**PATCH, "format": {"type": "grammar", "syntax": "regex", "definition": "a"}}],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "weather"}]},
    "include": ["reasoning.encrypted_content"],
    "parallel_tool_calls": True,
    "reasoning": {"effort": "low", "summary": "auto"},
    "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}, "verbosity": "low"},
    "previous_response_id": None,
    "stream": True,
}


@pytest.mark.parametrize(
    "wrong", [None, True, 5, -0.5, "x", [], {}, [[]], [{}], {"type": []}, {"type": {}}, ["x", None]], ids=repr
)
def test_whatever_a_field_is_the_request_is_read_or_refused(tiny_file, wrong):
    """Never an error of the server's own."""
    model = load(tiny_file(kind="Q8_0", context=2000))
    assert response_job(model, EVERY_FIELD, 10**6)
    for body in with_each_value_replaced(EVERY_FIELD, wrong):
        with suppress(HttpError):
            read_chat(body)
