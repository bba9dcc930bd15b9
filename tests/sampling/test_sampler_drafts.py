"""Rows that step on several logits in turn: what they take is what steps of one token give, whatever the drafts are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import decodestep as ds
from decodestep import Sampler, SamplingParams

VOCAB, END = 24, 3
LETTERS = [bytes([97 + token]) if token != END else b"" for token in range(VOCAB)]
KINDS = [
    {},
    {"do_sample": False, "logprobs": 2},
    {"temperature": 0.8, "top_k": 9, "top_p": 0.9, "logprobs": 0},
    {"repetition_penalty": 1.4, "presence_penalty": 0.3, "frequency_penalty": 0.2, "no_repeat_ngram_size": 2},
    {"dry_multiplier": 0.9, "dry_allowed_length": 1, "dry_sequence_breakers": ()},
    {"xtc_probability": 0.5, "xtc_threshold": 0.02, "xtc_special_tokens": [3]},
    {"stop_strings": ["ab", "c", "dde"], "min_tokens": 3},
    {"stop_token_ids": [5], "max_new_tokens": 4, "exponential_decay_length_penalty": (1, 1.5)},
    {"bad_words_ids": [[1, 2], [4]], "sequence_bias": {(1, 1): 2.0}, "min_new_tokens": 4},
    {"forced_eos_token_id": 7, "max_new_tokens": 6, "no_repeat_ngram_size": 3},
    {"regex": "[a-f]{2,9}x?", "logprobs": 1},
    {"remove_invalid_values": True, "logprobs": 1, "top_k": 5},
]  # fmt: skip


def logits_after(tokens: list[int]) -> np.ndarray:
    """A model: tokens repeat, so that penalties and stop strings have something to do."""
    made = np.random.default_rng([len(tokens), *tokens[-3:]]).normal(0, 1.5, VOCAB)
    made[6:] -= 2
    return made.astype(np.float32)


def build_sampler(kinds: list[int], prompts: list[list[int]]) -> Sampler:
    params = [SamplingParams(seed=seed, max_new_tokens=12) for seed in range(len(kinds))]
    made = [
        SamplingParams(**{"seed": p.seed, "max_new_tokens": 12, **KINDS[kind]}) for p, kind in zip(params, kinds, strict=True)
    ]
    return Sampler(made, vocab_size=VOCAB, eos_token_id=END, prompt_ids=prompts, token_bytes=LETTERS.__getitem__)


def record(row: ds.sampling.row.Row) -> tuple[object, ...]:
    return row.history.tokens, row.reason, row.text.text, list(row.logprobs)


def run_alone(kind: int, number: int, prompt: list[int]) -> list[tuple[int, str, object]]:
    """What each token of a row adds, drawn one at a time."""
    sampler = build_sampler([0] * number + [kind], [[1]] * number + [prompt])
    for _ in range(number):
        sampler.remove(0)
    [row], taken = sampler.rows, []
    while not row.reason:
        result = sampler.step(logits_after(row.history.tokens)[None])
        taken.append((int(result.tokens[0]), result.text[0], result.logprobs[0]))
    return [*taken, (-2, row.reason, None)]


@settings(max_examples=60)
@given(st.lists(st.integers(0, len(KINDS) - 1), min_size=1, max_size=4), st.integers(0, 2**32))
def test_drafts_change_no_token_text_or_end(kinds, seed):
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(0, VOCAB, rng.integers(1, 5)).tolist() for _ in kinds]
    alone = [run_alone(kind, i, prompt) for i, (kind, prompt) in enumerate(zip(kinds, prompts, strict=True))]
    sampler, taken = build_sampler(kinds, prompts), [[] for _ in kinds]
    while not all(row.reason for row in sampler.rows):
        drafts = []
        for i, row in enumerate(sampler.rows):
            right = [token for token, _, _ in alone[i][len(taken[i]) :] if token >= 0][: rng.integers(0, 5)]
            wrong = rng.integers(0, VOCAB, rng.integers(0, 3)).tolist()
            drafts.append([] if row.reason else right + wrong)
        histories = [row.history.tokens.copy() for row in sampler.rows]
        logits = np.stack([logits_after(h + d[:j]) for h, d in zip(histories, drafts, strict=True) for j in range(len(d) + 1)])
        running = [not row.reason for row in sampler.rows]
        for turn, (indices, result) in enumerate(sampler.steps(logits, drafts)):
            assert turn > 0 or indices == list(range(len(kinds)))
            for place, i in enumerate(indices):
                if running[i]:
                    taken[i].append((int(result.tokens[place]), result.text[place], result.logprobs[place]))
                    running[i] = not result.done[place]
                    assert sampler.rows[i].reason == result.reason[place]
                assert not turn or histories[i] + drafts[i][:turn] == sampler.rows[i].history.tokens[: len(histories[i]) + turn]
    for each, row, want in zip(taken, sampler.rows, alone, strict=True):
        assert [*each, (-2, row.reason, None)] == want


@pytest.mark.parametrize("kind", range(len(KINDS)))
def test_a_row_steps_alone_as_in_a_sampler(kind):
    prompt = [1, 2]
    want = run_alone(kind, 0, prompt)
    [row], taken = build_sampler([kind], [prompt]).rows, []
    while not row.reason:
        draft = [token for token, _, _ in want[len(taken) : len(taken) + 3] if token >= 0]
        past = row.history.tokens.copy()
        taken += row.step(np.stack([logits_after(past + draft[:j]) for j in range(len(draft) + 1)]), draft)
    assert [*map(tuple, taken), (-2, row.reason, None)] == want
    assert row.step(logits_after(row.history.tokens)[None]) == [(-1, "", None)]


def test_a_row_that_is_ended_between_two_turns_takes_no_more():
    sampler = Sampler([SamplingParams(do_sample=False)] * 2, vocab_size=4, prompt_ids=[[0], [0]])
    logits = np.eye(4, dtype=np.float32)[[1, 2, 3, 1, 2, 3]]
    turns = sampler.steps(logits, [[1, 2], [1, 2]])
    indices, result = next(turns)
    assert (indices, result.tokens.tolist()) == ([0, 1], [1, 1])
    sampler.rows[0].end("cancelled")
    assert [(indices, result.tokens.tolist()) for indices, result in turns] == [([1], [2]), ([1], [3])]
    assert [row.history.tokens for row in sampler.rows] == [[0, 1], [0, 1, 2, 3]]


def test_a_processor_that_fails_in_a_later_turn_ends_its_row_alone():
    def fails(ids, scores):
        if ids.shape[1] == 3:
            raise ZeroDivisionError
        return scores

    params = [SamplingParams(do_sample=False)] * 2
    sampler = Sampler(params, vocab_size=4, prompt_ids=[[0], [0]], processors=lambda row: [fails] if row else [])
    turns = list(sampler.steps(np.eye(4, dtype=np.float32)[[1, 2, 3, 1, 2, 3]], [[1, 2], [1, 2]]))
    assert [result.tokens.tolist() for _, result in turns] == [[1, 1], [2, 2], [3, -1]]
    assert [row.reason for row in sampler.rows] == ["", "error"]
    assert isinstance(sampler.rows[1].error, ZeroDivisionError)


@pytest.mark.parametrize("drafts", [[], [[1]], [[1], [2], []], None])
def test_drafts_that_do_not_match_the_rows_are_refused(drafts):
    sampler = Sampler([SamplingParams()] * 2, vocab_size=4, prompt_ids=[[0], [0]])
    with pytest.raises(ValueError, match="^Sampler: drafts must be"):
        next(sampler.steps(np.zeros((2, 4), np.float32), drafts))


@pytest.mark.parametrize("rows", [2, 3, 5])
def test_logits_that_do_not_match_the_drafts_are_refused(rows):
    sampler = Sampler([SamplingParams()] * 2, vocab_size=4, prompt_ids=[[0], [0]])
    with pytest.raises(ValueError, match="^Sampler: logits must be of shape 4x4"):
        next(sampler.steps(np.zeros((rows, 4), np.float32), [[1, 2], []]))
    assert [row.history.tokens for row in sampler.rows] == [[0], [0]]
