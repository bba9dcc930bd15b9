"""Runs what vendors publish to test their operators by against ours.

    python tests/run_goldens.py [stem ...] [--fetch] [--verbose]

A line for each operator: cases, how many are equal, and for the others what differs. Copies of the goldens lie in the folder
that DECODESTEP_GOLDENS names (by default ~/.cache/decodestep/goldens). Those that are missing are skipped; --fetch brings them
from GitHub. Ends with 1 if a case differs, or one that is to be fetched cannot be. Their licence is their own: none belongs
into this repository.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from goldens.source import FetchError

_SHARED = ("__init__", "bench_cases", "delta_cases", "source", "sparse_cases")


def main() -> None:
    folder = Path(__file__).parent / "goldens"
    stems = sorted(file.stem for file in folder.glob("*.py") if file.stem not in _SHARED)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stems", nargs="*", metavar="stem", help=f"of {', '.join(stems)}; all by default")
    parser.add_argument("--fetch", action="store_true", help="bring what is missing")
    parser.add_argument("--verbose", action="store_true", help="a line for each case")
    options = parser.parse_args()
    if unknown := set(options.stems) - set(stems):
        parser.error(f"no golden for {', '.join(sorted(unknown))}; there are {', '.join(stems)}")
    passed = True
    for stem in options.stems or stems:
        text, ok = _run(stem, options.fetch, options.verbose)
        print(text, flush=True)
        passed = passed and ok
    sys.exit(not passed)


def _run(stem: str, fetch: bool, verbose: bool) -> tuple[str, bool]:
    """What is to be printed of a golden, and whether nothing is wrong."""
    module = importlib.import_module(f"goldens.{stem}")
    if fetch and not module.SOURCE.is_here():
        try:
            module.SOURCE.fetch()
        except FetchError as error:
            return f"{stem}: {module.SOURCE.repository} cannot be fetched: {error}", False
    if not module.SOURCE.is_here():
        return f"{stem}: skipped, no copy of {module.SOURCE.repository} in {module.SOURCE.folder}; --fetch brings it", True
    differing, total = [], 0
    for name, compare in module.cases(module.SOURCE.open()):
        total += 1
        text = compare().removesuffix("; ")
        if text:
            differing.append(f"  {name}: {text}")
        if verbose:
            print(f"  {stem} {name}: {text or 'equal'}", flush=True)
    return "\n".join([f"{stem}: {total - len(differing)} of {total} cases equal", *differing]), not differing


if __name__ == "__main__":
    main()
