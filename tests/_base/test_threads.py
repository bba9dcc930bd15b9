"""use_threads: what it changes, and for whom."""

from __future__ import annotations

import os
import sys
import threading

import pytest

import decodestep as ds
from decodestep._base import threads as module
from decodestep._base.threads import MAX_THREADS, threads
from support import processes


def in_a_thread(function):
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def test_use_threads_counts_in_its_block_and_its_thread():
    before = threads()
    with ds.use_threads(3):
        with ds.use_threads(MAX_THREADS):
            assert threads() == module.thread_limit()
        with ds.use_threads(None):
            assert threads() == min(3, module.thread_limit())
        assert in_a_thread(threads) == before
    assert threads() == before


@pytest.mark.parametrize("count", [0, -1, MAX_THREADS + 1, 2.0, True, "2"])
def test_use_threads_refuses(count):
    with (
        pytest.raises(ValueError, match=f"^use_threads: count must be an integer in \\[1, {MAX_THREADS}\\]; got {count!r}$"),
        ds.use_threads(count),
    ):
        pass


@pytest.mark.parametrize(("value", "printed"), [("1", "1"), ("0", "refused"), ("many", "refused"), ("", "refused")])
def test_the_environment_sets_the_threads(value, printed):
    code = (
        "from decodestep._base.threads import threads\n"
        "try: print(threads())\n"
        "except ValueError as error: print('refused' if 'threads: DECODESTEP_THREADS must be' in str(error) else error)"
    )
    environment = {**os.environ, "DECODESTEP_THREADS": value}
    run = processes.run([sys.executable, "-c", code], check=True, env=environment)
    assert run.stdout.strip() == printed
