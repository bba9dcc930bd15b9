"""profile: which calls it records."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest

import decodestep as ds
from decodestep import _native
from decodestep.weights import FeedForward, Format, LinearPanels, PackedWeight
from support import decoder_forward_cases, mla_prolog_cases

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


def small_calls():
    """A call of each operator that has the backends "cpu" and "reference"."""
    rng = np.random.default_rng(0)
    halves, cache, ids = X.astype(np.float16), np.ones((2, 4, 1, 8), np.float32), np.array([0, 1])
    square = LinearPanels.pack(PackedWeight.from_array(np.ones((32, 32), np.float32)), Format.Q8_0)
    block, tokens = FeedForward(square, square, square), np.ones((2, 32), np.float32)
    prolog = mla_prolog_cases.make(rng)
    decoder = decoder_forward_cases.step(
        decoder_forward_cases.weights(decoder_forward_cases.Sizes(), Format.Q8_0, rng), [3], rng
    )
    return {
        "apply_top_k_top_p": lambda **how: ds.apply_top_k_top_p(X, k=2, **how),
        "causal_conv1d": lambda **how: ds.causal_conv1d(X, X.T, np.zeros((1, len(X) - 1, X.shape[1]), np.float32), **how),
        "decode_step": lambda **how: ds.decode_step(X, [(), ()], **how),
        "decoder_forward": lambda **how: ds.decoder_forward(**decoder, **how),
        "expert_router": lambda **how: ds.expert_router(X, 2, **how),
        "gated_delta_rule": lambda **how: ds.gated_delta_rule(
            *[cache[:, 0]] * 3, np.zeros((1, 1, 8, 8), np.float32), scale=1, update_rule="linear", **how
        ),
        "lightning_indexer": lambda **how: ds.lightning_indexer(cache, cache[:, :, :1], cache[..., 0], **how),
        "linear": lambda **how: ds.linear(X, PackedWeight.from_array(X.T), **how),
        "mixture_of_experts": lambda **how: ds.mixture_of_experts(tokens, ids[:, None] * 0, X[:, :1], block, **how),
        "mla_attention": lambda **how: ds.mla_attention(
            cache[:, 0], cache[:, 0], cache, cache, [[0], [1]], [1, 2], scale=1, **how
        ),
        "mla_prolog_v3": lambda **how: ds.mla_prolog_v3(**prolog, **how),
        "rms_norm": lambda **how: ds.rms_norm(X, GAMMA, **how),
        "selective_state_update": lambda **how: ds.selective_state_update(
            cache[:, 0],
            cache[:, 0, :, 0],
            np.ones(1, np.float32),
            *[cache[:, 0]] * 2,
            np.zeros((1, 1, 8, 8), np.float32),
            **how,
        ),
        "sparse_mla_attention": lambda **how: ds.sparse_mla_attention(
            cache, cache, None, np.zeros((2, 4, 1, 1), np.int32), 1.0, query_rope=cache, key_rope=cache, **how
        ),
        "swiglu": lambda **how: ds.swiglu(X, X, **how),
        "tensor_scatter": lambda **how: ds.tensor_scatter(cache, cache[:, :1], axis=1, **how),
        "top_k_top_p_sample": lambda **how: ds.top_k_top_p_sample(halves, 2, 0.5, **how),
        "top_k_top_p_sample_v2": lambda **how: ds.top_k_top_p_sample_v2(X, 2, 0.5, **how),
        "uniform": lambda **how: ds.random.uniform(1, 2, ids, **how),
    }


@pytest.mark.parametrize(("op", "call"), small_calls().items(), ids=small_calls())
def test_what_is_recorded_as_cpu_runs_in_the_core(op, call, monkeypatch):
    """Both give the same numbers, perhaps to the bit: a call that went to the other one would not be noticed."""
    entered = []

    class Core:
        def __getattr__(self, name):
            if name != "unpack_linear_panels":  # weights in panels give their rows back there for the reference too
                entered.append(name)
            return getattr(_native, name)

    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("decodestep.") and vars(module).get("_native") is _native:
            monkeypatch.setattr(module, "_native", Core())
    for backend in ("cpu", "reference"):
        entered.clear()
        with ds.profile() as profile:
            call(backend=backend)
        assert bool(entered) == (backend == "cpu")
        assert profile.costs.keys() == {(op, backend)}
