"""The sampler of a model's tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from decodestep.sampling.params import SamplingParams
from decodestep.sampling.row_processors import Processors
from decodestep.sampling.sampler import Sampler

if TYPE_CHECKING:
    from decodestep.models import Model


def sampler_for(
    model: Model,
    params: SamplingParams | Sequence[SamplingParams] = (),
    *,
    prompt_ids: Sequence[Sequence[int]] | None = None,
    processors: Processors = (),
    token_bytes: Callable[[int], bytes] | None = None,
) -> Sampler:
    """A `Sampler`, to which the other arguments go, with the model's vocabulary and end tokens.

    token_bytes: None for the model's.
    """
    tokenizer = model.tokenizer
    return Sampler(
        params,
        vocab_size=model.config.vocab_size,
        eos_token_id=tokenizer.end_token_ids,
        prompt_ids=prompt_ids,
        processors=processors,
        token_bytes=token_bytes or tokenizer.token_bytes,
    )
