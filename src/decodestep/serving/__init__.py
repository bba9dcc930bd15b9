"""Serves a model to many clients: `engine` batches the rows of all requests; `http` is an OpenAI-compatible API.

- `engine` (`engine_request`): rows join and leave between passes, and each gets the tokens that it would get alone;
- `requests` (`request_fields`): request bodies as prompts and `SamplingParams`; `responses`: response bodies; `errors`: error
  responses;
- `tools` (`tool_formats`, `tool_tags`, `tool_call_format`, `tool_grammar`, `tool_json`, `tool_values`, `tool_trial`): function
  calls, described to the model and constrained; `answer_reader` (`text_feed`, `reasoning`): how they are read from an answer;
- `http`: the routes; `event_stream`: server-sent events; `connection`; `metrics`; `page.html`: the chat page.

`engine` needs no package beyond those of decodestep[generate]; the rest needs decodestep[serve].
"""

from decodestep.serving.engine import Engine, EngineClosedError, QueueFullError
from decodestep.serving.engine_request import Delta, EngineRequest

__all__ = ["Delta", "Engine", "EngineClosedError", "EngineRequest", "QueueFullError"]
