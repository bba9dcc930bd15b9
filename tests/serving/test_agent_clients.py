"""Packages that agents are built with, against a server of the default model: calls and results, streams, structured output.

So small a model seldom calls a tool by itself. Between a package and the server, what follows a user's message must therefore
be a call, and what follows a result must not.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from pydantic import BaseModel, Field

from support.servers import LocalServer

pytestmark = pytest.mark.slow
ASKED = "What is the weather in Rome?"
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Bonn", "Rome"]}}, "required": ["city"]}
FUNCTION = {
    "type": "function",
    "function": {"name": "weather", "description": "The weather in a city", "parameters": PARAMETERS},
}


class Weather(BaseModel):
    """The weather in a city."""

    sunny: bool
    degrees: int = Field(ge=-40, le=60)


class UnboundedWeather(BaseModel):
    """The weather in a city."""

    sunny: bool
    degrees: int


class Steering:
    """An ASGI application that chooses `tool_choice` for each request with tools, then hands it on."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            return await self._app(scope, receive, send)
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        asked = json.loads(body)
        if asked.get("tools"):
            asked["tool_choice"] = self._choice(scope["path"], asked)
        body = json.dumps(asked).encode()
        headers = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Any:
            return messages.pop() if messages else await receive()

        return await self._app(scope | {"headers": [*headers, (b"content-length", b"%d" % len(body))]}, replay, send)

    @staticmethod
    def _choice(path: str, asked: dict[str, Any]) -> Any:
        last = (asked.get("messages") or asked["input"])[-1]
        content = last.get("content")
        kinds = {last.get("role"), last.get("type")}
        if isinstance(content, list):
            kinds |= {part.get("type") for part in content}
        answered = bool(kinds & {"tool", "function_call_output", "tool_result"})
        if path == "/v1/messages":
            return {"type": "none" if answered else "any"}
        return "none" if answered else "required"


@pytest.fixture(scope="module")
def address(model):
    with LocalServer(model, around=Steering) as served:
        yield f"http://127.0.0.1:{served.port}"


class Tool:
    """The tool of these loops, which counts its calls."""

    def __init__(self) -> None:
        self.cities: list[str] = []

    def weather(self, city: str) -> str:
        """The weather in a city.

        Args:
            city: its name.
        """
        self.cities.append(city)
        return "sunny, 25 degrees"


@pytest.fixture
def tool():
    return Tool()


KINDS = ("chat", "responses", "messages")


@pytest.mark.parametrize("kind", KINDS)
def test_pydantic_ai(address, tool, kind):
    pydantic_ai = pytest.importorskip("pydantic_ai")
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    if kind == "messages":
        model = AnthropicModel("claude-sonnet-4-5", provider=AnthropicProvider(base_url=address, api_key="none"))
    else:
        made = OpenAIChatModel if kind == "chat" else OpenAIResponsesModel
        model = made("default", provider=OpenAIProvider(base_url=f"{address}/v1", api_key="none"))
    settings = {"max_tokens": 60}
    loop = pydantic_ai.Agent(model, tools=[tool.weather], model_settings=settings)
    answer = loop.run_sync(ASKED)
    assert len(tool.cities) == 1 and isinstance(answer.output, str) and answer.output

    async def stream() -> list[str]:
        async with pydantic_ai.Agent(model, model_settings=settings).run_stream(ASKED) as streamed:
            return [piece async for piece in streamed.stream_text(delta=True, debounce_by=None)]

    assert len(asyncio.run(stream())) > 1
    # Anthropic's client writes the bounds of a number into its description, so that the server does not hold them.
    native = UnboundedWeather if kind == "messages" else Weather
    for output, made_of in ((Weather, Weather), (pydantic_ai.NativeOutput(native), native)):
        structured = pydantic_ai.Agent(model, output_type=output, model_settings=settings).run_sync(ASKED)
        assert isinstance(structured.output, made_of)


def test_litellm_completions(address, tool):
    litellm = pytest.importorskip("litellm")
    for name, base in (("openai/default", f"{address}/v1"), ("anthropic/claude", address)):
        asked = {"model": name, "api_base": base, "api_key": "none", "max_tokens": 60}
        messages: list[Any] = [{"role": "user", "content": ASKED}]
        message = litellm.completion(**asked, messages=messages, tools=[FUNCTION]).choices[0].message
        [call] = message.tool_calls
        messages += [
            message,
            {"role": "tool", "tool_call_id": call.id, "content": tool.weather(**json.loads(call.function.arguments))},
        ]
        assert litellm.completion(**asked, messages=messages, tools=[FUNCTION]).choices[0].message.content
        pieces = [
            chunk.choices[0].delta.content or "" for chunk in litellm.completion(**asked, messages=messages[:1], stream=True)
        ]
        assert sum(map(bool, pieces)) > 1
        streamed = litellm.completion(**asked, messages=messages[:1], tools=[FUNCTION], stream=True)
        deltas = [each for chunk in streamed for each in chunk.choices[0].delta.tool_calls or ()]
        assert "city" in json.loads("".join(each.function.arguments or "" for each in deltas))
        text = litellm.completion(**asked, messages=messages[:1], response_format=Weather).choices[0].message.content
        Weather.model_validate_json(text)


