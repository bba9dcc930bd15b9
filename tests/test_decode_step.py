"""decode_step: hand examples, transformers' own classes, the distribution of draws, and independence of rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

import decodestep as ds
from decodestep.ops.decode_step import reference

NONE = np.zeros(0, np.int64)


def kept(logits, *, top_k=0, top_p=1.0, min_p=0.0, temperature=1.0, penalty=1.0, history=NONE):
    """The candidates that a row's filters leave, by the reference's own steps."""
    scores = reference.penalised(np.asarray(logits, np.float32), np.asarray(history), np.float32(penalty))
    scores = reference.tempered(scores, temperature)
    ids = np.flatnonzero(scores > -np.inf)
    ids = reference.keep_top_k(ids, scores, top_k)
    ids = reference.keep_top_p(ids, scores, top_p)
    return reference.keep_min_p(ids, scores, min_p), scores


LN = np.log(np.array([0.125, 0.5, 0.125, 0.25], np.float32))


@pytest.mark.parametrize(
    ("options", "want"),
    [
        ({}, [0, 1, 2, 3]),
        ({"top_k": 2}, [1, 3]),
        ({"top_k": 3}, [0, 1, 2, 3]),  # both ties of the third value
        ({"top_k": 9}, [0, 1, 2, 3]),
        ({"top_p": 0.0}, [1]),
        ({"top_p": 0.4}, [1]),
        ({"top_p": 0.6}, [1, 3]),
        ({"top_p": 0.8}, [0, 1, 3]),  # of the tied tokens the lower id
        ({"top_p": 1.0}, [0, 1, 2, 3]),
        ({"min_p": 0.4}, [1, 3]),
        ({"min_p": 1.0}, [1]),
        ({"top_k": 2, "top_p": 0.6}, [1]),  # 2/3 of what top-k left
        ({"penalty": 4.0, "history": [1, 1]}, [0, 1, 2, 3]),
        ({"penalty": 4.0, "history": [1, 1], "top_k": 1}, [3]),
        ({"temperature": 0.25, "min_p": 0.1}, [1]),
    ],
)
def test_hand_examples(options, want):
    assert kept(LN.copy(), **options)[0].tolist() == want


def hf_chain(logits, history, o):
    from transformers import generation as hf

    ids, scores = torch.tensor([history]), torch.tensor(logits)[None]
    if o["penalty"] != 1:
        scores = hf.RepetitionPenaltyLogitsProcessor(o["penalty"])(ids, scores)
    scores = hf.TemperatureLogitsWarper(o["temperature"])(ids, scores)
    if o["top_k"]:
        scores = hf.TopKLogitsWarper(o["top_k"])(ids, scores)
    if o["top_p"] < 1:
        scores = hf.TopPLogitsWarper(o["top_p"])(ids, scores)
    if o["min_p"] > 0:
        scores = hf.MinPLogitsWarper(o["min_p"])(ids, scores)
    return scores[0].numpy()


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_keeps_what_transformers_keeps(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    vocab = data.draw(st.sampled_from([2, 7, 50, 1000]))
    logits = (rng.standard_normal(vocab) * 4).astype(np.float32)
    history = rng.integers(0, vocab, 5).tolist()
    options = {
        "top_k": data.draw(st.sampled_from([0, 1, 3, 40])),
        "top_p": data.draw(st.sampled_from([0.05, 0.5, 0.9, 0.99, 1.0])),
        "min_p": data.draw(st.sampled_from([0.0, 0.02, 0.3])),
        "temperature": data.draw(st.sampled_from([0.3, 1.0, 1.7])),
        "penalty": data.draw(st.sampled_from([1.0, 1.3, 0.8])),
    }
    theirs = hf_chain(logits, history, options)
    ids, scores = kept(logits, history=history, **options)
    np.testing.assert_array_equal(ids, np.flatnonzero(theirs > -np.inf))
    np.testing.assert_allclose(scores[ids], theirs[ids], rtol=1e-6)


def test_greedy_takes_the_first_maximum_and_needs_no_seed():
    logits = np.array([[1, 3, 3, 2], [np.nan, -np.inf, 0, -1]], np.float32)
    assert ds.decode_step(logits, temperature=0).tolist() == [1, 2]
    assert ds.decode_step(logits, temperature=[0, 0], top_k=1, seed=[5, 6]).tolist() == [1, 2]


def test_infinite_logits_share_the_draw():
    logits = np.array([[0, np.inf, 5, np.inf]], np.float32)
    drawn = {int(ds.decode_step(logits, seed=s)[0]) for s in range(40)}
    assert drawn == {1, 3}


@pytest.mark.parametrize("temperature", [1e-30, 1e-300, 5e-324])
def test_a_vanishing_temperature_takes_the_maximum(temperature):
    logits = np.array([[-3, 2, 1.999, 0], [0, 0, -1, -2]], np.float32)
    assert ds.decode_step(logits, temperature=temperature, top_p=0.9)[0] == 1
    drawn = {int(ds.decode_step(logits, temperature=temperature, seed=s)[1]) for s in range(40)}
    assert drawn == {0, 1}  # exact ties stay a fair draw


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.6}, {"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.1}, {"top_k": 8, "top_p": 0.9, "min_p": 0.02}]
)
def test_draws_follow_the_processed_distribution(options):
    logits = (np.random.default_rng(4).standard_normal(12)).astype(np.float32)
    ids, scores = kept(logits, **options)
    weight = np.exp(scores[ids].astype(np.float64))
    draws = 100_000
    # The same row at many positions: what the reference draws, without the cost of filtering each time.
    noise = ds.random.gumbel(11, np.arange(draws)[:, None], ids[None, :])
    tokens = ids[np.argmax(scores[ids].astype(np.float64) + noise, axis=1)]
    assert chisquare(np.bincount(tokens, minlength=12)[ids], draws * weight / weight.sum()).pvalue > 1e-4
    some = ds.decode_step(np.tile(logits, (50, 1)), seed=11, position=np.arange(50), **options)
    np.testing.assert_array_equal(some, tokens[:50])


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_a_row_does_not_depend_on_its_mates(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    batch, vocab = data.draw(st.integers(1, 6)), 40
    logits = (rng.standard_normal((batch, vocab)) * 3).astype(np.float32)
    columns = {
        "temperature": rng.choice([0.0, 0.7, 1.0], batch), "top_k": rng.choice([0, 3, 100], batch),
        "top_p": rng.choice([0.3, 0.9, 1.0], batch), "min_p": rng.choice([0.0, 0.1], batch),
        "repetition_penalty": rng.choice([1.0, 1.5], batch), "seed": rng.integers(0, 2**63, batch),
        "position": rng.integers(0, 2**32, batch),
    }
    history = [rng.integers(0, vocab, rng.integers(0, 9)) for _ in range(batch)]
    together = ds.decode_step(logits, history=history, **columns)
    for b in range(batch):
        alone = {name: column[b : b + 1] for name, column in columns.items()}
        assert ds.decode_step(logits[b : b + 1], history=history[b : b + 1], **alone)[0] == together[b]


def test_half_precision_and_torch():
    logits = np.random.default_rng(1).standard_normal((3, 30)).astype(np.float32)
    want = ds.decode_step(logits.astype(np.float16).astype(np.float32), seed=4)
    tokens = ds.decode_step(torch.tensor(logits).half(), seed=torch.tensor(4))
    assert isinstance(tokens, torch.Tensor)
    assert tokens.tolist() == want.tolist()
    rounded = torch.tensor(logits).bfloat16()
    assert ds.decode_step(rounded, seed=4).tolist() == ds.decode_step(rounded.float(), seed=4).tolist()


BAD = [
    ("logits", {"logits": np.zeros(3, np.float32)}),
    ("logits", {"logits": np.zeros((1, 0), np.float32)}),
    ("logits", {"logits": np.zeros((1, 3), np.int64)}),
    ("logits", {"logits": np.full((2, 3), -np.inf, np.float32)}),
    ("logits", {"logits": np.full((2, 3), np.nan, np.float32), "temperature": 0}),
    ("temperature", {"temperature": -1}),
    ("temperature", {"temperature": [1, np.nan]}),
    ("temperature", {"temperature": [1, 1, 1]}),
    ("top_k", {"top_k": -1}),
    ("top_k", {"top_k": 1.5}),
    ("top_p", {"top_p": 1.7}),
    ("min_p", {"min_p": -0.1}),
    ("repetition_penalty", {"repetition_penalty": 0}),
    ("seed", {"seed": -1}),
    ("seed", {"seed": 2**64}),
    ("seed", {"seed": True}),
    ("position", {"position": 2**32}),
    ("history", {"history": [[1]]}),
    ("history", {"history": [[1], [3]]}),
    ("history", {"history": [[1], [-1]]}),
    ("history", {"history": [[1.5], []]}),
    ("backend", {"backend": "cpu"}),
]


@pytest.mark.parametrize(("name", "options"), BAD)
def test_refuses(name, options):
    options = {"logits": np.zeros((2, 3), np.float32), **options}
    with pytest.raises(ValueError, match=rf"^decode_step: {name} must be .*; got "):
        ds.decode_step(options.pop("logits"), **options)
