"""Reasoning over OpenAI's interface: its own field in answers and streams, counted, and as the request wants it."""

from __future__ import annotations

import json

import pytest

import decodestep as ds
from decodestep.serving.endpoints.chat_completions import chat_completion_job
from support.servers import HELLO, LocalServer, byte_vocabulary, tool

# Writes what is read of reasoning, and ends as the request's variables say.
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }};{% endfor %}assistant:{{ end }}{{ reasoning_effort }}"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
)
COUNTED = len("Hm</think")  # of <think>Hm</think>: a token each, up to the one that makes the closing mark
CALL = '<tool_call>{"name": "go", "arguments": {}}</tool_call>'


def literal(text):
    """A regular expression of a text."""
    return "".join(f"\\{c}" if c in r"\.[]{}()*+?|^$" else c for c in text)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    from support import tiny_gguf_files

    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    tiny_gguf_files.write(path, kind="Q8_0", context=2000, **byte_vocabulary("<think>"))
    with LocalServer(ds.load(path, chat_template=f"{{# <tool_call> {{% if tools %}} #}}{TEMPLATE}")) as made:
        yield made


def ask(server, text, **fields):
    """The message, the finish reason and the usage of an answer with this text, which a stream tells too."""
    asked = {"messages": HELLO, "regex": literal(text), "max_tokens": 200, "seed": 1, **fields}
    status, found = server.send_json("/v1/chat/completions", asked)
    assert status == 200, found
    [choice] = found["choices"]
    return choice["message"], choice["finish_reason"], found["usage"]


def stream(server, text, **fields):
    """The deltas of a streamed answer, and its usage."""
    asked = {"messages": HELLO, "regex": literal(text), "max_tokens": 200, "seed": 1, "stream": True, **fields}
    asked["stream_options"] = {"include_usage": True}
    _, data, _ = server.send("/v1/chat/completions", json.dumps(asked).encode())
    chunks = [json.loads(line.removeprefix("data: ")) for line in data.decode().split("\n\n") if line.startswith("data: {")]
    return [choice["delta"] for chunk in chunks for choice in chunk["choices"]], chunks[-1]["usage"]


def joined(deltas, name):
    return "".join(delta.get(name) or "" for delta in deltas)


def test_an_answer_has_its_reasoning_in_a_field_of_its_own(server):
    text = f"<think>\nHm {CALL}\n</think>\n\nHi."
    for fields in ({}, {"tools": [tool("go")]}):
        message, reason, usage = ask(server, text, **fields)
        assert (message["reasoning_content"], message["content"], reason) == (f"Hm {CALL}", "Hi.", "stop")
        assert "tool_calls" not in message
        told = usage["completion_tokens_details"]["reasoning_tokens"]
        assert told < usage["completion_tokens"] and told >= len(f"\nHm {CALL}\n")
        deltas, streamed = stream(server, text, **fields)
        assert joined(deltas, "reasoning_content") == f"Hm {CALL}" and joined(deltas, "content") == "Hi."
        assert streamed["completion_tokens_details"] == usage["completion_tokens_details"]
        assert all(len(delta.keys() & {"reasoning_content", "content"}) <= 1 for delta in deltas[1:])
        kinds = [name for delta in deltas[1:] for name in delta]
        assert kinds == sorted(kinds, reverse=True)


def test_calls_come_after_reasoning(server):
    message, reason, _ = ask(server, f"<think>Hm</think>{CALL}", tools=[tool("go")])
    assert (message["reasoning_content"], message["content"], reason) == ("Hm", None, "tool_calls")
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["go"]
    deltas, _ = stream(server, f"<think>Hm</think>{CALL}", tools=[tool("go")])
    assert [name for delta in deltas[1:] for name in delta] == ["reasoning_content"] * 2 + ["tool_calls"]


