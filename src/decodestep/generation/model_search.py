"""Beam search of one prompt with a model: completions from the beams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from decodestep.generation.beam_group import Beam
from decodestep.generation.beam_logits import BeamLogits
from decodestep.generation.beam_search import NoBeamError, beam_search
from decodestep.generation.completion import Completion
from decodestep.sampling.params import SamplingParams
from decodestep.sampling.sampler import Row
from decodestep.sampling.text_stream import TextStream

if TYPE_CHECKING:
    from decodestep.models import Model


def search(model: Model, params: SamplingParams, row: Row, prompt_index: int) -> list[Completion]:
    """The beams of a prompt, best first; at most params.num_return_sequences.

    row: one that has only its prompt; its processors, its seed and its clock are used.
    """
    prompt = row.history.tokens
    end_token_ids = frozenset() if params.ignore_eos else model.tokenizer.end_token_ids

    def text_of(tokens: list[int]) -> TextStream:
        text = TextStream(model.tokenizer.token_bytes, params.stop_strings)
        for token in tokens:
            text.push(token)
        return text

    def stop(tokens: list[int]) -> bool:
        return row.late() or tokens[-1] in params.stop_token_ids or (bool(params.stop_strings) and text_of(tokens).stopped)

    def completion(beam: Beam) -> Completion:
        if not beam.finished:
            reason = "length"
        elif beam.token_ids[-1] in end_token_ids:
            reason = "eos"
        else:
            reason = "time" if row.late() else "stop"
        text = text_of(beam.token_ids)
        text.finish()
        return Completion(text.text, beam.token_ids, prompt, reason, beam.logprobs, row.seed, prompt_index)

    length = params.max_new_tokens or 1
    try:
        beams = beam_search(
            BeamLogits(model, params.num_beams, len(prompt) + length),
            prompt,
            vocab_size=model.config.vocab_size,
            max_new_tokens=length,
            num_beams=params.num_beams,
            eos_token_ids=end_token_ids,
            num_beam_groups=params.num_beam_groups,
            diversity_penalty=params.diversity_penalty,
            length_penalty=params.length_penalty,
            early_stopping=params.early_stopping,
            num_return_sequences=params.num_return_sequences,
            processors=row.plan.processors,
            do_sample=not params.greedy,
            seed=row.seed or 0,
            stop=stop,
            top_logprobs=params.logprobs,
        )
    except NoBeamError:
        return [Completion("", [], prompt, "no_candidate", None if params.logprobs is None else [], row.seed, prompt_index)]
    return [completion(beam) for beam in beams]
