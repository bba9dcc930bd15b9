"""Masks that are computed on threads of their own: one that takes long holds up its own row alone, and changes no token."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace

import pytest

import decodestep as ds
from decodestep.constraints.processor import ConstraintLogitsProcessor
from decodestep.generation.batch import Batch
from decodestep.generation.engine import Engine
from decodestep.generation.scheduler import ChunkedPrefill
from support import processes

FREE = ds.SamplingParams(max_new_tokens=60, seed=3, ignore_eos=True)
LETTERS = ds.SamplingParams(regex="[ab]{20}", seed=1, max_new_tokens=40)
FORCED = ds.SamplingParams(regex="[ab]{3}: what follows is known, [0-9]{3}", seed=2, max_new_tokens=60)


@pytest.fixture
def tiny(tiny_file):
    return ds.load(tiny_file(kind="Q8_0", context=400))


@pytest.fixture
def slow_masks(monkeypatch):
    """Makes each mask but a row's first take as long as the list says; [None]: until the test ends."""
    seconds, ended = [0.0], threading.Event()
    read = ConstraintLogitsProcessor._read_new

    def slowed(self, new):
        assert threading.current_thread().name.startswith("decodestep-masks")
        ended.wait(30 if seconds[0] is None else seconds[0])
        read(self, new)

    monkeypatch.setattr(ConstraintLogitsProcessor, "_read_new", slowed)
    yield seconds
    ended.set()


def test_other_rows_go_on_while_a_mask_is_computed(tiny, slow_masks):
    [plain] = ds.generate(tiny, [[1, 2]], FREE, draft=None)
    slow_masks[0] = None
    with Engine(tiny) as engine:
        constrained = engine.submit([1, 2], LETTERS)
        [free] = engine.submit([1, 2], FREE).result()
        assert free.token_ids == plain.token_ids and len(constrained.rows[0].history) <= 3
        constrained.cancel()  # which need not wait for the mask either
        [done] = constrained.result()
        assert done.finish_reason == "cancelled" and len(done.token_ids) <= 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forks beside threads
def test_a_row_goes_on_in_a_forked_child(tiny, slow_masks):
    alone = "".join(ds.stream(tiny, [1, 2], LETTERS, draft=None))
    slow_masks[0] = 0.02
    with ds.stream(tiny, [1, 2], LETTERS, draft=None) as stream:
        begun = "".join(next(stream) for _ in range(3))
        with processes.forked_child(lambda: begun + "".join(stream) == alone):
            pass


@pytest.mark.parametrize("seconds", [0.0, 0.003, 0.03])
@pytest.mark.parametrize("draft", [None, "auto"])
def test_no_token_depends_on_when_a_mask_is_known(tiny, slow_masks, draft, seconds):
    asked = [FREE, LETTERS, FORCED, replace(LETTERS, seed=5, logprobs=2), replace(FORCED, top_k=5), replace(FREE, seed=4)]
    alone = [ds.generate(tiny, [[1, 2, 3]], params, draft=None)[0] for params in asked]
    slow_masks[0] = seconds
    together = ds.generate(tiny, [[1, 2, 3]] * len(asked), asked, draft=draft)
    for one, other in zip(together, alone, strict=True):
        assert (one.token_ids, one.text, one.finish_reason, one.logprobs) == (
            other.token_ids,
            other.text,
            other.finish_reason,
            other.logprobs,
        )


@pytest.mark.parametrize("seconds", [0.0, 0.003])
def test_rows_that_wait_for_masks_give_up_their_pages_where_others_need_them(
    tiny, slow_masks, monkeypatch, hold_passes, seconds
):
    model = ds.load(tiny.path, cache_bytes=9 * tiny.cache.page_bytes)
    monkeypatch.setattr(ChunkedPrefill, "RESERVED_TOKENS", 1)
    asked = [replace(LETTERS, seed=seed, regex="[ab]{60}", max_new_tokens=80) for seed in range(4)]
    alone = [ds.generate(tiny, [[1, 2, 3]], params, draft=None)[0].token_ids for params in asked]
    preempted, preempt = [], Batch._preempt_last
    monkeypatch.setattr(Batch, "_preempt_last", lambda batch: preempted.append(len(batch._held)) or preempt(batch))
    slow_masks[0] = seconds
    all_here = hold_passes(model)
    with Engine(model) as engine:
        requests = [engine.submit([1, 2, 3], params) for params in asked]
        all_here.set()
        assert [request.result()[0].token_ids for request in requests] == alone
    assert preempted and model.cache.held == 0


def test_a_row_that_fails_on_its_thread_ends_alone(tiny, monkeypatch):
    [plain] = ds.generate(tiny, [[1, 2]], FREE, draft=None)

    def fails(self, new):
        time.sleep(0.002)
        raise RuntimeError("no mask")

    monkeypatch.setattr(ConstraintLogitsProcessor, "_read_new", fails)
    free, constrained = ds.generate(tiny, [[1, 2]] * 2, [FREE, LETTERS], draft=None)
    assert free.token_ids == plain.token_ids
    assert constrained.finish_reason == "error" and str(constrained.error) == "no mask"
