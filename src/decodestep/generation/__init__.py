"""From a prompt to a text: `generate`, which samples, and beam search."""

from decodestep.generation.beam_group import Beam
from decodestep.generation.beam_logits import BeamLogits
from decodestep.generation.beam_search import NoBeamError, beam_search
from decodestep.generation.generate import Completion, generate

__all__ = ["Beam", "BeamLogits", "Completion", "NoBeamError", "beam_search", "generate"]
