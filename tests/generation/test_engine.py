"""The engine: whatever comes, goes, is cancelled or fails beside a request, its tokens are those that it has alone."""

from __future__ import annotations

import asyncio
import copy
import gc
import math
import os
import pickle
import random
import sys
import threading
import time
import weakref
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import decodestep as ds
from decodestep.decoding.kv_cache import PAGE
from decodestep.decoding.prefill import Budget, count_keys
from decodestep.generation import engine as engine_module
from decodestep.generation.batch import Batch
from decodestep.generation.completion import build_completion
from decodestep.generation.forward_cost import Work
from decodestep.generation.scheduler import ChunkedPrefill
from decodestep.sampling.row_factory import RowFactory
from decodestep.serving import Engine, EngineClosedError, QueueFullError
from support import processes
from support.servers import wait_until

FREE = {"ignore_eos": True}


@pytest.fixture
def tiny(tiny_file):
    return ds.load(tiny_file(kind="Q8_0", context=400))


def requests(seed, count, longest=120):
    rng = random.Random(seed)
    common = [rng.randrange(297) for _ in range(70)]
    made = []
    for number in range(count):
        prompt = common[: rng.choice((0, 32, 70))] + [rng.randrange(297) for _ in range(rng.randint(1, longest))]
        params = ds.SamplingParams(
            max_new_tokens=rng.randint(1, 40),
            seed=number % 5,
            temperature=rng.choice((0, 0.7, 1.5)),
            top_k=rng.choice((0, 40)),
            repetition_penalty=rng.choice((1.0, 1.2)),
            logprobs=rng.choice((None, 2)),
            prompt_logprobs=rng.choice((None, None, 1)),
            stop_strings=rng.choice(((), ("a",))),
        )
        if not params.greedy and rng.random() < 0.2:
            params = replace(params, num_return_sequences=3)
        made.append((prompt, params))
    return made


def fresh_answers(model, made):
    answers = []
    for prompt, params in made:
        model.cache.clear()
        answers.append(ds.generate(model, [prompt], params))
    model.cache.clear()
    return answers


def read_all(request):
    """The text and the tokens of each sample, from its deltas."""
    texts, tokens, reasons = ([""] * len(request.rows), [[] for _ in request.rows], [""] * len(request.rows))
    for delta in request:
        assert not reasons[delta.sample]
        texts[delta.sample] += delta.text
        tokens[delta.sample] += [] if delta.token is None else [delta.token]
        reasons[delta.sample] = delta.reason
    return list(zip(texts, tokens, reasons, strict=True))


@pytest.mark.parametrize("pages", [4096, 26])
def test_every_answer_is_that_of_the_request_alone(tiny, pages, monkeypatch, hold_passes):
    """With a cache of 26 pages and rows of up to 15, rows wait and may be preempted; the tokens stay the same."""
    made = requests(pages, 40)
    expected = fresh_answers(tiny, made)
    model = ds.load(tiny.path, cache_bytes=pages * tiny.cache.page_bytes, threads=2)
    monkeypatch.setattr(ChunkedPrefill, "RESERVED_TOKENS", 4)  # so that rows run out of pages
    all_here = hold_passes(model)
    with Engine(model, max_rows=12, max_waiting=200) as engine:
        submitted = [engine.submit(prompt, params) for prompt, params in made]
        all_here.set()
        deltas = [read_all(request) for request in submitted]
        for request, alone, gained in zip(submitted, expected, deltas, strict=True):
            assert request.completions() == alone
            assert gained == [(one.text, one.token_ids, one.finish_reason) for one in alone]
        wait_until(lambda: model.cache.held == 0)  # the engine delivers the last token before
        assert engine.live == 0


@pytest.mark.parametrize("scored", [None, 1])
def test_a_row_that_is_suspended_for_lack_of_pages_loses_nothing(tiny, monkeypatch, hold_passes, scored):
    """Three rows of 3 pages that grow to 7, in a cache of 9: the latest is suspended, and resumes before later ones."""
    prompts = [list(range(47)), list(range(100, 147)), list(range(200, 247))]
    params = ds.SamplingParams(max_new_tokens=60, seed=1, prompt_logprobs=scored, **FREE)
    expected = [ds.generate(tiny, [prompt], params)[0] for prompt in prompts]
    model = ds.load(tiny.path, cache_bytes=9 * tiny.cache.page_bytes)
    monkeypatch.setattr(ChunkedPrefill, "RESERVED_TOKENS", 1)
    preempted, preempt = [], Batch._preempt_last

    def preempt_and_tell(batch):
        latest = max(batch._sequences)
        preempt(batch)
        preempted.append(batch._waiting[0] == latest and sorted(batch._waiting) == list(batch._waiting))

    monkeypatch.setattr(Batch, "_preempt_last", preempt_and_tell)
    both_here = hold_passes(model)
    with Engine(model) as engine:
        submitted = [engine.submit(prompt, params) for prompt in prompts]
        both_here.set()
        assert [read_all(request)[0][1] for request in submitted] == [one.token_ids for one in expected]
        assert [request.completions() for request in submitted] == [[one] for one in expected]
    assert len(preempted) > 1 and all(preempted) and model.cache.held == 0


