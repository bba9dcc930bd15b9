"""What the benchmarks share: calls timed in turns, ratios with their spread, and what the memory of this machine can do.

Machines drift by tens of per cent within seconds, so times of different rounds say little. Here every round times each
call once, ratios are taken within a round, and what is reported is their median with the quartiles.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import decodestep as ds
from decodestep import _native

try:
    import torch
except ImportError:
    torch = None

Call = Callable[[], Any]
RESULTS = Path(__file__).parent / "results"
COLUMNS = ("case", "name", "seconds", "fastest", "slowest", "ratio", "ratio_low", "ratio_high", "floor_seconds", "threads",
           "isa")  # fmt: skip


def options(doc: str | None, **extra: Any) -> argparse.Namespace:
    """The command line that every benchmark has: how many rounds, on how many threads."""
    parser = argparse.ArgumentParser(description=(doc or "").split("\n")[0])
    for name, default in {"rounds": 15, "threads": 1, **extra}.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    chosen = parser.parse_args()
    if torch is not None:
        torch.set_num_threads(chosen.threads)
    return chosen


def rounds_of(calls: Mapping[str, Call], rounds: int, batch_seconds: float = 2e-3) -> dict[str, list[float]]:
    """Seconds a call, round by round; quick calls run in batches, long enough for the clock."""
    batches = {}
    for name, call in calls.items():
        call()
        start = time.perf_counter()
        call()
        batches[name] = max(1, int(batch_seconds / max(time.perf_counter() - start, 1e-7)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(batches[name]):
                call()
            times[name].append((time.perf_counter() - start) / batches[name])
    return times


@cache
def bandwidth(threads: int = 1) -> float:
    """Bytes a second of reading 256 MiB, far more than the caches hold, on so many threads."""
    blocks = np.array_split(np.ones(2**26, np.float32), threads)
    with ThreadPoolExecutor(threads) as pool:
        times = rounds_of({"read": lambda: list(pool.map(np.max, blocks))}, 7)["read"]
    return 2**28 / min(times)


class Report:
    """Prints one table a case and keeps the rows for benchmarks/results/<stem>.csv."""

    def __init__(self, stem: str, threads: int = 1) -> None:
        self.stem, self.threads, self.rows = stem, threads, list[tuple[Any, ...]]()
        print(f"{stem}: {_native.isa()}, {threads} thread(s), one thread reads {bandwidth() / 1e9:.0f} GB/s")

    def case(self, case: str, calls: Mapping[str, Call], rounds: int, floor_bytes: float | None = None) -> None:
        """Times the calls in turns; the first is ours, to which the ratios refer: 2 means twice as long as ours.

        floor_bytes: what a call has to read and write at least; the floor is the time that memory takes for it, and a case
            that stays in the caches can beat it.
        """
        with ds.use_threads(self.threads):
            times = rounds_of(calls, rounds)
        ours = next(iter(times.values()))
        floor = None if floor_bytes is None else floor_bytes / bandwidth(self.threads)
        print(f"\n{case}" + ("" if floor is None else f"   (floor {_time(floor)}: {floor_bytes:.0f} bytes)"))
        for name, seconds in times.items():
            low, ratio, high = statistics.quantiles((s / o for s, o in zip(seconds, ours, strict=True)), n=4)
            median = statistics.median(seconds)
            print(
                f"  {name:32}{_time(median):>10}   x{ratio:7.2f}  [{low:.2f}, {high:.2f}]"
                + ("" if floor is None else f"   x{median / floor:8.1f} of the floor")
            )
            self.rows.append(
                (case, name, median, min(seconds), max(seconds), ratio, low, high, floor, self.threads, _native.isa())
            )

    def save(self) -> None:
        RESULTS.mkdir(exist_ok=True)
        with (RESULTS / f"{self.stem}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerows([COLUMNS, *self.rows])
        print(f"\n{len(self.rows)} rows in {RESULTS.name}/{self.stem}.csv", file=sys.stderr)


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
