"""Text generation: sampling (`generate`, `stream`, `Engine`) and beam search.

- `prompts`: the accepted forms of a prompt; `completion`: the result of a row;
- `batch`: rows that a model runs together; `scheduler`, `forward_cost`: what each forward pass runs;
- `generate_call`: one call, driven by `generate` and `stream`;
- `engine` (`engine_request`): rows join and leave between forward passes, and each gets the tokens that it would get alone;
- `stream`, `async_stream`: iterators over a completion's text; `shared_engine`: that of a model's asynchronous streams;
- `pieces`: what of an answer the pieces of a text are;
- `prompt_logprobs`: the log-probabilities of a prompt's own tokens;
- `beam_search`, `beam_group`: beam search with any source of logits; `beam_logits`, `model_search`: with a model.
"""

from decodestep.errors import EngineClosedError, QueueFullError
from decodestep.generation.beam_group import Beam
from decodestep.generation.beam_logits import BeamLogits
from decodestep.generation.beam_search import NoBeamError, SearchInterrupt, beam_search
from decodestep.generation.completion import Completion
from decodestep.generation.engine import Engine
from decodestep.generation.engine_request import Delta, EngineRequest
from decodestep.generation.generate import generate
from decodestep.generation.pieces import Piece
from decodestep.generation.stream import astream, stream

__all__ = [
    "Beam",
    "BeamLogits",
    "Completion",
    "Delta",
    "Engine",
    "EngineClosedError",
    "EngineRequest",
    "NoBeamError",
    "Piece",
    "QueueFullError",
    "SearchInterrupt",
    "astream",
    "beam_search",
    "generate",
    "stream",
]
