"""use_threads and profile: what they change, and for whom."""

from __future__ import annotations

import os
import sys
import threading

import numpy as np
import pytest

import decodestep as ds
import processes
from decodestep._base import dispatch
from decodestep._base.dispatch import MAX_THREADS, threads

X, GAMMA = np.ones((2, 8), np.float32), np.ones(8, np.float32)


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
            assert threads() == dispatch.thread_limit()
        with ds.use_threads(None):
            assert threads() == min(3, dispatch.thread_limit())
        assert in_a_thread(threads) == before
    assert threads() == before


@pytest.mark.parametrize("count", [0, -1, MAX_THREADS + 1, 2.0, True, "2"])
def test_use_threads_refuses(count):
    with (
        pytest.raises(ValueError, match=f"^threads: count must be an integer in \\[1, {MAX_THREADS}\\]"),
        ds.use_threads(count),
    ):
        pass


@pytest.mark.parametrize(("value", "printed"), [("1", "1"), ("0", "refused"), ("many", "refused"), ("", "refused")])
def test_the_environment_sets_the_threads(value, printed):
    code = (
        "from decodestep._base.dispatch import threads\n"
        "try: print(threads())\n"
        "except ValueError as error: print('refused' if 'threads: DECODESTEP_THREADS must be' in str(error) else error)"
    )
    environment = {**os.environ, "DECODESTEP_THREADS": value}
    run = processes.run([sys.executable, "-c", code], check=True, env=environment)
    assert run.stdout.strip() == printed


def test_the_innermost_profile_records_the_calls_of_its_thread():
    with ds.profile() as outer:
        ds.rms_norm(X, GAMMA)
        with ds.profile() as inner:
            ds.rms_norm(X, GAMMA)
            ds.rms_norm(X, GAMMA, backend="reference")
        in_a_thread(lambda: ds.rms_norm(X, GAMMA))
    ds.rms_norm(X, GAMMA)
    assert {key: cost.calls for key, cost in outer.costs.items()} == {("rms_norm", "cpu"): 1}
    assert {key: cost.calls for key, cost in inner.costs.items()} == {("rms_norm", "cpu"): 1, ("rms_norm", "reference"): 1}
    assert all(cost.seconds > 0 for cost in inner.costs.values())


def test_parts_of_an_operator_are_recorded_beside_its_whole(model):
    ids = [1, 2, 3]
    model.logits(ids)  # outside: no clock
    with ds.profile() as profile:
        model.logits(ids)
        ds.rms_norm(X, GAMMA)
    whole = profile.costs["decoder_forward", "cpu"]
    layers = model.config.layers
    assert {key[2]: cost.calls for key, cost in profile.parts.items()} == {
        "grouped_attention": layers,
        "feed_forward": 2 * layers,
        "linear": 2 * layers + 1,
    }
    assert all(key[:2] == ("decoder_forward", "cpu") for key in profile.parts)
    assert 0.5 * whole.seconds < sum(cost.seconds for cost in profile.parts.values()) <= whole.seconds


def test_a_call_that_raises_is_not_recorded():
    with ds.profile() as profile, pytest.raises(ValueError, match="rms_norm: gamma must be"):
        ds.rms_norm(X, GAMMA[:3])
    assert profile.costs == {}
