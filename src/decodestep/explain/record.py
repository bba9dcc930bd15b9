"""Runs a model and records what every step did to every token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from decodestep._base.threads import use_threads
from decodestep.generation.beam_logits import BeamLogits
from decodestep.generation.generate_call import within_context
from decodestep.models import Model
from decodestep.sampling.params import SamplingParams
from decodestep.sampling.row import Row
from decodestep.sampling.row_factory import RowFactory
from decodestep.sampling.trace import Trace

Kept = TypeVar("Kept")


@dataclass(frozen=True)
class Recording(Generic[Kept]):
    """One run: its row, the prompt, and what `keep` returned for each token's trace.

    row.reason: why it ended; "" if the number of steps was reached.
    """

    params: SamplingParams
    row: Row
    prompt_ids: tuple[int, ...]
    tokens: tuple[Kept, ...]
    text: str


def record(
    model: Model, prompt_ids: Sequence[int], params: SamplingParams, steps: int, keep: Callable[[Trace], Kept]
) -> Recording[Kept]:
    """Generates at most `steps` tokens as `generate` does, and stores `keep(trace)` for each.

    A trace itself holds an array of the vocabulary's size for every step of the plan.

    prompt_ids: at least one token. params: of one beam and one sample.
    Raises as `Sampler` does, and CacheFullError if the prompt and the steps do not fit the cache.
    """
    factory = RowFactory.of_model(model)
    row = factory.row(within_context(model, list(prompt_ids), params), prompt_ids)
    ids, tokens, text = list(prompt_ids), list[Kept](), ""
    logits_of = BeamLogits(model, 1, min(len(ids) + steps, model.config.context))
    try:
        with use_threads(model.threads):
            while not row.reason and len(tokens) < steps:
                logits = logits_of([ids], [0])
                tokens.append(keep(row.trace(logits[0], factory.speller)))
                [taken] = row.step(logits)
                if row.error is not None:
                    raise row.error
                text += taken.text
                ids.append(taken.token)
    finally:
        logits_of.close()
    return Recording(params, row, tuple(prompt_ids), tuple(tokens), text)
