"""Serves models to many clients: `http` is a server of their `Engine`s, with the endpoints of `endpoints`.

- `served_models`: which models are loaded, each with its engine;
- `http`: the server; `admission`, `bodies`, `connection`, `errors`, `event_stream`, `metrics`, `wire`: what endpoints share;
- `endpoints`: a file or a folder each; `endpoint`: what one is; `page.html`: the chat page;
- `jobs` (`request_fields`): requests as prompts and `SamplingParams`; `chats`: conversations as such; `answer`: what the rows
  of a job add; `answer_writer`: how an API writes it;
- `openai_fields`, `choices`: what OpenAI's completions and chat completions share;
- `function_calls`: functions before there were tools; `infilling`: texts between two others;
- `blocks`: what Anthropic's messages and OpenAI's responses share.

All of it needs decodestep[serve]. The engine itself is `decodestep.Engine`; its names are here too.
"""

from decodestep.errors import EngineClosedError, QueueFullError
from decodestep.generation.engine import Engine
from decodestep.generation.engine_request import Delta, EngineRequest

__all__ = ["Delta", "Engine", "EngineClosedError", "EngineRequest", "QueueFullError"]
