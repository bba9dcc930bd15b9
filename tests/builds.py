"""Code under another build of the kernels: in a process of its own, since a process chooses once."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import processes
from decodestep import _native


def printed_under(isa: str, code: str) -> str:
    """What the code, which may import the tests' modules, prints; skips the test where the machine lacks that build, and where
    this process runs on it already."""
    if isa == _native.isa():
        pytest.skip("this process runs on it")
    environment = {**os.environ, "DECODESTEP_ISA": isa, "PYTHONPATH": str(Path(__file__).parent)}
    ran = processes.run([sys.executable, "-c", f"from decodestep import _native\n{code}"], env=environment, timeout=600)
    if f"; got '{isa}'" in ran.stderr:
        pytest.skip("this machine lacks it")
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()
