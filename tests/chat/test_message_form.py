"""Messages reach a chat template in the form that it reads, from the library and from the server."""

from __future__ import annotations

import json

import pytest

import decodestep as ds
from decodestep.chat.message_form import MessageForm
from decodestep.chat.template import ChatTemplate
from decodestep.serving.endpoints.chat_completions import chat_completion_job
from support.servers import tool
from test_chat import SPECIAL, TEMPLATES, USER, call, published, say  # noqa: F401 - a fixture

LOOP = "{% for m in messages %}"
END = "{% endfor %}{% if add_generation_prompt %}>{% endif %}"
STRINGS = LOOP + "{{ '[' + m.role + ':' + m.content + ']' }}" + END
TEXTS = "selectattr('type', 'equalto', 'text') | map(attribute='text') | join"
MACRO = "{% macro f(c) %}{% for p in c %}{{ p['text'] }}.{% endfor %}{% endmacro %}"
PARTS = {
    "a loop": LOOP + "[{{ m.role }}:{% for part in m.content %}{{ part.text }}.{% endfor %}]" + END,
    "a type": LOOP + "[{{ m.role }}:{% for p in m['content'] if p['type'] == 'text' %}{{ p['text'] }}.{% endfor %}]" + END,
    "the first": LOOP + "[{{ m.role }}:{{ m.content[0].text }}.]" + END,
    "a filter": LOOP + "[{{ m.role }}:{{ m.content | " + TEXTS + " }}.]" + END,
    "a macro": MACRO + LOOP + "[{{ m.role }}:{{ f(m.content) }}]" + END,
}
# Its users' contents alone are lists.
MIXED = LOOP + "[{{ m.role }}:{{ m.content[0].text if m.role == 'user' else m.content }}]" + END
BOTH = LOOP + "{% set c = m.content %}[{{ m.role }}:{{ c if c is string else c | map(attribute='text') | join('+') }}]" + END
# Calls are written where the content is None, as text; otherwise a content is.
NONE_ASKED = (
    LOOP
    + "{% if m.role == 'assistant' and m.content is none %}{% for c in m.tool_calls %}{{ '(' + c.function.name + ' ' }}"
    + "{{ c['function']['arguments'] + ')' }}{% endfor %}"
    + "{% else %}{{ '[' + m.role + ':' + m.content + ']' }}{% endif %}"
    + END
)
# A template that writes the content before the calls, however these are written.
CALLS = (
    LOOP + "{{ m.role + ':' + m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}ARGUMENTS{% endfor %};" + END
)
ARGUMENTS = {
    "{{ '|' + c.function.arguments }}": True,
    "|{{ c.function.arguments }}": True,
    "|{{ c.function.arguments | tojson }}": False,
    "|{{ (c.function | tojson) }}": False,
    "{% for k, v in c.function.arguments.items() %}|{{ k }}={{ v }}{% endfor %}": False,
    "|{{ c.function.arguments if c.function.arguments is string else c.function.arguments | tojson }}": False,
}
NO_SYSTEM = {
    "refused": "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + STRINGS,
    "not written": "{% for m in messages if m.role != 'system' %}{{ '[' + m.role + ':' + m.content + ']' }}" + END,
    "in turn": LOOP
    + "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('not in turn') }}{% endif %}"
    + "{{ '[' + m.role + ':' + m.content + ']' }}"
    + END,
}
# Templates that write one system message alone, at the beginning.
ONE_SYSTEM = {
    "the first": "{% if messages[0].role == 'system' %}{{ '[system:' + messages[0].content + ']' }}{% endif %}"
    + "{% for m in messages if m.role != 'system' %}{{ '[' + m.role + ':' + m.content + ']' }}"
    + END,
    "the last": "{% set n = namespace(s='') %}"
    + "{% for m in messages if m.role == 'system' %}{% set n.s = m.content %}{% endfor %}"
    + "{% if n.s %}{{ '[system:' + n.s + ']' }}{% endif %}"
    + "{% for m in messages if m.role != 'system' %}{{ '[' + m.role + ':' + m.content + ']' }}"
    + END,
    "others refused": LOOP
    + "{% if m.role == 'system' and not loop.first %}{{ raise_exception('not at the beginning') }}{% endif %}"
    + "{{ '[' + m.role + ':' + m.content + ']' }}"
    + END,
}
IN_TURN = (
    LOOP
    + "{% if loop.index0 and m.role == messages[loop.index0 - 1].role %}{{ raise_exception('not in turn') }}{% endif %}"
    + "{{ '[' + m.role + ':' + m.content + ']' }}"
    + END
)
CITY = {"city": "Zürich"}


def form_of(template):
    return ChatTemplate({}, template).form(SPECIAL, tools=False)


