"""From a prompt to a text: `generate`, which samples, and beam search.

- `prompts`: the forms of a prompt; `completion`: the result of a row;
- `batch`: rows that a model runs together; `run`: a call, a forward pass at a time; `generate` and `stream` drive it;
- `beam_search`, `beam_group`: the search, with any source of logits; `beam_logits`, `model_search`: with a model.
"""

from decodestep.generation.beam_group import Beam
from decodestep.generation.beam_logits import BeamLogits
from decodestep.generation.beam_search import NoBeamError, SearchInterrupt, beam_search
from decodestep.generation.completion import Completion
from decodestep.generation.generate import generate
from decodestep.generation.stream import astream, stream

__all__ = ["Beam", "BeamLogits", "Completion", "NoBeamError", "SearchInterrupt", "astream", "beam_search", "generate", "stream"]
