"""What tests of serving engines share: a model that tokens decide, and the texts that its rows have alone."""

from __future__ import annotations

import numpy as np

from decodestep import Sampler, SamplingParams


def logits_of(vocab: int, prompt: list[int], output: list[int]) -> np.ndarray:
    """A model: what comes after some tokens."""
    return np.random.default_rng([*prompt, 1000, *output]).normal(0, 3, vocab).astype(np.float32)


def alone(vocab: int, params: SamplingParams, prompt: list[int], count: int) -> list[int]:
    without_texts = params.replace(dry_sequence_breakers=params.dry_sequence_breakers or ())
    sampler = Sampler(without_texts, vocab_size=vocab, prompt_ids=[prompt])
    output: list[int] = []
    for _ in range(count):
        output.append(int(sampler.step(logits_of(vocab, prompt, output)[None]).tokens[0]))
    return output
