"""A warm step needs no memory that grows with the vocabulary: it runs where the system gives none."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import decodestep as ds
import processes
from decodestep._base import threads

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


def steps_without_memory(dtype: str) -> None:
    """Warms samplers up, takes the rest of the address space away, and goes on."""
    import ctypes
    import resource

    import ml_dtypes  # noqa: F401
    import numpy as np

    # What is larger than this comes from the system each time, so that no freed memory stands in for what is not there.
    assert ctypes.CDLL(None).mallopt(-3, POOLS // 4) == 1  # M_MMAP_THRESHOLD
    rng = np.random.default_rng(0)
    logits = (rng.standard_normal((3, VOCAB), np.float32) * 2.5).astype(dtype)
    prompts = [rng.integers(0, 50, 400).tolist() for _ in logits]
    samplers = [ds.Sampler(ds.SamplingParams(**each), vocab_size=VOCAB, prompt_ids=prompts) for each in PARAMS.values()]
    with ds.use_threads(2):
        for sampler in samplers:
            sampler.step(logits)
        size = int(re.search(r"VmSize:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024
        resource.setrlimit(resource.RLIMIT_AS, (size + POOLS, resource.RLIM_INFINITY))
        for sampler in samplers:
            for _ in range(10):
                sampler.step(logits)
    with pytest.raises(MemoryError):
        np.empty(VOCAB, np.int8)
    threads.thread_limit = lambda: 3  # whatever the CPUs
    with pytest.raises(MemoryError), ds.use_threads(3):  # the core has no room for a third thread
        samplers[0].step(logits)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts on Linux's limit of the address space")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_warm_step_takes_no_memory_of_the_vocabularys_size(dtype):
    code = f"import test_memory as t; t.steps_without_memory({dtype!r})"
    ran = processes.run([sys.executable, "-c", code], cwd=Path(__file__).parent, timeout=600)
    assert ran.returncode == 0, ran.stderr[-2000:]
