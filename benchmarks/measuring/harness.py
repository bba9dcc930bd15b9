"""Shared by the benchmarks: interleaved timing, ratios with their spread, and tables, CSV, JSON and plots.

The speed of a machine drifts by tens of per cent within seconds, so times of different rounds are not comparable. Every round
times each call once, ratios are taken within a round, and their median and quartiles are reported.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import decodestep as ds
from decodestep import _native
from decodestep.cli.endings import Parser, failure
from decodestep.cli.options import require_writable
from decodestep.errors import CacheFullError, RequestError
from decodestep.models import ModelError
from measuring.memory import READ_BYTES, bandwidth, call_seconds, keep_freed_memory, plain_read

try:
    import torch
except ImportError:
    torch = None

Call = Callable[[], Any]
COLUMNS = (
    "case", "name", "seconds", "fastest", "slowest", "ratio", "ratio_low", "ratio_high", "ours_over_it", "floor_seconds",
    "over_floor", "threads", "isa",
)  # fmt: skip
LEAST_ROUNDS = 3
# Limits that keep a benchmark to minutes on any machine: no round of a case starts after CASE_SECONDS, and a peer that takes
# longer than SLOWEST_CALL_SECONDS per call is left out with a message.
CASE_SECONDS = 60.0
SLOWEST_CALL_SECONDS = 5.0
# How long a call runs untimed before it is timed: the previous call has filled the caches with its data, and its threads may
# still be spinning, as those of OpenMP do for some milliseconds.
LEAD_IN_SECONDS = 0.01

# The command line belongs to the process, so the tables of a process share where they go.
_output = argparse.Namespace(csv="", json=False, plot="")


class Prepared(NamedTuple):
    """A call that needs `prepare`, which is not timed, before each run."""

    prepare: Call
    call: Call


class Reported(NamedTuple):
    """A program that is run once in a round, and says itself how many seconds it took."""

    seconds: Callable[[], float]


Timed = Call | Prepared | Reported


def options(
    doc: str | None, choices: Mapping[str, Any] | None = None, least: Mapping[str, int] | None = None, **extra: Any
) -> argparse.Namespace:
    """The common command line of the benchmarks (rounds, threads, outputs) with further options.

    extra: option names and defaults, which give the types; a tuple is a list of values. choices: the legal values by name.
    least: the smallest whole numbers by name; 1 for the others.
    """
    smallest = {"rounds": 2, **(least or {})}  # between the two lie quartiles
    parser = Parser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, prog=Path(sys.argv[0]).stem)
    for name, default in {"rounds": 15, "threads": 1, **extra}.items():
        several = isinstance(default, tuple)
        kind = type(default[0] if several else default)
        legal = (choices or {}).get(name)
        usual = f"default: {(' '.join(map(str, default)) if several else str(default)) or 'none'}"
        parser.add_argument(
            f"--{name}",
            type=_whole(smallest.get(name, 1)) if kind is int else kind,
            nargs="+" if several else None,
            default=default,
            choices=legal,
            metavar=name.upper(),
            help=f"of {' '.join(legal)}; {usual}" if legal else usual,
        )
    parser.add_argument("--csv", default="", metavar="PATH", help="write the rows to this file, or into this folder")
    parser.add_argument("--json", action="store_true", help="print one JSON object; the tables go to standard error")
    parser.add_argument("--plot", default="", metavar="PATH", help="draw the medians of every case (needs matplotlib)")
    chosen = parser.parse_args()
    for path in (chosen.csv, chosen.plot):
        if path and Path(path).suffix:
            require_writable(path)
    threads = chosen.threads if isinstance(chosen.threads, (list, tuple)) else [chosen.threads]
    keep_freed_memory()
    vars(_output).update(csv=chosen.csv, json=chosen.json, plot=chosen.plot)
    if chosen.json:
        sys.stdout = sys.stderr
    if torch is not None:
        torch.set_num_threads(threads[0])
    return chosen


def _whole(least: int) -> Callable[[str], int]:
    """The type of an option that takes whole numbers from `least` on."""

    def integer(text: str) -> int:  # argparse shows this name
        number = int(text)
        if number < least:
            raise argparse.ArgumentTypeError(f"at least {least}; got {number}")
        return number

    return integer


def run_main(main: Callable[[], None]) -> None:
    """Runs a benchmark's `main`. What the caller or the files did wrong is one line, with the exit codes of `decodestep`."""
    try:
        main()
    except (RequestError, ModelError, CacheFullError, OSError) as error:
        code, reason = failure(error)
        print(f"{Path(sys.argv[0]).stem}: {reason}", file=sys.stderr)
        sys.exit(code)
    except KeyboardInterrupt:
        sys.exit(1)


def rounds_of(
    calls: Mapping[str, Timed],
    rounds: int,
    batch_seconds: float = 2e-3,
    budget: float = CASE_SECONDS,
    slowest: float = SLOWEST_CALL_SECONDS,
) -> dict[str, list[float]]:
    """The seconds of each call in each round; short calls are timed in batches.

    budget: seconds after which no further round starts, except for the first `LEAST_ROUNDS`.
    slowest: seconds of one call; slower ones, except the first, are left out with a message.
    """
    first = next(iter(calls))
    batches = {}
    for name, call in calls.items():
        seconds = _seconds(call, 1)
        if seconds > slowest and name != first:
            print(f"left out: {name} takes {duration(seconds)} a call")
            continue
        once = isinstance(call, Reported)
        batches[name] = 1 if once else max(1, int(batch_seconds / max(_seconds(call, 1), 1e-7)))
    calls = {name: calls[name] for name in batches}
    times: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + budget
    for number in range(rounds):
        if number >= LEAST_ROUNDS and time.perf_counter() > end:
            break
        for name, call in calls.items():
            lead_in = time.perf_counter() + LEAD_IN_SECONDS
            while not isinstance(call, Reported) and time.perf_counter() < lead_in:
                _seconds(call, 1)
            times[name].append(_seconds(call, batches[name]) / batches[name])
    return times


