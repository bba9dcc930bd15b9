"""The official packages of Anthropic and OpenAI against a server of the default model: what users call, in loops of agents.

Chat completions and completions are in test_serving.py.
"""

from __future__ import annotations

import asyncio
import json

import anthropic
import openai
import pytest
from pydantic import BaseModel

from support.servers import LocalServer

HELLO = [{"role": "user", "content": "What is the weather in Rome?"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Bonn", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
THOUGHT = "<think>\nThe user asks[.]\n</think>\n\nIt rains[.]"


pytestmark = pytest.mark.slow


class Weather(BaseModel):
    sunny: bool
    degrees: int


@pytest.fixture(scope="module")
def served(model):
    with LocalServer(model) as made:
        yield made


@pytest.fixture
def claude(served):
    return anthropic.Anthropic(base_url=f"http://127.0.0.1:{served.port}", api_key="none", max_retries=0)


WEATHER = {"name": "weather", "description": "The weather in a city", "input_schema": SCHEMA}
ASKED = {"model": "claude", "max_tokens": 30, "messages": HELLO}


def test_messages_whole_and_streamed(claude):
    seeded = {**ASKED, "system": "Be brief.", "extra_body": {"seed": 3, "temperature": 0.5}}
    whole = claude.messages.create(**seeded)
    with claude.messages.stream(**seeded) as streamed:
        text = "".join(streamed.text_stream)
    final = streamed.get_final_message()
    assert [block.text for block in whole.content] == [block.text for block in final.content] == [text] and text
    assert (whole.stop_reason, whole.usage.output_tokens) == (final.stop_reason, final.usage.output_tokens)
    plain = [event.delta.text for event in claude.messages.create(**seeded, stream=True) if event.type == "content_block_delta"]
    assert "".join(plain) == text
    counted = claude.messages.count_tokens(model="claude", system="Be brief.", messages=HELLO).input_tokens
    for message in (whole, final):
        assert message.usage.input_tokens + message.usage.cache_read_input_tokens == counted


def test_messages_of_the_asynchronous_client(served):
    async def ask():
        client = anthropic.AsyncAnthropic(base_url=f"http://127.0.0.1:{served.port}", auth_token="none")
        async with client, client.messages.stream(**ASKED) as streamed:
            return await streamed.get_final_message()

    assert asyncio.run(ask()).content[0].type == "text"


def test_a_loop_of_tool_uses_and_results(claude):
    messages, tools = list(HELLO), [WEATHER, {"type": "web_search_20250305", "name": "web_search"}]
    for stream in (False, True):
        asked = {**ASKED, "max_tokens": 100, "messages": messages, "tools": tools, "tool_choice": {"type": "any"}}
        if stream:
            with claude.messages.stream(**asked) as streamed:
                pieces = [event.partial_json for event in streamed if event.type == "input_json"]
            answer = streamed.get_final_message()
            assert json.loads("".join(pieces)) == answer.content[-1].input
        else:
            answer = claude.messages.create(**asked)
        assert answer.stop_reason == "tool_use"
        [use] = [block for block in answer.content if block.type == "tool_use"]
        assert use.name == "weather" and use.input["city"] in ("Bonn", "Rome")
        result = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "sunny, 25 degrees"}]}
        messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    last = {**ASKED, "messages": messages, "tools": tools, "tool_choice": {"type": "none"}}
    assert [block.type for block in claude.messages.create(**last).content] == ["text"]


def test_the_tool_runner_of_the_beta_client(claude):
    asked = []

    @anthropic.beta_tool
    def weather(city: str) -> str:
        """The weather in a city.

        Args:
            city: its name.
        """
        asked.append(city)
        return "sunny"

    call = r'<tool_call>\{"name": "weather", "arguments": \{"city": "Rome"\}\}</tool_call>'
    given = {**ASKED, "max_tokens": 60, "tools": [weather], "max_iterations": 2, "extra_body": {"regex": call}}
    answers = list(claude.beta.messages.tool_runner(**given))
    assert asked == ["Rome", "Rome"] and [answer.stop_reason for answer in answers] == ["tool_use"] * 2


