"""Coupled rows: the draws of a row from a drafter's logits, which leave the row as it is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decodestep import SamplingParams
from decodestep.generation.drafts.coupled_row import CoupledRow, draw_each
from decodestep.sampling.row import Row
from decodestep.sampling.row_factory import RowFactory

VOCAB, END = 24, 3
LETTERS = [bytes([97 + token]) if token != END else b"" for token in range(VOCAB)]
KINDS = [
    {},
    {"do_sample": False, "repetition_penalty": 1.4},
    {"temperature": 0.8, "top_k": 9, "top_p": 0.9, "logprobs": 2},
    {"repetition_penalty": 1.4, "presence_penalty": 0.3, "frequency_penalty": 0.2, "no_repeat_ngram_size": 2},
    {"dry_multiplier": 0.9, "dry_allowed_length": 1, "dry_sequence_breakers": ()},
    {"xtc_probability": 0.5, "xtc_threshold": 0.02, "xtc_special_tokens": [3]},
    {"stop_strings": ["zz"], "min_tokens": 3, "stop_token_ids": [5]},
    {"exponential_decay_length_penalty": (1, 1.5), "max_time": 1000},
    {"bad_words_ids": [[1, 2], [4]], "sequence_bias": {(1, 1): 2.0}, "min_new_tokens": 4, "forced_eos_token_id": 7},
]


def logits_after(tokens: list[int]) -> np.ndarray:
    """A model whose tokens repeat, so that penalties have something to do."""
    made = np.random.default_rng([len(tokens), *tokens[-3:]]).normal(0, 1.5, VOCAB)
    made[6:] -= 2
    return made.astype(np.float32)


def build_row(prompt: list[int] | None = None, **fields: object) -> Row:
    factory = RowFactory(VOCAB, eos_token_id=END, token_bytes=LETTERS.__getitem__)
    return factory.row(SamplingParams(**{"seed": 7, **fields}), prompt or [1, 2, 1])


@settings(max_examples=80)
@given(kind=st.integers(0, len(KINDS) - 1), seed=st.integers(0, 2**64 - 1), draw=st.data())
def test_it_draws_what_the_row_draws_whatever_it_has_drawn_before(kind, seed, draw):
    """From the same logits, at every position, after drafts that the row has taken, in part, or not at all."""
    row = build_row(seed=seed, ignore_eos=True, **KINDS[kind])
    coupled = CoupledRow(row)
    while not row.reason and len(row.history) < 30:
        coupled.follow(row.history.tokens)
        past = list(row.history.tokens)
        drafts = []
        for right in draw.draw(st.lists(st.booleans(), max_size=4)):
            logits = logits_after(past + drafts) if right else -logits_after(past + drafts)
            drafts.append(coupled.draw(logits))
        for number in range(draw.draw(st.integers(1, 4))):
            coupled.follow(row.history.tokens)
            logits = logits_after(row.history.tokens)
            token = row.step(logits[None])[0].token
            assert coupled.draw(logits) == token, number
            if row.reason:
                break


def test_several_draw_in_one_call_as_each_alone():
    rows = [build_row(seed=seed, **kind) for seed, kind in enumerate(KINDS)]
    logits = np.stack([logits_after([seed]) for seed in range(len(rows))])
    alone = [CoupledRow(row).draw(scores) for row, scores in zip(rows, logits, strict=True)]
    assert draw_each([CoupledRow(row) for row in rows], logits) == alone
    assert alone == [row.step(scores[None])[0].token for row, scores in zip(rows, logits, strict=True)]


def test_draws_past_an_end_and_past_the_limit_of_the_row():
    row = build_row(max_new_tokens=1, stop_token_ids=[5], do_sample=False)
    coupled, logits = CoupledRow(row), np.zeros(VOCAB, np.float32)
    for token in (END, 5, 8):
        logits[token] = token + 1
        assert (coupled.draw(logits), coupled.is_end(token)) == (token, token != 8)
    assert row.history.tokens == [1, 2, 1] and not row.reason
    logits[:] = -np.inf
    assert coupled.draw(logits) == -1 and coupled.is_end(-1)
    coupled.follow([1, 2, 1, 8])
    assert coupled.draw(np.eye(VOCAB, dtype=np.float32)[9]) == 9


def test_constraints_and_the_callers_processors_see_the_rows_tokens_alone():
    seen = []

    def record(ids, scores):
        seen.append(ids[0].tolist())
        return scores

    factory = RowFactory(VOCAB, eos_token_id=END, token_bytes=LETTERS.__getitem__, processors=[record])
    row = factory.row(SamplingParams(seed=1, regex="[a-f]{2,9}", top_k=5), [1])
    coupled = CoupledRow(row)
    for _ in range(3):
        coupled.follow(row.history.tokens)
        for _ in range(3):
            coupled.draw(np.eye(VOCAB, dtype=np.float32)[9] * 30)  # which the constraint forbids
        row.step(logits_after(row.history.tokens)[None])
    assert seen == [row.history.tokens[:length] for length in (1, 2, 3)]


@pytest.mark.parametrize("temperature", [0.5, 0.7, 1.0])
def test_both_draw_the_same_token_as_often_as_coupling_promises(temperature):
    """Of 4,000 positions, and far more often than independent draws."""
    rng, count = np.random.default_rng(3), 4000
    targets = rng.normal(0, 2, (count, VOCAB)).astype(np.float32)
    drafts = targets + rng.normal(0, 0.5, (count, VOCAB)).astype(np.float32)
    p, q = (softmax(logits / temperature) for logits in (targets, drafts))
    variation = np.abs(p - q).sum(1) / 2
    promised = (1 - variation) / (1 + variation)
    row = build_row([], temperature=temperature, seed=5, ignore_eos=True, max_new_tokens=None)
    coupled, same = CoupledRow(row), []
    for target, draft in zip(targets, drafts, strict=True):
        coupled.follow(row.history.tokens)
        same.append(coupled.draw(draft) == row.step(target[None])[0].token)
    error = np.sqrt(np.mean(same) * (1 - np.mean(same)) / count)
    assert np.mean(same) >= promised.mean() - 2 * error
    assert np.mean(same) > (p * q).sum(1).mean() + 20 * error


def softmax(logits: np.ndarray) -> np.ndarray:
    raised = np.exp(logits.astype(np.float64) - logits.max(1, keepdims=True))
    return raised / raised.sum(1, keepdims=True)
