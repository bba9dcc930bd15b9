"""``decodestep bench``: runs a benchmark script in a separate process."""

from __future__ import annotations

import argparse
import ast
import json
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

from decodestep._base.checks import require_choice

_FOLDER = Path(__file__).parents[3] / "benchmarks"  # of the clone; an installed package has none
_SHORT_NAMES = {"sampler": "decode_step", "prolog": "mla_prolog"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = f"{parser.description}\n\nbenchmarks:\n" + "\n".join(_listing())
    parser.add_argument("name", nargs="?", help="a benchmark; without a name, the list of them")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the benchmark's own options: decodestep bench NAME --help")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    if options.name is None:
        print(json.dumps(benchmarks()) if options.json else "\n".join(_listing()))
        return 0
    name = str(options.name)
    require_choice("bench", "name", name, (*benchmarks(), *_SHORT_NAMES))
    script = _folder() / f"bench_{_SHORT_NAMES.get(name, name)}.py"
    arguments = [*options.arguments, *(["--json"] if options.json else [])]
    return subprocess.run([sys.executable, str(script), *arguments], check=False).returncode


def benchmarks() -> dict[str, str]:
    """The name of each benchmark (that of its operator) and the first line of its docstring."""
    found = {}
    for script in sorted(_folder().glob("bench_*.py")):
        text = script.read_text(encoding="utf-8")
        found[script.stem.removeprefix("bench_")] = (ast.get_docstring(ast.parse(text)) or "").split("\n")[0]
    return found


def _listing() -> list[str]:
    """A paragraph for each benchmark, as wide as argparse's."""
    words = benchmarks() | {short: f"short for {name}" for short, name in _SHORT_NAMES.items()}
    width = max(shutil.get_terminal_size().columns - 2, 40)
    return [
        textwrap.fill(text, width, initial_indent=f"  {name:<20}", subsequent_indent=" " * 22) for name, text in words.items()
    ]


def _folder() -> Path:
    if not _FOLDER.exists():
        raise RuntimeError("bench: the benchmarks are not in the installed package; they run from a clone of the repository")
    return _FOLDER
