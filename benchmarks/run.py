"""Runs all benchmarks, each in its own process: `python benchmarks/run.py [part of a name ...]`.

The rows are left in benchmarks/results.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main() -> int:
    files = sorted(HERE.glob("bench_*.py"))
    chosen = [file for file in files if not sys.argv[1:] or any(part in file.stem for part in sys.argv[1:])]
    failed = []
    for file in chosen:
        print(f"\n=== {file.stem} ===", flush=True)
        if subprocess.run([sys.executable, str(file), "--csv", str(HERE / "results")], check=False).returncode:
            failed.append(file.stem)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
