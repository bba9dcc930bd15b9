"""Sequences of a model in its cache: what they share is run once and changes no bit, in threads and in forked children, too."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

import decodestep as ds
from decodestep.decoding.kv_cache import PAGE
from decodestep.decoding.prefill import Prefill
from support import processes


def printed(code):
    return processes.run_python(code, check=True).stdout


def test_prompts_of_one_batch_run_what_they_share_once(tiny_file, rng):
    model = ds.load(tiny_file(context=400))
    common = rng.integers(0, 297, 100).tolist()
    prompts = [common + rng.integers(0, 297, n).tolist() for n in (5, 60, 1, 17)] + [common, common[:50] + [3] * 90, [7]]
    prefill = Prefill(model)
    sequences = [model.sequence() for _ in prompts]
    for key, (sequence, prompt) in enumerate(zip(sequences, prompts, strict=True)):
        prefill.add(key, sequence, prompt)
    done = {}
    while prefill:
        done |= prefill.run()
    assert sorted(done) == list(range(len(prompts)))
    shared, alone = 96 // PAGE, [(len(p) + 15) // PAGE for p in prompts]
    assert model.cache.held == shared + sum(alone[:4]) - 4 * shared + 1 + (alone[5] - 48 // PAGE) + 1
    fresh = ds.load(model.path)
    for key, prompt in enumerate(prompts):
        assert np.array_equal(done[key], fresh.logits(prompt)[-1])


def test_a_sequence_takes_ids_of_any_kind_and_no_others(tiny_file):
    model, prompt = ds.load(tiny_file()), [5] * 40
    with model.sequence(prompt) as first:
        model.forward([(first, prompt)])
        for ids in (prompt, np.array(prompt), torch.tensor(prompt)):
            with model.sequence(ids) as again:
                assert again.tokens == [5] * 32
        for wrong in ([5] * 39 + [300], [-1], [0.5], "ab", None, 5, [[5]]):
            with pytest.raises(ValueError, match=r"^sequence: token_ids must be token ids in \[0, 300\); got "):
                model.sequence(wrong)
    assert model.cache.held == 0


@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_reuse_changes_no_bit(tiny_file, dtype, rng):
    """A chat's turns, forks and rollbacks on one model, each compared with the same tokens on a model without a past."""
    path = tiny_file(kind="Q8_0", context=300)
    model, fresh = ds.load(path, dtype=dtype), ds.load(path, dtype=dtype, cache_bytes=1_000_000)
    history: list[int] = []
    for _ in range(4):
        history += rng.integers(0, 297, 23).tolist()
        with model.sequence(history) as sequence:
            for _ in range(9):
                logits = model.forward([(sequence, history[len(sequence) :])])[0]
                assert np.array_equal(logits, fresh.logits(history)[-1])
                history.append(int(logits.argmax()))
            with sequence.fork() as branch:
                branch.truncate(len(branch) - 5)
                logits = model.forward([(branch, [1, 2, 3])])[0]
                assert np.array_equal(logits, fresh.logits([*branch.tokens[:-3], 1, 2, 3])[-1])
            logits = model.forward([(sequence, [5])])[0]
            assert np.array_equal(logits, fresh.logits([*sequence.tokens[:-1], 5])[-1])


def test_threads_share_a_model(tiny_file, rng):
    model = ds.load(tiny_file(context=200), cache_bytes=60 * ds.load(tiny_file(context=200)).cache.page_bytes)
    prompts = [[i % 3] * 20 + rng.integers(0, 297, 30).tolist() for i in range(12)]
    expected = [model.logits(prompt) for prompt in prompts]
    wrong = []

    def work(seed):
        own = np.random.default_rng(seed)
        for i in own.integers(0, len(prompts), 25):
            cut = int(own.integers(1, 50))
            with model.sequence(prompts[i]) as sequence:
                start = len(sequence)
                if start < cut:
                    model.forward([(sequence, prompts[i][start:cut])])
                logits = model.forward([(sequence, prompts[i][len(sequence) :])], every=True)
                if not np.array_equal(logits, expected[i][-len(logits) :]):
                    wrong.append(i)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and model.cache.held == 0


@pytest.mark.slow
def test_a_child_has_the_pages_of_threads_that_it_has_not(tiny_file):
    code = f"""
import os, threading
import decodestep as ds
from decodestep.decoding.page_pool import LOCK
model = ds.load({str(tiny_file())!r}, cache_bytes=4 * ds.load({str(tiny_file())!r}).cache.page_bytes)
own, passed = model.sequence(), model.sequence()
model.forward([(own, [1, 2, 3])])
made, go_on = threading.Event(), threading.Event()
def hold():
    with model.sequence(capacity=20):
        with LOCK:
            passed.begin_forward_locked(1, drafts=False)  # as the thread that made it sees a pass of this one
        made.set()
        go_on.wait()
thread = threading.Thread(target=hold)
thread.start()
made.wait()
child = os.fork()
if child == 0:
    own.fork().close()
    ds.generate(model, [[4] * 20], ds.SamplingParams(max_new_tokens=20))
    passed.close()
    os._exit(0 if model.cache.held == 1 and len(model.forward([(own, [4])])) else 1)
print(os.waitpid(child, 0)[1])
try:
    model.logits(range(40))
except ds.models.CacheFullError:
    print("full")
go_on.set()
thread.join()
"""
    assert printed(code).split() == ["0", "full"]


@pytest.mark.slow
def test_a_fork_beside_busy_threads_can_use_the_cache(tiny_file):
    code = f"""
import os, threading
import decodestep as ds
model = ds.load({str(tiny_file())!r})
expected = model.logits(range(40)).tobytes()
stop = threading.Event()
def work():
    while not stop.is_set():
        with model.sequence(range(40)) as sequence:
            model.forward([(sequence, range(len(sequence), 40))])
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads: thread.start()
codes = []
for _ in range(20):
    child = os.fork()
    if child == 0:
        os._exit(0 if model.logits(range(40)).tobytes() == expected else 1)
    codes.append(os.waitpid(child, 0)[1])
stop.set()
for thread in threads: thread.join()
print(codes)
"""
    assert printed(code).strip() == str([0] * 20)


@pytest.mark.slow
def test_pages_take_memory_only_when_they_are_written(tiny_file):
    """A quarter of the machine's memory is the bound; a short text takes a few pages of it."""
    code = f"""
import decodestep as ds
from support.processes import resident
model = ds.load({str(tiny_file(context=4000))!r})
model.logits([1])
before = resident()
model.logits(range(200))
print(model.cache.pages * model.cache.page_bytes > 2**28, (resident() - before) < 2**24)
"""
    assert printed(code).split() == ["True", "True"]
