"""A model for many clients at once: `engine` runs the rows of all requests together; `http` is OpenAI's interface to it.

- `engine`: `Engine` and its `Ticket`s: rows join and leave between passes, and each has the tokens that it would have alone;
- `requests`: bodies of requests as prompts and `SamplingParams`; `responses`: what goes back; `errors`: refusals;
- `http`: the routes; `event_stream`: server-sent events; `metrics`; `page.html`: the chat page.

`engine` needs no package beyond those of decodestep[generate]; the rest needs decodestep[serve].
"""

from decodestep.serving.engine import Engine, EngineClosedError, Gain, QueueFullError, Ticket

__all__ = ["Engine", "EngineClosedError", "Gain", "QueueFullError", "Ticket"]
