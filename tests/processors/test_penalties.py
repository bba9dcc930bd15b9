"""Repetition penalties, sequence bias, Hamming diversity."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
import transformers.generation.logits_process as hf
from hypothesis import given, settings
from hypothesis import strategies as st

from decodestep import processors as ds
from support.processor_cases import (
    agree,
    both_kinds,
    call,
    cases,
    ids_of,
    in_numpy,
    make,
    numpy_and_torch,
    same_error,
    scores_of,
    wide,
)

INF = float("inf")


@numpy_and_torch
def test_repetition_by_hand(kind):
    ids = make(kind, [[0, 1, 1, 9]], "int64")
    scores = make(kind, [[4.0, -4.0, 4.0, -INF]])
    result = call(ds.RepetitionPenaltyLogitsProcessor(2.0), ids, scores)
    assert result.tolist() == [[2.0, -8.0, 4.0, -INF]]
    result = call(ds.RepetitionPenaltyLogitsProcessor(2.0, prompt_ignore_length=1), ids, scores)
    assert result.tolist() == [[4.0, -8.0, 4.0, -INF]]
    assert np.array_equal(result, ds.RepetitionPenaltyLogitsProcessor(2.0, np.int64(1))(ids, scores))
    result = call(ds.EncoderRepetitionPenaltyLogitsProcessor(2.0, make(kind, [[0, 1]], "int64")), ids, scores)
    assert result.tolist() == [[8.0, -2.0, 4.0, -INF]]


@numpy_and_torch
def test_sequence_bias_by_hand(kind):
    bias = {(2,): 1.0, (0, 2): 4.0, (1, 0, 2): 8.0, (5, 0, 2): 16.0, (1, 0, 3): -INF, (1, 1, 0, 1): 3.0}
    result = call(ds.SequenceBiasLogitsProcessor(bias), make(kind, [[1, 0], [0, 0]], "int64"), make(kind, [[0.0] * 6] * 2))
    assert result.tolist() == [[0, 0, 13, -INF, 0, 0], [0, 0, 5, 0, 0, 0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_biases_beyond_the_scores_equal_transformers(dtype):
    scores = torch.tensor([[torch.inf, -torch.inf, torch.finfo(dtype).max, 1.0]]).to(dtype)
    ids = torch.tensor([[1, 2]])
    for name, arguments in [
        ("NoBadWordsLogitsProcessor", ([[0], [2, 3]],)),
        ("SequenceBiasLogitsProcessor", ({(0,): -1e39, (1,): 1e39, (2,): 1e38, (2, 2): 1e38},)),
    ]:
        expected = getattr(hf, name)(*arguments)(ids, scores)
        ours = getattr(ds, name)(*arguments)
        agree(call(ours, ids, scores), expected)
        agree(call(ours, in_numpy(ids), np.array(in_numpy(scores))), expected)


@numpy_and_torch
def test_hamming_diversity_by_hand(kind):
    processor = ds.HammingDiversityLogitsProcessor(1.5, num_beams=4, num_beam_groups=2)
    tokens, scores = make(kind, [0, 0, 9, 9, 1, 2, 9, 9], "int64"), make(kind, [[0.0, 1.0, 2.0]] * 4)
    assert processor(None, scores, tokens, 0) is scores
    result = processor(None, scores, current_tokens=tokens % 3 * (tokens < 9), beam_group_idx=1)
    assert result.tolist() == [[-3, 1, 2]] * 2 + [[0, -0.5, 0.5]] * 2
    narrow = make(kind, [0, 0, 1, 2], "uint8")
    assert processor(None, scores[:2], narrow, 1).tolist() == [[-3, 1, 2]] * 2
    assert scores.tolist() == [[0, 1, 2]] * 4
    boundless = ds.HammingDiversityLogitsProcessor(1e300, 4, 2)
    assert call(lambda _, s: boundless(None, s, tokens[:4] * 0, 1), None, scores[:2]).tolist() == [[-INF, 1, 2]] * 2
    chain = ds.LogitsProcessorList([processor, ds.TemperatureLogitsWarper(0.5)])
    assert chain(None, scores, current_tokens=tokens % 3, beam_group_idx=0).tolist() == [[0, 2, 4]] * 4
    with pytest.raises(ValueError, match="beam_group_idx"):
        chain(None, scores, current_tokens=tokens)


@pytest.mark.parametrize("as_columns", [False, True])
def test_repetition_equals_transformers(as_columns):
    for rng, scores in cases(11, repeats=2):
        (batch, vocab), length = scores.shape, int(rng.integers(1, 12))
        ids = ids_of(rng, batch, length, vocab + 3)  # some past the vocabulary
        penalty = float(rng.uniform(0.3, 3))
        skip = torch.from_numpy(rng.integers(0, length + 2, batch)) if as_columns else int(rng.integers(0, length + 2))
        skip = None if rng.random() < 0.3 else skip
        ours = both_kinds(lambda p=penalty, s=skip: ds.RepetitionPenaltyLogitsProcessor(p, s), ids, scores)
        agree(ours, hf.RepetitionPenaltyLogitsProcessor(penalty, skip)(ids, scores), units=1)


def test_repetition_equals_transformers_at_rank_3():
    rng = np.random.default_rng(12)
    ids, scores = ids_of(rng, 3, 4, 7), torch.from_numpy(rng.standard_normal((3, 5, 7)))
    agree(
        both_kinds(lambda: ds.RepetitionPenaltyLogitsProcessor(1.7), ids, scores),
        hf.RepetitionPenaltyLogitsProcessor(1.7)(ids, scores.clone()),
    )
    packed, bounds = ids_of(rng, 1, 9, 7)[0], torch.tensor([0, 2, 6, 9])
    ours, theirs = ds.RepetitionPenaltyLogitsProcessor(1.7), hf.RepetitionPenaltyLogitsProcessor(1.7)
    for processor in (ours, theirs):
        processor.cu_seq_lens_q, processor.logits_indices = bounds, torch.tensor([1, 5, 8])
    scores = torch.from_numpy(rng.standard_normal((1, 9, 7)))
    agree(call(ours, packed, scores), theirs(packed, scores.clone()))


def test_encoder_repetition_equals_transformers():
    for rng, scores in cases(13, repeats=2):
        batch, vocab = scores.shape
        rows = int(rng.choice([r for r in range(1, batch + 1) if batch % r == 0]))
        encoder, penalty = ids_of(rng, rows, int(rng.integers(1, 9)), vocab), float(rng.uniform(0.3, 3))
        ours = both_kinds(lambda p=penalty, e=encoder: ds.EncoderRepetitionPenaltyLogitsProcessor(p, e), None, scores)
        agree(ours, hf.EncoderRepetitionPenaltyLogitsProcessor(penalty, encoder)(None, scores), units=1)


def random_sequences(rng: np.random.Generator, vocab: int, count: int) -> list[list[int]]:
    return [rng.integers(0, min(vocab, 3), int(rng.integers(1, 5))).tolist() for _ in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("listed", [False, True])
def test_sequence_bias_equals_transformers(listed):
    for rng, scores in cases(14, repeats=2):
        batch, vocab = scores.shape
        pairs = {tuple(s): float(rng.choice([rng.standard_normal() * 3, -INF])) for s in random_sequences(rng, vocab, 12)}
        given = [[list(s), bias] for s, bias in pairs.items()] if listed else pairs
        ours, theirs = ds.SequenceBiasLogitsProcessor(given), hf.SequenceBiasLogitsProcessor(given)
        for length in (1, 2, 3, 6):  # one object serves a whole generation
            ids = ids_of(rng, batch, length, min(vocab, 3))
            agree(call(ours, ids, scores), theirs(ids, scores), units=1)
            agree(call(ours, in_numpy(ids), np.array(in_numpy(scores))), theirs(ids, scores), units=2)


@settings(max_examples=60)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=9), st.floats(0.1, 5))
def test_repetition_is_applied_once_a_token(ids, penalty):
    scores = np.linspace(-2, 2, 7)[None]
    processor = ds.RepetitionPenaltyLogitsProcessor(penalty)
    once = processor(np.array([sorted(set(ids))]), scores)
    np.testing.assert_array_equal(processor(np.array([ids]), scores), once)
    assert set(np.flatnonzero(once[0] != scores[0])) <= set(ids)


@settings(max_examples=40)
@given(st.integers(2, 5), st.integers(1, 3), st.data())
def test_hamming_subtracts_the_count(groups, sub_beams, data):
    beams, vocab, batch = groups * sub_beams, 5, 2
    tokens = np.array(data.draw(st.lists(st.integers(0, vocab - 1), min_size=beams * batch, max_size=beams * batch)))
    group = data.draw(st.integers(0, groups - 1))
    scores = np.zeros((batch * sub_beams, vocab), np.float32)
    result = ds.HammingDiversityLogitsProcessor(0.5, beams, groups)(None, scores, tokens, group)
    for item in range(batch):
        picked = Counter(tokens[item * beams : item * beams + group * sub_beams].tolist())
        expected = [[-0.5 * picked[t] for t in range(vocab)]] * sub_beams
        assert result[item * sub_beams : (item + 1) * sub_beams].tolist() == expected


NUMBERS: list[Any] = [1.5, 1, 0.0, -1.0, True, None, "1.0", float("nan"), np.float64(1.5), np.float32(1.5)]


@pytest.mark.parametrize("value", NUMBERS)
def test_the_same_penalties_are_refused(value):
    ids = torch.tensor([[1]])
    same_error(lambda: ds.RepetitionPenaltyLogitsProcessor(value), lambda: hf.RepetitionPenaltyLogitsProcessor(value))
    same_error(
        lambda: ds.EncoderRepetitionPenaltyLogitsProcessor(value, ids),
        lambda: hf.EncoderRepetitionPenaltyLogitsProcessor(value, ids),
    )


@pytest.mark.parametrize("skip", [-1, 0, 3, None, torch.tensor(1), torch.tensor([[1]]), torch.tensor([1])])
def test_the_same_prompt_lengths_are_refused(skip):
    same_error(lambda: ds.RepetitionPenaltyLogitsProcessor(1.5, skip), lambda: hf.RepetitionPenaltyLogitsProcessor(1.5, skip))
    ids, scores = torch.tensor([[1, 2], [0, 1]]), torch.zeros((2, 4))
    if isinstance(skip, torch.Tensor) and skip.ndim == 1:
        same_error(
            lambda: ds.RepetitionPenaltyLogitsProcessor(1.5, skip)(ids, scores),
            lambda: hf.RepetitionPenaltyLogitsProcessor(1.5, skip)(ids, scores),
        )


BIASES: list[Any] = [
    {},
    [],
    None,
    3,
    {(1,): 1.0},
    {(1,): 1},
    {(1,): "x"},
    {(): 1.0},
    {1: 1.0},
    {(1, -1): 1.0},
    {(1, 2.0): 1.0},
    {(True,): 1.0},
    {(np.int64(3),): 1.0},
    {(1,): np.float64(2)},
    {(1,): np.float32(2)},
    [[[1], 1.0]],
    [[[1], 1]],
    [[[], 1.0]],
    [[[-1], 1.0]],
    [[(1,), 1.0]],
    [[1, 1.0]],
    [[]],
    [[[1]]],
    [5],
    ["a"],
    [[-1]],
    [[1, 2], [3]],
    [[[1.0], 1.0]],
    "ab",
    ((1,), 1.0),
]


@pytest.mark.parametrize("bias", BIASES, ids=str)
def test_the_same_biases_are_refused(bias):
    same_error(lambda: ds.SequenceBiasLogitsProcessor(bias), lambda: hf.SequenceBiasLogitsProcessor(bias))


def test_ids_outside_the_vocabulary():
    ids, scores = torch.tensor([[1]]), torch.zeros((1, 4))
    same_error(
        lambda: ds.SequenceBiasLogitsProcessor({(4,): 1.0})(ids, scores),
        lambda: hf.SequenceBiasLogitsProcessor({(4,): 1.0})(ids, scores),
    )
    with pytest.raises(ValueError, match="non-negative"):
        ds.RepetitionPenaltyLogitsProcessor(1.5)(-ids, scores)
    with pytest.raises(ValueError, match=r"encoder_input_ids must be in \[0, 4\); got 4 to 4"):
        ds.EncoderRepetitionPenaltyLogitsProcessor(1.5, ids + 3)(ids, scores)


@pytest.mark.parametrize(("rows", "batch"), [(1, 0), (2, 1), (2, 3), (0, 2)])
def test_rows_that_are_no_multiple_of_the_encoders(rows, batch):
    encoder = torch.ones((rows, 3), dtype=torch.int64)
    ids, scores = torch.ones((batch, 2), dtype=torch.int64), torch.zeros(batch, 5)
    penalty = ds.EncoderRepetitionPenaltyLogitsProcessor(1.5, encoder)
    for processor in (penalty, ds.EncoderNoRepeatNGramLogitsProcessor(1, encoder)):
        with pytest.raises(ValueError, match=f"scores must be of a multiple of {rows} rows"):
            processor(ids, scores)


@pytest.mark.parametrize("given", [(1, 4, 2), (0.0, 4, 2), (-1.0, 4, 2), (1.0, 1, 1), (1.0, 4, 1), (1.0, 4, 5), (1.0, 4.0, 2)])
def test_hamming_refuses(given):
    with pytest.raises(ValueError, match="HammingDiversityLogitsProcessor"):
        ds.HammingDiversityLogitsProcessor(*given)


def test_penalties_leave_what_they_do_not_name():
    rng = np.random.default_rng(15)
    scores = scores_of("normal", (2, 30), torch.float32, rng)
    scores[0, 5], scores[1, 6] = float("nan"), float("inf")
    ids = torch.tensor([[5, 1], [6, 2]])
    agree(ds.RepetitionPenaltyLogitsProcessor(1.3)(ids, scores), hf.RepetitionPenaltyLogitsProcessor(1.3)(ids, scores))
    assert np.isnan(wide(ds.SequenceBiasLogitsProcessor({(5,): 2.0})(ids, scores))[0, 5])
