"""Tools and schemas over OpenAI's interface: which calls a model may write, and how a client gets them."""

from __future__ import annotations

import json

import pytest

import decodestep as ds
from decodestep.serving.endpoints.chat_completions import chat_completion_job
from support.project import CHAT_TEMPLATES
from support.servers import HELLO, TEMPLATE, LocalServer, allowed_tools, byte_vocabulary, load, tool, wait_until

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Bonn", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}


def test_json_of_a_schema_and_required_tools(shared_server):
    client = shared_server.client()
    asked = {"model": "", "messages": HELLO, "seed": 1, "max_tokens": 200}
    form = {"type": "json_schema", "json_schema": {"name": "stay", "schema": SCHEMA, "strict": True, "other": None}}
    found = client.chat.completions.create(**asked, response_format=form)
    assert found.choices[0].finish_reason == "stop" and set(json.loads(found.choices[0].message.content)) == {"city", "days"}
    assert client.completions.create(model="", prompt="a", extra_body={"regex": "[xy]{4}"}).choices[0].text.strip("xy") == ""
    nothing = {"type": "object", "properties": {}, "additionalProperties": False}
    tools = [tool("weather", description="The weather", parameters=SCHEMA), tool("time", parameters=nothing)]
    for choice in ("required", tool("weather")):
        [called] = client.chat.completions.create(**asked, tools=tools, tool_choice=choice).choices
        [call] = called.message.tool_calls
        assert called.finish_reason == "tool_calls" and called.message.content is None
        assert call.function.name in ("weather", "time")[: 1 if choice != "required" else 2]
        chunks = list(client.chat.completions.create(**asked, tools=tools, tool_choice=choice, stream=True))
        first, *more = [part for chunk in chunks for c in chunk.choices for part in c.delta.tool_calls or ()]
        assert (first.index, first.type, first.function.name) == (0, "function", call.function.name) and first.id
        assert all((part.index, part.id, part.type, part.function.name) == (0, None, None, None) for part in more)
        assert more or call.function.name == "time"
        assert "".join(part.function.arguments for part in (first, *more)) == call.function.arguments
        assert chunks[-1].choices[0].finish_reason == "tool_calls"
        assert "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices) == ""
    answer = [{"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
              {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]  # fmt: skip
    plain = client.chat.completions.create(**{**asked, "messages": [*HELLO, *answer], "max_tokens": 3}, tools=tools)
    assert plain.choices[0].message.tool_calls is None


def test_allowed_tools_restrict_the_calls_but_not_the_prompt(shared_server):
    client = shared_server.client()
    tools = [tool(name) for name in ("stay", "time", "go")]
    asked = {"model": "", "messages": HELLO, "max_tokens": 99, "tools": tools}
    anything = client.chat.completions.create(**asked, seed=1, tool_choice="auto")
    for seed in range(4):
        found = client.chat.completions.create(**asked, seed=seed, tool_choice=allowed_tools("required", "go", "time"))
        [call] = found.choices[0].message.tool_calls
        assert call.function.name in ("go", "time") and found.usage.prompt_tokens == anything.usage.prompt_tokens
        free = client.chat.completions.create(**asked, seed=seed, tool_choice=allowed_tools("auto", "go"))
        assert free.usage.prompt_tokens == anything.usage.prompt_tokens
        assert all(call.function.name == "go" for call in free.choices[0].message.tool_calls or ())
    for name, calls in (("go", 1), ("time", 0)):
        written = rf'<tool_call>\{{"name":"{name}","arguments":\{{\}}\}}</tool_call>'
        given = {**asked, "tool_choice": allowed_tools("auto", "go"), "extra_body": {"regex": written}}
        [choice] = client.chat.completions.create(**given).choices
        assert len(choice.message.tool_calls or ()) == calls
        assert choice.finish_reason == ("tool_calls" if calls else "stop") and bool(choice.message.content) != bool(calls)


def test_a_response_format_beside_tools_is_that_of_the_answer(shared_server):
    form = {"type": "json_schema", "json_schema": {"name": "stay", "schema": SCHEMA, "strict": True}}
    asked = {"model": "", "messages": HELLO, "max_tokens": 400, "response_format": form, "parallel_tool_calls": False}
    tools = [tool("time", strict=True)]
    [begin] = shared_server.model.tokenizer.encode("<")
    for bias, reason in ((-100, "stop"), (100, "tool_calls")):
        [choice] = shared_server.client().chat.completions.create(**asked, tools=tools, logit_bias={begin: bias}).choices
        assert choice.finish_reason == reason
        if reason == "stop":
            assert set(json.loads(choice.message.content)) == {"city", "days"} and choice.message.tool_calls is None
    [choice] = shared_server.client().chat.completions.create(**asked, tools=tools, tool_choice="required").choices
    assert choice.finish_reason == "tool_calls"


def test_an_answer_beside_tools_keeps_the_whitespace_at_its_end(shared_server):
    """It is not what stands before a call: without it the answer would be no text of the constraint."""
    asked = {"model": "", "messages": HELLO, "max_tokens": 9, "tools": [tool("go")], "extra_body": {"regex": r"ok \n\n"}}
    client = shared_server.client()
    assert client.chat.completions.create(**asked).choices[0].message.content == "ok \n\n"
    chunks = client.chat.completions.create(**asked, stream=True)
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == "ok \n\n"


def test_the_official_stream_helper_tells_when_a_call_is_complete(shared_server):
    """It does so with the chunk after the call's last: the end of a message must have one of its own."""
    tools = [tool("weather", parameters=SCHEMA, strict=True)]
    asked = {"model": "", "messages": HELLO, "seed": 1, "max_tokens": 200, "logprobs": True}
    with shared_server.client().chat.completions.stream(**asked, tools=tools, tool_choice="required") as stream:
        found = {event.type: event for event in stream}
    done = found["tool_calls.function.arguments.done"]
    assert done.name == "weather" and set(json.loads(done.arguments)) == {"city", "days"} == set(done.parsed_arguments)
    choice = stream.get_final_completion().choices[0]
    told, every = found["logprobs.content.done"].content, choice.logprobs.content
    assert choice.finish_reason == "tool_calls" and told == every[: len(told)]  # those before the call


def test_a_function_without_parameters_has_no_arguments(shared_server):
    """As OpenAI's reference says of `parameters`; such a call may come back with no arguments at all."""
    tools = [tool("time")]
    asked = {"model": "", "max_tokens": 99, "tools": tools, "tool_choice": "required", "parallel_tool_calls": False}
    [choice] = shared_server.client().chat.completions.create(messages=HELLO, **asked).choices
    [call] = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls" and json.loads(call.function.arguments) == {}
    back = {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "time", "arguments": ""}}]}
    assert shared_server.client().chat.completions.create(messages=[*HELLO, back], model="", max_tokens=1).choices


