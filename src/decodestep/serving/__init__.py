"""Serves a model to many clients: `http` is a server of an `Engine`, with the endpoints of `endpoints`.

- `http`: the server; `admission`, `bodies`, `errors`, `connection`, `event_stream`, `metrics`: what all endpoints share;
- `endpoints`: a file each; `endpoint`: what one is; `page.html`: the chat page;
- `jobs` (`request_fields`): requests as prompts and `SamplingParams`; `answer`: what the rows of a job add; `choices`, `wire`: how
  it is written.

All of it needs decodestep[serve]. The engine itself is `decodestep.Engine`; its names are here too.
"""

from decodestep.errors import EngineClosedError, QueueFullError
from decodestep.generation.engine import Engine
from decodestep.generation.engine_request import Delta, EngineRequest

__all__ = ["Delta", "Engine", "EngineClosedError", "EngineRequest", "QueueFullError"]
