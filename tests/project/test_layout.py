"""The shape of the project: imports run one way, every operator has all its rooms; and these checks fail when they should."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import layout_rules as layout
from support.project import ROOT

# Rules, and what is known to break them: to be mended, and then to be taken out here.
RULES = {
    layout.without_layer: [],
    layout.upward_imports: [],
    layout.cycles: [],
    layout.native_imports: [],
    layout.native_references: [],
    layout.missing_rooms: ["csrc/**/sparse_mla_attention.cpp"],  # its kernel is that of mla_attention
    layout.test_rooms: [],
    layout.long_files: [],
    layout.texts_as_values: [],
    layout.target_conditions: [],
    layout.upward_includes: [],
}


@pytest.fixture(scope="module")
def project():
    return layout.Project(ROOT)


@pytest.mark.parametrize(("rule", "known"), RULES.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_the_project_keeps(project, rule, known):
    assert set(rule(project)) <= set(known)


def test_only_those_who_own_native_objects_are_listed(project):
    assert layout.idle_native_owners(project) == []


def test_the_operators_are_found(project):
    assert {"linear", "mla_prolog", "decode_step", "tensor_scatter"} <= set(project.stems)


# A small project that keeps every rule.
SOUND = {
    "src/decodestep/__init__.py": "if TYPE_CHECKING:\n    from decodestep.sampling.sampler import Sampler as Sampler\n",
    "src/decodestep/_base/__init__.py": "",
    "src/decodestep/_base/checks.py": "from typing import TYPE_CHECKING\n",
    "src/decodestep/ops/__init__.py": "from decodestep.ops.scale import scale\n",
    "src/decodestep/ops/scale/__init__.py": '"""x * s."""\nfrom decodestep.ops.scale import cpu, reference\n',
    "src/decodestep/ops/scale/reference.py": "from decodestep._base import checks\n",
    "src/decodestep/ops/scale/cpu.py": "from decodestep import _native\nfrom decodestep._base.checks import check\n",
    "src/decodestep/sampling/__init__.py": "",
    "src/decodestep/sampling/params.py": "import decodestep as ds\n\nds.scale, ds.ops.scale, ds.__version__\n",
    "src/decodestep/sampling/sampler.py": "from .params import f\nfrom decodestep.ops import scale\n",
    "tests/_base/test_checks.py": "",
    "tests/core/test_isa.py": "",
    "tests/ops/test_scale.py": "",
    "tests/sampling/test_params.py": "",
    "benchmarks/bench_scale.py": "",
    "docs/ops/scale.md": "",
    "csrc/core/isa.h": "#pragma once\n",
    "csrc/simd/portable.h": '#include "core/isa.h"\n#if defined(__AVX2__)\n#endif\n',
    "csrc/elementwise/scale.cpp": '#include <cmath>\n\n#include "simd/portable.h"\n',
}


def planted(folder: Path, changes: dict[str, str | None]) -> layout.Project:
    for name, text in (SOUND | changes).items():
        if text is not None:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return layout.Project(folder)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_sound_project_passes(tmp_path, rule):
    assert rule(planted(tmp_path, {})) == []


BASE, PARAMS = "src/decodestep/_base/checks.py", "src/decodestep/sampling/params.py"
REFERENCE = "src/decodestep/ops/scale/reference.py"
PLANTS = {
    "a module without a layer": (layout.without_layer, {"src/decodestep/helpers.py": ""}, ["helpers has no layer"]),
    "an upward import": (
        layout.upward_imports,
        {BASE: "from decodestep.sampling import params\n"},
        ["_base.checks:1 imports sampling.params"],
    ),
    "an alias that is more than one": (
        layout.upward_imports,
        {
            "src/decodestep/npu_schedule/__init__.py": "",
            "src/decodestep/ops/mla_prolog/schedule.py": "from decodestep.npu_schedule import *\nimport decodestep.cli\n",
        },
        ["ops.mla_prolog.schedule:2 imports cli"],
    ),
    "an upward import in a function": (
        layout.upward_imports,
        {BASE: "def f():\n    import decodestep.sampling.params\n"},
        ["_base.checks:2 imports sampling.params"],
    ),
    "an upward relative import": (
        layout.upward_imports,
        {BASE: "from ..sampling import params\n"},
        ["_base.checks:1 imports sampling.params"],
    ),
    "an upward relative import of a package": (
        layout.upward_imports,
        {"src/decodestep/_base/__init__.py": "from .. import sampling\n"},
        ["_base:1 imports sampling"],
    ),
    "an upward import for a type": (
        layout.upward_imports,
        {BASE: "if TYPE_CHECKING:\n    from decodestep.sampling.params import f\n"},
        ["_base.checks:2 imports sampling.params"],
    ),
    "an upward use of a public name": (
        layout.upward_imports,
        {BASE: "import decodestep as ds\n\ndef f():\n    return ds.Sampler\n"},
        ["_base.checks:4 imports sampling.sampler"],
    ),
    "an upward import of a public name": (
        layout.upward_imports,
        {BASE: "from decodestep import Sampler\n"},
        ["_base.checks:1 imports sampling.sampler"],
    ),
    "an upward use of an operator": (
        layout.upward_imports,
        {BASE: "import decodestep\nx = decodestep.scale(1)\n"},
        ["_base.checks:2 imports ops.scale"],
    ),
    "a cycle": (
        layout.cycles,
        {PARAMS: "from decodestep.sampling import sampler\n"},
        ["sampling.params <-> sampling.sampler"],
    ),
    "a cycle through a function": (
        layout.cycles,
        {PARAMS: "def f():\n    from decodestep.sampling.sampler import g\n"},
        ["sampling.params <-> sampling.sampler"],
    ),
    "a cycle through a public name": (
        layout.cycles,
        {PARAMS: "import decodestep as ds\n\ndef f():\n    return ds.Sampler\n"},
        ["sampling.params <-> sampling.sampler"],
    ),
    "a cycle for types alone, which is none": (
        layout.cycles,
        {PARAMS: "if TYPE_CHECKING:\n    from decodestep.sampling.sampler import g\n"},
        [],
    ),
    "a native import": (
        layout.native_imports,
        {PARAMS: "from decodestep import _native\n"},
        ["sampling.params:1 imports the native core"],
    ),
    "a native use": (
        layout.native_imports,
        {PARAMS: "import decodestep as ds\n\ndef f():\n    return ds._native.isa()\n"},
        ["sampling.params:4 imports the native core"],
    ),
    "a reference that loads native code": (
        layout.native_references,
        {BASE: "from decodestep import _native\n"},
        ["ops.scale.reference imports _native"],
    ),
    "a reference that loads a kernel": (
        layout.native_references,
        {REFERENCE: "from decodestep.ops.scale.cpu import scale\n"},
        ["ops.scale.reference imports _native", "ops.scale.reference imports ops.scale.cpu"],
    ),
    "a missing reference": (layout.missing_rooms, {REFERENCE: None}, [REFERENCE]),
    "a missing test": (layout.missing_rooms, {"tests/ops/test_scale.py": None}, ["tests/ops/test_scale.py"]),
    "a missing benchmark": (layout.missing_rooms, {"benchmarks/bench_scale.py": None}, ["benchmarks/bench_scale.py"]),
    "a missing page": (layout.missing_rooms, {"docs/ops/scale.md": None}, ["docs/ops/scale.md"]),
    "a missing kernel": (layout.missing_rooms, {"csrc/elementwise/scale.cpp": None}, ["csrc/**/scale.cpp"]),
    "a missing contract": (
        layout.missing_rooms,
        {"src/decodestep/ops/scale/__init__.py": "x = 1\n"},
        ["the docstring of ops/scale/__init__.py"],
    ),
    "a room without tests": (layout.test_rooms, {"tests/_base/test_checks.py": None}, ["tests/_base is missing"]),
    "tests in no room": (layout.test_rooms, {"tests/misc/test_scale.py": ""}, ["tests/misc is no room"]),
    "a test in no folder": (layout.test_rooms, {"tests/test_scale.py": ""}, ["tests/test_scale.py is no room"]),
    "a long file": (layout.long_files, {PARAMS: "x = 1\n" * 401}, ["sampling.params has 401 lines"]),
    "a text as a value": (
        layout.texts_as_values,
        {PARAMS: 'refuse("op", "a", "b", repr(x))\nrequire(y, "op", "a", "b", f"{x}")\nrefuse("op", "a", "b", Words("c"))\n'},
        ["sampling.params:1 got repr(x)", "sampling.params:2 got f'{x}'"],
    ),
    "a condition on the instruction set": (
        layout.target_conditions,
        {"csrc/elementwise/scale.cpp": "\n#if defined(__AVX512F__)\n#endif\n"},
        ["csrc/elementwise/scale.cpp:2 names __AVX512F__"],
    ),
    "a condition on what an instruction set has": (
        layout.target_conditions,
        {"csrc/elementwise/scale.cpp": "#ifdef DECODESTEP_HAS_COMPACT\n#endif\n"},
        ["csrc/elementwise/scale.cpp:1 names DECODESTEP_HAS_COMPACT"],
    ),
    "an upward include": (
        layout.upward_includes,
        {"csrc/core/isa.h": '#include "elementwise/scale.h"\n'},
        ["csrc/core/isa.h includes from elementwise"],
    ),
    "an include of a neighbour": (
        layout.upward_includes,
        {"csrc/elementwise/scale.cpp": '#include "core/isa.h"\n#include "linear/linear.h"\n#include "core/parallel.h"\n'},
        ["csrc/elementwise/scale.cpp includes from linear"],
    ),
    "a folder without a layer": (layout.upward_includes, {"csrc/misc/x.h": ""}, ["csrc/misc has no layer"]),
}


@pytest.mark.parametrize(("rule", "changes", "expected"), PLANTS.values(), ids=PLANTS)
def test_what_breaks_a_rule_is_found(tmp_path, rule, changes, expected):
    assert rule(planted(tmp_path, changes)) == expected
