"""Calls come back as they were sent: what a template writes of them is read; what it would not write is told in its format."""

from __future__ import annotations

import json
import re

import pytest
from call_texts import ARGUMENTS, CASES, FUNCTIONS

from decodestep.chat import tool_formats as formats
from decodestep.chat.answer_format import AnswerFormat
from decodestep.chat.reasoning import THINK, find_reasoning
from decodestep.chat.template import ChatTemplate
from decodestep.chat.tool_formats import find_call_format
from decodestep.chat.tool_messages import with_calls
from decodestep.chat.tools import ToolFormat, for_template
from decodestep.chat.tools import read as read_tools
from support.servers import tool
from test_chat import SPECIAL, call, published, say  # noqa: F401 - a fixture
from test_message_form import END, LOOP, NONE_ASKED, STRINGS, prompt
from test_tool_formats import read_calls

KINDS = dict.fromkeys(case[0] for case in CASES)


class Templated:
    """A model that has a template alone."""

    def __init__(self, source):
        self.template = ChatTemplate({}, source)

    def chat_prompt(self, messages, *, tools=None):
        form = self.template.form(SPECIAL, tools=True)
        return str(self.template.render(messages, tools, None, {"add_generation_prompt": True}, SPECIAL, form))


def called(name="stay", arguments=ARGUMENTS, content=None):
    return say("assistant", content, tool_calls=[{"id": "1", "function": {"name": name, "arguments": arguments}}])


@pytest.mark.parametrize("kind", KINDS)
def test_calls_that_a_template_does_not_write_are_told_in_its_format(kind):
    [message] = with_calls(Templated(STRINGS), [called(content="So:")], kind({}))
    assert "tool_calls" not in message and message["content"].startswith("So:\n")
    assert read_calls(kind(FUNCTIONS), message["content"].removeprefix("So:\n")) == ("", [("stay", ARGUMENTS)])
    for arguments in ({}, "{}", None, '{"ci'):  # also of a call that was cut
        [message] = with_calls(Templated(STRINGS), [called("time", arguments)], kind({}))
        assert read_calls(kind(FUNCTIONS), message["content"]) == ("", [("time", {})])
    [message] = with_calls(Templated(STRINGS), [called("stay", json.dumps(ARGUMENTS)[:-1] + ', "x')], kind({}))
    assert read_calls(kind(FUNCTIONS), message["content"]) == ("", [("stay", ARGUMENTS)])


@pytest.mark.parametrize("kind", KINDS)
def test_calls_that_a_template_writes_stay(kind):
    written = (
        LOOP + "{{ m.role + (m.content or '') }}{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}" + END
    )
    conversation = [called(content="So:"), called(), say("user", "a")]
    found = with_calls(Templated(written), conversation, kind({}))
    for message in found[:2]:
        message["tool_calls"][0]["id"] = "1"
    assert found == conversation


@pytest.mark.parametrize(
    ("kind", "ids"),
    [
        (formats.TaggedJson, ["call_1", "toolu_2", "abcdefg12"]),
        (formats.MistralList, [None, None, "abcdefg12"]),
        (formats.MistralNamed, [None, None, "abcdefg12"]),
        (formats.KimiSection, ["functions.stay:0", "functions.stay:1", "functions.stay:2"]),
    ],
)
def test_ids_of_other_servers_are_those_of_the_format(kind, ids):
    """None: nine letters and digits, of each id always the same."""
    given = ["call_1", "toolu_2", "abcdefg12"]
    calls = [{"id": each, "function": {"name": "stay", "arguments": ARGUMENTS}} for each in given]
    results = [{**say("tool", each), "tool_call_id": each} for each in given[::-1]]
    several = LOOP + "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}" + END
    model = Templated(several)
    message, *answers = with_calls(model, [say("assistant", None, tool_calls=calls), *results], kind({}))
    found = [call["id"] for call in message["tool_calls"]]
    assert found == [answer["tool_call_id"] for answer in answers][::-1] and len(set(found)) == 3
    for each, wanted in zip(found, ids, strict=True):
        assert each == wanted if wanted else re.fullmatch("[a-zA-Z0-9]{9}", each)
    assert with_calls(model, [say("assistant", None, tool_calls=calls[1:])], kind({}))[0]["tool_calls"][0]["id"] in (
        found[1],
        "functions.stay:0",
    )


