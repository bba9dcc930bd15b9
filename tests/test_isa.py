"""Every build of the kernels that this machine can run passes the kernels' own tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
KERNELS = [f"tests/test_{stem}.py" for stem in ("linear", "mla_attention", "rms_norm", "swiglu")]


@pytest.mark.parametrize("isa", ["baseline", "avx2"])
def test_kernels_on(isa):
    environment = {**os.environ, "DECODESTEP_ISA": isa}
    name = subprocess.run([sys.executable, "-c", "from decodestep import _native; print(_native.isa())"], env=environment,
                          capture_output=True, text=True, check=True)  # fmt: skip
    if name.stdout.strip() != isa:
        pytest.skip(f"this machine runs {name.stdout.strip()}")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *KERNELS]
    tests = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert tests.returncode == 0, tests.stdout[-3000:]
