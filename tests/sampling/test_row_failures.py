"""A row whose own code raises ends alone: with the reason "error" and the exception, and no other row changes by a bit."""

from __future__ import annotations

import numpy as np
import pytest

import decodestep as ds
from decodestep import Sampler, SamplingParams, processors

VOCAB = 40
STORY = "Once upon a time"


class Fails:
    """A processor that raises at the n-th call."""

    def __init__(self, at=1, error=ZeroDivisionError):
        self.left, self.error = at, error

    def __call__(self, input_ids, scores):
        self.left -= 1
        if not self.left:
            raise self.error("mine")
        return scores


def logits_of(rows, step):
    return np.random.default_rng(step).standard_normal((rows, VOCAB)).astype(np.float32)


def stepped(sampler, steps=4):
    return [sampler.step(logits_of(len(sampler.rows), step)) for step in range(steps)]


def tokens_of(results, row):
    return [int(result.tokens[row]) for result in results]


def test_a_processor_that_raises_ends_its_row_alone():
    params = [SamplingParams(seed=seed) for seed in range(3)]
    made = {0: [], 1: [Fails(at=3)], 2: [lambda ids, scores: scores * 2]}
    sampler = Sampler(params, vocab_size=VOCAB, prompt_ids=[[1]] * 3, processors=made.__getitem__)
    results = stepped(sampler)
    made[1] = []
    whole = stepped(Sampler(params, vocab_size=VOCAB, prompt_ids=[[1]] * 3, processors=made.__getitem__))
    assert [tokens_of(results, row) for row in (0, 2)] == [tokens_of(whole, row) for row in (0, 2)]
    assert tokens_of(results, 1) == [*tokens_of(whole, 1)[:2], -1, -1]
    assert [result.reason[1] for result in results] == ["", "", "error", "error"]
    assert str(sampler.rows[1].error) == "mine" and sampler.rows[0].error is None
    assert sampler.rows[1].history.tokens == [1, *tokens_of(whole, 1)[:2]]


def test_a_processor_of_a_wrong_shape_ends_its_row():
    sampler = Sampler(SamplingParams(), vocab_size=VOCAB, processors=[lambda ids, scores: scores[:, 1:]], prompt_ids=[[1]])
    (result,) = stepped(sampler, 1)
    assert result.reason == ("error",) and "of shape 1x40" in str(sampler.rows[0].error)


def test_a_fused_processor_that_raises_ends_its_row_alone():
    broken = processors.ExponentialDecayLengthPenalty((0, 1.5), 3, 2)
    broken.growth = lambda length: [][0]  # IndexError at the second token
    params = [SamplingParams(seed=1), SamplingParams(seed=2)]
    sampler = Sampler(params, vocab_size=VOCAB, prompt_ids=[[1, 2]] * 2, processors=lambda row: [broken] if row else [])
    results = stepped(sampler)
    whole = stepped(Sampler(params, vocab_size=VOCAB, prompt_ids=[[1, 2]] * 2))
    assert tokens_of(results, 0) == tokens_of(whole, 0)
    assert [result.reason[1] for result in results] == ["", "error", "error", "error"]
    assert isinstance(sampler.rows[1].error, IndexError)


def test_token_bytes_that_raises_ends_its_row_alone():
    params = [SamplingParams(seed=1, logprobs=0), SamplingParams(seed=5, stop_strings="never")]
    whole = stepped(Sampler(params, vocab_size=VOCAB, prompt_ids=[[]] * 2, token_bytes=lambda token: b"ab"))
    bad = tokens_of(whole, 1)[1]
    assert bad not in tokens_of(whole, 0) and bad != tokens_of(whole, 1)[0]

    def token_bytes(token):
        if token == bad:
            raise UnicodeError("mine")
        return b"n"  # may begin the stop string

    sampler = Sampler(params, vocab_size=VOCAB, prompt_ids=[[]] * 2, token_bytes=token_bytes)
    results = stepped(sampler)
    assert tokens_of(results, 0) == tokens_of(whole, 0)
    assert [result.reason[1] for result in results] == ["", "error", "error", "error"]
    assert results[1].text == ("n", "n")  # what was held back
    assert sampler.rows[1].history.tokens == tokens_of(whole, 1)[:2]
    assert len(sampler.rows[0].logprobs) == 4