@pytest.mark.parametrize("more", [{}, {"type": ["null", "object"]}, {"anyOf": [{"required": ["a"]}, {"enum": [1, None]}]}])
def test_arguments_are_an_object_whatever_their_schema_allows(shared_server, more):
    """Without a type a schema allows numbers, too; a required call that has one is none."""
    parameters = {"properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False, **more}
    asked = {"model": "", "max_tokens": 99, "tools": [tool("f", parameters=parameters)], "tool_choice": "required"}
    for seed in range(5):
        [choice] = shared_server.client().chat.completions.create(messages=HELLO, seed=seed, **asked).choices
        [call] = choice.message.tool_calls
        assert json.loads(call.function.arguments)["a"] in (1, 2)


def test_a_call_that_begins_with_a_control_token_is_read(tiny_file):
    """A template of Mistral's kind, and a model that is made to prefer [TOOL_CALLS] as one token."""
    path = tiny_file(kind="Q8_0", context=400, **byte_vocabulary("[TOOL_CALLS]"))
    with LocalServer(ds.load(path, chat_template="{# [TOOL_CALLS] #}{% if tools %}tools;{% endif %}" + TEMPLATE)) as server:
        asked = {"model": "", "messages": HELLO, "seed": 1, "max_tokens": 200, "logit_bias": {"299": 100}}
        tools = [tool("stay", parameters=SCHEMA)]
        for stream in (False, True):
            found = server.client().chat.completions.create(**asked, tools=tools, tool_choice="required", stream=stream)
            parts = [chunk.choices[0].delta for chunk in found] if stream else [found.choices[0].message]
            pieces = [call.function.arguments for part in parts for call in part.tool_calls or ()]
            assert set(json.loads("".join(pieces))) == {"city", "days"} and not any(part.content for part in parts)
        [row] = server.engine.submit([1], ds.SamplingParams(seed=1, max_new_tokens=2, logit_bias={299: 100.0})).rows
        wait_until(lambda: row.reason)
        assert row.text.text == ""  # nobody else sees it


@pytest.mark.parametrize("end", [{}, {"stop": ["12"]}])
def test_a_call_that_ends_within_its_arguments_is_cut(shared_server, end):
    """Whether the model or a stop string has ended it: nobody should run it."""
    call = r'<tool_call>\{"name": "f", "arguments": \{"a": 12, "b": "x'
    asked = {"messages": HELLO, "tools": [tool("f")], "regex": call, "max_tokens": 200, "seed": 1, **end}
    _, found = shared_server.send_json("/v1/chat/completions", asked)
    [choice] = found["choices"]
    assert choice["finish_reason"] == "length" and choice["message"]["content"] is None
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == ("" if end else '{"a": 12, "b": "x')


@pytest.mark.parametrize("more", [{}, {"tools": [tool("f")], "tool_choice": "none"}])
def test_calls_and_results_stay_in_the_prompt_without_tools(tiny_file, more):
    """A template that knows neither would drop the arguments of a call."""
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"city": "Bonn"}'}}
    messages = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "content": "sunny"}]
    model = load(tiny_file(kind="Q8_0", context=400))
    written = '<tool_call>\n{"name": "f", "arguments": {"city": "Bonn"}}\n</tool_call>'
    text = f"user:hello;assistant:{written};user:<tool_response>\nsunny\n</tool_response>;assistant:"
    assert chat_completion_job(model, {"messages": messages, **more}, 10**6).prompts == [model.tokenizer.encode(text)]


