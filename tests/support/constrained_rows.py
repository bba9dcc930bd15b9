"""Rows of random logits over bytes, an end token and some longer tokens, for grammars to constrain."""

from __future__ import annotations

import numpy as np

from decodestep.sampling.sampler import Sampler

VOCAB = 264
END = 256


def token_bytes(token):
    """Bytes, the end token, and some longer tokens."""
    return bytes([token]) if token < 256 else [b"", b'": ', b', "', b"name", b"small", b'{"', b"]}", b""][token - 256]


def run(params, rng, steps=400, **options):
    """A row of random logits to its end."""
    sampler = Sampler(params, vocab_size=VOCAB, eos_token_id=END, token_bytes=token_bytes, prompt_ids=[[65, 66]], **options)
    for _ in range(steps):
        sampler.step(rng.normal(size=(1, VOCAB)).astype(np.float32) * 3)
        if sampler.rows[0].reason:
            break
    return sampler.rows[0]