@pytest.mark.parametrize("place", ["processor", "token_bytes"])
def test_an_interrupt_leaves_no_row_half_stepped(place):
    def token_bytes(token):
        if place == "token_bytes":
            raise KeyboardInterrupt
        return b"a"

    failing = [Fails(error=KeyboardInterrupt)] if place == "processor" else []
    sampler = Sampler(
        SamplingParams(seed=1), vocab_size=VOCAB, prompt_ids=[[1]] * 2, processors=failing, token_bytes=token_bytes
    )
    with pytest.raises(KeyboardInterrupt):
        sampler.step(logits_of(2, 0))
    assert [row.reason for row in sampler.rows] == ["error"] * 2
    assert sampler.step(logits_of(2, 1)).tokens.tolist() == [-1, -1]


def test_processed_raises_what_a_processor_raises():
    sampler = Sampler(SamplingParams(), vocab_size=VOCAB, prompt_ids=[[1]], processors=[Fails()])
    with pytest.raises(ZeroDivisionError):
        sampler.processed(logits_of(1, 0))
    assert sampler.rows[0].reason == ""


def test_generate_keeps_the_other_rows_and_the_exception(model):
    params = SamplingParams(max_new_tokens=5, seed=1)
    beams = SamplingParams(do_sample=False, max_new_tokens=3, num_beams=2)
    each = [params, params, beams, beams]
    whole = ds.generate(model, [STORY] * 4, each)
    pieces = {}

    def stream(index, piece):
        pieces[index] = pieces.get(index, "") + piece

    done = ds.generate(model, [STORY] * 4, each, processors=lambda row: [Fails(at=3)] if row in (1, 3) else [], stream=stream)
    assert [done[0], done[2]] == [whole[0], whole[2]]
    assert [one.finish_reason for one in done] == ["length", "error", "length", "error"]
    assert done[1].token_ids == whole[1].token_ids[:2] and done[1].text == pieces[1]
    assert [str(one.error) for one in done] == ["None", "mine", "None", "mine"]


def test_a_search_whose_processor_gives_a_wrong_shape_ends_alone(model):
    beams = SamplingParams(do_sample=False, max_new_tokens=2, num_beams=2)
    params = SamplingParams(do_sample=False, max_new_tokens=2)
    wrong = {0: [lambda ids, scores: scores[:, 1:]], 1: []}
    failed, fine = ds.generate(model, [STORY] * 2, [beams, params], processors=wrong.__getitem__)
    assert (failed.finish_reason, fine.finish_reason) == ("error", "length")
    assert "must be a function to scores of shape" in str(failed.error)


def test_a_stream_raises_what_its_row_raised(model):
    params = SamplingParams(max_new_tokens=5, seed=1)
    stream = ds.stream(model, STORY, params, processors=[Fails(at=3)])
    assert len([next(stream), next(stream)]) == 2
    with pytest.raises(ZeroDivisionError):
        for _ in stream:
            pass
    assert stream.completion.finish_reason == "error" and len(stream.completion.token_ids) == 2
    assert list(stream) == []


def test_a_search_for_which_open_sequences_leave_no_pages_ends_alone(tiny_file):
    path = tiny_file()
    model = ds.load(path, cache_bytes=6 * ds.load(path).cache.page_bytes)
    sample = SamplingParams(max_new_tokens=3, seed=1, ignore_eos=True)
    beams = SamplingParams(max_new_tokens=3, do_sample=False, num_beams=3)
    [alone] = ds.generate(model, [[1, 2, 3]], sample)
    with model.sequence(capacity=4 * 16):
        row, search = ds.generate(model, [[1, 2, 3]] * 2, [sample, beams])
    assert row == alone
    assert search.finish_reason == "error" and isinstance(search.error, ds.models.CacheFullError)