@pytest.mark.parametrize(("cut", "complete"), [('{"city": "B', {}), ('{"city": "A",', {"city": "A"}), ("[", {})])
def test_a_call_that_was_cut_comes_back(tiny_file, cut, complete):
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": cut}}
    messages = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "content": "no JSON"}]
    written = f"<tool_call>\n{json.dumps({'name': 'f', 'arguments': complete})}\n</tool_call>"
    text = f"user:hello;assistant:{written};user:<tool_response>\nno JSON\n</tool_response>;assistant:"
    model = load(tiny_file(kind="Q8_0", context=400))
    assert chat_completion_job(model, {"messages": messages}, 10**6).prompts == [model.tokenizer.encode(text)]
    reads = ds.load(tiny_file(kind="Q8_0", context=400), chat_template=READS_ALL)
    text = f"<tool_call>functionf3;hello{''.join(f'{k}{v}' for k, v in complete.items())}no JSON"
    asked = {"messages": messages, "tools": [tool("f")]}
    assert chat_completion_job(reads, asked, 10**6).prompts == [reads.tokenizer.encode(text)]


READS_ALL = """<tool_call>{% for t in tools %}{{ t.type + t.function.name + t.function.description }}{{ t.function | length }}
{%- for name in t.function.parameters.properties %}{{ name }}{% endfor %}{% endfor %};{% for m in messages %}{{ m.content }}
{%- for call in m.tool_calls or [] %}{% for k, v in call.function.arguments.items() %}{{ k }}{{ v }}
{%- endfor %}{% endfor %}{% endfor %}"""