def test_litellm_responses(address):
    litellm = pytest.importorskip("litellm")
    asked = {"model": "openai/default", "api_base": f"{address}/v1", "api_key": "none", "max_output_tokens": 60}
    tools = [{"type": "function", **FUNCTION["function"]}]
    talk: list[Any] = [{"role": "user", "content": ASKED}]
    [call] = [item for item in litellm.responses(**asked, input=talk, tools=tools).output if item.type == "function_call"]
    talk += [call.model_dump(), {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}]
    answer = litellm.responses(**asked, input=talk, tools=tools)
    assert [item.type for item in answer.output] == ["message"]
    events = [event.type for event in litellm.responses(**asked, input=talk[:1], stream=True)]
    assert events.count("response.output_text.delta") > 1


@pytest.mark.parametrize("responses", [False, True])
def test_langchain(address, tool, responses):
    langchain_openai = pytest.importorskip("langchain_openai")
    from langchain_core.messages import HumanMessage, ToolMessage

    chat = langchain_openai.ChatOpenAI(
        model="default", base_url=f"{address}/v1", api_key="none", max_tokens=60, use_responses_api=responses
    )
    bound, talk = chat.bind_tools([FUNCTION]), [HumanMessage(ASKED)]
    answer = bound.invoke(talk)
    [call] = answer.tool_calls
    talk += [answer, ToolMessage(tool.weather(**call["args"]), tool_call_id=call["id"])]
    assert bound.invoke(talk).text
    assert len([chunk.text for chunk in chat.stream(talk[:1]) if chunk.text]) > 1
    summed = None
    for chunk in bound.stream(talk[:1]):
        summed = chunk if summed is None else summed + chunk
    assert summed is not None and [call["name"] for call in summed.tool_calls] == ["weather"]
    for method in ("json_schema", "function_calling"):
        assert isinstance(chat.with_structured_output(Weather, method=method).invoke(ASKED), Weather)


def test_instructor(address):
    instructor = pytest.importorskip("instructor")
    import anthropic
    import openai

    talk = [{"role": "user", "content": ASKED}]
    plain = openai.OpenAI(base_url=f"{address}/v1", api_key="none")
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA, instructor.Mode.RESPONSES_TOOLS):
        client = instructor.from_openai(plain, mode=mode)
        assert isinstance(client.create(model="default", messages=talk, response_model=Weather), Weather)
    streamed = instructor.from_openai(plain).create_partial(model="default", messages=talk, response_model=Weather)
    assert isinstance(list(streamed)[-1].degrees, int)
    claude = instructor.from_anthropic(anthropic.Anthropic(base_url=address, api_key="none"))
    found = claude.create(model="claude", messages=talk, max_tokens=60, response_model=Weather)
    assert isinstance(found, Weather)


@pytest.mark.parametrize("kind", ["chat", "responses"])
def test_openai_agents(address, tool, kind):
    agents = pytest.importorskip("agents")
    import openai

    agents.set_tracing_disabled(True)
    client = openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="none")
    made = agents.OpenAIChatCompletionsModel if kind == "chat" else agents.OpenAIResponsesModel
    model = made(model="default", openai_client=client)
    settings = agents.ModelSettings(max_tokens=400, extra_body={"seed": 2})  # a text that is cut is an error there
    loop = agents.Agent("loop", model=model, tools=[agents.function_tool(tool.weather)], model_settings=settings)

    async def run() -> tuple[str, int, Any]:
        answer = await agents.Runner.run(loop, ASKED)
        plain = agents.Agent("plain", model=model, model_settings=settings)
        streamed = agents.Runner.run_streamed(plain, ASKED)
        deltas = 0
        async for event in streamed.stream_events():
            deltas += event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
        typed = agents.Agent("typed", model=model, output_type=Weather, model_settings=settings)
        return answer.final_output, deltas, (await agents.Runner.run(typed, ASKED)).final_output

    text, deltas, structured = asyncio.run(run())
    assert len(tool.cities) == 1 and text and deltas > 1 and isinstance(structured, Weather)


def test_llm(address, tool, tmp_path, monkeypatch):
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    pytest.importorskip("llm")
    from llm.default_plugins.openai_models import Chat

    model = Chat("default", api_base=f"{address}/v1", supports_tools=True, supports_schema=True)
    chain = model.chain(ASKED, tools=[tool.weather], key="none", options={"max_tokens": 60})
    assert chain.text() and len(tool.cities) == 1
    assert len(list(model.prompt(ASKED, key="none", max_tokens=30))) > 1
    Weather.model_validate_json(model.prompt(ASKED, schema=Weather, key="none", stream=False).text())
