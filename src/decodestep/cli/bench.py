"""``decodestep bench``: runs a benchmark, a script of its own, in a process of its own."""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
from importlib import util
from pathlib import Path

from decodestep._base.checks import require_choice

_USUAL_NAMES = {"decode_step": "sampler", "mla_prolog": "prolog"}  # what people call these operators


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = f"{parser.description}\n\nbenchmarks:\n" + "\n".join(_listed())
    parser.add_argument("name", nargs="?", help="a benchmark; without it they are listed")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its own options: decodestep bench NAME --help")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    if options.name is None:
        print(json.dumps(benchmarks()) if options.json else "\n".join(_listed()))
        return 0
    stems = {usual: stem for stem, usual in _USUAL_NAMES.items()}
    name = str(options.name)
    require_choice("bench", "name", name, (*benchmarks(), *_USUAL_NAMES))
    script = _folder() / f"bench_{stems.get(name, name)}.py"
    asked = [*options.arguments, *(["--json"] if options.json else [])]
    return subprocess.run([sys.executable, str(script), *asked], check=False).returncode


def benchmarks() -> dict[str, str]:
    """Name and first sentence of each benchmark."""
    found = {}
    for script in sorted(_folder().glob("bench_*.py")):
        stem = script.stem.removeprefix("bench_")
        found[_USUAL_NAMES.get(stem, stem)] = (ast.get_docstring(ast.parse(script.read_text())) or "").split("\n")[0]
    return found


def _listed() -> list[str]:
    return [f"  {name:<20}{summary}" for name, summary in benchmarks().items()]


def _folder() -> Path:
    spec = util.find_spec("decodestep.benchmarks")
    if spec is None or spec.origin is None:
        raise RuntimeError("the benchmarks are not installed with this package")
    return Path(spec.origin).parent
