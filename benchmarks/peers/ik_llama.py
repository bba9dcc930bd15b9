"""ik_llama.cpp as a peer: its llama-bench, a program that says itself how long its steps took."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

BINARY = os.environ.get("IK_LLAMA_BENCH", "")  # none: no such peer


def seconds_of(file: Path, threads: int, tokens: int, *, context: int | None, repacked: bool) -> float:
    """The seconds of `tokens` steps of one token after a context, or of a prompt of so many without one.

    repacked: whether it brings the weights into its own layouts when it loads them.

    Raises:
        RuntimeError: if the program fails, with the end of what it says.
    """
    work = ["-p", str(tokens)] if context is None else ["-p", "0", "-gp", f"{context},{tokens}"]
    command = [BINARY, "-m", file, "-t", threads, *work, "-n", 0, "-r", 1, "-rtr", int(repacked), "-fa", 1, "-o", "json"]
    ran = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    try:
        return float(json.loads(ran.stdout)[0]["avg_ns"]) / 1e9
    except (ValueError, LookupError):
        raise RuntimeError(f"{BINARY} fails: {ran.stderr.strip()[-300:]}") from None
