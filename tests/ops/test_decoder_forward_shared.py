"""decoder_forward on sequences that share pages: whatever prefixes they share, each token has the bits that it has alone."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import decodestep as ds
from decodestep._base.arrays import BFLOAT16
from decodestep.ops.decoder_forward import LatentSizes
from decodestep.weights import Format
from support.decoder_forward_cases import Sizes, copied, latent_weights, step, weights
from test_decoder_forward_grouped import made


class Branch(NamedTuple):
    """A sequence of `length` tokens, the first `shared` of which, whole pages, are those of an earlier one."""

    parent: int
    shared: int
    length: int


def alone(length: int) -> Branch:
    return Branch(0, 0, length)


KEPT = ("keys", "values", "index_keys", "page_table")
PATTERNS = {
    "none": [alone(700), alone(600), alone(30)],
    "all": [alone(700), *(Branch(0, 688, 690 + i) for i in range(7))],
    "less than a split": [alone(300), Branch(0, 240, 270), Branch(0, 240, 600)],
    "whole splits": [alone(530), Branch(0, 512, 520), Branch(0, 256, 400), Branch(0, 512, 513)],
    "pairs": [alone(600), Branch(0, 560, 570), alone(800), Branch(2, 544, 560), alone(20), alone(400), Branch(5, 256, 900)],
    "forked twice": [
        *[alone(1100), Branch(0, 512, 900), Branch(1, 880, 1000), Branch(1, 800, 820), Branch(0, 1040, 1060)],
        *[Branch(2, 992, 1024), Branch(0, 512, 530)],
    ],
    "more than a band": [alone(530), *(Branch(0, 512, 515 + i % 4) for i in range(52))],
}


def random_pattern(rng: np.random.Generator) -> list[Branch]:
    pattern = [alone(int(rng.integers(1, 900)))]
    for _ in range(int(rng.integers(1, 12))):
        parent = int(rng.integers(len(pattern)))
        shared = int(rng.integers(0, pattern[parent].length // 16 + 1)) * 16 if rng.random() < 0.8 else 0
        pattern.append(Branch(parent, shared, shared + int(rng.integers(1, 400))))
    return pattern


def rows(call: dict[str, Any], chosen: np.ndarray) -> dict[str, Any]:
    """The call with some of its tokens."""
    return {**call, **{name: call[name][chosen] for name in ("token_ids", "sequence", "positions")},
            "wanted": np.arange(len(chosen))}  # fmt: skip


def forked(w: Any, pattern: list[Branch], rng: np.random.Generator, **kinds: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A call of all tokens of the sequences, each with pages of its own; and the same with shared pages, which has the tokens
    that are shared once."""
    own = step(w, [branch.length for branch in pattern], rng, **kinds)
    starts = np.cumsum([0, *(branch.length for branch in pattern)])
    table = own["page_table"].copy()
    for i, (parent, shared, _) in enumerate(pattern):
        own["token_ids"][starts[i] : starts[i] + shared] = own["token_ids"][starts[parent] : starts[parent] + shared]
        table[i, : shared // 16] = table[parent, : shared // 16]
    first = np.concatenate([np.arange(starts[i] + branch.shared, starts[i + 1]) for i, branch in enumerate(pattern)])
    return own, rows({**copied(own), "page_table": table}, first)


def check(w: Any, pattern: list[Branch], rng: np.random.Generator, **kinds: Any) -> None:
    own, shared = forked(w, pattern, rng, **kinds)
    with ds.use_threads(1):
        expected = ds.decoder_forward(**own)
    ends = np.cumsum([branch.length for branch in pattern])
    tails = [min(int(rng.integers(1, 4)), branch.length - branch.shared) for branch in pattern]
    order = rng.permutation(len(pattern))
    last = np.concatenate([np.arange(ends[i] - tails[i], ends[i]) for i in order])
    for threads in (1, 2, 7):
        with ds.use_threads(threads):
            call = copied(shared)
            prompts = ds.decoder_forward(**call)  # of all: each attends to what another has written
            assert np.array_equal(prompts[-1], expected[-1])
            step_of_all = rows({**own, **{name: call[name] for name in KEPT if name in call}}, last)
            assert np.array_equal(ds.decoder_forward(**step_of_all), expected[last])


@pytest.fixture(autouse=True)
def any_threads(monkeypatch):
    monkeypatch.setattr("decodestep._base.threads.thread_limit", lambda: 64)  # whatever the CPUs


SIZES = [Sizes(layers=1), Sizes(heads=14, kv_heads=1, head_dim=16, hidden=32, layers=1), Sizes(heads=3, kv_heads=3, layers=1)]


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_shared_prefixes(sizes, name, rng):
    check(weights(sizes, Format.Q8_0, rng), PATTERNS[name], rng)


@pytest.mark.parametrize("seed", range(12))
def test_prefixes_shared_at_random(seed):
    rng = np.random.default_rng(seed)
    cache = [BFLOAT16, np.dtype(np.float16), np.dtype(np.int8)][seed % 3]
    check(weights(SIZES[seed % 2], Format.Q8_0, rng), random_pattern(rng), rng, cache=cache)


@pytest.mark.parametrize(
    "name",
    [
        "windows of 16 and 300",
        "sinks, window of 257",
        "capped scores, sinks, windows of 16 and 300",
        "keys of another layer",
        "layers of two sizes",
    ],
)
@pytest.mark.parametrize("pattern", ["all", "forked twice"])
def test_shared_prefixes_with_windows_and_sinks(name, pattern, rng):
    check(made(name, Format.Q8_0, rng), PATTERNS[pattern], rng)


LATENTS = {
    "five heads": ({"heads": 5}, {}),
    "more heads than a tile": ({"heads": 50}, {}),
    "int8": ({"heads": 16}, {"byte_latents": True}),
    "selected": ({"heads": 3, "compressed": 32, "sizes": LatentSizes(32, 16, 64, 32, 1e-5, 300, 2, 32)}, {}),
}


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("name", LATENTS)
def test_shared_prefixes_of_latents(name, pattern, rng):
    sizes, kinds = LATENTS[name]
    check(latent_weights(Format.Q8_0, rng, **sizes), PATTERNS[pattern], rng, **kinds)
