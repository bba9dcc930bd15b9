"""Prompts that are mappings: conversations with tools, documents and variables for the template, and those that go on."""

from __future__ import annotations

import asyncio

import pytest

import decodestep as ds
from decodestep.chat import tools as chat_tools
from decodestep.chat.template import until_content
from decodestep.chat.traced_text import TracedText, own_text
from decodestep.generation.completion import Completion
from decodestep.generation.prompts import prompt_ids
from decodestep.serving.endpoints.chat_completions import chat_completion_job

USER = {"role": "user", "content": "Which is the largest lake?"}
BEGUN = {"role": "assistant", "content": "The largest"}
TOOL = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}}
SHORT = ds.SamplingParams(do_sample=False, max_new_tokens=4)
VARIABLES = (
    "{{ mood }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<go>{% endif %}"
)


def test_a_mapping_is_one_prompt_and_a_list_of_them_a_batch(model):
    alone = ds.generate(model, [USER], SHORT)
    assert ds.generate(model, {"messages": [USER]}, SHORT) == alone
    both = ds.generate(model, [{"messages": [USER]}, {"messages": [USER, BEGUN, USER]}], SHORT)
    assert both == [*alone, *ds.generate(model, [[USER, BEGUN, USER]], SHORT)]
    assert [completion.prompt_index for completion in both] == [0, 1]
    mixed = ds.generate(model, ["Once", {"messages": [USER]}, [USER], [1, 2]], SHORT)
    assert mixed[1] == mixed[2] == alone[0]


def test_streams_and_engines_take_mappings(model):
    prompt = {"messages": [USER, BEGUN], "continue_final_message": True}
    [whole] = ds.generate(model, prompt, SHORT)
    assert "".join(ds.stream(model, prompt, SHORT)) == whole.text

    async def read():
        return [piece async for piece in ds.astream(model, prompt, SHORT)]

    assert "".join(asyncio.run(read())) == whole.text
    with ds.Engine(model) as engine:
        assert engine.submit(prompt, SHORT).result() == [whole]


def test_tools_are_described_as_the_server_describes_them(model):
    ids = prompt_ids(model, {"messages": [USER], "tools": [TOOL]})
    assert ids == chat_completion_job(model, {"messages": [USER], "tools": [TOOL]}, 10**6).prompts[0]
    described = chat_tools.read(model, {"tools": [TOOL]}, [USER]).describe_tools([USER])
    assert ids == model.chat_ids(described)
    assert prompt_ids(model, {"messages": [USER], "tools": []}) == prompt_ids(model, [USER])


def test_a_template_that_describes_tools_is_given_them(tiny_file):
    template = "{{ tools | tojson }}<tool_call>" + VARIABLES
    model = ds.load(tiny_file(context=400), chat_template=template)
    ids = prompt_ids(model, {"messages": [USER], "tools": [TOOL]})
    assert ids == model.chat_ids([USER], tools=[TOOL])


def test_variables_and_the_end_of_the_text(tiny_file):
    model = ds.load(tiny_file(context=400), chat_template=VARIABLES)
    made = {"messages": [USER, BEGUN], "chat_template_kwargs": {"mood": "calm"}}
    assert prompt_ids(model, made) == model.chat_ids([USER, BEGUN], mood="calm")
    going_on = prompt_ids(model, {**made, "continue_final_message": True})
    assert going_on == model.tokenizer.encode("calm<user>Which is the largest lake?<assistant>The largest")


@pytest.mark.parametrize(
    ("prompt", "wrong"),
    [
        ({}, 'prompt must be a mapping with "messages"; got an empty one'),
        ({"role": "user"}, 'prompt must be a mapping with "messages"; got role'),
        ({"messages": [USER], "tool": []}, "prompt must be a mapping of messages, tools, .*; got tool"),
        ({"messages": [USER], "continue_final_message": "no"}, "continue_final_message must be a bool or None"),
        ({"messages": [USER], "chat_template_kwargs": [1]}, "chat_template_kwargs must be a mapping"),
        ({"messages": [USER], "chat_template_kwargs": {"tools": []}}, "chat_template_kwargs must be without names"),
        ({"messages": [USER], "tools": "look"}, "tools must be a list"),
        ({"messages": "Hello", "tools": [TOOL]}, "messages must be a list of messages"),
    ],
)
def test_refuses_what_no_template_would_read(model, prompt, wrong):
    with pytest.raises(ValueError, match=f"^generate: {wrong}"):
        ds.generate(model, prompt)


def test_a_conversation_goes_on_where_its_last_message_ends(model):
    text = model.chat_prompt([USER, BEGUN], continue_final_message=True)
    assert text.endswith("assistant\nThe largest")
    assert model.chat_prompt([USER, BEGUN]).startswith(text)
    [completion] = ds.generate(model, {"messages": [USER, BEGUN], "continue_final_message": True}, SHORT)
    assert completion.prompt_token_ids == model.chat_ids([USER, BEGUN], continue_final_message=True)


@pytest.mark.parametrize("content", ["", "  ", None, "something else", [], [{"type": "image"}]])
def test_only_a_content_that_the_template_ends_with_goes_on(content):
    with pytest.raises(ds.ModelError, match="does not end with the content of the last message"):
        until_content(own_text("<a>") + "The largest" + own_text("<end>"), content)


def test_a_content_of_parts_and_one_that_was_trimmed_go_on():
    text = own_text("<a>") + "The largest" + own_text("<end>")
    assert isinstance(text, TracedText)
    for content in ("The largest \n", "So: The largest", [{"type": "text", "text": "The largest"}]):
        assert until_content(text, content) == "<a>The largest"


def test_the_index_of_a_prompt_is_also_its_row():
    by_place = Completion("a", [1], [2], "eos", None, None, 3)
    assert by_place.prompt_index == by_place.row == 3
    assert Completion("a", [1], [2], "eos", row=4).prompt_index == 4
    fresh = Completion("a", [1], [2], "eos")
    assert (fresh.row, fresh.reasoning, fresh.content, fresh.tool_calls) == (0, "", "", ())
    assert (fresh.cached_tokens, fresh.drafted, fresh.accepted) == (0, 0, 0)
