"""The green-list watermark and SynthID, with their detectors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers.generation.logits_process as hf
from transformers.generation import watermarking as hf_detectors

from decodestep import processors as ds
from support.processor_cases import agree, call, ids_of, in_numpy, wide

SCHEMES = [("lefthash", 1), ("lefthash", 3), ("selfhash", 1), ("selfhash", 3)]
KEYS = [654, 400, 836, 123, 340, 443, 597, 160]


@pytest.mark.parametrize(("scheme", "width"), SCHEMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_watermark_equals_transformers(scheme, width, dtype):
    rng = np.random.default_rng(41)
    given: dict[str, Any] = {"vocab_size": 60, "device": "cpu", "bias": 1.7, "seeding_scheme": scheme, "context_width": width}
    ours, theirs = ds.WatermarkLogitsProcessor(**given), hf.WatermarkLogitsProcessor(**given)
    for length in (2, 3, 4, 7):
        ids, scores = ids_of(rng, 2, length, 60), torch.from_numpy(rng.permutation(120).reshape(2, 60) / 8 - 7).to(dtype)
        expected = theirs(ids, scores)
        agree(call(ours, ids, scores), expected, units=1)
        agree(call(ours, in_numpy(ids), np.array(in_numpy(scores))), expected, units=1)


def test_a_short_input_is_left_unmarked(caplog):
    scores = np.zeros((1, 9))
    assert ds.WatermarkLogitsProcessor(9, "cpu", context_width=3)(np.zeros((1, 2), np.int64), scores) is scores
    assert "context_width = 3" in caplog.text


def test_a_bias_beyond_the_scores_makes_them_infinite():
    scores = np.full((1, 4), 3e38, np.float32)
    marked = call(ds.WatermarkLogitsProcessor(4, "cpu", 0.5, 3e38), np.array([[1]]), scores)
    assert sorted(marked[0].tolist()) == [scores[0, 0], scores[0, 0], np.inf, np.inf]


@pytest.mark.parametrize(("scheme", "width"), SCHEMES)
@pytest.mark.parametrize("once", [False, True])
def test_watermark_detector_equals_transformers(scheme, width, once):
    rng = np.random.default_rng(42)
    config = SimpleNamespace(bos_token_id=0, is_encoder_decoder=False, vocab_size=50)
    marking = {"greenlist_ratio": 0.3, "bias": 9.0, "hashing_key": 15485863, "seeding_scheme": scheme, "context_width": width}
    ours = ds.WatermarkDetector(config, "cpu", marking, once)
    theirs = hf_detectors.WatermarkDetector(config, "cpu", marking, once)
    for first in (0, 1):
        ids = ids_of(rng, 3, 15, 4) + 1
        ids[:, 0] = first
        for name, value in vars(theirs(ids, return_dict=True)).items():
            np.testing.assert_allclose(getattr(ours(ids, return_dict=True), name), value, rtol=1e-12)
        assert ours(in_numpy(ids)).tolist() == theirs(ids).tolist()
    ids[0, 0] = 0
    for bad in (ids, ids[1:, :width]):
        for detector in (ours, theirs):
            with pytest.raises(ValueError, match=r"."):
                detector(bad)
    with pytest.raises(ValueError, match=r"longer than context_width = .*; got 0$"):
        ours(ids[:, :0])
    assert ours(ids[:0]).shape == (0,)


def test_marked_text_is_detected_and_other_text_is_not():
    config = SimpleNamespace(bos_token_id=-1, is_encoder_decoder=False, vocab_size=40)
    marking = {"greenlist_ratio": 0.25, "bias": 20.0}
    processor, rng = ds.WatermarkLogitsProcessor(40, "cpu", **marking), np.random.default_rng(43)
    ids = np.array([[1], [2]])
    for _ in range(60):
        scores = rng.standard_normal((2, 40))
        marked = processor(ids, scores)[:1].argmax(-1)
        ids = np.concatenate([ids, np.array([[marked[0]], [scores[1].argmax()]])], axis=1)
    assert ds.WatermarkDetector(config, "cpu", marking)(ids).tolist() == [True, False]


def synthid(module: Any, **more: Any) -> Any:
    return module.SynthIDTextWatermarkLogitsProcessor(5, KEYS, 2**10, 7, 16, torch.device("cpu"), **more)


@pytest.mark.parametrize("more", [{}, {"skip_first_ngram_calls": True}, {"debug_mode": True}])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_synthid_equals_transformers(more, dtype):
    rng = np.random.default_rng(44)
    ours, plain, theirs = synthid(ds, **more), synthid(ds, **more), synthid(hf, **more)
    ids = ids_of(rng, 3, 2, 20)
    for step in range(14):
        scores = torch.from_numpy(rng.standard_normal((3, 20)) * 2).to(dtype)
        if dtype == torch.float64:
            scores[0, 4] = -torch.inf
            scores[1, scores[1] < scores[1].topk(5)[0][-1]] = -torch.inf
        expected = theirs(ids, scores)
        agree(call(ours, ids, scores), expected, units=16)
        agree(call(plain, in_numpy(ids), np.array(in_numpy(scores))), expected, units=32)
        newest = torch.tensor([[step % 2], [3], [step]])  # contexts repeat in two of the rows
        ids = torch.cat([ids, newest], dim=1)
    assert ours.state.num_calls == 14


@pytest.mark.parametrize("in_kind", [lambda x: x, in_numpy], ids=["torch", "numpy"])
def test_synthid_statistics_equal_transformers(in_kind):
    rng = np.random.default_rng(45)
    ids = ids_of(rng, 3, 30, 3)
    ours, theirs = synthid(ds), synthid(hf)
    assert in_kind(ours.compute_g_values(in_kind(ids))).tolist() == theirs.compute_g_values(ids).tolist()
    assert ours.compute_context_repetition_mask(in_kind(ids)).tolist() == theirs.compute_context_repetition_mask(ids).tolist()
    assert ours.compute_eos_token_mask(in_kind(ids), 2).tolist() == theirs.compute_eos_token_mask(ids, 2).bool().tolist()
    assert ours.expected_mean_g_value(50) == theirs.expected_mean_g_value(50)
    for method, bad in (("compute_g_values", ids[0]), ("compute_ngram_keys", ids), ("compute_ngram_keys", ids[..., None])):
        for processor in (ours, theirs):
            with pytest.raises(ValueError, match=r"."):
                getattr(processor, method)(bad)


def test_synthid_statistics_of_single_tokens_equal_transformers():
    ours, theirs = (m.SynthIDTextWatermarkLogitsProcessor(1, KEYS, 2**10, 7, 16, "cpu") for m in (ds, hf))
    ids = torch.tensor([[1, 2, 1, 3]])
    expected = theirs.compute_g_values(ids).tolist(), theirs.compute_context_repetition_mask(ids).tolist()
    for given in (ids, in_numpy(ids)):
        assert (ours.compute_g_values(given).tolist(), ours.compute_context_repetition_mask(given).tolist()) == expected


def test_synthid_detector_equals_transformers():
    torch.manual_seed(46)
    config = hf_detectors.BayesianDetectorConfig(watermarking_depth=len(KEYS), base_rate=0.3)
    module = hf_detectors.BayesianDetectorModel(config)
    torch.nn.init.normal_(module.likelihood_model_watermarked.delta)
    rng, tokenizer = np.random.default_rng(46), SimpleNamespace(eos_token_id=9)
    ids = ids_of(rng, 4, 25, 10)
    with torch.no_grad():
        expected = hf_detectors.SynthIDTextWatermarkDetector(module, synthid(hf), tokenizer)(ids)[0]
        agree(ds.SynthIDTextWatermarkDetector(module, synthid(ds), tokenizer)(ids)[0], expected)
    weights = module.likelihood_model_watermarked
    for kind in (lambda x: x, in_numpy):
        trained = (kind(w.detach()) for w in (weights.beta, weights.delta, module.prior))
        detector = ds.BayesianDetector(*trained)
        ours = ds.SynthIDTextWatermarkDetector(detector, synthid(ds), tokenizer)(kind(ids))
        np.testing.assert_allclose(wide(ours), wide(expected), rtol=1e-4)


def test_tilting_keeps_the_distribution_on_average():
    rng = np.random.default_rng(47)
    scores = rng.standard_normal((1, 6))
    p = np.exp(scores) / np.exp(scores).sum()
    processor = synthid(ds)
    tilted = [np.exp(processor.update_scores(scores, rng.integers(0, 2, (1, 6, 4)))) for _ in range(4000)]
    np.testing.assert_allclose([t.sum() for t in tilted], 1, rtol=1e-9)
    np.testing.assert_allclose(np.mean(tilted, axis=0), p, atol=0.02)
