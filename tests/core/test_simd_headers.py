"""Every header of csrc/simd compiles alone: what it needs it includes, so that no order of includes is a hidden parameter. The
constants of a family of instruction sets are the same in all its tiers, whose kernels allocate for each other."""

from __future__ import annotations

import platform
import re
import shutil

import pytest

from support import processes
from support.project import ROOT

HEADERS = sorted(path.name for path in (ROOT / "csrc" / "simd").glob("*.h"))
ROWS = [line.split() for line in (ROOT / "csrc" / "core" / "tiers.txt").read_text().splitlines() if not line.startswith("#")]
TIERS = {row[1]: row for row in ROWS}
# The beginnings of the names of files that the baseline does not read, and a tier that has the instructions of all of them.
NEEDED = {("x86", "avx", "integer_tiles"): "avx512_amx", ("neon",): "neon_i8mm"}
PROCESSORS = ("any", {"x86_64": "x86", "aarch64": "arm"}.get(platform.machine()))


def compile_with(tier: str, source: str, *options: str) -> str:
    """What the compiler prints, given the source as a build of this tier, from standard input."""
    processor, _, family, *columns = TIERS[tier]
    if shutil.which("g++") is None or processor not in PROCESSORS:
        pytest.skip(f"needs g++ for {processor}")
    defines = [f"-DDECODESTEP_BUILD={tier}", f"-DDECODESTEP_FAMILY_{family}"]
    compiler = ["g++", "-std=c++20", "-x", "c++", f"-I{ROOT / 'csrc'}", *defines, *columns[5:], *options]
    return processes.run([*compiler, "-"], input=source, check=True).stdout


@pytest.mark.parametrize("header", HEADERS)
def test_a_header_compiles_alone(header):
    wanted = next((tier for names, tier in NEEDED.items() if header.startswith(names)), "baseline")
    compile_with(wanted, f'#include "simd/{header}"\n', "-fsyntax-only")


@pytest.mark.parametrize("family", sorted({row[2] for row in ROWS}))
def test_all_tiers_of_a_family_have_its_constants(family):
    """Those that target.h names, whatever conditions the family's file may have."""
    names = re.findall(r"^//   (k\w+) ", (ROOT / "csrc" / "simd" / "target.h").read_text(), re.MULTILINE)
    values = set()
    for tier in (row[1] for row in ROWS if row[2] == family):
        source = compile_with(tier, '#include "simd/target.h"\n', "-E", "-P")
        constants = dict(re.findall(r"^constexpr \w+ (k\w+) = (.*);", source, re.MULTILINE))
        values.add(tuple(constants[name] for name in names))
    assert len(values) == 1
