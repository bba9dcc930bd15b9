"""Presence and frequency penalties, biases, allow-lists, top-n-sigma, XTC, DRY."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decodestep import processors as ds
from decodestep import random
from support.processor_cases import both_kinds, call, cases, make, numpy_and_torch, random_ids, wide

INF = math.inf


def result(processor: Any, ids: list[int], row: list[float], kind: str) -> list[float]:
    return call(processor, make(kind, [ids], "int64"), make(kind, [row], "float64"))[0].tolist()


@numpy_and_torch
def test_by_hand(kind):
    counts = ds.PresenceFrequencyPenaltyLogitsProcessor(0.5, 2.0, prompt_length=1)
    assert result(counts, [2, 0, 0, 9], [1.0, 1.0, 1.0], kind) == [-3.5, 1.0, 1.0]
    assert result(ds.LogitBiasLogitsProcessor({0: 2.5, 2: -INF}), [0], [1.0, 1.0, 1.0], kind) == [3.5, 1.0, -INF]
    assert result(ds.AllowedTokenIdsLogitsProcessor([2, 0]), [0], [1.0, 1.0, 1.0], kind) == [1.0, -INF, 1.0]
    bits = ds.AllowedBitsLogitsProcessor(lambda tokens: np.array([1 << tokens[-1]], np.int32) if tokens[-1] < 3 else None)
    assert result(bits, [7, 1], [1.0, 2.0, 3.0], kind) == [-INF, 2.0, -INF] and result(bits, [3], [1.0, 2.0], kind) == [
        1.0,
        2.0,
    ]
    assert result(ds.TopNSigmaLogitsWarper(1.0), [0], [0.0, 4.0, 2.0, -INF], kind) == [-INF, 4.0, -INF, -INF]  # sigma = 1.63
    assert result(ds.TopNSigmaLogitsWarper(1.3), [0], [0.0, 4.0, 2.0, -INF], kind) == [-INF, 4.0, 2.0, -INF]
    assert result(ds.TopNSigmaLogitsWarper(0), [0], [1.0, 4.0, 4.0], kind) == [-INF, 4.0, 4.0]
    row = np.log([0.4, 0.3, 0.2, 0.1]).tolist()
    assert result(ds.XTCLogitsWarper(1.0, 0.15), [0], row, kind) == [-INF, -INF, *row[2:]]
    assert result(ds.XTCLogitsWarper(1.0, 0.35), [0], row, kind) == row
    assert result(ds.XTCLogitsWarper(0.0, 0.15), [0], row, kind) == row
    assert result(ds.XTCLogitsWarper(1.0, 0.2), [0], [0.0] * 4, kind) == [-INF] * 3 + [0.0]
    assert result(ds.XTCLogitsWarper(1.0, 0.15, special_tokens=[0, 9]), [0], row, kind) == [row[0], -INF, *row[2:]]
    assert result(ds.XTCLogitsWarper(1.0, 0.15, special_tokens=[2]), [0], row, kind) == [-INF, -INF, *row[2:]]
    recent = ds.RecentRepetitionPenaltyLogitsProcessor(2.0, 2)
    assert result(recent, [0, 1, 2, 2, 9], [4.0, 4.0, 4.0, -4.0], kind) == [4.0, 4.0, 2.0, -4.0]
    assert result(recent, [3], [4.0, 4.0, 4.0, -4.0], kind) == [4.0, 4.0, 4.0, -8.0]
    everything = ds.RecentRepetitionPenaltyLogitsProcessor(2.0)
    assert result(everything, [0, 1, 2, 2, 9], [4.0, 4.0, 4.0, -4.0], kind) == [2.0, 2.0, 2.0, -4.0]
    # 1 2 3 came before and was followed by 4: three matches, one more than costs nothing but the least.
    assert result(ds.DRYLogitsProcessor(1.0, 2.0), [1, 2, 3, 4, 1, 2, 3], [0.0] * 5, kind) == [0, 0, 0, 0, -2]
    assert result(ds.DRYLogitsProcessor(1.0, 2.0, range=5), [1, 2, 3, 4, 1, 2, 3], [0.0] * 5, kind) == [0, 0, 0, 0, 0]
    assert result(ds.DRYLogitsProcessor(1.0, 2.0, breakers=[1]), [1, 2, 3, 4, 1, 2, 3], [0.0] * 5, kind) == [0, 0, 0, 0, -1]
    assert result(ds.DRYLogitsProcessor(1.0, 2.0, breakers=[4]), [1, 2, 3, 4, 1, 2, 3], [0.0] * 5, kind) == [0, 0, 0, 0, 0]
    assert result(ds.DRYLogitsProcessor(1.0, 2.0), [0] * 80, [0.0], kind) == [-(2.0**48)]
    assert result(ds.DRYLogitsProcessor(1e308, 1e308), [0] * 80, [0.0], kind) == [-INF]
    assert result(ds.DRYLogitsProcessor(0.0, 1e308), [0] * 80, [1.0], kind) == [1.0]


def plain_dry(ids: list[int], breakers: set[int], allowed_length: int) -> dict[int, int]:
    """The longest match that each token would continue, found by comparing every pair of tails."""
    found: dict[int, int] = {}
    for place in range(1, len(ids)):
        before, n = ids[:place], 0
        while n < min(place, 50) and before[-1 - n] == ids[-1 - n] and ids[-1 - n] not in breakers:
            n += 1
        if n >= allowed_length and ids[place] not in breakers:
            found[ids[place]] = max(n, found.get(ids[place], 0))
    return found


@settings(max_examples=200)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.sets(st.integers(0, 3), max_size=2), st.integers(1, 4))
def test_dry_equals_a_plain_search(ids, breakers, allowed_length):
    scores = ds.DRYLogitsProcessor(1.0, 2.0, allowed_length, breakers)(np.array([ids]), np.zeros((1, 4)))
    expected = {t: -(2.0 ** (n - allowed_length)) for t, n in plain_dry(ids, breakers, allowed_length).items()}
    assert scores[0].tolist() == [expected.get(t, 0.0) for t in range(4)]


def test_numpy_and_torch_give_the_same():
    for rng, scores in cases(71):
        batch, vocab = scores.shape
        ids = random_ids(rng, batch, 9, vocab + 2)
        builders = [
            lambda: ds.PresenceFrequencyPenaltyLogitsProcessor(0.7, -0.3, 2),
            lambda: ds.TopNSigmaLogitsWarper(1.1),
            lambda v=vocab: ds.LogitBiasLogitsProcessor({v - 1: 0.3}),
            lambda: ds.AllowedTokenIdsLogitsProcessor([0]),
            lambda: ds.DRYLogitsProcessor(0.8, allowed_length=1),
        ]
        for build in builders:
            both_kinds(build, ids, scores)
        if scores.dtype in (torch.float32, torch.float64):
            both_kinds(lambda: ds.XTCLogitsWarper(0.5, 0.07, seed=4), ids, scores)


def test_xtc_tosses_one_coin_a_row_and_position():
    scores, seeds = np.zeros((4, 3)), [7, 7, 8, 2**64 - 1]
    for kind in (np.array(seeds, np.uint64), seeds):
        processor = ds.XTCLogitsWarper(0.5, 0.1, seed=kind, padding=[0, 1, 0, 0])
        for length in range(1, 30):
            acted = np.isneginf(processor(np.zeros((4, length), np.int64), scores)).any(axis=-1)
            positions = [length, length - 1, length, length]
            coins = [random.uniform(s, p, random.XTC_COIN) < 0.5 for s, p in zip(seeds, positions, strict=True)]
            assert acted.tolist() == coins


@settings(max_examples=60)
@given(st.lists(st.floats(-30, 30), min_size=1, max_size=9), st.floats(0.1, 4), st.floats(0.05, 20))
def test_top_n_sigma_is_blind_to_temperature(row, n, temperature):
    scores = np.array([row])
    cut = scores.max() - n * scores.std()
    if np.abs(scores - cut).min() > 1e-6:
        kept = [np.isneginf(ds.TopNSigmaLogitsWarper(n)(None, s)).tolist() for s in (scores, scores / temperature)]
        assert kept[0] == kept[1] == (scores < cut).tolist()


def test_rows_without_a_distribution_stay():
    rows = np.array([[-INF, -INF], [math.nan, 1.0], [INF, 1.0]])
    ids = np.zeros((3, 2), np.int64)
    for processor in (ds.TopNSigmaLogitsWarper(1.0), ds.XTCLogitsWarper(1.0, 0.1)):
        np.testing.assert_array_equal(wide(call(processor, ids, rows)), rows)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("PresenceFrequencyPenaltyLogitsProcessor", (INF,)),
        ("PresenceFrequencyPenaltyLogitsProcessor", (0.0, "1")),
        ("PresenceFrequencyPenaltyLogitsProcessor", (0.0, 0.0, -1)),
        ("LogitBiasLogitsProcessor", ({-1: 0.0},)),
        ("LogitBiasLogitsProcessor", ({1: math.nan},)),
        ("LogitBiasLogitsProcessor", ({1: 10**400},)),
        ("AllowedTokenIdsLogitsProcessor", ([],)),
        ("AllowedTokenIdsLogitsProcessor", ([1.5],)),
        ("AllowedTokenIdsLogitsProcessor", ([-1],)),
        ("AllowedBitsLogitsProcessor", ([1],)),
        ("TopNSigmaLogitsWarper", (-0.1,)),
        ("TopNSigmaLogitsWarper", (INF,)),
        ("TopNSigmaLogitsWarper", (10**400,)),
        ("XTCLogitsWarper", (1.1,)),
        ("XTCLogitsWarper", (0.5, -0.1)),
        ("XTCLogitsWarper", (0.5, 0.1, 0, 0, -INF, [-1])),
        ("XTCLogitsWarper", (0.5, 0.1, 0, 0, -INF, [1.5])),
        ("DRYLogitsProcessor", (-1.0,)),
        ("DRYLogitsProcessor", (10**400,)),
        ("DRYLogitsProcessor", (1.0, 0.5)),
        ("DRYLogitsProcessor", (1.0, 10**400)),
        ("DRYLogitsProcessor", (1.0, 2.0, 0)),
        ("DRYLogitsProcessor", (1.0, 2.0, 1, (), -1)),
    ],
)
def test_refusals(name, arguments):
    with pytest.raises(ValueError, match=f"{name}: .* must be"):
        getattr(ds, name)(*arguments)


def test_ids_past_the_vocabulary_are_refused():
    for processor in (ds.LogitBiasLogitsProcessor({3: 1.0}), ds.AllowedTokenIdsLogitsProcessor([3])):
        with pytest.raises(ValueError, match="below 3"):
            processor(np.zeros((1, 1), np.int64), np.zeros((1, 3)))


@numpy_and_torch
def test_negative_ids_are_refused(kind):
    for processor in (ds.PresenceFrequencyPenaltyLogitsProcessor(1.0), ds.DRYLogitsProcessor(1.0)):
        with pytest.raises(ValueError, match=f"^{type(processor).__name__}: input_ids must be non-negative; got -1$"):
            result(processor, [-1, -1, -1, -1], [0.0] * 3, kind)


def test_xtc_counts_no_dropped_token_as_likely():
    scores = np.array([[3.0, 2.0, -np.inf, 1.0, -np.inf]])
    got = ds.XTCLogitsWarper(1.0, 0.0)(np.array([[1]]), scores)
    assert got.tolist() == [[-np.inf, -np.inf, -np.inf, 1.0, -np.inf]]