@pytest.mark.parametrize("passes", range(1, 7))
def test_a_scored_row_is_the_same_whenever_it_is_preempted(tiny, passes, monkeypatch):
    """Its prompt takes four passes, and three more tokens one each."""
    monkeypatch.setattr(ChunkedPrefill, "prompt_budget", lambda scheduler, work: Budget(3))
    prompt, params = list(range(10)), ds.SamplingParams(max_new_tokens=4, seed=1, logprobs=1, prompt_logprobs=1, **FREE)
    [alone] = ds.generate(tiny, [prompt], params)
    factory = RowFactory.from_model(tiny)
    batch = Batch(tiny, ChunkedPrefill(1))
    row = factory.row(params, prompt)
    batch.add(row)
    for _ in range(passes):
        list(batch.advance())
    batch._preempt_last()
    while batch.running:
        list(batch.advance())
    assert build_completion(row, prompt, 0) == alone and tiny.cache.held == 0


def test_no_more_than_max_rows_run_together(tiny, hold_passes):
    all_here, running = hold_passes(tiny), []
    engine = Engine(tiny, max_rows=2, deliver=lambda deltas: running.append(engine.running))
    with engine:
        for n in range(5):
            engine.submit([n], ds.SamplingParams(max_new_tokens=9, **FREE))
        all_here.set()
        engine.close(60)
    assert max(running) == 2


def test_a_prompt_that_is_only_scored_may_fill_the_cache(tiny):
    model, params = ds.load(tiny.path, cache_bytes=3 * tiny.cache.page_bytes), ds.SamplingParams(prompt_logprobs=0)
    ids = list(range(3 * PAGE))
    [expected] = ds.generate(tiny, [ids], replace(params, max_new_tokens=1))
    with Engine(model) as engine:
        for only_scored in (False, True):
            with pytest.raises(ValueError, match=r"^Engine: prompt must be (shorter|no longer) than the 48 tokens"):
                engine.submit([*ids, 1], params, only_scored=only_scored)
        with pytest.raises(ValueError, match=r"^Engine: prompt must be shorter than the 48 tokens"):
            engine.submit(ids, params)
        request = engine.submit(ids, params, only_scored=True)
        list(request)
    assert request.completions()[0].prompt_logprobs == expected.prompt_logprobs and model.cache.held == 0


def test_a_prompt_does_not_wait_for_one_that_is_scored(tiny, monkeypatch, hold_passes):
    monkeypatch.setattr(ChunkedPrefill, "prompt_budget", lambda scheduler, work: Budget(4))
    both_here, done = hold_passes(tiny), []
    engine = Engine(tiny, deliver=lambda deltas: done.extend(request.number for request, delta in deltas if delta.reason))
    with engine:
        engine.submit(list(range(200)), ds.SamplingParams(max_new_tokens=1, prompt_logprobs=0))
        engine.submit([3, 5, 6], ds.SamplingParams(max_new_tokens=1))
        both_here.set()
        engine.close(60)
    assert done == [1, 0]


def test_a_row_that_is_alone_waits_for_pages_of_another_engine(tiny, monkeypatch, hold_passes):
    """Two engines, each with a row of 3 pages that grows to 7, and a model with a cache of 9."""
    prompts = [list(range(47)), list(range(100, 147))]
    params = ds.SamplingParams(max_new_tokens=60, seed=1, **FREE)
    expected = [ds.generate(tiny, [prompt], params)[0].token_ids for prompt in prompts]
    model = ds.load(tiny.path, cache_bytes=9 * tiny.cache.page_bytes)
    monkeypatch.setattr(ChunkedPrefill, "RESERVED_TOKENS", 1)
    both_here = hold_passes(model)
    with Engine(model) as one, Engine(model) as other:
        submitted = [engine.submit(prompt, params) for engine, prompt in zip((one, other), prompts, strict=True)]
        both_here.set()
        assert [read_all(request)[0][1] for request in submitted] == expected
        assert (one.failures, other.failures) == (0, 0)
    assert model.cache.held == 0


