"""The pool of threads, tested in C++, as it is and under the thread sanitizer."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

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
    subprocess.run(build, check=True, timeout=120)
    ran = subprocess.run([str(program), *arguments], capture_output=True, text=True, check=False, timeout=120)
    assert (ran.returncode, ran.stdout) == (0, "passed\n"), ran.stdout + ran.stderr
