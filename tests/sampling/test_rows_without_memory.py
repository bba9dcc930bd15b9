"""A warm step needs no memory that grows with the vocabulary: it runs where the system gives none. What finds no memory has
changed nothing."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import decodestep as ds
from decodestep._base import threads
from decodestep.ops.decode_step.rows import accept_tokens, new_row, step_rows
from decodestep.sampling.token_history import TokenHistory
from support import processes

pytestmark = pytest.mark.slow

limits_memory = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts on Linux's limit of the address space")
VOCAB = 1 << 21  # an item a token is then more than what Python's and the C library's own pools may still take
POOLS = 3 << 19
PARAMS = {
    "greedy": {"do_sample": False},
    "temperature": {"temperature": 0.8},
    "top-p": {"top_p": 0.9},
    "min-p": {"min_p": 0.05},
    "full": {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "min_p": 0.05},
    "penalties": {"top_k": 50, "repetition_penalty": 1.1, "presence_penalty": 0.1, "no_repeat_ngram_size": 3},
    "entropies": {"typical_p": 0.9, "eta_cutoff": 1e-4, "top_n_sigma": 2.0},
    "log-probabilities": {"top_k": 50, "logprobs": 5},
}


@contextmanager
def without_memory() -> Iterator[None]:
    """Within this, only what the pools have left of the address space can be had."""
    import ctypes
    import resource

    # What is larger than this comes from the system each time, so that no freed memory stands in for what is not there.
    assert ctypes.CDLL(None).mallopt(-3, POOLS // 4) == 1  # M_MMAP_THRESHOLD
    size = int(re.search(r"VmSize:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + POOLS, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def steps_without_memory(dtype: str) -> None:
    """Warms samplers up, takes the rest of the address space away, and goes on."""
    import ml_dtypes  # noqa: F401
    import numpy as np

    rng = np.random.default_rng(0)
    logits = (rng.standard_normal((3, VOCAB), np.float32) * 2.5).astype(dtype)
    prompts = [rng.integers(0, 50, 400).tolist() for _ in logits]
    samplers = [ds.Sampler(ds.SamplingParams(**each), vocab_size=VOCAB, prompt_ids=prompts) for each in PARAMS.values()]
    with ds.use_threads(2):
        for sampler in samplers:
            sampler.step(logits)
    threads.thread_limit = lambda: 3  # whatever the CPUs
    with without_memory():
        with ds.use_threads(2):
            for sampler in samplers:
                for _ in range(10):
                    sampler.step(logits)
        with pytest.raises(MemoryError):
            np.empty(VOCAB, np.int8)
        with pytest.raises(MemoryError), ds.use_threads(3):  # the core has no room for a third thread
            samplers[0].step(logits)


def indexes_without_memory() -> None:
    """Asks for indexes of a history while there is no memory for them, and again when there is."""
    tokens = [*range(1 << 19), *range(1000)]
    history = TokenHistory(tokens)
    with without_memory():
        for index in (lambda: history.tally(3), lambda: history.followers(1), lambda: history.followers(3)):
            with pytest.raises(MemoryError):
                index()
    history.append(5)
    assert history.tally(3).ids.tolist() == [*range(3, 1 << 19), 0, 1, 2]
    assert history.tally(3).counts[:1000].tolist() == [2, 2, 3, *[2] * 994, 1, 1, 1]
    assert history.followers(1).tolist() == list(range(1 << 19))
    assert history.followers(3).tolist() == []
    for token in (0, 1):
        history.append(token)
    assert history.followers(3).tolist() == [2]


def full_histories_without_memory() -> None:
    """Appends to a history that has no room for a token: nothing, and no other row of a step, has changed."""
    import numpy as np

    full, other = (TokenHistory([1] * count) for count in (1 << 20, 2))  # its next token doubles the room for its tokens
    logits = np.zeros((2, 3), np.float32)
    logits[:, 2] = 1
    made = {"greedy": True, "seed": 0, "top_logprobs": None, "ends": (), "stops": (), "limit": 1}
    rows = [new_row(3, history, [], **made) for history in (other, full)]
    with without_memory():
        for append in (lambda: full.append(2), lambda: step_rows(logits, rows), lambda: accept_tokens(rows, [2, 2], 3)):
            with pytest.raises(MemoryError):
                append()
            assert [(len(h), len(h.tokens), h.highest) for h in (other, full)] == [(2, 2, 1), (1 << 20, 1 << 20, 1)]
            assert [row.ended for row in rows] == [False, False]
    assert step_rows(logits, rows)[0].tolist() == [2, 2]
    assert other.tokens == [1, 1, 2]
    assert len(full) == len(full.tokens) == (1 << 20) + 1
    assert full.tally().counts.tolist() == [1 << 20, 1]


def in_a_process(call: str) -> None:
    ran = processes.run_python(f"import test_rows_without_memory as t; t.{call}", timeout=600)
    assert ran.returncode == 0, ran.stderr[-2000:]


@limits_memory
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_warm_step_takes_no_memory_of_the_vocabularys_size(dtype):
    in_a_process(f"steps_without_memory({dtype!r})")


@limits_memory
@pytest.mark.parametrize("what", ["indexes", "full_histories"])
def test_what_found_no_memory_is_done_wholly_later(what):
    in_a_process(f"{what}_without_memory()")
