"""Functions as clients named them before there were tools, and how a chat is continued."""

from __future__ import annotations

import json

import pytest

import decodestep as ds
from decodestep.serving.endpoints.chat_completions import chat_completion_job
from support.servers import HELLO, TEMPLATE, LocalServer, load, tool

GO = r'<tool_call>\{"name":"go","arguments":\{"to":"[xy]{3}"\}\}</tool_call>'
FUNCTIONS = [{"name": "go", "description": "Goes.", "parameters": {"properties": {"to": {"type": "string"}}}}]
ASKED = {"messages": HELLO, "max_tokens": 120, "seed": 1, "functions": FUNCTIONS, "regex": GO}
PATH = "/v1/chat/completions"


def test_a_call_of_a_function_is_answered_as_it_was_asked_for(shared_server):
    _, found = shared_server.send_json(PATH, ASKED)
    [choice] = found["choices"]
    call = choice["message"]["function_call"]
    assert choice["finish_reason"] == "function_call" and choice["message"]["content"] is None
    assert "tool_calls" not in choice["message"] and call["name"] == "go" and set(json.loads(call["arguments"])) == {"to"}
    data = shared_server.send(PATH, json.dumps({**ASKED, "stream": True}).encode())[1]
    choices = [json.loads(event[6:])["choices"][0] for event in data.split(b"\n\n")[:-2]]
    deltas = [each["delta"]["function_call"] for each in choices if "function_call" in each["delta"]]
    assert [each["name"] for each in deltas if "name" in each] == ["go"] == [deltas[0]["name"]]
    assert "".join(each["arguments"] for each in deltas) == call["arguments"]
    assert choices[-1]["finish_reason"] == "function_call" and not any("tool_calls" in each["delta"] for each in choices)
    tools = {"tools": [{"type": "function", "function": each} for each in FUNCTIONS], "parallel_tool_calls": False}
    given = {name: value for name, value in ASKED.items() if name != "functions"}
    again = shared_server.send_json(PATH, {**given, **tools})[1]
    assert again["usage"]["prompt_tokens"] == found["usage"]["prompt_tokens"]


def test_the_official_client_sends_functions(shared_server):
    asked = {"model": "", "messages": HELLO, "seed": 1, "max_tokens": 200, "functions": FUNCTIONS}
    [choice] = shared_server.client().chat.completions.create(**asked, function_call={"name": "go"}).choices
    assert choice.finish_reason == "function_call" and choice.message.function_call.name == "go"
    back = [choice.message.model_dump(exclude_none=True), {"role": "function", "name": "go", "content": "done"}]
    found = shared_server.client().chat.completions.create(**{**asked, "messages": [*HELLO, *back]}, function_call="none")
    assert found.choices[0].message.function_call is None


def test_calls_and_results_of_functions_are_those_of_tools(tiny_file):
    model = load(tiny_file(kind="Q8_0", context=400))
    call = {"name": "go", "arguments": '{"to": "x"}'}
    old = [{"role": "assistant", "content": None, "function_call": call}, {"role": "function", "name": "go", "content": "ok"}]
    new = [
        {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": "a", "content": "ok"},
    ]
    for more in ({}, {"functions": []}, {"functions": None, "function_call": "auto"}):
        jobs = [chat_completion_job(model, {"messages": [*HELLO, *each], **more}, 10**6) for each in (old, new)]
        assert jobs[0].prompts == jobs[1].prompts


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"functions": FUNCTIONS, "tools": [tool("f")]}, "functions"),
        ({"function_call": "auto", "tool_choice": "auto"}, "function_call"),
        ({"functions": FUNCTIONS, "function_call": "required"}, "function_call"),
        ({"functions": FUNCTIONS, "function_call": {"name": "stay"}}, "function_call"),
        ({"functions": FUNCTIONS, "function_call": {"name": "go", "to": 1}}, "function_call"),
        ({"functions": {}}, "functions"),
        ({"functions": ["go"]}, "functions"),
        ({"functions": [{"name": "go", "parameters": []}]}, "functions"),
        ({"messages": [{"role": "assistant", "function_call": {}}]}, "messages[0].function_call"),
        ({"messages": [{"role": "function", "name": "f"}]}, "messages[0].content"),
    ],
)
def test_wrong_functions_are_refused_by_their_own_names(shared_server, asked, param):
    status, body = shared_server.send_json(PATH, {"messages": HELLO, "max_tokens": 2, **asked})
    assert (status, body["error"]["param"]) == (400, param)


@pytest.mark.parametrize("begins", [{}, {"add_generation_prompt": False}, {"add_generation_prompt": None}])
def test_an_answer_goes_on_with_the_last_message(shared_server, begins):
    talk = [*HELLO, {"role": "assistant", "content": "<think>a"}]
    asked = {"messages": talk, "continue_final_message": True, "max_tokens": 20, "regex": "b</think>c", **begins}
    _, found = shared_server.send_json(PATH, asked)
    message = found["choices"][0]["message"]
    assert message["content"] == "b</think>c" and "reasoning_content" not in message  # which is part of the message
    ids = shared_server.model.chat_ids(talk, continue_final_message=True)
    assert found["usage"]["prompt_tokens"] == len(ids)


@pytest.mark.parametrize(
    ("messages", "more", "param"),
    [
        (HELLO, {}, "messages[0].role"),
        ([*HELLO, {"role": "assistant", "content": "a"}], {"add_generation_prompt": True}, "add_generation_prompt"),
        ([*HELLO, {"role": "assistant", "content": None}], {}, "messages"),
        ([*HELLO, {"role": "assistant", "content": "a"}], {"continue_final_message": "yes"}, "continue_final_message"),
    ],
)
def test_only_an_answer_that_has_begun_is_continued(shared_server, messages, more, param):
    status, body = shared_server.send_json(
        PATH, {"messages": messages, "continue_final_message": True, "max_tokens": 2, **more}
    )
    assert (status, body["error"]["param"]) == (400, param)


def test_tokens_that_were_not_computed_are_told_in_all_forms(tiny_file):
    path = tiny_file(kind="Q8_0", context=400)
    with LocalServer(ds.load(path, chat_template=TEMPLATE)) as server:
        text = "a" * 80
        for asked, where in (({"prompt": text}, "/v1/completions"), ({"messages": [{"role": "user", "content": text}]}, PATH)):
            counts = []
            for _ in range(2):
                _, body = server.send_json(where, {**asked, "max_tokens": 1})
                counts.append(body["usage"]["prompt_tokens_details"]["cached_tokens"])
            options = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 1}
            data = server.send(where, json.dumps({**asked, **options}).encode())[1]
            last = json.loads(data.split(b"\n\n")[-3][6:])
            counts.append(last["usage"]["prompt_tokens_details"]["cached_tokens"])
            assert counts[0] == 0 and counts[1] == counts[2] >= 64 and counts[1] < body["usage"]["prompt_tokens"]