def _seconds(call: Timed, count: int) -> float:
    if isinstance(call, Reported):
        return sum(call.seconds() for _ in range(count))
    if isinstance(call, Prepared):
        total = 0.0
        for _ in range(count):
            call.prepare()
            start = time.perf_counter()
            call.call()
            total += time.perf_counter() - start
        return total
    start = time.perf_counter()
    for _ in range(count):
        call()
    return time.perf_counter() - start


class Report:
    """Prints one table per case and keeps the rows for --csv, --json and --plot."""

    def __init__(self, stem: str, threads: int = 1) -> None:
        self.stem, self.threads, self.rows = stem, threads, list[tuple[Any, ...]]()
        self.isa = _native.isa()
        print(f"{stem}: {self.isa}, {threads} thread(s), one thread reads {bandwidth() / 1e9:.0f} GB/s")

    def case(
        self,
        case: str,
        calls: Mapping[str, Timed],
        rounds: int,
        floor_bytes: float | None = None,
        *,
        reads: Mapping[str, Call] | None = None,
        budget: float = CASE_SECONDS,
    ) -> dict[str, list[float]]:
        """Times the calls, interleaved, without peers that are too slow. Ratios are to the first, ours: 2 means twice as slow.

        floor_bytes: the bytes that a call must read and write; the floor is their time at the bandwidth of a plain read on as
            many threads in the same round, which a case that stays in the caches can beat.
        reads: instead of floor_bytes, `memory.one_read`s to be timed in the same rounds; the first is the case's floor.
        budget: as in `rounds_of`. Returns the seconds of each call in each round.
        """
        plain = {"": plain_read(self.threads)} if floor_bytes is not None else {}
        with ds.use_threads(self.threads):
            times = rounds_of({**calls, **plain, **(reads or {})}, rounds, budget=budget)
        read_times = {name: [max(s - call_seconds(), 0.0) for s in times.pop(name)] for name in reads or {}}
        plain_times = times.pop("", [])
        floors = next(iter(read_times.values()), None)
        if floor_bytes is not None:
            floors = [floor_bytes / READ_BYTES * s for s in plain_times]
        if floors is not None and min(floors) <= 0:
            floors = None  # too little to read for the clock
        floor = None if floors is None else statistics.median(floors)
        about = "; ".join(f"{name} {duration(statistics.median(seconds))}" for name, seconds in read_times.items())
        if floor is not None and not about:
            about = f"floor {duration(floor)}: {floor_bytes:.0f} bytes at {floor_bytes / floor / 1e9:.1f} GB/s"
        self.show(case, times, floors, about)
        return times

    def show(self, case: str, times: Mapping[str, list[float]], floors: list[float] | None, about: str) -> None:
        """Prints the case's table, of seconds by round; the first call is ours."""
        ours = next(iter(times.values()))
        floor = None if floors is None else statistics.median(floors)
        print(f"\n{case}" + (f"   ({about})" if about else ""))
        for name, seconds in times.items():
            ratios = [s / o for s, o in zip(seconds, ours, strict=True)]
            # Inclusive: the other method goes beyond the ratios of two rounds.
            low, ratio, high = statistics.quantiles(ratios, n=4, method="inclusive")
            inverse = statistics.median(o / s for s, o in zip(seconds, ours, strict=True))
            median = statistics.median(seconds)
            above = None if floors is None else statistics.median(s / f for s, f in zip(seconds, floors, strict=True))
            print(
                f"  {name:36}{duration(median):>8}   x{ratio:8.2f}  [{low:.2f}, {high:.2f}]".ljust(84)
                + ("" if seconds is ours else f"ours takes {inverse:6.3f} of it").ljust(28)
                + ("" if above is None else f"{above:9.1f} x floor")
            )
            spread = (median, min(seconds), max(seconds), ratio, low, high, inverse)
            self.rows.append((case, name, *spread, floor, above, self.threads, self.isa))

    def save(self) -> None:
        """Writes the rows where the command line says."""
        if _output.csv:
            path = Path(_output.csv)
            if path.suffix != ".csv":
                path.mkdir(parents=True, exist_ok=True)
                path /= f"{self.stem}.csv"
            with path.open("w", newline="") as file:
                csv.writer(file).writerows([COLUMNS, *self.rows])
            print(f"\n{len(self.rows)} rows in {path}", file=sys.stderr)
        named = [dict(zip(COLUMNS, row, strict=True)) for row in self.rows]
        if _output.json:
            print(json.dumps({"benchmark": self.stem, "rows": named}), file=sys.__stdout__)
        if _output.plot:
            from measuring.plot import draw

            draw(named, _output.plot)


def duration(seconds: float) -> str:
    """The seconds in three digits, in the unit that suits them."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