def test_an_answer_may_begin_within_reasoning_and_end_there(server):
    ending = {"chat_template_kwargs": {"end": "<think>\n"}}
    message, *_ = ask(server, "Hm\n</think>\n\nHi", **ending)
    assert (message["reasoning_content"], message["content"]) == ("Hm", "Hi")
    message, reason, usage = ask(server, f"Hm {CALL}", tools=[tool("go")], **ending)
    assert (message["reasoning_content"], message["content"], reason) == (f"Hm {CALL}", None, "stop")
    message, reason, usage = ask(server, "Hm\n</think>\n\nHi", max_tokens=2, **ending)
    assert (message["reasoning_content"], message["content"], reason) == ("Hm", None, "length")
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 2
    for end in ("<think>\n\n</think>\n\n", "<think></think>", "</think>"):
        message, *_ = ask(server, "\n\nHi", chat_template_kwargs={"end": end})
        assert message["content"] == "Hi" and "reasoning_content" not in message


def test_empty_reasoning_is_left_out(server):
    message, *_ = ask(server, "<think>\n\n</think>\n\nHi")
    assert message["content"] == "Hi" and "reasoning_content" not in message
    deltas, _ = stream(server, "<think>\n\n</think>\n\nHi")
    assert not any("reasoning_content" in delta for delta in deltas) and joined(deltas, "content") == "Hi"


def test_completions_are_raw(server):
    text = "<think>Hm</think>Hi"
    _, found = server.send_json("/v1/completions", {"prompt": "a", "regex": literal(text), "max_tokens": 99})
    assert found["choices"][0]["text"] == text
    assert "completion_tokens_details" not in found["usage"]


@pytest.mark.parametrize(
    ("fields", "whole", "streamed"),
    [
        ({"reasoning_format": "deepseek"}, ("Hm", "Hi"), ("Hm", "Hi")),
        ({"reasoning_format": "auto"}, ("Hm", "Hi"), ("Hm", "Hi")),
        ({"reasoning_format": "none"}, (None, "<think>Hm</think>\n\nHi"), ("", "<think>Hm</think>\n\nHi")),
        ({"reasoning_format": "deepseek-legacy"}, ("Hm", "Hi"), ("", "<think>Hm</think>\n\nHi")),
        ({"separate_reasoning": False}, (None, "<think>Hm</think>\n\nHi"), ("", "<think>Hm</think>\n\nHi")),
        ({"include_reasoning": False}, (None, "Hi"), ("", "Hi")),
        ({"stream_reasoning": False}, ("Hm", "Hi"), ("Hm", "Hi")),
        ({"separate_reasoning": True, "include_reasoning": True, "stream_reasoning": True}, ("Hm", "Hi"), ("Hm", "Hi")),
    ],
)
def test_reasoning_is_told_as_the_request_wants_it(server, fields, whole, streamed):
    text = "<think>Hm</think>\n\nHi"
    message, _, usage = ask(server, text, **fields)
    assert (message.get("reasoning_content"), message["content"]) == whole
    deltas, counted = stream(server, text, **fields)
    assert (joined(deltas, "reasoning_content"), joined(deltas, "content")) == streamed
    assert usage["completion_tokens_details"] == counted["completion_tokens_details"] == {"reasoning_tokens": COUNTED}
    if fields == {"stream_reasoning": False}:
        assert [delta["reasoning_content"] for delta in deltas if "reasoning_content" in delta] == ["Hm"]
        deltas, _ = stream(server, "<think>Hm", **fields)
        assert [delta["reasoning_content"] for delta in deltas if "reasoning_content" in delta] == ["Hm"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning_format": "x"}, "reasoning_format"),
        ({"reasoning_format": True}, "reasoning_format"),
        ({"include_reasoning": "no"}, "include_reasoning"),
        ({"separate_reasoning": 0}, "separate_reasoning"),
        ({"stream_reasoning": "yes"}, "stream_reasoning"),
        ({"reasoning_effort": 3}, "reasoning_effort"),
        ({"chat_template_kwargs": {"enable_thinking": "false"}}, "chat_template_kwargs"),
        ({"messages": [{"role": "assistant", "content": "a", "reasoning_content": ["b"]}]}, "messages[0].reasoning_content"),
    ],
)  # fmt: skip
def test_wrong_fields_are_refused_by_name(server, fields, param):
    status, found = server.send_json("/v1/chat/completions", {"messages": HELLO, **fields})
    assert (status, found["error"]["param"]) == (400, param)


