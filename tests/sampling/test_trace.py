"""A trace says what every step did: compared with the classes step by step, and with a row that is stepped."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import decodestep as ds
from decodestep import processors as p
from decodestep.sampling.plan import plan
from decodestep.sampling.trace import Trace
from test_plan import NAMES, VOCAB, Shift, legal_order, random_processor


def softmax(scores):
    e = np.exp(np.asarray(scores, np.float64) - scores.max())
    return e / e.sum()


def entropy_of(probabilities):
    q = probabilities[probabilities > 0]
    return float(-(q * np.log(q)).sum())


@settings(max_examples=60)
@given(st.data())
def test_every_stage_is_what_the_classes_make(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    names = legal_order(data.draw(st.lists(st.sampled_from([n for n in NAMES if n != "Repair"]), max_size=5, unique=True)))
    tokens = rng.integers(0, VOCAB, int(rng.integers(1, 9))).tolist()
    chain = [random_processor(rng, name, len(tokens), 1) for name in names]
    logits = (np.round(rng.standard_normal(VOCAB) * 2) if rng.random() < 0.4 else rng.standard_normal(VOCAB) * 2).astype("f4")
    traced = plan(chain, VOCAB).trace(logits, tokens, seed=5)
    before = scores = logits
    assert len(traced.steps) == len(chain) and len(traced.stages) == len(chain) + 1
    for processor, step in zip(chain, traced.steps, strict=True):
        with np.errstate(all="ignore"):
            scores = processor(np.array([tokens]), before[None])[0]
        if np.isposinf(scores).any() or np.isneginf(scores).all():
            return
        np.testing.assert_allclose(step.scores, scores, rtol=3e-6, atol=1e-6)
        alive, was = step.scores > -np.inf, before > -np.inf
        assert step.kept.tolist() == np.flatnonzero(alive).tolist()
        assert step.dropped.tolist() == np.flatnonzero(was & ~alive).tolist()
        assert step.touched.tolist() == np.flatnonzero(alive & (step.scores != before)).tolist()
        assert step.mass == pytest.approx(softmax(before)[alive].sum(), abs=1e-12)
        assert step.entropy == pytest.approx(entropy_of(softmax(step.scores)), abs=1e-9)
        assert step.name == type(processor).__name__
        before = step.scores
    kept = np.flatnonzero(traced.scores > -np.inf)
    noise = np.array([ds.random.gumbel(5, len(tokens), int(i)) for i in kept])
    assert traced.draw.ids.tolist() == kept.tolist() and traced.draw.noise.tobytes() == noise.tobytes()
    assert np.array_equal(traced.draw.race, traced.scores[kept].astype("f8") + noise)
    assert traced.token == kept[np.argmax(traced.draw.race)]
    raw, final = traced.logprobs(traced.token)
    assert raw == pytest.approx(math.log(max(softmax(logits)[traced.token], 1e-300)), abs=1e-9)
    assert final == pytest.approx(math.log(softmax(traced.scores)[traced.token]), abs=1e-9)


P4 = np.log(np.array([0.4, 0.3, 0.2, 0.1], np.float32))
H4 = entropy_of(np.array([0.4, 0.3, 0.2, 0.1]))


@pytest.mark.parametrize(
    ("processor", "quantity", "value", "kept"),
    [
        (p.TopKLogitsWarper(2), "score", math.log(0.3), [0, 1]),
        (p.TopPLogitsWarper(0.65), "mass", 0.65, [0, 1]),
        (p.MinPLogitsWarper(0.6), "probability", 0.24, [0, 1]),
        (p.EpsilonLogitsWarper(0.15), "probability", 0.15, [0, 1, 2]),
        (p.EtaLogitsWarper(0.9), "probability", math.sqrt(0.9) * math.exp(-H4), [0, 1]),
        (p.TypicalLogitsWarper(0.25), "surprise", abs(-math.log(0.3) - H4), [1]),
        (p.TopHLogitsWarper(0.6), "entropy", 0.6 * H4, [0, 1]),
        (p.TopNSigmaLogitsWarper(1.0), "score", float(P4.max() - P4.astype("f8").std()), [0, 1]),
        (p.XTCLogitsWarper(1.0, 0.15, seed=1), "probability", 0.15, [2, 3]),
    ],
    ids=lambda value: type(value).__name__ if hasattr(value, "__dict__") else "",
)
def test_what_decided_a_cut(processor, quantity, value, kept):
    (step,) = plan([processor], 4).trace(P4).steps
    assert step.threshold.quantity == quantity and step.threshold.value == pytest.approx(value, rel=1e-6)
    assert step.kept.tolist() == kept and step.mass == pytest.approx(np.exp(P4)[kept].sum(), rel=1e-6)


@pytest.mark.parametrize(
    "processor", [p.TopKLogitsWarper(4), p.XTCLogitsWarper(0.0, 0.1, seed=1), p.TemperatureLogitsWarper(0.5), Shift()]
)
def test_what_cuts_nothing_has_no_threshold(processor):
    (step,) = plan([processor], 4).trace(P4).steps
    assert step.threshold is None and not len(step.dropped) and step.mass == pytest.approx(1)


def test_ties_at_the_cut_are_named():
    logits = np.array([2, 1, 3, 1, 1, 0], np.float32)
    top_p = plan([p.TopPLogitsWarper(0.85)], 6).trace(logits).steps[0]
    assert top_p.ties.tolist() == [1, 3, 4] and 1 in top_p.kept and 4 in top_p.dropped
    top_k = plan([p.TopKLogitsWarper(3)], 6).trace(logits).steps[0]
    assert top_k.ties.tolist() == [1, 3, 4] and top_k.kept.tolist() == [0, 1, 2, 3, 4]
    assert not len(plan([p.TopKLogitsWarper(2)], 6).trace(logits).steps[0].ties)


@pytest.mark.parametrize(
    ("processor", "expected"),
    [
        (p.RepetitionPenaltyLogitsProcessor(1.3), {1: ((0, 1), (4, 5)), 2: ((1, 2), (5, 6)), 3: ((2, 3),), 4: ((3, 4),)}),
        (p.PresenceFrequencyPenaltyLogitsProcessor(1.0, 0.0, 4), {1: ((4, 5),), 2: ((5, 6),)}),
        (p.NoRepeatNGramLogitsProcessor(3), {3: ((0, 3),)}),
        (p.NoRepeatNGramLogitsProcessor(1), {1: ((0, 1), (4, 5)), 2: ((1, 2), (5, 6)), 3: ((2, 3),), 4: ((3, 4),)}),
        (p.NoBadWordsLogitsProcessor([[1, 2, 5], [6]]), {5: ((4, 6),)}),
        (p.SequenceBiasLogitsProcessor({(2, 0): -1.5, (3, 0): 2.0}), {0: ((5, 6),)}),
        (p.DRYLogitsProcessor(1.0, 2.0, 1), {3: ((0, 3),)}),
        (p.DRYLogitsProcessor(1.0, 2.0, 1, breakers=[1]), {3: ((1, 3),)}),
        (p.SuppressTokensLogitsProcessor([1]), {}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_history_that_caused_it(processor, expected):
    traced = plan([processor], 8).trace(np.linspace(1, 2, 8, dtype=np.float32), [1, 2, 3, 4, 1, 2])
    assert dict(traced.steps[0].causes) == expected
    assert {*traced.steps[0].touched, *traced.steps[0].dropped} >= set(expected)


def test_every_occurrence_is_a_cause():
    traced = plan([p.RepetitionPenaltyLogitsProcessor(1.3)], 8).trace(np.ones(8, np.float32), [1, 2] * 20)
    assert traced.steps[0].causes[2] == tuple((place, place + 1) for place in range(1, 40, 2))


def test_a_sampler_traces_what_it_then_does(rng):
    params = [
        ds.SamplingParams(temperature=0.8, top_k=20, top_p=0.9, repetition_penalty=1.2, seed=3, logprobs=0),
        ds.SamplingParams(do_sample=False),
        ds.SamplingParams(xtc_probability=1.0, xtc_threshold=0.05, dry_multiplier=0.8, dry_sequence_breakers=()),
    ]
    own = lambda row: [Shift()] * (row == 1)  # noqa: E731
    sampler = ds.Sampler(params, vocab_size=VOCAB, prompt_ids=[[1, 2], [3], [4, 5, 4, 5]], processors=own)
    for dtype in ("float32", "float16"):
        logits = rng.standard_normal((3, VOCAB)).astype(dtype)
        traces = sampler.trace(torch.from_numpy(logits))
        assert np.stack([trace.scores for trace in traces]).tobytes() == sampler.processed(logits).tobytes()
        result = sampler.step(logits)
        assert [trace.token for trace in traces] == result.tokens.tolist()
        assert traces[0].logprobs(traces[0].token) == pytest.approx((result.logprobs[0].raw, result.logprobs[0].processed))
        assert traces[1].draw.noise is None and traces[1].draw.seed is None
        assert [step.fused for step in traces[1].steps] == [False]


def test_a_constrained_row_is_traced_at_every_token(rng):
    params = [ds.SamplingParams(regex="[a-z]{2,9}-x", seed=seed, top_k=9) for seed in range(2)]
    options = {"vocab_size": 300, "eos_token_id": 299, "token_bytes": lambda token: b"" if token > 255 else bytes([token])}
    traced, plain = (ds.Sampler(params, prompt_ids=[[65], [66, 67]], **options) for _ in range(2))
    while not all(row.reason for row in traced.rows):
        logits = rng.standard_normal((2, 300)).astype("f4")
        running = [not row.reason for row in traced.rows]
        told = [trace.token for trace in traced.trace(logits)]
        result = traced.step(logits)
        assert plain.step(logits).tokens.tolist() == result.tokens.tolist()
        assert [t for t, runs in zip(told, running, strict=True) if runs] == result.tokens[running].tolist()
    assert {row.reason for row in traced.rows} == {"eos"}


class Counter(p.LogitsProcessor):
    stateful = True
    calls = 0

    def __call__(self, input_ids, scores):
        self.calls += 1
        return scores


def test_a_trace_changes_nothing_and_takes_what_a_row_may_hold():
    counter, logits = Counter(), np.array([np.nan, 1, np.inf, -np.inf], np.float32)
    traced = plan([counter, p.InfNanRemoveLogitsProcessor()], 4).trace(logits)
    assert counter.calls == 0 and traced.scores[0] == 0 and traced.scores[2] == np.finfo("f4").max
    assert np.isneginf(traced.logits[0])
    shared = plan([], 4).trace(np.array([np.inf, 1, np.inf, 0], np.float32), seed=1)
    assert shared.token in (0, 2) and np.isneginf(shared.draw.race[[1, 3]]).all()
    nothing = plan([p.AllowedTokenIdsLogitsProcessor([3])], 4).trace(logits)
    assert nothing.token == -1 and nothing.steps[0].mass == 0 and nothing.steps[0].entropy == 0
    assert "no candidate" in nothing._repr_html_()


@pytest.mark.parametrize(
    "call",
    [
        lambda made: made.trace(np.zeros(3, np.float32)),
        lambda made: made.trace(np.zeros((1, 4), np.float32)),
        lambda made: made.trace(np.zeros(4, np.int64)),
        lambda made: made.trace(P4, [-1]),
        lambda made: made.trace(P4, [1.5]),
        lambda made: made.trace(P4, seed=-1),
        lambda made: made.trace(P4, seed=2**64),
    ],
)
def test_what_is_wrong_is_refused(call):
    with pytest.raises(ValueError):  # noqa: PT011
        call(plan([], 4))


def test_a_trace_shows_itself():
    traced = plan([p.TopKLogitsWarper(1)], 4).trace(P4, greedy=True, spell=lambda i: f"<{i}>")
    page = traced._repr_html_()
    assert isinstance(traced, Trace) and "&lt;0&gt;" in page and "1 TopKLogitsWarper" in page and "40.00%" in page
    assert "<0>" not in page and page.count("dropped") == 3


def test_a_completion_shows_itself():
    step = ds.TokenLogprobs(math.log(0.25), 0.0, (), ())
    page = ds.Completion("a <b>\n", [7], [1, 2], "eos", logprobs=[step], seed=9)._repr_html_()
    assert "a &lt;b&gt;" in page and "1 tokens after 2 · ended by eos · seed 9" in page
    assert "<td>7</td><td>25.00%</td><td>100.00%</td>" in page
    bare = ds.Completion("", [], [1], "", error=ValueError("<x>"))._repr_html_()
    assert "nothing yet" in bare and "&lt;x&gt;" in bare and "<table>" not in bare
