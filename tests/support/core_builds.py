"""Other builds of the core, and code that runs on them: in a process of its own, since a process chooses once."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import sysconfig
from pathlib import Path

import pytest

from decodestep import _native
from support import processes
from support.project import ROOT

# The tiers that this core is built for and this machine has; `make test-tiers` builds all of csrc/core/tiers.txt.
TIERS = tuple(_native.tiers().split(", "))
# Those that have a fused multiply-add, and of them those whose decoder sums in fused multiply-adds only.
VECTORS = tuple(tier for tier in TIERS if tier != "baseline")
FUSED = tuple(tier for tier in VECTORS if tier not in ("avx512_bf16", "avx512_amx"))
# x86's baseline rounds a product and its sum one after the other, so that a model's numbers, and its texts, are others there.
IS_FUSED = _native.isa() != "baseline"
needs_fused = pytest.mark.skipif(not IS_FUSED, reason="x86's baseline rounds a product and its sum one after the other")
TOOLS = ("cmake", "ninja", "g++")
# The tools that the test extra installs stand beside the interpreter, whether or not its environment is activated.
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def compiled(directory: Path, **options: str) -> Path:
    """The core as it is compiled there with options of CMakeLists.txt, named without DECODESTEP_; what DECODESTEP_TEST_CORE of
    a process of tests may name. Skips the test where the tools are missing."""
    make(directory, "_native", *(f"DECODESTEP_{name}={value}" for name, value in options.items()))
    return next(directory.glob("_native*.so"))


def make(directory: Path, target: str, *definitions: str) -> None:
    """Makes a target of CMakeLists.txt there, while no other process does. Skips the test where the tools are missing."""
    missing = [tool for tool in TOOLS if shutil.which(tool, path=PATH) is None]
    if missing or not sys.platform.startswith("linux"):
        pytest.skip(f"needs Linux and {', '.join(missing or TOOLS)}")
    nanobind = processes.run([sys.executable, "-m", "nanobind", "--cmake_dir"])
    if nanobind.returncode:
        pytest.skip("needs nanobind")
    given = (f"-D{definition}" for definition in definitions)
    # CMake 4.4.5 does not ask the interpreter for its headers where it compiles for another processor.
    configure = ["cmake", "-S", str(ROOT), "-B", str(directory), "-G", "Ninja", *given,
                 f"-DPython_EXECUTABLE={sys.executable}", f"-DPython_INCLUDE_DIR={sysconfig.get_path('include')}",
                 f"-Dnanobind_DIR={nanobind.stdout.strip()}"]  # fmt: skip
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for command in (configure, ["cmake", "--build", str(directory), "--target", target, "--parallel", "2"]):
            processes.run(command, env={**os.environ, "PATH": PATH}, timeout=3600, check=True)


def printed_under(isa: str, code: str) -> str:
    """What the code, which may import the tests' modules, prints; skips the test where this process runs on it already."""
    if isa == _native.isa():
        pytest.skip("this process runs on it")
    environment = {**os.environ, "DECODESTEP_ISA": isa}
    ran = processes.run_python(f"from decodestep import _native\n{code}", env=environment, timeout=600)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()
