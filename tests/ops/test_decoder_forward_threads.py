"""decoder_forward on any number of threads: the same bits for contexts that differ much, and memory that comes back."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import decodestep as ds
from decodestep.weights import Format
from support import processes
from support.decoder_forward_cases import Sizes, copied, latent_weights, step, weights
from support.recurrent_decoders import hybrid

SIZES = [Sizes(layers=1), Sizes(heads=14, kv_heads=1, head_dim=16, hidden=32, layers=1), Sizes(heads=3, kv_heads=3, layers=1)]
LATENT = {"heads": 5, "compressed": 32}
BATCHES = [[1500], [1500, 3], [900, 20, 5, 300, 1], [1, 600, 17, 3, 2, 256, 257, 16]]


def last_tokens(call, lengths):
    """A step of every sequence's last token, after all others have been run."""
    ends = np.cumsum(lengths) - 1
    return {
        **call,
        **{name: call[name][ends] for name in ("token_ids", "sequence", "positions")},
        "wanted": np.arange(len(ends)),
    }


@pytest.mark.parametrize("lengths", BATCHES, ids=str)
@pytest.mark.parametrize("sizes", [*SIZES, LATENT], ids=str)
def test_long_contexts_beside_short_ones(sizes, lengths, rng, monkeypatch):
    monkeypatch.setattr("decodestep._base.threads.thread_limit", lambda: 64)  # whatever the CPUs
    w = latent_weights(Format.Q8_0, rng, **sizes) if sizes is LATENT else weights(sizes, Format.Q8_0, rng)
    call = step(w, lengths, rng)
    with ds.use_threads(1):
        expected = ds.decoder_forward(**call)[np.cumsum(lengths) - 1]
    for threads in (1, 2, 3, 7, 40):
        with ds.use_threads(threads):
            assert np.array_equal(ds.decoder_forward(**last_tokens(copied(call), lengths)), expected)
    with ds.use_threads(5):  # prefills of all, and a decode row beside a prefill
        assert np.array_equal(ds.decoder_forward(**copied(call))[np.cumsum(lengths) - 1], expected)


@pytest.mark.parametrize("threads", [7, 16, 40])
def test_every_head_is_gated_once_where_some_threads_have_none(threads, rng, monkeypatch):
    """Outputs are gated in place where partials are merged. Whether two threads would meet there is a matter of time, so that
    it takes many calls to see it."""
    monkeypatch.setattr("decodestep._base.threads.thread_limit", lambda: 64)  # whatever the CPUs
    w = hybrid(["gated attention"], Format.F32, rng)
    call = step(w, [600], rng)
    with ds.use_threads(1):
        expected = ds.decoder_forward(**call)[-6:]
    last = {name: call[name][-6:] for name in ("token_ids", "sequence", "positions")} | {"wanted": np.arange(6)}
    with ds.use_threads(threads):
        for _ in range(200):
            assert np.array_equal(ds.decoder_forward(**call | last), expected)


def test_callers_at_once(rng):
    """Steps, samplers and operators of several threads, on the same weights and the same workers: each has its own bits."""
    calls = [step(weights(SIZES[0], Format.Q8_0, rng), lengths, rng) for lengths in ([400], [300, 2, 5, 1, 9], [3])]
    rows = rng.standard_normal((3, 5000), np.float32)
    params = [ds.SamplingParams(temperature=0.8, top_p=0.9, seed=seed) for seed in range(3)]

    def work(number):
        with ds.use_threads(3):
            logits = ds.decoder_forward(**copied(calls[number % 3]))
            tokens = ds.Sampler(params, vocab_size=5000).step(rows).tokens
            normed = ds.rms_norm(rows, rows[0])
        return logits, tokens, normed

    expected = [work(number) for number in range(3)]
    with ThreadPoolExecutor(6) as callers:
        for number, results in enumerate(callers.map(work, range(18))):
            for result, alone in zip(results, expected[number % 3], strict=True):
                assert np.array_equal(result, alone)


def threads_of_a_step(tokens: int, layers: int, vocab: int) -> None:
    """How many threads a process has started for a step that may have 64."""
    rng, tasks = np.random.default_rng(0), Path("/proc/self/task")
    with ds.use_threads(1):
        call = step(weights(Sizes(layers=layers, vocab=vocab), Format.Q8_0, rng), [tokens], rng)
    before = len(list(tasks.iterdir()))
    with pytest.MonkeyPatch.context() as patch, ds.use_threads(64):
        patch.setattr("decodestep._base.threads.thread_limit", lambda: 64)
        ds.decoder_forward(**call | {"wanted": np.array([tokens - 1])})
    print(len(list(tasks.iterdir())) - before + 1)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads Linux's list of a process's threads")
@pytest.mark.parametrize(("tokens", "layers", "vocab", "expected"), [(1, 3, 50, 16), (600, 1, 40000, 64)])
def test_a_step_has_as_many_threads_as_it_is_worth(tokens, layers, vocab, expected):
    ran = processes.run_python(f"import test_decoder_forward_threads as t; t.threads_of_a_step({tokens}, {layers}, {vocab})")
    assert (ran.returncode, ran.stdout) == (0, f"{expected}\n"), ran.stderr


def memory_of_callers(threads: int) -> None:
    """What threads that have run a prefill keep, while they live and after."""
    rng = np.random.default_rng(0)
    call = step(weights(Sizes(hidden=256, feed_forward=1024, layers=1), Format.Q8_0, rng), [700], rng)
    call["wanted"] = np.array([699])
    ran, over = threading.Barrier(threads + 1), threading.Event()
    turn = threading.Lock()

    def run() -> None:
        with turn, ds.use_threads(1):
            ds.decoder_forward(**call)
        ran.wait()
        over.wait()

    with ds.use_threads(1):
        ds.decoder_forward(**call)
    before = processes.resident()
    callers = [threading.Thread(target=run) for _ in range(threads)]
    for caller in callers:
        caller.start()
    ran.wait()
    kept_alive = processes.resident() - before
    over.set()
    for caller in callers:
        caller.join()
    print(kept_alive >> 20, (processes.resident() - before) >> 20)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads Linux's count of a process's memory")
def test_threads_that_have_called_keep_no_memory():
    """64 of them kept 5 MB each for as long as they lived."""
    code = "import test_decoder_forward_threads as t; t.memory_of_callers(64)"
    ran = processes.run_python(code)
    assert ran.returncode == 0, ran.stderr
    alive, after = map(int, ran.stdout.split())
    assert alive < 40 and after < 40