def test_thinking_is_streamed_and_comes_back(claude):
    asked = {**ASKED, "max_tokens": 60}
    with claude.messages.stream(**asked, extra_body={"regex": THOUGHT}) as streamed:
        kinds = [event.type for event in streamed if event.type in ("thinking", "signature", "text")]
    thought, text = streamed.get_final_message().content
    assert (thought.thinking, thought.signature, text.text) == ("The user asks.", "", "It rains.")
    assert kinds == sorted(kinds, key=["thinking", "signature", "text"].index) and kinds.count("signature") == 1
    messages = [*HELLO, {"role": "assistant", "content": [thought, text]}, *HELLO]
    for thinking in ({"type": "enabled", "budget_tokens": 1024}, {"type": "disabled"}, {"type": "adaptive"}):
        assert claude.messages.create(**{**asked, "messages": messages, "thinking": thinking}).content


def test_structured_output_of_messages(claude):
    found = claude.messages.parse(**ASKED, output_format=Weather)
    assert isinstance(found.parsed_output, Weather)


def test_errors_are_those_of_the_client(claude):
    image = {"type": "image", "source": {"type": "url", "url": "x"}}
    with pytest.raises(anthropic.BadRequestError, match="image") as caught:
        claude.messages.create(**{**ASKED, "messages": [{"role": "user", "content": [image]}]})
    assert caught.value.body["error"]["type"] == "invalid_request_error" and caught.value.request_id.startswith("req_")
    with pytest.raises(anthropic.BadRequestError):
        list(claude.messages.create(**ASKED, stream=True, extra_body={"regex": "("}))


FUNCTION = {"type": "function", "name": "weather", "description": "The weather in a city", "parameters": SCHEMA, "strict": True}
INPUT = {"model": "any", "input": "What is the weather in Rome?", "max_output_tokens": 60}


def test_responses_whole_and_streamed(served):
    seeded = {**INPUT, "instructions": "Be brief.", "extra_body": {"seed": 3}}
    whole = served.client().responses.create(**seeded)
    with served.client().responses.stream(**seeded) as streamed:
        text = "".join(event.delta for event in streamed if event.type == "response.output_text.delta")
        if whole.status == "completed":
            assert streamed.get_final_response().output_text == text
    last = list(served.client().responses.create(**seeded, stream=True))[-1]
    assert last.type == f"response.{whole.status}" and last.response.output_text == whole.output_text == text
    assert last.response.usage.output_tokens == whole.usage.output_tokens


def test_a_loop_of_function_calls_and_outputs(served):
    items = [{"role": "user", "content": INPUT["input"]}]
    for stream in (False, True):
        asked = {**INPUT, "input": items, "tools": [FUNCTION, {"type": "web_search"}], "tool_choice": "required"}
        if stream:
            with served.client().responses.stream(**asked) as streamed:
                pieces = [event.delta for event in streamed if event.type == "response.function_call_arguments.delta"]
                answer = streamed.get_final_response()
            assert "".join(pieces) == answer.output[-1].arguments
        else:
            answer = served.client().responses.create(**asked)
        [call] = [item for item in answer.output if item.type == "function_call"]
        assert json.loads(call.arguments)["city"] in ("Bonn", "Rome")
        items += [item.model_dump(exclude_none=True) for item in answer.output]
        items.append({"type": "function_call_output", "call_id": call.call_id, "output": "sunny"})
    assert served.client().responses.create(**{**INPUT, "input": items}, tools=[FUNCTION]).output


def test_structured_output_of_responses(served):
    found = served.client().responses.parse(**INPUT, text_format=Weather)
    assert isinstance(found.output_parsed, Weather)
    with served.client().responses.stream(**INPUT, text_format=Weather) as streamed:
        assert isinstance(streamed.get_final_response().output_parsed, Weather)


def test_reasoning_of_responses_comes_back(served):
    found = served.client().responses.create(**INPUT, reasoning={"effort": "low"}, extra_body={"regex": THOUGHT})
    reasoning, message = found.output
    assert reasoning.content[0].text == "The user asks." and message.content[0].text == "It rains."
    assert found.usage.output_tokens_details.reasoning_tokens > 0
    items = [*(item.model_dump(exclude_none=True) for item in found.output), {"role": "user", "content": "And tomorrow?"}]
    assert served.client().responses.create(**{**INPUT, "input": items}).output


def test_what_is_not_stored_is_refused_by_name(served):
    with pytest.raises(openai.BadRequestError, match="previous_response_id") as caught:
        served.client().responses.create(**INPUT, previous_response_id="resp_1")
    assert caught.value.param == "previous_response_id"
    with pytest.raises(openai.BadRequestError, match="there are no embeddings here"):
        served.client().embeddings.create(model="any", input="a")
