"""mixture_of_experts in Triton, interpreted where there is no GPU: the tests of the CPU's kernel, and what is the device's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import decodestep as ds
from decodestep.ops.mixture_of_experts import triton
from decodestep.weights import DeviceRows, FeedForward, Format, LinearPanels, PackedWeight
from support import triton_interpreter as gpu
from support.tolerances import assert_close
from support.triton_interpreter import guard_zones  # noqa: F401
from test_mixture_of_experts import (  # noqa: F401
    HE,
    blocks,
    routes,
    test_against_float64,
    test_an_expert_named_twice_counts_twice,
    test_by_hand,
    test_not_a_number_stays_in_its_token,
    test_other_activations_equal_float64_and_nan_stays_in_its_row,
    test_refusals,
    truth,
)

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def rows_of(weight):
    """A weight in panels as rows again, of its values: the products of a device quantise nothing."""
    return PackedWeight.from_array(weight.rows().dense()) if isinstance(weight, LinearPanels) else weight


def there(value):
    if not isinstance(value, FeedForward) or isinstance(value.up, DeviceRows):
        return value
    gate = None if value.gate is None else rows_of(value.gate)
    return FeedForward(gate, rows_of(value.up), rows_of(value.down), value.count, value.activation).to(gpu.DEVICE)


@pytest.fixture(autouse=True)
def _on_the_device(monkeypatch):
    gpu.serve(monkeypatch, "mixture_of_experts", there)
    monkeypatch.setattr(triton, "_COLUMNS", 128)  # few programs; the interpreter takes as long for each


def call(x, experts, weights, *rest):
    tensors = (gpu.on_device(np.asarray(a)) for a in (x, experts, weights))
    return gpu.on_host(ds.mixture_of_experts(*tensors, *rest, backend="triton"))


def test_a_tokens_bits_are_its_own(rng, monkeypatch):
    monkeypatch.setattr(triton, "_COLUMNS", 16)
    routed, shared = (blocks(rng, hidden=24, width=20, count=n).to(gpu.DEVICE) for n in (3, 1))
    x, (experts, weights) = rng.normal(size=(20, 24)).astype(np.float32), routes(rng, 20, 2, 3)
    y = call(x, experts, weights, routed, shared)
    turned = call(x[::-1], experts[::-1, ::-1], weights[::-1, ::-1], routed, shared)
    np.testing.assert_array_equal(turned[::-1], y)
    for t in (0, 19):
        np.testing.assert_array_equal(call(x[[t]], experts[[t]], weights[[t]], routed, shared)[0], y[t])


@pytest.mark.parametrize("types", [("float32",) * 3, ("float16",) * 3, ("bfloat16",) * 3, ("float16", "bfloat16", "bfloat16")])
def test_every_type_of_weight_and_strides(types, rng):
    """With a shared expert of bfloat16, whose tiles hold fewer tokens than those of other types."""

    def moved(block, types):
        weights = zip(block.weights, types, strict=True)
        parts = [DeviceRows(gpu.strided(gpu.on_device(w.values()).to(getattr(torch, name)))) for w, name in weights]
        exact = (PackedWeight.from_array(part.values.float().cpu().numpy().T) for part in parts)
        return FeedForward(*parts, block.count), FeedForward(*exact, block.count)

    routed, exact = moved(blocks(rng, hidden=33, width=17, count=3), types)
    shared, exact_shared = moved(blocks(rng, hidden=33, width=18, count=1), ("bfloat16",) * 3)
    x, chosen = rng.normal(size=(5, 33)).astype(np.float32), routes(rng, 5, 2, 3)
    tensors = gpu.strided(gpu.on_device(x)), gpu.on_device(chosen[0]), gpu.strided(gpu.on_device(chosen[1]))
    y = ds.mixture_of_experts(*tensors, routed, shared, backend="triton")
    assert_close(gpu.on_host(y), truth(x, *chosen, exact, exact_shared))


def test_weights_whose_values_lie_far_apart(rng):
    """So far that an int32 does not hold the distance."""
    gate, up, down = (gpu.on_device(w.values()).half() for w in blocks(rng, hidden=5, width=3, count=2).weights)
    far = torch.empty_strided(down.shape, (1, 2**30), dtype=torch.float16, device=gpu.DEVICE)
    far.copy_(down)
    x, chosen = rng.normal(size=(3, 5)).astype(np.float32), routes(rng, 3, 2, 2)
    near, moved = (call(x, *chosen, FeedForward(*map(DeviceRows, (gate, up, w)), 2)) for w in (down, far))
    np.testing.assert_array_equal(moved, near)


def test_more_tokens_than_a_tile_holds_and_limits_of_the_activations(rng):
    """GELU too; a gate of -inf gives 0 in SiLU and NaN in GELU, as in the reference."""
    for activation in ("silu", "gelu"):
        w = blocks(rng, hidden=8, width=4, count=2)
        routed = FeedForward(w.gate, w.up, w.down, 2, activation)
        x, chosen = (rng.normal(size=(37, 8)) * 30).astype(np.float32), routes(rng, 37, 2, 2)
        x[3], x[4, 2], x[5] = 1e38, np.inf, 0
        want = ds.mixture_of_experts(x, *chosen, routed, backend="reference")
        got = call(x, *chosen, routed.to(gpu.DEVICE))
        ordinary = np.delete(np.arange(37), [3, 4])
        assert_close(got[ordinary], want[ordinary])
        assert (np.isnan(got[[3, 4]]) == np.isnan(want[[3, 4]])).all()


def test_what_a_device_refuses(rng):
    w = blocks(rng, hidden=32, width=32, count=2)
    here, quantised = w.to(gpu.DEVICE), blocks(rng, hidden=32, width=32, count=2, formats=(Format.Q8_0,) * 3)
    x, (experts, weights) = rng.normal(size=(2, HE // 2)).astype(np.float32), routes(rng, 2, 2, 2)
    for change, message in (
        ({"routed": w}, "routed must be of DeviceRows on .*; got a PackedWeight"),
        ({"routed": quantised}, "routed must be of DeviceRows on .*; got a LinearPanels"),
        ({"routed": w.to("meta")}, "routed must be of DeviceRows on .*; got a DeviceRows on meta"),
        ({"shared": w.block(0)}, "shared must be of DeviceRows"),
        *(
            ({"shared": replace(here.block(0), **{name: np.ones(32, np.float32)})}, "has no biases")
            for name in ("gate_bias", "up_bias", "down_bias")
        ),
        ({"routed": replace(here, activation="clamped_silu")}, "has no clamped SiLU"),
        ({"weights": torch.zeros(2, 2, device="meta")}, "weights must be on"),
        ({"x": torch.zeros(2, 32, dtype=torch.float64, device=gpu.DEVICE)}, "has no float64"),
        ({"experts": experts + 1}, r"experts must be in \[0, 2\)"),
    ):
        tensors = {"x": gpu.on_device(x), "experts": gpu.on_device(experts), "weights": gpu.on_device(weights)}
        with pytest.raises(ValueError, match=message):
            ds.mixture_of_experts(**{**tensors, "routed": here, **change}, backend="triton")
    with pytest.raises(ValueError, match="routed must be of weights on the CPU for this backend; got DeviceRows"):
        ds.mixture_of_experts(torch.from_numpy(x), experts.tolist(), torch.from_numpy(weights), here, backend="reference")
    with pytest.raises(ValueError, match="weight must be of format F32, F16 or BF16; got Q8_0"):
        DeviceRows.of(PackedWeight(np.zeros((1, 34), np.uint8), Format.Q8_0, 32), gpu.DEVICE)
    with pytest.raises(ValueError, match="weights must be PackedWeights, to be copied; got LinearPanels"):
        quantised.to(gpu.DEVICE)
    for value in (np.zeros((2, 2), np.float32), torch.zeros(2), torch.zeros(2, 2, dtype=torch.int8)):
        with pytest.raises(ValueError, match="values must be a torch matrix"):
            DeviceRows(value)
