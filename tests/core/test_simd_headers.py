"""Every header of csrc/simd compiles alone: what it needs it includes, so that no order of includes is a hidden parameter."""

from __future__ import annotations

import platform
import shutil

import pytest

from support import processes
from support.project import ROOT

HEADERS = sorted(path.name for path in (ROOT / "csrc" / "simd").glob("*.h"))
TABLE = [line.split() for line in (ROOT / "csrc" / "core" / "tiers.txt").read_text().splitlines()]
# The beginnings of the names of files that the baseline does not read, and a tier that has the instructions of all of them.
FAMILIES = {("x86", "avx", "integer_tiles"): "avx512_amx", ("neon",): "neon_i8mm"}
PROCESSORS = ("any", {"x86_64": "x86", "aarch64": "arm"}.get(platform.machine()))


@pytest.mark.parametrize("header", HEADERS)
def test_a_header_compiles_alone(header):
    wanted = next((tier for names, tier in FAMILIES.items() if header.startswith(names)), "baseline")
    processor, flags = next((row[0], row[7:]) for row in TABLE if row[1:2] == [wanted])
    if shutil.which("g++") is None or processor not in PROCESSORS:
        pytest.skip(f"needs g++ for {processor}")
    compiler = ["g++", "-std=c++20", "-fsyntax-only", "-x", "c++", f"-I{ROOT / 'csrc'}", f"-DDECODESTEP_BUILD={wanted}", *flags]
    processes.run([*compiler, "-"], input=f'#include "simd/{header}"\n', check=True)
