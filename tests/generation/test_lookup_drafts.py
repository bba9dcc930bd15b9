"""Drafts by lookup: the longest earlier occurrence, by comparing everything; a prediction is a text to look in."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

import decodestep as ds
from decodestep.generation.drafts.lookup import LookupDrafter, LookupIndex, PairIndex
from decodestep.sampling.token_history import TokenHistory


def longest_match(tokens):
    """(position, length) by comparing everything: the longest of at least 2 and at most 32 tokens, of equal ones the last."""
    best = None
    for position in range(1, len(tokens)):
        length = next((n for n in range(32) if n == position or tokens[position - 1 - n] != tokens[-1 - n]), 32)
        if length > 1 and (best is None or length >= best[1]):
            best = (position, length)
    return best


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), max_size=60), st.integers(1, 5), st.integers(0, 60))
def test_a_search_finds_the_longest_match(tokens, step, known):
    """Of a pair's at most 16 occurrences, as here."""
    index = LookupIndex(PairIndex(TokenHistory(tokens[:known])))
    if max(Counter(pairwise(tokens[:known])).values(), default=0) <= 16:
        assert index.search() == longest_match(tokens[:known])
    for first in range(min(known, len(tokens)), len(tokens), step):
        index.extend(tokens[first : first + step])
        read = tokens[: first + step]
        if max(Counter(pairwise(read)).values(), default=0) <= 16:
            assert index.search() == longest_match(read)


def test_a_continuation_of_a_period_is_the_period():
    index = LookupIndex(PairIndex(TokenHistory([1, 2, 3, 1, 2, 3])))
    match = index.search()
    assert match == (3, 3) and index.continuation(match.position, 7) == [1, 2, 3, 1, 2, 3, 1]


def test_a_prediction_is_drafted_from_its_beginning(model, monkeypatch):
    text = "The quick brown fox jumps over the lazy dog and runs away."
    ids = model.tokenizer.encode(text)
    [row] = ds.Sampler(ds.SamplingParams(), vocab_size=model.config.vocab_size, prompt_ids=[[1, 2, 3]]).rows
    drafter = LookupDrafter(PairIndex(row.history, ids))
    assert drafter.outlook(row, 8).tokens == 8 and drafter.propose(row, 8) == ids[:8] and drafter.kind == "prediction"
    assert drafter.propose(row, 99) == ids
    for token in (*ids[:2], 17):
        row.history.append(token)
    assert drafter.outlook(row, 8).tokens == 0
    for token in ids[3:5]:
        row.history.append(token)
    assert drafter.propose(row, 4) == ids[5:9]
    params = ds.SamplingParams(max_new_tokens=12, temperature=0, prediction=text)
    assert ds.generate(model, "Hello", params) == ds.generate(model, "Hello", replace(params, prediction=None))


def test_the_samples_of_a_request_share_what_is_read_of_its_prediction(tiny_file, monkeypatch):
    model, read = ds.load(tiny_file(kind="Q8_0", context=400)), []
    encode = model.tokenizer.encode
    monkeypatch.setattr(model.tokenizer, "encode", lambda text: read.append(text) or encode(text))
    params = [ds.SamplingParams(max_new_tokens=2, n=3, prediction=text) for text in ("abc", "abd")]
    ds.generate(model, [[1], [2]], params, draft="lookup")
    assert read == ["abc", "abd"]


def test_the_samples_of_a_request_share_the_index_of_its_prompt(tiny_file, monkeypatch):
    """Which is made by the thread that submits it."""
    model, made = ds.load(tiny_file(kind="Q8_0", context=400)), []
    init = PairIndex.__init__
    monkeypatch.setattr(
        PairIndex, "__init__", lambda self, *given: (made.append(threading.current_thread()), init(self, *given))[1]
    )
    params = ds.SamplingParams(max_new_tokens=30, n=4, seed=1)
    plain = ds.generate(model, [[1, 2, 3] * 9, [1, 2, 3] * 8], params, draft=None)
    assert ds.generate(model, [[1, 2, 3] * 9, [1, 2, 3] * 8], params, draft="lookup") == plain and len(made) == 2
    with ds.Engine(model, draft="lookup") as engine:
        assert engine.submit([1, 2, 3] * 9, params).result() == plain[:4]
    assert made == [threading.current_thread()] * 3
