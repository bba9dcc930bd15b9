"""`progress` of `generate`: how much of the prompts has been run."""

from __future__ import annotations

import pytest

import decodestep as ds
from decodestep.decoding.forward import BLOCK


@pytest.fixture
def small(tiny_file):
    return ds.load(tiny_file(context=4 * BLOCK))


LONG = [i % 200 for i in range(2 * BLOCK + 40)]
SHORT = [7, 8, 9]


def told(model, prompts, params, **options):
    found = []
    completions = ds.generate(model, prompts, params, progress=lambda *each: found.append(each), **options)
    assert all(one.error is None for one in completions)
    return found


def test_it_counts_the_tokens_that_have_been_run(small):
    params = ds.SamplingParams(seed=1, max_new_tokens=5, draft=False)
    found = told(small, [LONG], params)
    counts = [count for count, _ in found]
    assert found[0] == (0, len(LONG)) and found[-1] == (len(LONG), len(LONG))
    assert len(counts) > 3 and counts == sorted({*counts})  # each pass runs some of it
    assert told(small, [SHORT], params) == [(0, 3), (3, 3)]  # and nothing while the row draws


def test_what_the_cache_has_counts_as_run(small):
    params = ds.SamplingParams(seed=1, max_new_tokens=1, draft=False)
    told(small, [LONG], params)
    (first, *_, last) = told(small, [LONG], params)
    assert first == (0, len(LONG)) and last == (len(LONG), len(LONG))


def test_prompts_of_all_rows_and_searches_are_counted(small):
    rows, search = (
        ds.SamplingParams(seed=1, max_new_tokens=2),
        ds.SamplingParams(num_beams=2, max_new_tokens=2, do_sample=False),
    )
    found = told(small, [LONG, SHORT, LONG[:-1]], [rows, rows, search])
    tokens = len(LONG) + len(SHORT) + len(LONG) - 1
    assert found[0] == (0, tokens) and found[-1] == (tokens, tokens)
    counts = [count for count, _ in found]
    assert counts == sorted(counts) and len(LONG) + len(SHORT) in counts
    assert {count for _, count in found} == {tokens}


def test_prompts_that_are_scored_are_counted(small):
    found = told(small, [LONG], ds.SamplingParams(seed=1, max_new_tokens=1, prompt_logprobs=0))
    assert found[0] == (0, len(LONG)) and found[-1] == (len(LONG), len(LONG)) and len(found) > 3


def test_what_it_raises_ends_the_call(small):
    def fail(_tokens, _all):
        raise InterruptedError("enough")

    with pytest.raises(InterruptedError, match="enough"):
        ds.generate(small, [LONG], ds.SamplingParams(seed=1, max_new_tokens=1), progress=fail)
    assert small.cache.unused == small.cache.pages
    with pytest.raises(ValueError, match="progress must be a function or None"):
        ds.generate(small, [LONG], progress=3)
