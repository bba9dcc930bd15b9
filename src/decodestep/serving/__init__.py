"""Serves a model to many clients: `http` is an OpenAI-compatible API of an `Engine`.

- `requests` (`request_fields`): request bodies as prompts and `SamplingParams`; `responses`: response bodies; `errors`: error
  responses; `answer`: from the one to the other;
- `http`: the routes; `event_stream`: server-sent events; `connection`; `metrics`; `page.html`: the chat page.

All of it needs decodestep[serve]. The engine itself is `decodestep.Engine`; its names are here too.
"""

from decodestep.errors import EngineClosedError, QueueFullError
from decodestep.generation.engine import Engine
from decodestep.generation.engine_request import Delta, EngineRequest

__all__ = ["Delta", "Engine", "EngineClosedError", "EngineRequest", "QueueFullError"]
