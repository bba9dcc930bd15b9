"""Machines whose memory has several nodes (NUMA): each is near some of the CPUs, and slower for all others."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from decodestep._base import machine_limits
from decodestep._base.checks import require
from decodestep._base.threads import pin_workers, threads

Numa = Literal["distribute", "isolate"]
_OP = "set_numa"


def set_numa(how: Numa) -> None:
    """Says how the native kernels of this process use the nodes of the machine's memory; results have the same bits.

        distribute: each worker stays on a core, and neighbours on cores of the same node, so that the part of the weights
                    that a worker packs, and then reads for every token, is in the memory of its own node
        isolate:    all threads stay on the cores of the node that the process runs on at the moment, and so does their memory

    To be called before a model is loaded: memory stays where it was written first. A machine with one node has nothing to
    distribute, but its workers stay on their cores. The calling thread is moved by the system alone, and a process that is
    forked later starts without this.

    Args:
        how: "distribute" or "isolate".

    Raises:
        ValueError: for another `how`.
        OSError: if the system does not let threads be moved; on systems other than Linux.
    """
    require(how in ("distribute", "isolate"), _OP, "how", "'distribute' or 'isolate'", how)
    nodes = memory_nodes()
    if how == "distribute":
        cpus = spread([machine_limits.one_of_each_core(cpus) for cpus in nodes], threads())
        if not pin_workers(cpus):
            raise OSError(f"{_OP}: the system does not let threads be pinned to the CPUs {', '.join(map(str, cpus))}")
    else:
        current = _current_cpu()
        _keep_to(next((cpus for cpus in nodes if current in cpus), nodes[0]))


def memory_nodes(root: Path = Path("/")) -> list[list[int]]:
    """The CPUs of each node, ascending, that this process may use; without those of which it may use none."""
    if not hasattr(os, "sched_getaffinity"):
        raise OSError(f"{_OP}: only Linux tells which CPUs are near which memory")
    allowed = os.sched_getaffinity(0)
    lists = sorted((root / "sys/devices/system/node").glob("node*/cpulist"), key=lambda path: int(path.parent.name[4:]))
    nodes = [sorted(allowed & _cpus(path.read_text())) for path in lists]
    return [cpus for cpus in nodes if cpus] or [sorted(allowed)]


def _cpus(text: str) -> set[int]:
    """Those of a list as Linux writes it: "0-3,8"."""
    ends = [part.split("-") for part in text.strip().split(",") if part]
    return {cpu for end in ends for cpu in range(int(end[0]), int(end[-1]) + 1)}


def spread(nodes: list[list[int]], count: int) -> list[int]:
    """A CPU for each of at most `count` threads, evenly from all nodes, a node after the other.

    [[0, 1, 2, 3], [4, 5, 6, 7]], 4  ->  [0, 2, 4, 6]
    """
    cpus = [cpu for node in nodes for cpu in node]
    count = min(count, len(cpus))
    return [cpus[i * len(cpus) // count] for i in range(count)]


def _keep_to(cpus: list[int]) -> None:
    """All threads that there are, and with them those that they will start."""
    for thread in Path("/proc/self/task").iterdir():
        try:
            os.sched_setaffinity(int(thread.name), cpus)
        except ProcessLookupError:  # it has ended
            continue
    machine_limits.available_cpus.cache_clear()


def _current_cpu() -> int:
    after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return int(after_name[36])  # field 39 of proc(5), of which two precede
