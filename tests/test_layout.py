"""The shape of the project: imports run one way, every operator has all its rooms."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "decodestep"
STEMS = sorted(path.parent.name for path in PACKAGE.glob("ops/*/__init__.py"))

# A file may import from its own layer and from those before it.
LAYERS = [
    ("_base",),
    ("random",),
    ("weights",),
    ("ops",),
    ("processors", "stopping"),
    ("sampling",),
    ("models",),
    ("generation",),
    ("integrations",),
    ("cli",),
    ("__main__",),
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def level(module: str) -> int:
    return LEVEL[module.split(".")[1]]


def imports(path: Path) -> set[str]:
    """The modules of this package that a file imports, whenever it does."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= set(names) if node.module == "decodestep" else {node.module}
    return {name for name in found if name.startswith("decodestep.") and name.split(".")[1] in LEVEL}


FILES = [path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py"]


def module(path: Path) -> str:
    return ".".join(("decodestep", *path.relative_to(PACKAGE).with_suffix("").parts))


@pytest.mark.parametrize("path", FILES, ids=module)
def test_imports_run_one_way(path):
    for name in imports(path):
        assert level(name) <= level(module(path)), f"{module(path)} imports {name}"


def test_every_module_has_a_layer():
    assert {module(path).split(".")[1] for path in FILES} <= set(LEVEL)


@pytest.mark.parametrize("stem", STEMS)
def test_a_reference_imports_no_kernel(stem):
    for path in (PACKAGE / "ops" / stem).glob("*.py"):
        if path.stem == "reference":
            assert not {name for name in imports(path) if name.endswith((".cpu", ".triton"))}


@pytest.mark.parametrize("stem", STEMS)
def test_every_operator_has_all_its_rooms(stem):
    rooms = [
        PACKAGE / "ops" / stem / "reference.py",
        ROOT / "tests" / f"test_{stem}.py",
        ROOT / "benchmarks" / f"bench_{stem}.py",
        ROOT / "docs" / "ops" / f"{stem}.md",
    ]
    if (PACKAGE / "ops" / stem / "cpu.py").exists():
        rooms += list(ROOT.glob(f"csrc/**/{stem}.cpp")) or [ROOT / "csrc" / f"{stem}.cpp"]
    assert [str(room.relative_to(ROOT)) for room in rooms if not room.exists()] == []


@pytest.mark.parametrize("path", FILES, ids=module)
def test_files_hold_one_thing(path):
    assert len(path.read_text().splitlines()) <= 400
