"""Rows of a Ray dataset against the same rows without Ray: what the cluster costs.

    python benchmarks/bench_ray.py [--model PATH] [--threads 1 2] [--rows 6] [--tokens 260] [--rounds 3]

Both sides call `integrations.ray.Generate` with one row at a time, on the same number of threads in all. Without Ray that is
one process, with none of Ray's processes around; with Ray, one actor of as many CPUs in a cluster on this machine, started for
the round without a dashboard, and a dataset of one row a block. What is timed is the steady state: once the model is loaded and
a first row has been run, from the beginning of the second row to the end of the last, the time between rows included. The start
of cluster and actor is printed beside it. Each round starts a new process for either side. First it verifies: the same texts.

Printed too: the CPU that all other processes took in that time, in cores. Where the threads are as many as the cores, Ray's own
processes take theirs away. On a machine with other work a ratio says little: Ray gives its workers a niceness of 15.
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from measuring.harness import options, run_main

try:
    import ray
    import ray.data
except ImportError:
    print("bench_ray: ray is not installed: pip install 'decodestep[ray]'")
    sys.exit(0)

from decodestep.integrations.ray import Generate


class Timed(Generate):
    """Adds to each row when its batch began and ended: the time, and the CPU seconds of this process and of all."""

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, Any]:
        begin = _now()
        made = super().__call__(batch)
        for name, values in zip(("begin", "end"), (begin, _now()), strict=True):
            made[name] = np.array([values] * len(batch["key"]))
        return made


def _now() -> tuple[float, float, float]:
    return time.monotonic(), time.process_time(), _busy()


def _busy() -> float:
    """CPU seconds of all processes on this machine since it started; 0 where the system does not say."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    user, nice, system = map(int, stat.read_text().split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def rows_of(count: int) -> list[dict[str, Any]]:
    return [{"key": i, "prompt": f"Number {i} is"} for i in range(count)]


def plain(options: dict[str, Any], threads: int, count: int) -> list[dict[str, Any]]:
    generate = Timed(**options, threads=threads)
    made = [generate({"key": np.array([row["key"]]), "prompt": np.array([row["prompt"]], object)}) for row in rows_of(count)]
    return [{name: column[0] for name, column in row.items()} for row in made]


def without_ray(options: dict[str, Any], threads: int, count: int) -> list[dict[str, Any]]:
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(plain, options, threads, count).result()


def in_ray(options: dict[str, Any], threads: int, count: int) -> list[dict[str, Any]]:
    ray.init(num_cpus=threads, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # an actor cannot import this file
        ray.data.DataContext.get_current().enable_progress_bars = False
        dataset = ray.data.from_items(rows_of(count), override_num_blocks=count)
        compute = ray.data.ActorPoolStrategy(size=1)
        return dataset.map_batches(
            Timed, fn_constructor_kwargs=options, compute=compute, num_cpus=threads, batch_size=1
        ).take_all()
    finally:
        ray.shutdown()


class Measured(NamedTuple):
    """From the second row on: seconds a row, the share of them inside rows, the cores of others."""

    seconds: float
    inside: float
    others: float

    def __str__(self) -> str:
        return f"{self.seconds:.3f} s a row, {self.inside:.1%} of it inside rows, other processes on {self.others:.2f} cores"


def measure(rows: list[dict[str, Any]]) -> Measured:
    rows = sorted(rows, key=lambda row: row["begin"][0])[1:]
    inside = sum(row["end"][0] - row["begin"][0] for row in rows)
    wall, own, busy = np.subtract(rows[-1]["end"], rows[0]["begin"])
    return Measured(wall / len(rows), inside / wall, (busy - own) / wall)


def main() -> None:
    chosen = options(__doc__, model="", threads=(1, 2), rows=6, tokens=260, rounds=3)
    given = {"params": {"max_new_tokens": chosen.tokens, "ignore_eos": True, "top_p": 0.95}}
    given["model"] = chosen.model or None
    for threads in chosen.threads:
        ratios: list[float] = []
        for _ in range(chosen.rounds):
            sides, whole = [], []
            for run in (without_ray, in_ray):
                begin = time.monotonic()
                sides.append(sorted(run(given, threads, chosen.rows + 1), key=lambda row: row["key"]))
                whole.append(time.monotonic() - begin)
            if [row["completion"] for row in sides[0]] != [row["completion"] for row in sides[1]]:
                raise SystemExit("texts differ")
            plain_row, ray_row = map(measure, sides)
            ratios.append(ray_row.seconds / plain_row.seconds)
            print(f"threads {threads}, without Ray  {plain_row}  all with its start {whole[0]:.1f} s")
            print(f"threads {threads}, with Ray     {ray_row}  all with its start {whole[1]:.1f} s  ratio {ratios[-1]:.3f}")
        low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
        print(f"threads {threads}: with Ray over without, median {middle:.3f} [{low:.3f}, {high:.3f}] of {len(ratios)} rounds")


if __name__ == "__main__":
    run_main(main)
