"""The CPUs and the memory that the system, the hardware and a container let this process use.

Two threads on one core (SMT siblings) share its arithmetic units, and a container's CPU quota may be far below the machine's
cores. Threads beyond either limit only wait for each other at every barrier.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path


@cache
def available_cpus() -> int:
    """The physical cores of the affinity mask, or the CPU quota of the container rounded up if that is less. Read once."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    allowed = os.sched_getaffinity(0)
    return max(1, math.ceil(min(physical_cores(allowed), cpu_quota())))


def physical_cores(cpus: set[int], root: Path = Path("/")) -> int:
    """The number of cores of these logical CPUs; a CPU whose core is unknown counts as one."""
    return len(one_of_each_core(cpus, root))


def one_of_each_core(cpus: Iterable[int], root: Path = Path("/")) -> list[int]:
    """The first of these logical CPUs on each core, ascending."""
    cores: dict[str, int] = {}
    for cpu in sorted(cpus):
        siblings = _read_text(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.setdefault(siblings or str(cpu), cpu)
    return list(cores.values())


def cpu_quota(root: Path = Path("/")) -> float:
    """The CPU quota of this process's control groups, in CPUs; infinite if they set no limit."""
    return min((quota for quota in _quotas(root) if quota > 0), default=math.inf)


def _quotas(root: Path) -> Iterator[float]:
    for group in _control_groups("cpu", root):
        quota, _, period = _read_text(group / "cpu.max").partition(" ")  # version 2
        if not quota:
            quota, period = _read_text(group / "cpu.cfs_quota_us"), _read_text(group / "cpu.cfs_period_us")
        if quota.isdecimal() and period.isdecimal():
            yield int(quota) / int(period)


def memory_limit(root: Path = Path("/")) -> int:
    """The machine's memory in bytes, or the lowest limit of this process's control groups if that is less."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 2**32
    files = (group / name for group in _control_groups("memory", root) for name in ("memory.max", "memory.limit_in_bytes"))
    return min([machine, *(int(limit) for limit in map(_read_text, files) if limit.isdecimal())])


def available_memory(root: Path = Path("/")) -> float:
    """The bytes that this process can still take without swapping, as far as the machine and its control groups say; infinite
    where they say nothing. Files that the system holds in memory count as available."""
    lines = (line.split() for line in _read_text(root / "proc/meminfo").splitlines())
    found = [int(words[1]) * 1024 for words in lines if words[:1] == ["MemAvailable:"]]
    for group in _control_groups("memory", root):
        for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            most, current = _read_text(group / limit), _read_text(group / used)
            if most.isdecimal() and current.isdecimal():
                found.append(max(0, int(most) - int(current) + _held_files(group)))
    return min(found, default=math.inf)


def _held_files(group: Path) -> int:
    """The bytes of files that the system holds in memory for a control group, and gives up when memory is short."""
    counts = dict(line.split() for line in _read_text(group / "memory.stat").splitlines() if line.count(" ") == 1)
    names = ("inactive_file", "active_file")
    return sum(int(counts.get(f"total_{name}", counts.get(name, "0"))) for name in names)  # total_: version 1


def _control_groups(controller: str, root: Path = Path("/")) -> Iterator[Path]:
    """The folders of the control groups (version 1 or 2) that limit this process with a controller, such as "cpu"."""
    for line in _read_text(root / "proc/self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:  # version 2: one hierarchy, any ancestor may limit
            yield from _with_ancestors(root / "sys/fs/cgroup", path)
        elif controller in controllers.split(","):  # version 1
            yield from _with_ancestors(root / "sys/fs/cgroup" / controller, path)


def _with_ancestors(mount: Path, path: str) -> Iterator[Path]:
    """The group's folder and its ancestors, up to the mount point, which inside a container may itself be the group."""
    group = mount / path.lstrip("/")
    yield group
    while group != mount and mount in group.parents:
        group = group.parent
        yield group


def _read_text(path: Path) -> str:
    """The stripped contents of a small system file, or "" if it cannot be read."""
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return ""