@pytest.mark.parametrize("name", ["Mistral-Small-3.2-24B-Instruct-2506", "mistralai-Mistral-Nemo-Instruct-2407"])
def test_published_templates_take_ids_of_other_servers(name, published):  # noqa: F811
    model = Templated((published / f"{name}.jinja").read_text())
    asked = {"id": "toolu_01A09q90qw90lq917835lq9", "type": "function", "function": {"name": "stay", "arguments": ARGUMENTS}}
    result = {**say("tool", "sunny"), "tool_call_id": asked["id"]}
    conversation = [say("user", "hello"), say("assistant", None, tool_calls=[asked]), result]
    format_ = read_tools(model, {"tools": [tool("stay")]}, conversation)
    messages, described = for_template(model, conversation, format_)
    assert "sunny" in model.chat_prompt(messages, tools=described)


def test_calls_of_one_message_are_messages_of_their_own_where_a_template_writes_one():
    one = (
        LOOP
        + "{{ m.role + ':' + (m.content or '') }}{% for c in (m.tool_calls or [])[:1] %}{{ c.function | tojson }}{% endfor %};"
    )
    calls = [{"id": name, "type": "function", "function": {"name": name, "arguments": {"n": name}}} for name in "fgh"]
    results = [{**say("tool", f"of {name}"), "tool_call_id": name} for name in "fhg"]
    both = say("assistant", "So:", tool_calls=calls, reasoning_content="Hm.")
    empty = [say("assistant", None, tool_calls=[call]) for call in calls]
    apart = [{**both, "tool_calls": calls[:1]}, results[0], empty[2], results[1], empty[1], results[2]]
    kind, model = next(iter(KINDS))({}), Templated(one + END)
    assert with_calls(model, [say("user", "a"), both, *results], kind) == [say("user", "a"), *apart]
    plain = [say("tool", "of f"), say("tool", "of g")]
    found = with_calls(model, [both, *plain, say("user", "a")], kind)
    assert found == [apart[0], plain[0], empty[1], plain[1], empty[2], say("user", "a")]


def test_properties_have_descriptions_where_a_template_reads_them_unasked():
    each = "{% for k, p in t.function.parameters.properties.items() %}{{ k + p.PLACE }},{% endfor %}"
    reads = "{% for t in tools %}" + each + "{% endfor %}"
    calls = "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}{% endfor %}"
    properties = {"a": {"type": "string"}, "b": {"description": "B"}}
    for place, text in (("description", "a,bB,"), ("get('description', '?')", "a?,bB,")):
        model = Templated(reads.replace("PLACE", place) + LOOP + "{{ m.role + ':' + (m.content or '') }}" + calls + ";" + END)
        body = {"tools": [tool("f", parameters={"type": "object", "properties": properties}), tool("g")]}
        messages, described = for_template(model, [say("user", "hello")], read_tools(model, body, []))
        assert model.chat_prompt(messages, tools=described) == f"{text}user:hello;>"


def test_a_template_that_keeps_a_queue_of_calls_writes_them():
    queue = (
        "{% set ids = [] %}" + LOOP + "{{ m.role + ':' + (m.content or '') }}{% for c in m.tool_calls or [] %}"
        "{{ c.function | tojson }}{% set _ = ids.append(c.function.name) %}{% endfor %}"
        "{% if m.role == 'tool' %}{{ ' of ' + ids.pop(0) }}{% endif %};" + END
    )
    conversation = [say("user", "a"), called(), say("tool", "sunny")]
    assert with_calls(Templated(queue), conversation, next(iter(KINDS))({})) == conversation
    assert Templated(queue).chat_prompt(conversation).endswith(";tool:sunny of stay;>")


@pytest.mark.parametrize("content", ["", None, "So:"])
def test_a_content_beside_calls_is_a_message_of_its_own_where_a_template_would_drop_the_calls(content):
    kind = next(iter(KINDS))
    told = [say("assistant", content)] if content else []
    assert with_calls(Templated(NONE_ASKED), [called(content=content)], kind({})) == [*told, called()]


def test_tools_are_given_to_a_system_message_where_a_template_reads_them_there(tiny_file):
    """As that of Phi-4-mini."""
    path = tiny_file(kind="Q8_0", context=400)
    template = (
        LOOP
        + "[{{ m.role + ':' + m.content }}{% set message = m %}{% if 'tools' in message and message['tools'] is not none %}"
        + "<|tool|>{{ message['tools'] }}<|/tool|>{% endif %}]"
        + END
        + "{# <|tool_call|><|/tool_call|> #}"
    )
    for first in ([], [say("system", "S")]):
        text = prompt(path, template, [*first, say("user", "u")], tools=[tool("look")])
        begun = "[system:" + "S" * len(first) + '<|tool|>[{"name":"look",'
        assert text.startswith(begun) and text.endswith("]<|/tool|>][user:u]>")


