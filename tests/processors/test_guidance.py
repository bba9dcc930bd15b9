"""Classifier-free guidance, and the processors of the audio models."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers.generation.logits_process as hf
from hypothesis import given
from hypothesis import strategies as st

from decodestep import processors as ds
from support.processor_cases import agree, both_kinds, call, cases, ids_of, in_numpy, make, numpy_and_torch

INF = float("inf")


@numpy_and_torch
def test_guidance_by_hand(kind):
    ids, scores = make(kind, [[0]], "int64"), make(kind, [[3.0, 1.0, 2.0], [1.0, 1.0, 2.0]])
    assert call(ds.ClassifierFreeGuidanceLogitsProcessor(2.0), ids, scores).tolist() == [[5.0, 1.0, 2.0]]
    assert call(ds.DiaClassifierFreeGuidanceLogitsProcessor(2.0), ids, scores).tolist() == [[7.0, 1.0, 2.0]]
    assert call(ds.DiaClassifierFreeGuidanceLogitsProcessor(2.0, 2), ids, scores).tolist() == [[3.0, -INF, 2.0]]


@pytest.mark.parametrize("top_k", [None, 3])
def test_batched_guidance_equals_transformers(top_k):
    for rng, scores in cases(31):
        batch, vocab = scores.shape
        if batch % 2 or vocab < 3:
            continue
        scale, ids = float(rng.uniform(1.1, 4)), ids_of(rng, batch // 2, 2, vocab)
        ours = both_kinds(lambda g=scale: ds.ClassifierFreeGuidanceLogitsProcessor(g), ids, scores)
        agree(ours, hf.ClassifierFreeGuidanceLogitsProcessor(scale)(ids, scores))
        guided = hf.DiaClassifierFreeGuidanceLogitsProcessor(scale)(ids, scores)
        if top_k is not None and len(torch.unique(guided)) < guided.numel():
            continue  # ties: which of them transformers keeps is open
        ours = both_kinds(lambda g=scale: ds.DiaClassifierFreeGuidanceLogitsProcessor(g, top_k), ids, scores)
        agree(ours, hf.DiaClassifierFreeGuidanceLogitsProcessor(scale, top_k)(ids, scores))


@given(st.lists(st.sampled_from([np.nan, INF, -INF, 0.5, 1.25, -2.0, 3.5]), min_size=20, max_size=20), st.integers(1, 5))
def test_guidance_of_nan_and_infinities_equals_transformers(scores, top_k):
    ids, scores = torch.zeros((2, 1), dtype=torch.int64), torch.tensor(scores).view(4, 5)
    expected = hf.ClassifierFreeGuidanceLogitsProcessor(2.0)(ids, scores)
    agree(both_kinds(lambda: ds.ClassifierFreeGuidanceLogitsProcessor(2.0), ids, scores), expected)
    guided = hf.DiaClassifierFreeGuidanceLogitsProcessor(2.0)(ids, scores)
    agree(both_kinds(lambda: ds.DiaClassifierFreeGuidanceLogitsProcessor(2.0), ids, scores), guided)
    if all(len(set(map(repr, row))) == 5 for row in guided.tolist()):  # without ties, of which transformers keeps any
        expected = hf.DiaClassifierFreeGuidanceLogitsProcessor(2.0, top_k)(ids, scores)
        agree(both_kinds(lambda: ds.DiaClassifierFreeGuidanceLogitsProcessor(2.0, top_k), ids, scores), expected)


@pytest.mark.parametrize("scale", [1, 1.5, -0.5])
def test_unbatched_guidance_of_nan_and_infinities_equals_transformers(scale):
    rows = torch.tensor([[np.nan, 1.0, -INF, 2.0], [-INF, -INF, 0.5, 1.0], [INF, -INF, 0.5, 1.0], [-INF] * 4])
    for scores, without in itertools.product(rows, rows):

        def model(ids, without=without, **_):
            logits = without[None, None]
            return SimpleNamespace(logits=logits if isinstance(ids, torch.Tensor) else in_numpy(logits), get=lambda *_: None)

        ids, row = torch.zeros((1, 1), dtype=torch.int64), scores[None]
        ours = both_kinds(lambda m=model: ds.UnbatchedClassifierFreeGuidanceLogitsProcessor(scale, m), ids, row)
        agree(ours, hf.UnbatchedClassifierFreeGuidanceLogitsProcessor(scale, model)(ids, row))


@numpy_and_torch
def test_guidance_keeps_tokens_that_are_forbidden_in_both_halves(kind):
    """Their difference is NaN, which ranks first, as in transformers; all others must not be lost with it."""
    scores = make(kind, [[-INF, 1.0, 4.0, 2.0], [-INF, 0.0, 0.0, 0.0]])
    result = call(ds.DiaClassifierFreeGuidanceLogitsProcessor(2.0, 2), make(kind, [[0]], "int64"), scores)
    assert result.tolist() == [[-INF, -INF, 4.0, -INF]]


NAMES = ("cache", "past_key_values")  # of a model's cache, from transformers 5.24 on and before
(NAME,) = hf.UnbatchedClassifierFreeGuidanceLogitsProcessor(1, None).unconditional_context.keys() & NAMES


class Toy:
    """A model of one step of memory: its logits depend on the last id and on how many ids it has been given.

    name: of its cache.
    """

    def __init__(self, vocab: int, name: str) -> None:
        self.name = name
        self.table = torch.from_numpy(np.random.default_rng(1).standard_normal((vocab, vocab)))
        self.seen: list[Any] = []

    def __call__(self, ids: Any, attention_mask: Any, use_cache: bool, **cache: Any) -> Any:
        assert cache.keys() <= {self.name}
        held = cache.get(self.name)
        self.seen.append((in_numpy(ids).tolist(), in_numpy(attention_mask).tolist(), use_cache, held))
        table = self.table if isinstance(ids, torch.Tensor) else in_numpy(self.table)
        out = {self.name: (held or 0) + ids.shape[1] if use_cache else None}
        return SimpleNamespace(logits=table[ids], get=out.get)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("prompt", [None, [[1, 2], [0, 1]]])
@pytest.mark.parametrize("scale", [1, 1.5, -0.5])
def test_unbatched_guidance_equals_transformers(name, use_cache, prompt, scale):
    rng = np.random.default_rng(32)
    prompt = None if prompt is None else torch.tensor(prompt)
    models = Toy(5, NAME), Toy(5, name), Toy(5, name)
    theirs = hf.UnbatchedClassifierFreeGuidanceLogitsProcessor(scale, models[0], prompt, None, use_cache)
    ours = ds.UnbatchedClassifierFreeGuidanceLogitsProcessor(scale, models[1], prompt, None, use_cache)
    plain = ds.UnbatchedClassifierFreeGuidanceLogitsProcessor(scale, models[2], in_numpy(prompt), None, use_cache)
    for length in (3, 4, 5, 6):
        ids, scores = ids_of(rng, 2, length, 5), torch.from_numpy(rng.standard_normal((2, 5)))
        expected = theirs(ids, scores)
        agree(call(ours, ids, scores), expected)
        agree(call(plain, in_numpy(ids), in_numpy(scores)), expected)
    assert models[0].seen == models[1].seen == models[2].seen


def whisper_config(**more: Any) -> Any:
    return SimpleNamespace(no_timestamps_token_id=9, eos_token_id=7, bos_token_id=8, **more)


@pytest.mark.parametrize("vocab", [16, 10])
@pytest.mark.parametrize("more", [{}, {"max_initial_timestamp_index": 2}, {"_detect_timestamp_from_logprob": False}])
def test_whisper_timestamps_equal_transformers(more, vocab):
    rng = np.random.default_rng(33)
    for _ in range(120):
        length, begin = int(rng.integers(1, 6)), int(rng.integers(1, 4))
        ids = torch.from_numpy(rng.choice([3, 10, 11, 13], (3, length)))
        scores = torch.from_numpy(rng.standard_normal((3, vocab)) * 2)
        ours = both_kinds(lambda b=begin: ds.WhisperTimeStampLogitsProcessor(whisper_config(**more), b), ids, scores)
        agree(ours, hf.WhisperTimeStampLogitsProcessor(whisper_config(**more), begin)(ids, scores))
    processor = ds.WhisperTimeStampLogitsProcessor(whisper_config(), 1)
    processor.set_begin_index(4)
    assert processor.begin_index == 4


def test_whisper_speech_detection_equals_transformers():
    rng = np.random.default_rng(34)
    scores, ids = torch.from_numpy(rng.standard_normal((2, 6))), torch.zeros((2, 1), dtype=torch.int64)
    for logarithmic in (True, False):
        ours, theirs = (m.WhisperNoSpeechDetection(2, 1, logarithmic) for m in (ds, hf))
        assert ours.no_speech_prob == theirs.no_speech_prob
        for processor in (ours, theirs):
            assert processor(ids, scores) is scores
        agree(ours.no_speech_prob, theirs.no_speech_prob)
    logits = torch.from_numpy(rng.standard_normal((2, 4, 6)))

    class Model:
        def prepare_inputs_for_generation(self, **inputs: Any) -> dict[str, Any]:
            return {"input_ids": 1, "extra": 2}

        def forward(self, input_features: Any) -> None: ...

        def __call__(self, **inputs: Any) -> Any:
            assert set(inputs) == {"input_features", "extra"}
            return SimpleNamespace(logits=logits)

    ours, theirs = (m.WhisperNoSpeechDetection(2, 3) for m in (ds, hf))
    for processor in (ours, theirs):
        processor.set_model(Model())
        processor.set_inputs({"inputs": 5})
        processor.set_begin_index(4)
        processor(torch.zeros((2, 4), dtype=torch.int64), scores)
    agree(ours.no_speech_prob, theirs.no_speech_prob)


def test_bark_equals_transformers():
    for rng, scores in cases(35):
        batch, vocab = scores.shape
        ids = ids_of(rng, batch, int(rng.integers(1, 6)), vocab)
        ends, p = rng.integers(0, vocab, 2).tolist(), float(10 ** rng.uniform(-3, 0))
        ours = both_kinds(lambda e=ends, p=p: ds.BarkEosPrioritizerLogitsProcessor(e, p), ids, scores)
        agree(ours, hf.BarkEosPrioritizerLogitsProcessor(ends, p)(ids, scores), units=1)
        sizes = (int(rng.integers(0, 3)), vocab // 3, vocab // 3)
        ours = both_kinds(lambda s=sizes: ds.AlternatingCodebooksLogitsProcessor(*s), ids, scores)
        agree(ours, hf.AlternatingCodebooksLogitsProcessor(*sizes)(ids, scores), units=1)


def test_dia_channels_equal_transformers():
    rng = np.random.default_rng(36)
    for _ in range(60):
        scores = torch.from_numpy(np.round(rng.standard_normal((6, 9)) * 2)).to(torch.float32)
        scores[0, 6] = float(rng.choice([0, 99]))
        ours = both_kinds(lambda: ds.DiaEOSChannelFilterLogitsProcessor(3, 6), None, scores)
        agree(ours, hf.DiaEOSChannelFilterLogitsProcessor(3, 6)(None, scores.clone()), units=1)


@numpy_and_torch
@pytest.mark.parametrize("end", [4, 9])
def test_an_end_past_the_vocabulary_is_an_index_error(kind, end):
    ids, scores = make(kind, [[0]], "int64"), make(kind, [[0, 1, 2, 3]] * 2)
    for processor in (
        ds.DiaEOSChannelFilterLogitsProcessor(2, end),
        ds.DiaEOSDelayPatternLogitsProcessor([0, 1], end, 3),
        ds.BarkEosPrioritizerLogitsProcessor(end, 0.5),
    ):
        with pytest.raises(IndexError):
            processor(ids, scores)


def test_dia_delays_equal_transformers():
    rng = np.random.default_rng(37)
    for _ in range(20):
        delays = rng.integers(0, 4, 3).tolist()
        theirs = hf.DiaEOSDelayPatternLogitsProcessor(delays, 6, 14)
        ours, plain = (ds.DiaEOSDelayPatternLogitsProcessor(delays, 6, 14) for _ in range(2))
        for length in range(1, 12):
            scores = torch.from_numpy(rng.standard_normal((6, 9)))
            scores[3 * int(rng.integers(2)), 6] = float(rng.choice([0, 0, 0, 99]))
            ids = torch.zeros((2, length), dtype=torch.int64)
            expected = theirs(ids, scores.clone())
            agree(call(ours, ids, scores), expected, units=1)
            agree(call(plain, in_numpy(ids), in_numpy(scores)), expected, units=1)
