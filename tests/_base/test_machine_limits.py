"""What the process may use: affinity, SMT siblings, container quotas, memory."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

import decodestep as ds
from decodestep._base import machine_limits
from decodestep._base.threads import default_threads, threads


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, math.inf),
        ({"proc/self/cgroup": "0::/"}, math.inf),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "max 100000"}, math.inf),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "200000 100000"}, 2.0),
        ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/cpu.max": "3 2", "sys/fs/cgroup/a/b/cpu.max": "max 1"}, 1.5),
        ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/cpu.max": "8 1", "sys/fs/cgroup/a/b/cpu.max": "50000 100000"}, 0.5),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/docker/1\n3:memory:/docker/1",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "300000",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            3.0,
        ),
        (
            {
                "proc/self/cgroup": "4:cpuacct,cpu:/",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            math.inf,
        ),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "what"}, math.inf),
    ],
)
def test_the_lowest_quota_of_the_groups_counts(tmp_path, files, quota):
    assert machine_limits.cpu_quota(write(tmp_path, files)) == quota


@pytest.mark.parametrize(
    ("files", "available"),
    [
        ({}, math.inf),
        ({"proc/meminfo": "MemTotal: 900 kB\nMemAvailable:  400 kB\nBuffers: 3 kB"}, 400 * 1024),
        (
            {
                "proc/meminfo": "MemAvailable: 400 kB",
                "proc/self/cgroup": "0::/a",
                "sys/fs/cgroup/a/memory.max": "9000",
                "sys/fs/cgroup/a/memory.current": "8000",
                "sys/fs/cgroup/a/memory.stat": "anon 5000\ninactive_file 2000\nactive_file 500\nother",
            },
            3500,
        ),
        ({"proc/self/cgroup": "0::/a", "sys/fs/cgroup/a/memory.max": "max", "sys/fs/cgroup/a/memory.current": "8"}, math.inf),
        (
            {
                "proc/self/cgroup": "3:memory:/b",
                "sys/fs/cgroup/memory/b/memory.limit_in_bytes": "5000",
                "sys/fs/cgroup/memory/b/memory.usage_in_bytes": "4900",
                "sys/fs/cgroup/memory/b/memory.stat": "inactive_file 1\ntotal_inactive_file 100\ntotal_active_file 10",
            },
            210,
        ),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": "5", "sys/fs/cgroup/memory.current": "9"}, 0),
    ],
)
def test_memory_that_is_left(tmp_path, files, available):
    assert machine_limits.available_memory(write(tmp_path, files)) == available


def test_siblings_count_once(tmp_path):
    files = {f"sys/devices/system/cpu/cpu{i}/topology/thread_siblings_list": f"{i % 4},{i % 4 + 4}" for i in range(8)}
    root = write(tmp_path, files)
    assert machine_limits.physical_cores(set(range(8)), root) == 4
    assert machine_limits.physical_cores({0, 4}, root) == 1
    assert machine_limits.physical_cores({0, 1, 9}, root) == 3


def test_this_process_has_a_cpu():
    assert 1 <= machine_limits.available_cpus() <= len(os.sched_getaffinity(0))


def test_no_more_threads_than_cpus(monkeypatch):
    monkeypatch.setattr("decodestep._base.threads._environment_threads", lambda: None)
    monkeypatch.setattr("decodestep._base.threads.available_cpus", lambda: 3)
    monkeypatch.setattr("decodestep._base.threads.thread_limit", default_threads)
    assert threads() == 3
    for count, running in [(1, 1), (3, 3), (64, 3)]:
        with ds.use_threads(count):
            assert threads() == running