def test_what_a_client_leaves_out_is_there_for_templates(tiny_file):
    """Descriptions and parameters of tools, and arguments of calls: templates of Hermes, gpt-oss or GLM read them unasked."""
    model = ds.load(tiny_file(kind="Q8_0", context=400), chat_template=READS_ALL)
    given = {"name": "f", "parameters": {"properties": {"a": {}}}}
    for tools, text in (
        ([{"type": None, "function": {**given, "description": None, "strict": None}}], "functionf3a"),
        ([{"function": {"name": "f", "parameters": None}}], "functionf3"),
        ([tool("f", description="g")], "functionfg3"),
    ):
        for arguments in ({}, {"arguments": None}, {"arguments": "null"}, {"arguments": ""}, {"arguments": "{}"}):
            answer = {"role": "assistant", "tool_calls": [{"function": {"name": "f", **arguments}}]}
            body = {"messages": [*HELLO, answer], "tools": tools}
            assert chat_completion_job(model, body, 10**6).prompts == [model.tokenizer.encode(f"<tool_call>{text};hello")]


def test_half_a_surrogate_pair_in_a_call_is_answered(shared_server):
    tools = [tool("f")]
    text = r'<tool_call>\{"name":"f","arguments":\{"a":"\\ud800"\}\}</tool_call>'
    asked = {"model": "", "messages": HELLO, "max_tokens": 99, "tools": tools, "extra_body": {"regex": text}}
    [choice] = shared_server.client().chat.completions.create(**asked).choices
    assert choice.finish_reason == "tool_calls"


