"""How many threads are worth running: the CPUs that this process may use, as the system, the hardware and a container say.

Two threads on one core (SMT siblings) share its arithmetic units, and a container may own a share of a machine's CPU time
that is far less than its cores: threads beyond either wait for each other at every barrier.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
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
    """The number of cores that these logical CPUs belong to; a CPU of which the system does not tell counts as one."""
    cores = set()
    for cpu in cpus:
        siblings = text_of(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.add(siblings or str(cpu))
    return len(cores)


def cpu_quota(root: Path = Path("/")) -> float:
    """How many CPUs' worth of time the control groups of this process give it; infinite where they set no limit."""
    return min((quota for quota in _quotas(root) if quota > 0), default=math.inf)


def _quotas(root: Path) -> Iterator[float]:
    for group in control_groups("cpu", root):
        quota, _, period = text_of(group / "cpu.max").partition(" ")  # version 2
        if not quota:
            quota, period = text_of(group / "cpu.cfs_quota_us"), text_of(group / "cpu.cfs_period_us")
        if quota.isdecimal() and period.isdecimal():
            yield int(quota) / int(period)


def control_groups(controller: str, root: Path = Path("/")) -> Iterator[Path]:
    """The folders of the control groups, of version 1 or 2, that limit this process by a controller, such as "cpu"."""
    for line in text_of(root / "proc/self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:  # version 2: one hierarchy, any ancestor may limit
            yield from _with_ancestors(root / "sys/fs/cgroup", path)
        elif controller in controllers.split(","):  # version 1
            yield from _with_ancestors(root / "sys/fs/cgroup" / controller, path)


def _with_ancestors(mount: Path, path: str) -> Iterator[Path]:
    """The group's folder and those above it. Inside a container the mount point itself may be the group: it is the last."""
    group = mount / path.lstrip("/")
    yield group
    while group != mount and mount in group.parents:
        group = group.parent
        yield group


def text_of(path: Path) -> str:
    """The contents of a small file of the system, "" where there is none."""
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return ""
