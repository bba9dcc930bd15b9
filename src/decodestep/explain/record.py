"""Runs a model and records what every step did to every token."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from decodestep._base.threads import use_threads
from decodestep.generation.batch import Batch
from decodestep.generation.beam_logits import BeamLogits
from decodestep.generation.drafts import Draft, drafters_of
from decodestep.generation.drafts.drafting import new_drafters
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

    row.reason: why it ended; "" if the number of steps was reached. accepted: which of the tokens, by their index, were drafted
    ahead where the same row ran with drafts.
    """

    params: SamplingParams
    row: Row
    prompt_ids: tuple[int, ...]
    tokens: tuple[Kept, ...]
    text: str
    accepted: tuple[int, ...] = ()


def record(
    model: Model,
    prompt_ids: Sequence[int],
    params: SamplingParams,
    steps: int,
    keep: Callable[[Trace], Kept],
    draft: Draft = None,
    progress: Callable[[int], object] = lambda done: None,
) -> Recording[Kept]:
    """Generates at most `steps` tokens as `generate` does, and stores `keep(trace)` for each.

    A trace itself holds an array of the vocabulary's size for every step of the plan.

    prompt_ids: at least one token. params: of one beam and one sample. draft: as for `generate`. A trace is of one token, so
        the row runs a second time, with drafts, to see which of its tokens they give: the text is the same, and how many are
        drafted depends on the time that forward passes take. progress: called with the number of tokens so far, before each.
    Raises as `Sampler` does, and CacheFullError if the prompt and the steps do not fit the cache.
    """
    factory = RowFactory.from_model(model)
    row = factory.row(within_context(model, list(prompt_ids), params), prompt_ids)
    ids, tokens, text = list(prompt_ids), list[Kept](), ""
    logits_of = BeamLogits(model, 1, min(len(ids) + steps, model.config.context))
    try:
        with use_threads(model.threads):
            while not row.reason and len(tokens) < steps:
                progress(len(tokens))
                logits = logits_of([ids], [0])
                tokens.append(keep(row.trace(logits[0], factory.token_to_text)))
                [taken] = row.step(logits)
                if row.error is not None:
                    raise row.error
                text += taken.text
                ids.append(taken.token)
    finally:
        logits_of.close()
    again = factory.row(replace(row.params, seed=row.seed), prompt_ids)
    accepted = _accepted(model, again, len(row.history), draft) if len(tokens) > 1 else ()
    return Recording(params, row, tuple(prompt_ids), tuple(tokens), text, tuple(accepted))


def _accepted(model: Model, row: Row, length: int, draft: Draft) -> Iterator[int]:
    """The indices of the generated tokens of a row, up to a length of its history, that were drafted and accepted."""
    batch = Batch(model)
    try:
        key = batch.add(row, new_drafters(drafters_of(model, draft), row))
        with use_threads(model.threads):
            while batch.running:
                for _ in batch.advance():
                    if len(row.history) >= length:
                        batch.end(key, "cancelled")
    finally:
        batch.close()
    return (place - row.history.prompt_length for place in row.accepted)