TAGS = {"type": "object", "properties": {"tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}}}


def test_strict_is_a_tools_own(shared_server):
    """What cannot be enforced is enforced where a call is required alone; pydantic-ai sends this for a set[str]."""
    tools = [tool("weather", parameters=SCHEMA, strict=True), tool("tag", parameters=TAGS)]
    asked = {"messages": HELLO, "max_tokens": 4, "tools": tools}
    for more in ({}, {"tool_choice": allowed_tools("auto", "tag")}, {"response_format": {"type": "json_object"}}):
        assert shared_server.send_json("/v1/chat/completions", {**asked, **more})[0] == 200
    pattern = {"type": "object", "properties": {"a": {"type": "string", "pattern": "\a"}}}
    for name, parameters, why in (("tag", TAGS, "uniqueItems"), ("write", pattern, "control")):
        wrong = tool(name, parameters=parameters)
        for choice, strict in (("required", False), (wrong, False), ("auto", True)):
            given = [tools[0], tool(name, parameters=parameters, strict=strict)]
            body = {**asked, "tools": given, "tool_choice": choice}
            status, answer = shared_server.send_json("/v1/chat/completions", body)
            assert (status, answer["error"]["param"]) == (400, "tools")
            assert f"the schema of {name}" in answer["error"]["message"] and why in answer["error"]["message"]
    assert shared_server.send_json("/v1/chat/completions", {**asked, "tool_choice": tool("weather")})[0] == 200


@pytest.mark.parametrize("mark", ["<think>", "<think>\n", "[THINK]"])
def test_an_answer_begins_within_reasoning_where_the_prompt_does(tiny_file, mark):
    template = f"{{# <tool_call> [/THINK]{{% if tools %}} #}}{TEMPLATE}"
    template = template if mark == "[THINK]" else template.replace("[/THINK]", "")
    path = tiny_file(kind="Q8_0", context=400)
    asked = {"messages": HELLO, "tools": [tool("f")]}
    for end, expected in ((mark, True), (f"{mark}</think>", False), ("", False)):
        model = ds.load(path, chat_template=template + end)
        assert chat_completion_job(model, asked, 10**6).answer.begun is expected
    model = ds.load(path, chat_template=template + mark)
    for bound in ({"tool_choice": "required"}, {"response_format": {"type": "json_object"}}, {"regex": "a"}):
        assert chat_completion_job(model, {**asked, **bound}, 10**6).answer.begun


@pytest.mark.parametrize(
    ("calls", "several"),
    [
        ("{% for call in m.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}", True),
        ("{% if m.tool_calls %}{{ m.tool_calls[0].function | tojson }}{% endif %}", False),
        ("{% if m.tool_calls | length > 1 %}{{ raise_exception('one') }}{% endif %}{{ (m.tool_calls or []) | tojson }}", False),
        ("{% if m.tool_calls %}{{ raise_exception('none') }}{% endif %}", True),  # it tells nothing
        ("", True),
    ],
)
def test_as_many_calls_are_answered_as_can_come_back(tiny_file, calls, several):
    template = f"{{# <tool_call> {{% if tools %}} #}}{{% for m in messages %}}{{{{ m.role }}}}:{calls};{{% endfor %}}"
    model = ds.load(tiny_file(kind="Q8_0", context=400), chat_template=template)
    asked = {"messages": HELLO, "tools": [tool("f")]}
    for _ in range(2):
        assert chat_completion_job(model, asked, 10**6).answer.tools.several is several
    assert chat_completion_job(model, {**asked, "parallel_tool_calls": True}, 10**6).answer.tools.several is several
    assert chat_completion_job(model, {**asked, "parallel_tool_calls": False}, 10**6).answer.tools.several is False


def test_what_a_model_of_llama_calls_can_come_back(tiny_file):
    """Its template refuses a message with two calls."""
    source = (CHAT_TEMPLATES / "formats" / "llama3.jinja").read_text()
    template = f'{{# {{"name": function name, "parameters": dictionary}} {{% if tools %}} #}}{source}'
    two = r'\{"name": "f", "parameters": \{\}\}; \{"name": "f", "parameters": \{\}\}'
    path = tiny_file(kind="Q8_0", context=4000, **byte_vocabulary("<|python_tag|>"))
    with LocalServer(ds.load(path, chat_template=template)) as server:
        asked = {"model": "", "messages": HELLO, "max_tokens": 200, "tools": [tool("f")], "extra_body": {"regex": two}}
        [choice] = server.client().chat.completions.create(**asked).choices
        chunks = server.client().chat.completions.create(**asked, stream=True)
        [streamed] = [call for chunk in chunks for each in chunk.choices for call in each.delta.tool_calls or ()]
        [call] = choice.message.tool_calls
        assert (
            (call.function.name, call.function.arguments)
            == ("f", "{}")
            == (streamed.function.name, streamed.function.arguments)
        )
        assert choice.message.content is None and choice.finish_reason == "tool_calls"
        back = [choice.message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
        assert server.client().chat.completions.create(**{**asked, "messages": [*HELLO, *back]}).choices


def test_text_around_a_call_is_streamed(shared_server):
    """As in the whole answer, and before its end: what is no call holds nothing back."""
    call = r'<tool_call>\{"name": "go", "arguments": \{\}\}</tool_call>'
    written = rf"So <tool_call> is [xy]{{9}}: {call}\nDone [xy]{{9}}\."
    asked = {
        "model": "",
        "messages": HELLO,
        "max_tokens": 199,
        "seed": 1,
        "tools": [tool("go")],
        "extra_body": {"regex": written},
    }
    [choice] = shared_server.client().chat.completions.create(**asked).choices
    first, second = choice.message.content.split("\n")
    assert first.startswith("So <tool_call> is ") and second.startswith("Done ") and choice.finish_reason == "tool_calls"
    chunks = list(shared_server.client().chat.completions.create(**asked, stream=True))
    deltas = [part.delta for chunk in chunks for part in chunk.choices]
    [at] = [i for i, delta in enumerate(deltas) if delta.tool_calls]
    assert "".join(delta.content or "" for delta in deltas) == choice.message.content
    assert 10 < at < len(deltas) - 10 and chunks[-1].choices[0].finish_reason == "tool_calls"
