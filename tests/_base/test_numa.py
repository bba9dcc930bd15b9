"""Where threads run on machines of several memory nodes: made-up machines, and this one in a process of its own."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest

import decodestep as ds
from decodestep._base.numa import memory_nodes, spread
from decodestep.weights import Format
from support import processes
from support.decoder_forward_cases import Sizes, copied, step, weights

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads are placed on Linux only")


@pytest.mark.parametrize(
    ("count", "expected"),
    [(8, [0, 1, 2, 3, 4, 5, 6, 7]), (64, [0, 1, 2, 3, 4, 5, 6, 7]), (4, [0, 2, 4, 6]), (2, [0, 4]), (3, [0, 2, 5]), (1, [0])],
)
def test_threads_are_spread_over_nodes(count, expected):
    assert spread([[0, 1, 2, 3], [4, 5, 6, 7]], count) == expected


@pytest.mark.parametrize(
    ("lists", "allowed", "expected"),
    [
        ({0: "0-3,8", 1: "4-7"}, set(range(9)), [[0, 1, 2, 3, 8], [4, 5, 6, 7]]),
        ({0: "0-3", 1: "4-7"}, {2, 5, 6}, [[2], [5, 6]]),
        ({0: "0-3", 1: "4-7"}, {5}, [[5]]),
        ({0: "0-1", 1: "", 10: "4", 2: "2-3"}, set(range(8)), [[0, 1], [2, 3], [4]]),  # a node of memory alone
        ({}, {3, 1}, [[1, 3]]),
    ],
)
def test_nodes_of_a_machine(tmp_path, monkeypatch, lists, allowed, expected):
    for number, text in lists.items():
        file = tmp_path / f"sys/devices/system/node/node{number}/cpulist"
        file.parent.mkdir(parents=True)
        file.write_text(f"{text}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: allowed)
    assert memory_nodes(tmp_path) == expected


def test_another_way_is_refused():
    with pytest.raises(ValueError, match=r"set_numa: how must be 'distribute' or 'isolate'; got 'numactl'"):
        ds.set_numa("numactl")


def affinities() -> list[set[int]]:
    """Of this process's threads, in the order in which they were started."""
    return [os.sched_getaffinity(int(number)) for number in sorted(os.listdir("/proc/self/task"), key=int)]


def placed_steps(how: str) -> None:
    """A step before and after threads are placed, on more threads than there are CPUs, and where the threads are then."""
    call = step(weights(Sizes(layers=1), Format.Q8_0, np.random.default_rng(0)), [300, 2], np.random.default_rng(1))
    with pytest.MonkeyPatch.context() as patch, ds.use_threads(16):
        patch.setattr("decodestep._base.threads.thread_limit", lambda: 16)
        expected, own = ds.decoder_forward(**copied(call)), os.sched_getaffinity(0)
        ds.set_numa(how)
        before = len(affinities())
        assert np.array_equal(ds.decoder_forward(**copied(call)), expected)
    with ds.use_threads(1):
        assert np.array_equal(ds.decoder_forward(**copied(call)), expected)
    assert len(affinities()) == before >= 16
    nodes = memory_nodes()
    if how == "distribute":
        pinned = [cpus for cpus in affinities() if len(cpus) == 1]
        assert len(pinned) >= 15
        assert set.union(*pinned) == set(spread([ds._base.machine_limits.one_of_each_core(node) for node in nodes], 16))
        assert os.sched_getaffinity(0) == own  # the caller's
    else:
        assert all(cpus == affinities()[0] for cpus in affinities())
        assert sorted(affinities()[0]) in nodes


@pytest.mark.parametrize("how", ["distribute", "isolate"])
def test_threads_of_a_step(how):
    ran = processes.run_python(f"import test_numa as t; t.placed_steps({how!r})")
    assert ran.returncode == 0, ran.stderr


def test_a_new_worker_goes_to_its_cpu():
    """Also one that is started later; a CPU that there is not is refused."""
    code = """
import os, numpy as np, decodestep as ds
from decodestep import _native
cpu = min(os.sched_getaffinity(0))
assert _native.pin_workers([cpu])
before = set(os.listdir("/proc/self/task"))
import decodestep._base.threads as threads
threads.thread_limit = lambda: 3
with ds.use_threads(3):
    ds.rms_norm(np.ones((4000, 512), np.float32), np.ones(512, np.float32))
started = set(os.listdir("/proc/self/task")) - before
assert len(started) == 2 and all(os.sched_getaffinity(int(task)) == {cpu} for task in started), started
assert not _native.pin_workers([100_000])
assert not _native.pin_workers([-1])
"""
    ran = processes.run_python(code)
    assert ran.returncode == 0, ran.stderr