def test_an_effort_is_passed_to_the_template(server):
    def prompt(**fields):
        return server.model.tokenizer.spell(chat_completion_job(server.model, {"messages": HELLO, **fields}, 10**6).prompts[0])

    assert prompt(reasoning_effort="low").endswith("assistant:low")
    assert prompt(reasoning_effort="none").endswith("assistant:none<think>\n\n</think>\n\n")
    assert prompt(reasoning_effort="none", chat_template_kwargs={"enable_thinking": True}).endswith("assistant:none")
    assert prompt(chat_template_kwargs={"enable_thinking": False}).endswith("assistant:<think>\n\n</think>\n\n")


def test_what_the_server_has_answered_comes_back(server):
    message, *_ = ask(server, f"<think>Hm</think>Hi{CALL}", tools=[tool("go")])
    conversation = [*HELLO, message, {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "done"}]
    for name in ("reasoning_content", "reasoning", "thinking"):
        renamed = {name if key == "reasoning_content" else key: value for key, value in message.items()}
        [ids] = chat_completion_job(
            server.model, {"messages": [HELLO[0], renamed, conversation[2]], "tools": [tool("go")]}, 10**6
        ).prompts
        assert "assistant:<think>Hm</think>Hi" in server.model.tokenizer.spell(ids)
    assert server.send_json("/v1/chat/completions", {"messages": conversation, "max_tokens": 1})[0] == 200


def test_a_continued_message_has_no_reasoning_of_its_own(server):
    asked = {"messages": [*HELLO, {"role": "assistant", "content": "So"}], "continue_final_message": True}
    message, *_ = ask(server, "<think>a</think>\n\nb", **{**asked, "add_generation_prompt": False})
    assert message["content"] == "<think>a</think>\n\nb" and "reasoning_content" not in message


def test_the_clients_library_sees_reasoning(server):
    asked = {"model": "", "messages": HELLO, "max_tokens": 99, "extra_body": {"regex": "<think>Hm</think>Hi"}}
    answer = server.client().chat.completions.create(**asked)
    assert answer.choices[0].message.model_extra["reasoning_content"] == "Hm" and answer.choices[0].message.content == "Hi"
    assert answer.usage.completion_tokens_details.reasoning_tokens == COUNTED


EFFORTS = (
    "{% set known = reasoning_effort is not defined or reasoning_effort in ['low', 'no_think'] %}"
    "{% if not known %}{{ raise_exception('no such effort') }}{% endif %}"
    "{% if mode is defined and mode not in ('on', \"off\") %}{{ raise_exception('no such mode') }}{% endif %}"
    "{% for m in messages %}{{ m.content }}{% endfor %}"
)


@pytest.mark.parametrize(
    ("route", "asked", "param", "known"),
    [
        ("/v1/chat/completions", {"reasoning_effort": "medium"}, "reasoning_effort", "low, no_think"),
        ("/v1/chat/completions", {"chat_template_kwargs": {"mode": 3, "reasoning_effort": "low"}}, "mode", "on, off"),
        ("/v1/responses", {"reasoning": {"effort": "none"}}, "reasoning.effort", "low, no_think"),
        ("/v1/messages", {"output_config": {"effort": "high"}}, "output_config.effort", "low, no_think"),
    ],
)
def test_a_value_that_a_template_refuses_is_an_error_with_those_that_it_knows(tiny_file, route, asked, param, known):
    with LocalServer(ds.load(tiny_file(kind="Q8_0", context=400), chat_template=EFFORTS)) as server:
        said = {"input": "hello"} if route == "/v1/responses" else {"messages": HELLO}
        status, found = server.send_json(route, {"model": "any", "max_tokens": 1, **said, **asked})
    value = asked.get("reasoning_effort") or next(iter(asked.values()))
    value = value if isinstance(value, str) else next(iter(value.values()))
    message = f"{param} must be one of {known}, or omitted: the chat template refuses {value}"
    assert (status, found["error"]["message"]) == (400, message)
