"""profile: which calls it records."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import decodestep as ds

X, GAMMA = np.ones((2, 8), np.float32), np.ones(8, np.float32)


def test_the_innermost_profile_records_the_calls_of_its_thread():
    with ds.profile() as outer:
        ds.rms_norm(X, GAMMA)
        with ds.profile() as inner:
            ds.rms_norm(X, GAMMA)
            ds.rms_norm(X, GAMMA, backend="reference")
        other = threading.Thread(target=ds.rms_norm, args=(X, GAMMA))
        other.start()
        other.join()
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
