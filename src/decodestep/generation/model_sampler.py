"""The sampler of a model's tokens."""

from __future__ import annotations

from collections.abc import Collection, Sequence
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
    shown: Collection[str] = (),
) -> Sampler:
    """A `Sampler`, to which the other arguments go, with the model's vocabulary, texts and end tokens.

    shown: the names of control tokens that appear in the texts, as for `Tokenizer.showing`.
    """
    tokenizer = model.tokenizer
    texts = tokenizer.showing(shown)
    return Sampler(
        params,
        vocab_size=model.config.vocab_size,
        eos_token_id=tokenizer.end_token_ids,
        prompt_ids=prompt_ids,
        processors=processors,
        token_bytes=texts.token_bytes,
        spelled_bytes=tokenizer.spelled_bytes,
        encode=texts.encode_within,
    )