def shown(template, messages, tools=None):
    chat = ChatTemplate({}, template)
    return chat.render(messages, tools, None, {"add_generation_prompt": True}, SPECIAL, form_of(template))


@pytest.mark.parametrize("template", PARTS.values(), ids=PARTS)
def test_templates_that_read_parts_get_parts(template):
    messages = [say("system", "S"), say("user", "U"), say("assistant", "A"), say("user", "V")]
    expected = "[system:S.][user:U.][assistant:A.][user:V.]>"
    assert shown(template, messages) == expected
    assert shown(template, [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in messages]) == expected


def test_roles_may_differ_in_what_is_read():
    messages = [say("system", "S"), say("user", "U"), say("assistant", "A"), say("user", "V")]
    assert shown(MIXED, messages) == "[system:S][user:U][assistant:A][user:V]>"


def test_parts_are_lines_for_templates_that_read_strings():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert shown(STRINGS, [say("user", parts), say("assistant", parts)]) == "[user:a\nb][assistant:a\nb]>"
    assert shown(BOTH, [say("user", parts), say("user", "c")]) == "[user:a+b][user:c]>"  # as they are given
    with pytest.raises(ds.ModelError, match="cannot render"):
        shown(STRINGS, [say("user", [*parts, {"type": "image"}])])


def test_only_templates_that_ask_for_it_see_none():
    calls = [*USER, say("assistant", None, tool_calls=[call("f", CITY)]), say("tool", "21")]
    question = "[user:What is 2 + 2?]"
    assert form_of(NONE_ASKED).null and shown(NONE_ASKED, calls) == question + '(f {"city": "Zürich"})[tool:21]>'
    absent = [*USER, {"role": "assistant", "tool_calls": calls[1]["tool_calls"]}, calls[2]]
    assert shown(NONE_ASKED, absent) == shown(NONE_ASKED, calls)
    assert shown(NONE_ASKED, [*USER, say("assistant", None), *USER]) == f"{question}[assistant:]{question}>"
    names = LOOP + "{% if m.content is none %}{{ m.tool_calls[0].function.name }}{% else %}{{ m.content }}{% endif %};" + END
    assert form_of(names).null and shown(names, calls) == "What is 2 + 2?;f;21;>"
    writes = LOOP + "{{ m.content if m.content is string else m.content | tojson }};" + END
    assert not form_of(writes).null and shown(writes, calls) == "What is 2 + 2?;;21;>"
    assert not form_of(STRINGS).null and shown(STRINGS, calls) == question + "[assistant:][tool:21]>"
    prints = LOOP + "{{ m.content }}{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %};" + END
    assert shown(prints, calls) == 'What is 2 + 2?;{"name": "f", "arguments": {"city": "Zürich"}};21;>'


@pytest.mark.parametrize("written", ARGUMENTS)
def test_arguments_are_text_or_a_mapping_as_the_template_writes_them(written):
    template, as_text = CALLS.replace("ARGUMENTS", written), json.dumps(CITY, ensure_ascii=False)
    assert form_of(template).text_arguments == ARGUMENTS[written]
    texts = [shown(template, [*USER, say("assistant", None, tool_calls=[call("f", given)])]) for given in (CITY, as_text)]
    assert texts[0] == texts[1]
    assert "city=Zürich" in texts[0] or as_text in texts[0]
    for cut in (as_text[:-1] + ', "days', as_text[:-1] + ",", '{"ci', "no JSON"):
        complete = {"city": "Zürich"} if as_text[:-1] in cut else {}
        told = cut if ARGUMENTS[written] else complete
        texts = [shown(template, [*USER, say("assistant", None, tool_calls=[call("f", given)])]) for given in (cut, told)]
        assert texts[0] == texts[1]


@pytest.mark.parametrize("template", [*NO_SYSTEM.values(), TEMPLATES["gemma2"]], ids=[*NO_SYSTEM, "gemma2"])
def test_a_system_message_begins_the_first_users_where_there_is_no_such_role(template):
    turns = [say("user", "U"), say("assistant", "A"), say("user", "V")]
    assert not form_of(template).system
    assert shown(template, [say("system", "S"), *turns]) == shown(template, [say("user", "S\n\nU"), *turns[1:]])
    parts = [{"type": "text", "text": "S"}, {"type": "text", "text": "T"}]
    assert shown(template, [say("system", parts), *turns]) == shown(template, [say("user", "S\nT\n\nU"), *turns[1:]])
    assert shown(template, [say("system", ""), *turns]) == shown(template, turns)
    assert shown(template, [say("system", "S")]) == shown(template, [say("user", "S")])
    later = [*turns[:2], say("system", "S"), say("system", "T"), say("user", "V"), say("system", "R")]
    assert shown(template, later) == shown(template, [*turns[:2], say("user", "S\n\nT\n\nV\n\nR")])