def test_a_row_for_which_open_sequences_leave_no_pages_ends_alone(tiny):
    model = ds.load(tiny.path, cache_bytes=9 * tiny.cache.page_bytes)
    params = ds.SamplingParams(max_new_tokens=3, seed=1, **FREE)
    expected = ds.generate(tiny, [[1, 2, 3]], params)[0].token_ids
    with model.sequence(capacity=7 * 16), Engine(model) as engine:
        large, small = engine.submit(list(range(60)), params), engine.submit([1, 2, 3], params)
        assert read_all(small)[0][1] == expected and engine.failures == 0
        read_all(large)
        (failed,) = large.completions()
        assert failed.finish_reason == "error" and isinstance(failed.error, ds.models.CacheFullError)
        first, second = ds.generate(model, [list(range(60)), [1, 2, 3]], params)
        assert (first.finish_reason, second.token_ids) == ("error", expected)
    assert model.cache.held == 0


@pytest.mark.parametrize("scored", [None, 1])
def test_a_long_prompt_runs_in_pieces_beside_the_others(tiny, monkeypatch, scored):
    monkeypatch.setattr(ChunkedPrefill, "prompt_budget", lambda scheduler, work: Budget(3))
    order, came = [], threading.Event()

    def deliver(deltas):
        order.extend(request.number for request, _ in deltas)
        if len(order) == 1:
            engine.submit(list(range(120)), ds.SamplingParams(max_new_tokens=1, prompt_logprobs=scored))
            came.set()

    engine = Engine(tiny, deliver=deliver)
    with engine:
        engine.submit([1, 2], ds.SamplingParams(max_new_tokens=60, **FREE))
        assert came.wait(60)
        engine.close(60)
    assert order.index(1) in (40, 41, 42) and len(order) == 61  # 120 tokens, 3 a pass, beside as many of the first


@pytest.mark.parametrize("scored", [None, 1])
def test_a_short_prompt_does_not_wait_for_a_long_one_nor_a_long_one_for_ever(tiny, monkeypatch, scored):
    monkeypatch.setattr(ChunkedPrefill, "prompt_budget", lambda scheduler, work: Budget(4))
    done = []
    engine = Engine(tiny, deliver=lambda deltas: done.extend(request.number for request, delta in deltas if delta.reason))
    with engine:
        one = ds.SamplingParams(max_new_tokens=1, prompt_logprobs=scored)
        engine.submit(list(range(200)), one)
        for number in range(90):
            engine.submit([number, 5, 6], one)
        engine.close(60)
    assert done[0] != 0 and 0 in done[:90] and len(done) == 91


@pytest.mark.parametrize("scheduler", [None, ChunkedPrefill(64)])
def test_the_batch_advances_by_one_pass_and_scoring_does_not_stop_the_others(tiny, scheduler, monkeypatch):
    monkeypatch.setattr(ChunkedPrefill, "prompt_budget", lambda scheduler, work: Budget(64))
    made = [(prompt, replace(params, num_return_sequences=1)) for prompt, params in requests(7, 12)]
    made[3] = ([5] * 300, replace(made[3][1], prompt_logprobs=2))
    expected = fresh_answers(tiny, made)
    ran, logits = [], tiny.decoder.logits
    monkeypatch.setattr(tiny.decoder, "logits", lambda *arguments: (ran.append(1), logits(*arguments))[1])
    factory = RowFactory.from_model(tiny)
    batch = Batch(tiny, scheduler)
    rows = [factory.row(params, prompt) for prompt, params in made]
    for row in rows:
        batch.add(row)
    drew = [True]
    while batch.running:
        drew.append(any(list(batch.advance())))
        assert len(ran) == len(drew) - 1
    assert scheduler is None or all(map(max, pairwise(drew)))
    for row, [alone] in zip(rows, expected, strict=True):
        assert row.history.tokens[row.history.prompt_length :] == alone.token_ids
        assert alone.prompt_logprobs in (None, row.prompt_logprobs)
    assert tiny.cache.held == 0


