"""Runs of tokens of one sequence, as drafts are verified: each token's logits have the bits of a step of its own, wherever in a
page, in a block of latents and in a split of keys the run begins."""

from __future__ import annotations

import numpy as np
import pytest

import decodestep as ds
from decodestep.ops.decoder_forward import group_cache
from decodestep.weights import Format
from support.decoder_forward_cases import latent_weights, step
from test_decoder_forward_grouped import CASES, build_call, forward, made

BFLOAT16, FLOAT16, INT8 = group_cache.TYPES
POSITIONS = 64  # of a block of latents: four pages
SPLIT = 256
LENGTH = SPLIT + POSITIONS


def check(call):
    """Single steps write the cache; then runs begin at every place of a block, of the first one and of the last one of a split.

    Runs write what lies in the cache already, so a token that saw a later position, or a wrong one, would have other logits.
    """
    alone = np.concatenate([forward(call, np.array([position])) for position in range(LENGTH)]).view(np.uint32)
    last = SPLIT - POSITIONS  # the last block of the split
    for i in range(POSITIONS):
        # By turns all lengths up to 64, and at each place one of those that drafts have.
        for start, count in ((i, 2 + i % 7), (i, 1 + i * 5 % 64), (last + i, 1 + i * 27 % 64), (last + i, 2 + i % 5)):
            with ds.use_threads(1 + i % 3):
                run = np.arange(start, start + count)
                np.testing.assert_array_equal(forward(call, run).view(np.uint32), alone[run], f"{start} {count}")


@pytest.mark.parametrize("cache", [BFLOAT16, FLOAT16, INT8], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_runs_of_grouped_attention(name, cache, rng):
    wide = {"vocab": 300, "feed_forward": 288}  # panels in whole groups of streams, and others
    odd = "padded" in name or name == "norms of heads"  # whose output has inputs that blocks of 32 do not fill
    check(build_call(made(name, Format.BF16 if odd else Format.Q4_0, rng, **wide), [LENGTH], rng, cache=cache))


@pytest.mark.parametrize("cache", ["bfloat16", "float16", "bytes"])
@pytest.mark.parametrize("heads", [1, 3, 8])
def test_runs_of_latent_attention(heads, cache, rng):
    w = latent_weights(Format.Q8_0, rng, heads=heads)
    check(step(w, [LENGTH], rng, cache=FLOAT16 if cache == "float16" else BFLOAT16, byte_latents=cache == "bytes"))