def test_system_messages_stay_where_there_is_the_role():
    assert shown(STRINGS, [say("system", "S"), *USER]) == "[system:S][user:What is 2 + 2?]>"
    several = [say("system", "S"), say("system", "T"), say("user", "U"), say("system", "R"), say("user", "V"), say("user", "W")]
    assert shown(STRINGS, several) == "[system:S][system:T][user:U][system:R][user:V][user:W]>"


@pytest.mark.parametrize("template", ONE_SYSTEM.values(), ids=ONE_SYSTEM)
def test_no_system_message_is_lost(template):
    """Clients send several, also later: instructions, then a developer's message; reminders in the middle."""
    several = [say("system", "S"), say("system", "T"), say("user", "U"), say("system", "R"), say("user", "V"), say("user", "W")]
    assert shown(template, several) == "[system:S\n\nT][user:U][user:R\n\nV][user:W]>"
    assert shown(template, [*USER, say("system", "R")]) == "[user:What is 2 + 2?\n\nR]>"


def test_neighbouring_messages_of_the_user_are_one_where_they_would_be_refused():
    several = [
        say("system", "S"),
        say("system", "T"),
        say("user", "U"),
        say("user", "V"),
        say("assistant", "A"),
        say("system", "R"),
    ]
    expected = "[system:S\n\nT][user:U\n\nV][assistant:A][system:R]>"
    assert shown(IN_TURN, several) == expected
    assert shown(IN_TURN, [*several, say("user", "W"), say("user", "X")]) == expected[:-1] + "[user:W\n\nX]>"


def test_the_form_is_found_once_and_tells_no_templates_apart_that_it_cannot(monkeypatch):
    tried = []
    attempt = ds.chat.template_process.attempt
    monkeypatch.setattr(ds.chat.template_process, "attempt", lambda *given: tried.append(given) or attempt(*given))
    chat = ChatTemplate({"default": STRINGS, "tool_use": NONE_ASKED})
    forms = [chat.form(SPECIAL, tools=tools) for tools in (False, True, False, True)]
    assert forms[:2] == forms[2:] and forms[0] != forms[1] and 0 < len(tried) < 40
    as_given = form_of("{{ unknown.variable }}")  # which fails for whatever is said
    assert as_given.system and not as_given.null and as_given.strings == as_given.parts
    with pytest.raises(ds.ModelError, match="was stopped"):
        form_of("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}")


FORMS = {
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": {"null": True, "text_arguments": True},
    "google-gemma-2-2b-it": {"system": False},
    "Qwen-Qwen3-0.6B": {},
    "Mistral-Small-3.2-24B-Instruct-2506": {},
    "deepseek-ai-DeepSeek-V3.1": {},
    "openai-gpt-oss-120b": {},
}


@pytest.mark.parametrize("name", FORMS)
def test_the_forms_of_published_templates(name, published):  # noqa: F811
    form, usual = form_of((published / f"{name}.jinja").read_text()), MessageForm()
    names = ("system", "null", "text_arguments")
    assert {key: getattr(form, key) for key in names} == {key: getattr(usual, key) for key in names} | FORMS[name]
    assert {"user", "assistant"} <= form.strings


def prompt(path, template, messages, **more):
    """The text of a chat's prompt as the server makes it, without its spaces, which this model's tokenizer does not write."""
    model = ds.load(path, chat_template=template)
    [ids] = chat_completion_job(model, {"messages": messages, **more}, 10**6).prompts
    return model.tokenizer.decode(ids)


def test_a_server_brings_messages_into_the_form(tiny_file):
    path = tiny_file(kind="Q8_0", context=400)
    assert prompt(path, PARTS["a loop"], [say("user", "a")]) == "[user:a.]>"
    assert prompt(path, STRINGS, [say("user", [{"type": "text", "text": "a"}])]) == "[user:a]>"
    written = call("f", json.dumps({"city": "Bonn"}), id="1")
    calls = [say("user", "u"), say("assistant", None, tool_calls=[written]), say("tool", "21", tool_call_id="1")]
    with_tools = "{% if tools %}tools{% endif %}" + NONE_ASKED + "{# <tool_call> #}"
    assert prompt(path, with_tools, calls, tools=[tool("f")]) == 'tools[user:u](f{"city":"Bonn"})[tool:21]>'


@pytest.mark.parametrize("template", NO_SYSTEM.values(), ids=NO_SYSTEM)
def test_tools_are_described_in_the_first_users_message_where_there_is_no_system_role(tiny_file, template):
    path = tiny_file(kind="Q8_0", context=400)
    for first in ([], [say("system", "S")]):
        text = prompt(path, template, [*first, say("user", "u")], tools=[tool("look")])
        assert text.startswith("[user:" + "S" * len(first) + "Youmay") and '"look"' in text and text.endswith("</tool_call>u]>")
