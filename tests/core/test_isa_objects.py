"""No build of the kernels lends its code to another: what its object files define for the linker to share is its own.

A function that is not inlined and lies outside the namespace of its tier may be compiled with instructions that the machine
lacks, and the linker keeps one copy for all tiers. (Every tier's own functions carry its name, templates of them too.)
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from support import processes
from support.project import ROOT


def shared_symbols(objects: list[Path]) -> list[str]:
    """The weak and unique definitions, as C++ names."""
    listed = processes.run(["nm", "-C", "--defined-only", *map(str, objects)], check=True).stdout
    return [match[1] for match in re.finditer(r"^[0-9a-f]* [WVu] (.*)$", listed, re.MULTILINE)]


def test_what_the_linker_may_share_names_its_build():
    if shutil.which("nm") is None:
        pytest.skip("needs nm")
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    builds = [path for path in (ROOT / "build").glob(f"{tag}-*/CMakeFiles/kernels_*.dir") if path.stem != "kernels_baseline"]
    if not builds:
        pytest.skip("needs the object files of `make build`, for vectors")
    for path in builds:
        build = path.stem.removeprefix("kernels_")
        names = shared_symbols(sorted(path.glob("**/*.o")))
        foreign = [name for name in names if f"decodestep::{build}::" not in name and not name.startswith("DW.ref.")]
        assert not foreign, f"defined in objects of {build}:{os.linesep}" + os.linesep.join(sorted(set(foreign))[:20])
