"""N-grams, bad words, prefixes, suppression, normalisation; lengths and forced tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers.generation.logits_process as hf
from hypothesis import given, settings
from hypothesis import strategies as st

from decodestep import processors as ds
from support.processor_cases import agree, both_kinds, call, cases, ids_of, in_numpy, make, numpy_and_torch, same_error

INF = float("inf")


def banned(processor: Any, ids: list[int], kind: str, vocab: int = 6) -> list[int]:
    result = call(processor, make(kind, [ids], "int64"), make(kind, [[0.5] * vocab]))
    return [t for t, s in enumerate(result[0].tolist()) if s == -INF]


@numpy_and_torch
def test_masks_by_hand(kind):
    encoder = make(kind, [1, 2, 3, 1, 4], "int64")
    assert banned(ds.NoRepeatNGramLogitsProcessor(2), [1, 2, 1, 3, 1], kind) == [2, 3]
    assert banned(ds.NoRepeatNGramLogitsProcessor(1), [1, 2, 9], kind) == [1, 2]
    assert banned(ds.NoRepeatNGramLogitsProcessor(3), [1, 2], kind) == []
    assert banned(ds.EncoderNoRepeatNGramLogitsProcessor(2, encoder), [0, 1], kind) == [2, 4]
    assert banned(ds.EncoderNoRepeatNGramLogitsProcessor(3, encoder), [1], kind) == []
    narrow = ds.EncoderNoRepeatNGramLogitsProcessor(1, make(kind, [[1, 2]], "uint8"))
    assert banned(narrow, [0], kind) == [1, 2]
    assert banned(ds.NoBadWordsLogitsProcessor([[5], [1, 2], [0, 1, 3], [4]], eos_token_id=4), [0, 1], kind) == [2, 3, 5]
    assert banned(ds.NoBadWordsLogitsProcessor([[4]], eos_token_id=[3, 4]), [0, 1], kind) == []
    constrained = ds.PrefixConstrainedLogitsProcessor(lambda batch, ids: [batch, int(ids[-1])], 1)
    assert banned(constrained, [2, 3], kind) == [1, 2, 4, 5]
    assert banned(ds.SuppressTokensLogitsProcessor([1, 3, 99]), [0], kind) == [1, 3]
    assert banned(ds.SuppressTokensAtBeginLogitsProcessor([1], 2), [0, 0], kind) == [1]
    assert banned(ds.SuppressTokensAtBeginLogitsProcessor([1], 2), [0], kind) == []
    assert banned(ds.MinLengthLogitsProcessor(3, [1, 99]), [0, 0], kind) == [1]
    assert banned(ds.MinLengthLogitsProcessor(3, 1), [0, 0, 0], kind) == []
    assert banned(ds.MinNewTokensLengthLogitsProcessor(2, 1, 1), [0, 0], kind) == [1]
    assert banned(ds.ForcedBOSTokenLogitsProcessor(2), [0], kind) == [0, 1, 3, 4, 5]
    assert banned(ds.ForcedEOSTokenLogitsProcessor(3, [2, 4]), [0, 0], kind) == [0, 1, 3, 5]
    assert banned(ds.ForceTokensLogitsProcessor([[1, 3], [2, None]]), [0], kind) == [0, 1, 2, 4, 5]
    assert banned(ds.ForceTokensLogitsProcessor([[1, 3], [2, None]]), [0, 0], kind) == []


def test_a_prefix_function_is_told_the_item_of_a_larger_batch():
    constrained = ds.PrefixConstrainedLogitsProcessor(lambda item, ids: [item, int(ids[-1])], 2).of_item(3)
    scores = constrained(np.array([[7, 5], [7, 6]]), np.zeros((2, 9), np.float32))
    assert [np.flatnonzero(row == 0).tolist() for row in scores] == [[3, 5], [3, 6]]


@numpy_and_torch
def test_values_by_hand(kind):
    scores = make(kind, [[float("nan"), INF, -INF, 2.0]])
    top = float(np.finfo(np.float32).max)
    assert call(ds.InfNanRemoveLogitsProcessor(), None, scores).tolist() == [[0.0, top, -top, 2.0]]
    log_p = call(ds.LogitNormalization(), None, make(kind, [[0.0, 0.0, -INF]]))
    np.testing.assert_allclose(log_p, [[np.log(0.5)] * 2 + [-INF]], rtol=1e-6)
    processor = ds.ExponentialDecayLengthPenalty((1, 2.0), [0, 1, 2], 1)
    result = call(processor, make(kind, [[0] * 4], "int64"), make(kind, [[1.0, -1.0, -INF, 5.0]]))
    assert result.tolist() == [[4.0, 2.0, -INF, 5.0]]


def eos(rng: np.random.Generator, vocab: int) -> Any:
    ids = rng.integers(0, vocab, int(rng.integers(1, 4))).tolist()
    return [ids[0], ids, torch.tensor(ids)][int(rng.integers(3))]


def sequences(rng: np.random.Generator, vocab: int) -> list[list[int]]:
    return [rng.integers(0, min(vocab, 3), int(rng.integers(1, 4))).tolist() for _ in range(6)]


def allowed(rng: np.random.Generator, vocab: int) -> Callable[[int, Any], list[int]]:
    table = rng.integers(0, vocab, (8, int(rng.integers(1, 4)))).tolist()
    return lambda batch, ids: table[(batch + int(ids[-1])) % 8]


def divisor(rng: np.random.Generator, batch: int) -> int:
    return int(rng.choice([k for k in range(1, batch + 1) if batch % k == 0]))


# Name: the arguments for a generator, batch, length and vocabulary.
BUILDERS: dict[str, Callable[[np.random.Generator, int, int, int], tuple[Any, ...]]] = {
    "NoRepeatNGramLogitsProcessor": lambda r, b, n, v: (int(r.integers(1, 4)),),
    "EncoderNoRepeatNGramLogitsProcessor": lambda r, b, n, v: (int(r.integers(1, 4)), ids_of(r, divisor(r, b), 9, min(v, 3))),
    "NoBadWordsLogitsProcessor": lambda r, b, n, v: (sequences(r, v), None if r.random() < 0.3 else eos(r, min(v, 3))),
    "PrefixConstrainedLogitsProcessor": lambda r, b, n, v: (allowed(r, v), divisor(r, b)),
    "SuppressTokensLogitsProcessor": lambda r, b, n, v: (r.integers(0, v + 2, 5).tolist(),),
    "SuppressTokensAtBeginLogitsProcessor": lambda r, b, n, v: (r.integers(0, v + 2, 5).tolist(), n + int(r.integers(-1, 2))),
    "InfNanRemoveLogitsProcessor": lambda r, b, n, v: (),
    "LogitNormalization": lambda r, b, n, v: (),
    "MinLengthLogitsProcessor": lambda r, b, n, v: (n + int(r.integers(0, 3)), eos(r, v + 2)),
    "MinNewTokensLengthLogitsProcessor": lambda r, b, n, v: (n // 2, int(r.integers(0, 8)), eos(r, v + 2)),
    "ForcedBOSTokenLogitsProcessor": lambda r, b, n, v: (int(r.integers(-v, v)),),
    "ForcedEOSTokenLogitsProcessor": lambda r, b, n, v: (n + int(r.integers(0, 3)), eos(r, v)),
    "ExponentialDecayLengthPenalty": lambda r, b, n, v: ((int(r.integers(0, 3)), float(r.uniform(0.5, 2))), eos(r, v), n // 2),
}


@pytest.mark.parametrize("name", BUILDERS)
def test_masks_equal_transformers(name):
    for rng, scores in cases(21):
        batch, vocab = scores.shape
        length = int(rng.integers(1, 9))
        if name == "InfNanRemoveLogitsProcessor" and vocab > 2:
            scores[0, :2] = torch.tensor([float("nan"), INF])
        ids = ids_of(rng, batch, length, min(vocab, 3))
        arguments = BUILDERS[name](rng, batch, length, vocab)
        ours = both_kinds(lambda a=arguments: getattr(ds, name)(*a), ids, scores)
        agree(ours, getattr(hf, name)(*arguments)(ids, scores), units=1)


def test_prefix_constrained_rescues_an_unsatisfiable_item():
    scores = torch.tensor([[-INF, 1.0], [-INF, 2.0], [-INF, 1.0], [0.5, 1.0]])
    ids = torch.zeros((4, 1), dtype=torch.int64)
    ours = both_kinds(lambda: ds.PrefixConstrainedLogitsProcessor(lambda batch, row: [0], 2), ids, scores)
    assert ours.tolist() == [[0.0, -INF], [0.0, -INF], [-INF, -INF], [0.5, -INF]]
    agree(ours, hf.PrefixConstrainedLogitsProcessor(lambda batch, row: [0], 2)(ids, scores))


@settings(max_examples=60)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(1, 4))
def test_no_n_gram_comes_twice(ids, n):
    result = ds.NoRepeatNGramLogitsProcessor(n)(np.array([ids]), np.zeros((1, 4)))
    seen = {tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)}
    for token in range(4):
        assert (result[0, token] == -INF) == (len(ids) >= n and (*ids[len(ids) - n + 1 :], token) in seen)


@settings(max_examples=30)
@given(st.lists(st.floats(-50, 50), min_size=1, max_size=9))
def test_normalised_scores_are_log_probabilities(row):
    result = ds.LogitNormalization()(None, np.array([row]))
    assert abs(np.exp(result).sum() - 1) < 1e-9
    np.testing.assert_allclose(ds.LogitNormalization()(None, result), result, atol=1e-9)


def test_nothing_to_do_returns_the_scores_themselves():
    ids, scores = np.zeros((1, 5), np.int64), np.zeros((1, 3))
    idle = [
        ds.NoRepeatNGramLogitsProcessor(6),
        ds.ForcedBOSTokenLogitsProcessor(0),
        ds.ForcedEOSTokenLogitsProcessor(9, 0),
        ds.ExponentialDecayLengthPenalty((5, 2.0), 0, 5),
        ds.SuppressTokensAtBeginLogitsProcessor([0], 1),
        ds.ForceTokensLogitsProcessor([[1, 0]]),
    ]
    assert all(processor(ids, scores) is scores for processor in idle)


IDS = torch.tensor([[0, 1]])
REFUSALS: list[tuple[str, tuple[Any, ...]]] = [
    *(("NoRepeatNGramLogitsProcessor", (n,)) for n in (0, -1, 1.0, None, "2", True, np.int64(2))),
    *(("EncoderNoRepeatNGramLogitsProcessor", (n, IDS)) for n in (0, 2.0, None)),
    *(
        ("NoBadWordsLogitsProcessor", (words,))
        for words in (
            [],
            None,
            "ab",
            [1],
            [[1], 2],
            [[-1]],
            [[1.0]],
            ["a"],
            [[]],
            [[1], []],
            ((1,),),
            [(1,)],
            [[np.int64(1)]],
            {(1,): 1.0},
        )
    ),
    *(("MinLengthLogitsProcessor", (n, 0)) for n in (-1, 0, 1.0, None, True, "3")),
    *(("MinNewTokensLengthLogitsProcessor", pair) for pair in ((-1, 1, 0), (1, -1, 0), (1.0, 1, 0), (0, 0, 0))),
    *(
        ("ForcedEOSTokenLogitsProcessor", (3, e))
        for e in (-1, 0, [1, -1], 1.5, [0.5], [], torch.tensor([1.0]), torch.tensor(-1))
    ),
    *(("ExponentialDecayLengthPenalty", ((1, 1.5), e, 0)) for e in (-1, [0], 0.5, [])),
    *(("BarkEosPrioritizerLogitsProcessor", pair) for pair in ((0, 0.0), (0, -1), (-1, 0.5), (0.5, 0.5), (0, None), (0, 1))),
    *(("ClassifierFreeGuidanceLogitsProcessor", (g,)) for g in (1, 1.0, 0, -2, 1.5, None, "2")),
    *(("DiaClassifierFreeGuidanceLogitsProcessor", pair) for pair in ((1,), (2.0, 0), (2.0, -1), (2.0, 5), (None,))),
    *(("DiaEOSChannelFilterLogitsProcessor", pair) for pair in ((0, 3), (1, 0), (1, 1))),
    *(("AlternatingCodebooksLogitsProcessor", (n, 4, 4)) for n in (-1, 1.0, 0, None)),
    ("WhisperTimeStampLogitsProcessor", (type("Config", (), {"no_timestamps_token_id": 3, "eos_token_id": 1}), None)),
    *(
        ("WatermarkLogitsProcessor", (9, "cpu", r, 2.0, 15, s))
        for r, s in ((0.0, "lefthash"), (1.0, "lefthash"), (-1, "lefthash"), (0.5, "hash"), (0.5, "selfhash"))
    ),
]


@pytest.mark.parametrize(("name", "arguments"), REFUSALS, ids=str)
def test_the_same_arguments_are_refused(name, arguments):
    same_error(lambda: getattr(ds, name)(*arguments), lambda: getattr(hf, name)(*arguments))


def test_calls_that_raise():
    ids, scores = torch.tensor([[0, 1, 0]]), torch.zeros((1, 2))
    for name, arguments in [
        ("ForcedEOSTokenLogitsProcessor", (4, 2)),
        ("ExponentialDecayLengthPenalty", ((0, 2.0), 2, 0)),
        ("PrefixConstrainedLogitsProcessor", (lambda batch, row: [], 1)),
        ("PrefixConstrainedLogitsProcessor", (lambda batch, row: [2], 1)),
        ("NoBadWordsLogitsProcessor", ([[2]],)),
        ("EncoderNoRepeatNGramLogitsProcessor", (1, torch.tensor([[2]]))),
        ("ClassifierFreeGuidanceLogitsProcessor", (2.0,)),
        ("DiaClassifierFreeGuidanceLogitsProcessor", (2.0,)),
    ]:
        builders = [lambda m=m, n=name, a=arguments: getattr(m, n)(*a)(ids, scores) for m in (ds, hf)]
        same_error(*builders)
    with pytest.raises(ValueError, match="non-negative"):
        ds.NoRepeatNGramLogitsProcessor(1)(-ids, scores)
    with pytest.raises(ValueError, match="multiple of 2 rows"):
        ds.EncoderNoRepeatNGramLogitsProcessor(1, torch.zeros((2, 3), dtype=torch.int64))(ids, scores)
    with pytest.raises(NotImplementedError):
        ds.LogitsProcessor()(in_numpy(ids), in_numpy(scores))
