"""The pool of threads, tested in C++, as it is and under the thread sanitizer."""

from __future__ import annotations

import shutil
import sys
import threading
from contextlib import contextmanager

import numpy as np
import pytest
import torch

import decodestep as ds
from decodestep import steps
from decodestep.ops.linear.cpu import gather_rows
from decodestep.ops.rms_norm.cpu import rms_norm
from decodestep.ops.swiglu.cpu import swiglu
from support import processes
from support.project import ROOT, TESTS

pytestmark = pytest.mark.slow

CORE = ROOT / "csrc" / "core"
SOURCES = [TESTS / "core" / "parallel_test.cpp", CORE / "parallel.cpp", CORE / "thread_scratch.cpp"]


@pytest.mark.parametrize(
    ("flags", "arguments"), [([], []), (["-fsanitize=thread"], ["--no-fork"])], ids=["plain", "thread sanitizer"]
)
def test_the_pool_passes_its_own_program(tmp_path, flags, arguments):
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    program = tmp_path / "parallel_test"
    build = ["g++", "-std=c++20", "-O1", "-g", "-pthread", *flags, f"-I{ROOT / 'csrc'}", *map(str, SOURCES), "-o", str(program)]
    processes.run(build, check=True)
    ran = processes.run([str(program), *arguments])
    assert (ran.returncode, ran.stdout) == (0, "passed\n"), ran.stdout + ran.stderr


@contextmanager
def flushed_subnormals():
    assert torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def test_a_host_that_flushes_subnormals_changes_no_bits():
    x = np.full((64, 256), 2.0**-130, np.float32)
    weight = ds.ops.PackedWeight(np.eye(256, dtype=np.float32).view(np.uint8), ds.weights.Format.F32, 256)
    with flushed_subnormals():
        for threads in (1, 4):
            with ds.use_threads(threads):
                assert (ds.ops.linear(x, weight).view(np.uint32) == 1 << 19).all()


def test_a_host_that_flushes_subnormals_changes_no_step():
    logits, add = np.zeros((1, 64), np.float32), steps.Add(np.array([5]), np.array([1e-40]))
    penalised = ds.Sampler(ds.SamplingParams(do_sample=False, presence_penalty=1e-40), vocab_size=64)
    with flushed_subnormals():
        assert ds.decode_step(logits, [[add]], greedy=True).tokens[0] == 5
        assert [penalised.step(logits).tokens[0] for _ in range(3)] == [0, 1, 2]


def row_operators(rows, width):
    """Calls of the operators that work on each row alone, of about rows * width values."""
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((rows, width), np.float32) for _ in range(2))
    embedding = ds.ops.PackedWeight(rng.standard_normal((100, width), np.float32).view(np.uint8), ds.weights.Format.F32, width)
    ids = rng.integers(0, 100, rows)
    return [lambda: rms_norm(x, np.ones(width, np.float32), 1e-5), lambda: swiglu(x, y), lambda: gather_rows(embedding, ids)]


@pytest.mark.parametrize(("rows", "width"), [(0, 8), (1, 100000), (700, 300), (3, 1), (40000, 2), (33, 40000)])
def test_operators_on_rows_have_the_same_bits_on_any_threads(rows, width, monkeypatch):
    monkeypatch.setattr("decodestep._base.threads.thread_limit", lambda: 8)  # whatever the CPUs
    for call in row_operators(rows, width):
        with ds.use_threads(1):
            expected = call()
        for threads in (2, 3, 8):
            with ds.use_threads(threads):
                assert np.array_equal(call(), expected)


@pytest.mark.parametrize("operator", range(3), ids=["rms_norm", "swiglu", "gather_rows"])
def test_operators_on_rows_let_other_threads_run(operator):
    """Python's lock changes hands in this test only where a call gives it up."""
    call, go, seen = row_operators(200, 2000)[operator], threading.Lock(), []
    go.acquire()

    def other():
        with go:
            seen.append(True)

    thread, interval = threading.Thread(target=other), sys.getswitchinterval()
    thread.start()
    sys.setswitchinterval(1000)
    try:
        go.release()
        for _ in range(2000):
            call()
            if seen:
                break
        assert seen
    finally:
        sys.setswitchinterval(interval)
        thread.join()
