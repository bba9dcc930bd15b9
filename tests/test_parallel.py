"""The pool of threads, tested in C++, as it is and under the thread sanitizer."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import decodestep as ds
import processes

ROOT = Path(__file__).parent.parent
SOURCES = [ROOT / "tests" / "core" / "parallel_test.cpp", ROOT / "csrc" / "core" / "parallel.cpp"]


@pytest.mark.parametrize(
    ("flags", "arguments"), [([], []), (["-fsanitize=thread"], ["--no-fork"])], ids=["plain", "thread sanitizer"]
)
def test_pool(tmp_path, flags, arguments):
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    program = tmp_path / "parallel_test"
    build = ["g++", "-std=c++20", "-O1", "-g", "-pthread", *flags, f"-I{ROOT / 'csrc'}", *map(str, SOURCES), "-o", str(program)]
    processes.run(build, check=True)
    ran = processes.run([str(program), *arguments])
    assert (ran.returncode, ran.stdout) == (0, "passed\n"), ran.stdout + ran.stderr


def test_a_host_that_flushes_subnormals_changes_no_bits():
    x = np.full((64, 256), 2.0**-130, np.float32)
    weight = ds.ops.PackedWeight(np.eye(256, dtype=np.float32).view(np.uint8), ds.weights.Format.F32, 256)
    assert torch.set_flush_denormal(True)
    try:
        for threads in (1, 4):
            with ds.use_threads(threads):
                assert (ds.ops.linear(x, weight).view(np.uint32) == 1 << 19).all()
    finally:
        torch.set_flush_denormal(False)