def test_a_cancelled_request_gives_back_its_pages_at_once(tiny):
    with Engine(tiny) as engine:
        params = ds.SamplingParams(max_new_tokens=300, num_return_sequences=2, **FREE)
        submitted = [engine.submit([1, 2, 3, n], params) for n in range(4)]
        for request in submitted:
            next(iter(request))
        for request in submitted[:3]:
            request.cancel()
            assert [reason for _, _, reason in read_all(request)] == ["cancelled"] * 2
            request.cancel()
        held = 2 * -(-400 // PAGE)
        assert engine.live == 2 and tiny.cache.held <= held
        submitted[3].cancel()
        assert [reason for _, _, reason in read_all(submitted[3])] == ["cancelled"] * 2
        engine.close()
        assert tiny.cache.held == 0


@pytest.mark.parametrize("scored", [None, 1])
def test_a_prompt_that_is_cancelled_while_it_runs_leaves_the_others_alone(tiny, monkeypatch, scored):
    monkeypatch.setattr(ChunkedPrefill, "prompt_budget", lambda scheduler, work: Budget(3))
    params = ds.SamplingParams(max_new_tokens=60, seed=1, **FREE)
    [alone] = ds.generate(tiny, [[1, 2]], params)
    submitted, passes, cancelled = [], [], threading.Event()

    def deliver(deltas):
        passes.append([(request.number, delta.token, delta.reason) for request, delta in deltas])
        if len(passes) == 1:
            submitted.append(engine.submit(list(range(120)), replace(params, prompt_logprobs=scored)))
        elif len(passes) == 9:
            submitted[1].cancel()
            cancelled.set()

    engine = Engine(tiny, deliver=deliver)
    with engine:
        submitted.insert(0, engine.submit([1, 2], params))
        assert cancelled.wait(60)
        engine.close(60)
    assert [delta for each in passes for delta in each if delta[0]] == [(1, None, "cancelled")] == passes[9][1:]
    assert submitted[0].completions() == [alone] and engine.failures == 0 and tiny.cache.held == 0


def test_a_queue_has_a_bound_and_a_stopped_engine_takes_nothing(tiny):
    engine = Engine(tiny, max_rows=2, max_waiting=1)
    params = ds.SamplingParams(max_new_tokens=300, **FREE)
    submitted = [engine.submit([n], params) for n in range(3)]
    with pytest.raises(QueueFullError) as refused:
        engine.submit([4], params)
    for error in (refused.value, copy.copy(refused.value), pickle.loads(pickle.dumps(refused.value))):
        assert 1 <= error.retry_after <= 60
        assert str(error) == f"1 completions are waiting already; try again in {error.retry_after} s"
    with pytest.raises(ValueError, match="num_return_sequences must be at most 3"):
        engine.submit([4], replace(params, num_return_sequences=4, max_new_tokens=1))
    submitted[0].cancel()
    assert read_all(submitted[0])[0][2] == "cancelled"
    assert engine.submit([5], params).number == 3
    for wrong in (None, "1", True, -1, math.nan):
        with pytest.raises(ValueError, match="^Engine: seconds must be a number >= 0; got"):
            engine.close(wrong)
    for names in ("<eos>", [1], 1):
        with pytest.raises(ValueError, match="^Engine: spelled must be a collection of names; got"):
            engine.submit([5], params, spelled=names)
    with pytest.raises(ValueError, match="^Engine: params must be a SamplingParams or None; got"):
        engine.submit([5], {"seed": 1})
    engine.close(0.01)
    assert {request.rows[0].reason for request in submitted} == {"cancelled"}
    with pytest.raises(EngineClosedError):
        engine.submit([5], params)


@pytest.mark.parametrize(
    "wrong", [{"max_rows": each} for each in (0, True, 1.5)] + [{"max_waiting": each} for each in (-1, False, 0.5)]
)
def test_an_engine_without_rows_or_with_half_a_row_is_refused(tiny, wrong):
    [name] = wrong
    with pytest.raises(ValueError, match=f"^Engine: {name} must be an integer >= {int(name == 'max_rows')}; got"):
        Engine(tiny, **wrong)


def test_an_engine_need_not_have_a_queue(tiny, hold_passes):
    released, one = hold_passes(tiny), ds.SamplingParams(max_new_tokens=1)
    with Engine(tiny, max_rows=1, max_waiting=0) as engine:
        request = engine.submit([1], one)
        with pytest.raises(QueueFullError, match="^0 completions are waiting already"):
            engine.submit([1], one)
        released.set()
        assert read_all(request)[0][2] == "length"


def test_when_to_come_again_follows_from_how_long_rows_have_taken(tiny, monkeypatch, hold_passes):
    """A second at first; a row of 11 s makes it 2."""
    monkeypatch.setattr(engine_module, "time", SimpleNamespace(monotonic=lambda: 11.0, thread_time=time.thread_time))
    one = ds.SamplingParams(max_new_tokens=1, seed=1)
    with Engine(tiny, max_rows=2, max_waiting=18) as engine:
        released = hold_passes(tiny)
        first = engine.submit([1], one)
        first.rows[0].started = 0.0
        released.set()
        read_all(first)
        released = hold_passes(tiny)
        engine.submit([1], replace(one, num_return_sequences=20))
        with pytest.raises(QueueFullError) as refused:
            engine.submit([1], replace(one, num_return_sequences=10))
        released.set()
    assert refused.value.retry_after == 10


def test_deltas_are_yielded_once_and_a_loop_that_was_left_goes_on(tiny):
    with Engine(tiny) as engine:
        request = engine.submit([1, 2], ds.SamplingParams(max_new_tokens=5, num_return_sequences=2, seed=1, **FREE))
        first = next(iter(request))
        deltas = [first, *request]
        assert sorted(delta.sample for delta in deltas) == [0] * 5 + [1] * 5 and request.done
        assert list(request) == [] and [len(one.token_ids) for one in request.completions()] == [5, 5]


FORK = """
import os, sys
import decodestep as ds
from decodestep.serving import Engine, EngineClosedError
engine = Engine(ds.load(sys.argv[1]))
child = os.fork()
if child == 0:
    try:
        engine.submit([1])
    except EngineClosedError:
        os._exit(0)
    os._exit(1)
assert os.waitpid(child, 0)[1] == 0
assert [gain.reason for gain in engine.submit([1], ds.SamplingParams(max_new_tokens=1))] == ["length"]
engine.close()
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_has_no_engine(tiny):
    processes.run([sys.executable, "-W", "ignore", "-c", FORK, str(tiny.path)], check=True)


def test_deadlines_count_from_the_request_on(tiny):
    with Engine(tiny, max_rows=1) as engine:
        first = engine.submit([1], ds.SamplingParams(max_new_tokens=300, **FREE))
        late = engine.submit([2], ds.SamplingParams(max_time=1e-9))
        assert read_all(late) == [("", [], "time")]
        assert read_all(first)[0][2] == "length"


def test_what_a_row_raises_ends_it_alone_and_what_a_pass_raises_ends_the_rows_but_not_the_engine(tiny, monkeypatch):
    [alone] = ds.generate(tiny, [[7, 8]], ds.SamplingParams(seed=3, max_new_tokens=30))
    with Engine(tiny) as engine:
        bytes_of = tiny.tokenizer.token_bytes
        calls = iter(range(10**6))
        monkeypatch.setattr(tiny.tokenizer, "token_bytes", lambda token: bytes_of(token) if next(calls) < 3 else 1 / 0)
        failing = engine.submit([7, 8], ds.SamplingParams(seed=3, max_new_tokens=30))
        monkeypatch.undo()
        beside = engine.submit([7, 8], ds.SamplingParams(seed=3, max_new_tokens=30))
        assert read_all(beside) == [(alone.text, alone.token_ids, alone.finish_reason)]
        assert read_all(failing)[0][2] == "error" and isinstance(failing.rows[0].error, ZeroDivisionError)
        forward = tiny.decoder.logits
        monkeypatch.setattr(tiny.decoder, "logits", lambda *arguments: 1 / 0)
        assert read_all(engine.submit([1]))[0][2] == "error"
        monkeypatch.setattr(tiny.decoder, "logits", forward)
        assert read_all(engine.submit([7, 8], ds.SamplingParams(seed=3, max_new_tokens=30)))[0][1] == alone.token_ids
        assert engine.failures == 1 and tiny.cache.held == 0


def test_a_pass_that_fails_leaves_samples_alone_that_have_ended(tiny, monkeypatch):
    def deliver(deltas):
        if deltas[0][1].reason == "length":
            monkeypatch.setattr(tiny.decoder, "logits", lambda *arguments: 1 / 0)

    with Engine(tiny, max_rows=1, deliver=deliver) as engine:
        request = engine.submit([1], ds.SamplingParams(max_new_tokens=2, num_return_sequences=2, **FREE))
        engine.close(60)
    assert [one.finish_reason for one in request.completions()] == ["length", "error"]


def test_a_request_that_the_batch_refuses_ends_alone(tiny, monkeypatch):
    added, add = [], Batch.add

    def refuse_the_third(batch, row, *drafters):
        added.append(row)
        return 1 / 0 if len(added) == 3 else add(batch, row, *drafters)

    monkeypatch.setattr(Batch, "add", refuse_the_third)
    with Engine(tiny) as engine:
        beside = engine.submit([1], ds.SamplingParams(max_new_tokens=300, **FREE))
        failing = engine.submit([2], ds.SamplingParams(max_new_tokens=300, num_return_sequences=3, **FREE))
        assert [reason for _, _, reason in read_all(failing)] == ["error"] * 3
        assert [reason for _, _, reason in read_all(beside)] == ["length"]
        assert all(isinstance(row.error, ZeroDivisionError) for row in failing.rows)
        assert engine.failures == 0 and tiny.cache.held == 0


def test_an_engine_that_cannot_go_on_says_why_and_lets_nobody_wait(tiny, monkeypatch, caplog):
    def leave(*_):
        raise SystemExit("out")

    monkeypatch.setattr(tiny.decoder, "logits", leave)
    with Engine(tiny) as engine:
        assert [reason for _, _, reason in read_all(engine.submit([1]))] == ["error"]
        for refused in (engine.require_alive, lambda: engine.submit([1])):
            with pytest.raises(EngineClosedError, match=r"^the engine has stopped, by SystemExit\('out'\)$"):
                refused()
    assert caplog.messages == ["the engine has stopped"] and tiny.cache.held == 0


def test_what_deliver_raises_is_logged_and_ends_no_row(tiny, caplog):
    with Engine(tiny, deliver=lambda deltas: 1 / 0) as engine:
        request = engine.submit([1], ds.SamplingParams(max_new_tokens=3, **FREE))
        engine.close(60)
    assert len(request.completions()[0].token_ids) == 3
    assert caplog.messages == ["tokens could not be delivered"] * 3


def test_deliver_may_close_the_engine(tiny, caplog):
    engine = Engine(tiny, deliver=lambda deltas: engine.close())
    request = engine.submit([1], ds.SamplingParams(max_new_tokens=300, **FREE))
    engine.close(60)
    assert request.rows[0].reason == "cancelled" and not caplog.messages


def test_an_engine_that_has_closed_is_let_go(tiny):
    """With its model, whose weights and cache may be large."""
    with Engine(tiny) as engine:
        list(engine.submit([1], ds.SamplingParams(max_new_tokens=2)))
    left = weakref.ref(engine)
    del engine
    gc.collect()
    assert left() is None


def test_a_prompt_and_its_answer_stay_within_the_cache(tiny):
    model = ds.load(tiny.path, cache_bytes=3 * tiny.cache.page_bytes)
    with Engine(model) as engine:
        assert engine.capacity == 3 * PAGE
        with pytest.raises(ValueError, match="48 tokens that the cache has room for"):
            engine.submit([1] * 48)
        [(_, tokens, reason)] = read_all(engine.submit([1] * 40, ds.SamplingParams(max_new_tokens=None, **FREE)))
        assert (len(tokens), reason) == (8, "length")


def test_a_prompt_that_the_cache_holds_is_not_run_again(tiny, monkeypatch):
    ran = []
    logits = tiny.decoder.logits
    monkeypatch.setattr(tiny.decoder, "logits", lambda batch, pages: (ran.append(len(batch.tokens)), logits(batch, pages))[1])
    with Engine(tiny) as engine:
        one = ds.SamplingParams(max_new_tokens=1, seed=0)
        prompt = list(range(200))
        first = read_all(engine.submit(prompt, one))
        before = sum(ran)
        assert read_all(engine.submit(prompt, one)) == first
        assert sum(ran) - before <= PAGE


def test_requests_from_many_threads(tiny):
    made = requests(1, 24)
    expected = fresh_answers(tiny, made)
    problems = []

    def client(number):
        rng = random.Random(number)
        for _ in range(6):
            which = rng.randrange(len(made))
            request = engine.submit(*made[which])
            if rng.random() < 0.3:
                time.sleep(rng.random() * 0.01)
                request.cancel()
                read_all(request)
            elif [completion for _ in [read_all(request)] for completion in request.completions()] != expected[which]:
                problems.append(which)

    with Engine(tiny, max_rows=5) as engine:
        threads = [threading.Thread(target=client, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not problems and tiny.cache.held == 0


class Machine:
    """Passes whose time is 10 ms, 1 us for each key of a row, 1 ms for each token of a prompt and 2 us for each of its keys."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        self.scheduler = ChunkedPrefill(64)
        monkeypatch.setattr("decodestep.generation.scheduler.time.perf_counter", lambda: self.now)

    def run(self, rows, keys=0, prompts=0, position=0):
        """(tokens of the piece, seconds without it, its seconds) of a pass beside this many rows of this many keys."""
        work = Work(rows, rows * keys, prompts)
        budget = self.scheduler.prompt_budget(work) if prompts else None
        tokens = max(1, budget.fitting(position)) if budget else 0
        seconds, more = 0.01 + 1e-6 * work.keys, 1e-3 * tokens + 2e-6 * count_keys(position, tokens)
        with self.scheduler.measure(work._replace(tokens=tokens, token_keys=count_keys(position, tokens))):
            self.now += seconds + more
        return tokens, seconds, more


def test_pieces_follow_what_passes_take(monkeypatch):
    """Half of the pass without prompts for each of them, of at most 16, and all of at most 150 ms."""
    machine = Machine(monkeypatch)
    machine.run(1)
    cases = ((1, 1, 0, 4, 5), (4, 1, 0, 17, 21), (40, 1, 0, 65, 85), (40, 1, 20_000, 90, 120), (1, 0, 0, 110, 150))
    for prompts, rows, keys, low, high in cases:
        for _ in range(100 * rows):
            machine.run(rows, keys)
        tokens = max([machine.run(rows, keys, prompts)[0] for _ in range(150)][-20:])
        assert low <= tokens <= high, (prompts, rows, keys, tokens)


def test_pieces_allow_for_the_keys_that_they_and_the_rows_attend_to(monkeypatch):
    """A prompt of 3000 tokens beside rows that go on: no piece lengthens its pass by more than it may, few by much less."""
    machine = Machine(monkeypatch)
    machine.run(0, prompts=1)
    length, shares = 20, []
    for turn in range(3):
        for _ in range(200):
            machine.run(8, length)
            length += 1
        position = 0
        while position < 3000:
            tokens, seconds, more = machine.run(8, length, 1, position)
            position, length = position + tokens, length + 1
            if turn and tokens:
                shares.append(more / seconds)
    limit = ChunkedPrefill.MAX_SLOWDOWN
    assert max(shares) < 1.1 * limit and sorted(shares)[len(shares) // 10] > 0.6 * limit


def test_rows_are_measured_alone_now_and_then_and_prompts_alone_never_wait_for_it(monkeypatch):
    machine, every = Machine(monkeypatch), ChunkedPrefill.MEASURE_EVERY
    without = [turn for turn in range(3 * every) if not machine.run(1, prompts=1)[0]]
    assert without == [every - 1, 2 * every - 1, 3 * every - 1]
    for _ in range(every - 1):
        machine.run(1, prompts=1)
    assert machine.scheduler.prompt_budget(Work(1, 0, 1)) is None and machine.scheduler.prompt_budget(Work(0, 0, 1)) is not None


@given(
    st.integers(1, 600), st.floats(0, 1e3), st.floats(1e-3, 1), st.floats(0, 1e-2), st.integers(0, 10_000), st.floats(0.25, 1)
)
def test_as_many_tokens_fit_as_their_keys_allow(tokens, cost, token, key, position, share):
    def costs(count):
        return token * count + key * sum(range(position + 1, position + count + 1))

    budget = Budget(tokens, cost, token, key)
    count, most = budget.fitting(position, share), math.ceil(tokens * share)
    assert costs(count) <= cost * share * (1 + 1e-9)
    assert count == most or (count < most and costs(count + 1) >= cost * share * (1 - 1e-9))
    budget.use(position, count)
    assert budget.tokens == tokens - count and budget.cost == pytest.approx(cost - costs(count), abs=1e-6)


def test_what_a_constraint_decides_needs_no_pass_and_changes_no_token(tiny, monkeypatch):
    one = ds.SamplingParams(regex="[ab]{3}:and-what-follows-is-known[0-9]{3}", seed=1, max_new_tokens=200)
    made = [([1, 2, 3, n], replace(one, seed=n, **({"logprobs": 1} if n == 2 else {}))) for n in range(3)]
    with monkeypatch.context() as patched:
        patched.setattr("decodestep.constraints.processor.ConstraintLogitsProcessor.forced_tokens", lambda *row: [])
        alone = [ds.generate(tiny, [prompt], params) for prompt, params in made]
    assert [ds.generate(tiny, [prompt], params) for prompt, params in made] == alone
    with Engine(tiny) as engine:
        submitted = [engine.submit(prompt, params) for prompt, params in made[:2]]
        gained = [read_all(request)[0] for request in submitted]
        assert gained == [(done.text, done.token_ids, "eos") for [done] in alone[:2]]
        assert engine.passes < 20 < len(gained[0][1])


def test_samples_of_a_costly_constraint_are_few(tiny, monkeypatch):
    params = ds.SamplingParams(regex="[ab]{3}", seed=1, num_return_sequences=3)
    with Engine(tiny) as engine:
        assert len(engine.submit([1], params).rows) == 3
        monkeypatch.setattr("decodestep.generation.engine.COMPILE_SECONDS", 0.0)
        with pytest.raises(ValueError, match="num_return_sequences must be at most 1 with a constraint"):
            engine.submit([1], params)
        assert len(engine.submit([1], replace(params, num_return_sequences=1)).rows) == 1


def test_logits_of_some_sequences(tiny):
    with tiny.sequence() as one, tiny.sequence() as two:
        both = tiny.forward([(one, [1, 2, 3]), (two, [4, 5])])
    with tiny.sequence() as one, tiny.sequence() as two:
        assert (tiny.forward([(one, [1, 2, 3]), (two, [4, 5])], wanted=[False, True]) == both[1:]).all()
        with pytest.raises(ValueError, match="wanted must be a flag for each of 1"):
            tiny.forward([(one, [1])], wanted=[True, True])
        with pytest.raises(ValueError, match="every must be a flag for each of 1"):
            tiny.forward([(one, [1])], every=[])
        assert len(one) == 3
    with tiny.sequence() as one, tiny.sequence() as two, tiny.sequence() as three:
        batch = [(one, [1, 2, 3]), (two, [4, 5]), (three, [6])]
        found = tiny.forward(batch, every=[False, True, False], wanted=[True, False, False])
    assert (found == [both[0], *tiny.logits([4, 5])]).all()


@pytest.mark.skipif(sys.platform != "linux", reason="malloc_trim is glibc's")
def test_freed_memory_goes_back_while_nothing_runs(tiny, monkeypatch):
    """It does so once after the last row, whatever lies above it."""
    monkeypatch.setattr(engine_module, "_IDLE_SECONDS", 0.01)
    with Engine(tiny) as engine:
        while tiny.cache.prepare(engine_module._IDLE_SLABS):  # or the engine's thread would do it while this measures
            pass
        blocks = [bytes(1000) for _ in range(200_000)]
        above = bytes(1000)
        full = processes.resident()
        blocks.clear()
        list(engine.submit([1], ds.SamplingParams(max_new_tokens=2)))
        end = time.monotonic() + 30
        while processes.resident() > full - 100_000_000:
            assert time.monotonic() < end
            time.sleep(0.01)
    assert len(above) == 1000


def test_result_waits_and_is_what_generate_returns(tiny):
    params = ds.SamplingParams(max_new_tokens=9, seed=4, num_return_sequences=2, **FREE)
    expected = ds.generate(tiny, [[1, 2, 3]], params)
    with Engine(tiny) as engine:
        request = engine.submit([1, 2, 3], params)
        assert request.result() == expected
        assert len([delta for delta in request if delta.token is not None]) == 18  # still there to be read
        assert request.result(0) == expected
        endless = engine.submit([1, 2, 3], ds.SamplingParams(max_new_tokens=390, **FREE))
        with pytest.raises(TimeoutError, match="^Engine: the request has not ended within 0 s"):
            endless.result(0)
        endless.cancel()
        assert endless.result()[0].finish_reason == "cancelled"


def test_a_task_reads_what_a_thread_would(tiny):
    params = ds.SamplingParams(max_new_tokens=12, seed=4, num_return_sequences=2, **FREE)

    async def read(request):
        first = [await anext(request)]
        return first + [delta async for delta in request]

    with Engine(tiny) as engine:
        by_thread = list(engine.submit([1, 2, 3], params))

        async def main():
            return await asyncio.gather(*(read(engine.submit([1, 2, 3], params)) for _ in range(3)))

        assert asyncio.run(main()) == [by_thread] * 3


def test_without_params_a_request_has_those_of_the_model(tiny_file):
    keys = {"general.sampling.temp": 0.5, "general.sampling.top_k": 3}
    model = ds.load(tiny_file(context=400, **keys))
    with Engine(model) as engine:
        request = engine.submit([1, 2, 3])
        assert (request.rows[0].params.temperature, request.rows[0].params.top_k) == (0.5, 3)
        request.cancel()


def test_the_tokens_of_a_prompt_that_did_not_run_are_counted(tiny):
    prompt = [i % 290 for i in range(3 * PAGE + 5)]
    tiny.cache.clear()
    one_token = ds.SamplingParams(max_new_tokens=1)
    assert ds.generate(tiny, [prompt], one_token)[0].cached_tokens == 0
    assert ds.generate(tiny, [prompt], one_token)[0].cached_tokens == 3 * PAGE
    assert ds.generate(tiny, [[*prompt[: 2 * PAGE], 7, 8, 9]], one_token)[0].cached_tokens == 2 * PAGE
    with Engine(tiny) as engine:
        assert engine.submit(prompt, one_token).result()[0].cached_tokens == 3 * PAGE