FLAGS = {"type": "array", "items": {"type": "boolean"}, "description": "f"}
CITY, DAYS = {"type": "string", "description": "c"}, {"type": "integer", "description": "d"}
STAY = {"type": "object", "properties": {"city": CITY, "days": DAYS, "flags": FLAGS}, "required": ["city", "days"]}
ZONE = {"type": "object", "properties": {"zone": {"type": "string", "description": "z"}}, "required": ["zone"]}
SCHEMAS = {"stay": STAY, "time": ZONE}
TOOLS = [tool(name, description="Does it.", parameters=schema) for name, schema in SCHEMAS.items()]
GIVEN = (("stay", {"city": "Bo \"nn' <b>\nLine é", "days": 2, "flags": [True, False]}), ("time", {"zone": "x y"}))
IDS = ("abcdefg12", "abcdefg34")
# The format of calls that each published template has, and how many calls of a message it writes.
PUBLISHED = {
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": ("CohereActions", 2),
    "GLM-4.7-Flash": ("TaggedArguments", 2),
    "GigaChat3-10B-A1.8B": ("GigaChatMessage", 1),
    "GigaChat3.1-10B-A1.8B": ("GigaChatMessage", 1),
    "Mistral-Small-3.2-24B-Instruct-2506": ("MistralNamed", 2),
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": ("TaggedJson", 2),
    "Qwen-QwQ-32B": ("TaggedJson", 2),
    "Qwen-Qwen2.5-7B-Instruct": ("TaggedJson", 2),
    "Qwen-Qwen3-0.6B": ("TaggedJson", 2),
    "Qwen3-Coder": ("TaggedFunctions", 2),
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": ("DeepSeekFenced", 2),
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": ("DeepSeekFenced", 2),
    "deepseek-ai-DeepSeek-V3.1": ("DeepSeek", 2),
    "deepseek-ai-DeepSeek-V3.2": ("DsmlInvokes", 2),
    "google-gemma-4-31B-it": ("GemmaCalls", 2),
    "ibm-granite-granite-4.0": ("TaggedJson", 2),
    "meta-llama-Llama-3.1-8B-Instruct": ("BareJson", 1),
    "meta-llama-Llama-3.2-3B-Instruct": ("BareJson", 1),
    "meta-llama-Llama-3.3-70B-Instruct": ("BareJson", 1),
    "mistralai-Mistral-Nemo-Instruct-2407": ("MistralList", 2),
    "moonshotai-Kimi-K2": ("KimiSection", 2),
    "openai-gpt-oss-120b": ("Harmony", 1),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_calls_of_published_templates_are_read_back_as_they_were_sent(name, published):  # noqa: F811
    model = Templated((published / f"{name}.jinja").read_text())
    source = model.template.text()
    kind, reasoning = find_call_format(source), find_reasoning(source) or THINK
    format_name, most = PUBLISHED[name]
    assert kind.__name__ == format_name
    for count in range(1, most + 1):
        calls = [call(n, a, id=i, type="function") for (n, a), i in zip(GIVEN[:count], IDS, strict=False)]
        results = [say("tool", "RESULT", name=c["function"]["name"], tool_call_id=c["id"]) for c in calls]
        hello = say("user", "Hello")
        asked = model.chat_prompt([hello], tools=TOOLS)
        answered = model.chat_prompt([hello, say("assistant", None, tool_calls=calls), *results], tools=TOOLS)
        same = asked[: next((i for i, (a, b) in enumerate(zip(asked, answered, strict=False)) if a != b), len(asked))]
        if same != asked and len(same) - same.rfind("<") < 24:  # the prompt's end begins reasoning, which the answer has not
            same = same[: same.rfind("<")]
        begun = same == asked and reasoning.begun_by(asked)
        format_ = AnswerFormat(reasoning, begun, False, ToolFormat(kind(SCHEMAS), False, True, ()))
        reader = format_.reader()
        reader.add(answered[len(same) :].partition("RESULT")[0])
        reader.end()
        assert [(found.name, json.loads(found.arguments)) for found in reader.calls] == list(GIVEN[:count])
