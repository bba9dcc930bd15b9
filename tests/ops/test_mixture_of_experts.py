"""mixture_of_experts against float64 and its reference, and to the bit against itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import decodestep as ds
from decodestep import _native
from decodestep.ops.mixture_of_experts import cpu
from decodestep.weights import FeedForward, Format, LinearPanels, PackedWeight
from support.native_call_arguments import Vanishing
from support.tolerances import TOLERANCE, assert_close

HE, F, E = 64, 96, 5
BIASES = ("gate_bias", "up_bias", "down_bias")


def packed(inputs, outputs, rng, format_=Format.F32):
    values = rng.normal(size=(inputs, outputs)) / np.sqrt(inputs)
    panels = LinearPanels.pack(PackedWeight.from_array(values.astype(np.float32)), format_)
    return panels.rows() if format_ == Format.F32 else panels


def blocks(rng, *, count=E, hidden=HE, width=F, formats=(Format.F32,) * 3):
    """Rows of F32, panels of other formats."""
    sizes = ((hidden, count * width), (hidden, count * width), (width, count * hidden))
    return FeedForward(*(packed(*size, rng, f) for size, f in zip(sizes, formats, strict=True)), count)


def in_panels(w):
    return replace(w, **{name: LinearPanels.pack(p) for name in ("gate", "up", "down") if (p := getattr(w, name)) is not None})


def routes(rng, tokens, used, count=E):
    experts = np.array([rng.permutation(count)[:used] for _ in range(tokens)]).reshape(tokens, used)
    return experts, rng.uniform(0.1, 2, (tokens, used)).astype(np.float32)


def with_biases(w, rng, gated):
    parts = {"gate": w.gate, "up": w.up, "down": w.down}
    biases = {f"{name}_bias": rng.normal(size=part.shape[1]).astype(np.float32) for name, part in parts.items()}
    return replace(w, **biases) if gated else replace(w, **biases | {"gate": None, "gate_bias": None})


def truth(x, experts, weights, routed, shared=None):
    def product(row, m, bias, e, width):
        whole = row @ m.dense(np.float64) + (0 if bias is None else bias)
        return whole[e * width : (e + 1) * width]

    def through(row, w, e):
        gate = w.gate and product(row, w.gate, w.gate_bias, e, w.width)
        up = product(row, w.up, w.up_bias, e, w.width)
        if gate is None:
            y = np.maximum(up, 0) ** 2
        elif w.activation == "clamped_silu":
            g = np.minimum(gate, 7)
            y = g / (1 + np.exp(-1.702 * g)) * (np.clip(up, -7, 7) + 1)
        elif w.activation == "gelu":
            y = gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))) / 2 * up
        else:
            y = gate / (1 + np.exp(-gate)) * up
        return product(y, w.down, w.down_bias, e, w.hidden)

    y = np.zeros(x.shape)
    for t, row in enumerate(x.astype(np.float64)):
        for e, w in zip(experts[t], weights[t], strict=True):
            y[t] += w * through(row, routed, e)
        if shared is not None:
            y[t] += through(row, shared, 0)
    return y


def test_by_hand():
    """Two experts that multiply by 2 and by 3, with a gate so large that its SiLU is itself."""
    ones = np.ones((1, 2), np.float32)
    routed = FeedForward(*(PackedWeight.from_array(w) for w in (100 * ones, ones, np.array([[0.02, 0.03]], np.float32))), 2)
    x, weights = np.array([[1], [2]], np.float32), np.array([[1, 10], [2, 1]], np.float32)
    y = ds.mixture_of_experts(x, [[0, 1], [1, 1]], weights, routed)
    assert_close(y, np.array([[2 + 30], [3 * 4 * 3]]))


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("form", [lambda w: w, in_panels], ids=["rows", "panels"])
def test_against_float64(form, backend, rng):
    routed, shared = blocks(rng), blocks(rng, count=1, width=160)
    for tokens, used, extra in ((1, 1, None), (1, 3, shared), (2, 2, shared), (9, 4, None), (40, 2, shared), (3, 0, shared)):
        x, chosen = rng.normal(size=(tokens, HE)).astype(np.float32), routes(rng, tokens, used)
        y = ds.mixture_of_experts(x, *chosen, form(routed), extra and form(extra), backend=backend)
        assert y.dtype == np.float32
        expected = truth(x, *chosen, routed, extra)
        assert np.abs(y - expected).max() <= 2 * TOLERANCE["float32"] * np.abs(expected).max()


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("form", [lambda w: w, in_panels], ids=["rows", "panels"])
@pytest.mark.parametrize("change", [{"gate": None}, {"activation": "gelu"}], ids=["without a gate", "gelu"])
def test_other_activations_equal_float64_and_nan_stays_in_its_row(form, backend, change, rng):
    routed, shared = replace(blocks(rng), **change), replace(blocks(rng, count=1), **change)
    x, chosen = rng.normal(size=(9, HE)).astype(np.float32), routes(rng, 9, 2)
    y = ds.mixture_of_experts(x, *chosen, form(routed), form(shared), backend=backend)
    expected = truth(x, *chosen, routed, shared)
    assert np.abs(y - expected).max() <= 2 * TOLERANCE["float32"] * np.abs(expected).max()
    x[2, 5] = np.nan
    y = ds.mixture_of_experts(x, *chosen, form(routed), backend=backend)
    assert np.isnan(y[2]).all() and np.isfinite(np.delete(y, 2, 0)).all()


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("form", [lambda w: w, in_panels], ids=["rows", "panels"])
def test_clamped_silu_equals_float64_and_nan_stays_in_its_row(form, backend, rng):
    test_other_activations_equal_float64_and_nan_stays_in_its_row(form, backend, {"activation": "clamped_silu"}, rng)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("form", [lambda w: w, in_panels], ids=["rows", "panels"])
@pytest.mark.parametrize("gated", [True, False])
def test_a_bias_adds_what_one_more_input_of_ones_would(form, backend, gated, rng):
    """A bias is what one more input adds that is 1 for every token; that of the last product counts by the expert's weight."""
    routed, shared = with_biases(blocks(rng), rng, gated), with_biases(blocks(rng, count=1), rng, gated)
    x, chosen = rng.normal(size=(9, HE)).astype(np.float32), routes(rng, 9, 2)
    for kept in (BIASES, *([name] for name in BIASES)):
        some, beside = (replace(w, **{name: None for name in BIASES if name not in kept}) for w in (routed, shared))
        y = ds.mixture_of_experts(x, *chosen, form(some), form(beside), backend=backend)
        expected = truth(x, *chosen, some, beside)
        assert np.abs(y - expected).max() <= 2 * TOLERANCE["float32"] * np.abs(expected).max()


@pytest.mark.parametrize("form", [lambda w: w, in_panels], ids=["rows", "panels"])
def test_an_expert_named_twice_counts_twice(form, rng):
    """With [5, 5] and [5, 3] two tokens apart, the ends of expert 5's rows look like those of three tokens in a row."""
    routed = blocks(rng, count=6)
    for experts in ([[5, 5], [1, 2], [5, 3]], [[5, 5]], [[0, 1], [2, 2], [2, 2]], rng.integers(0, 6, (20, 3))):
        experts = np.asarray(experts)
        x = rng.normal(size=(len(experts), HE)).astype(np.float32)
        weights = rng.uniform(0.1, 2, experts.shape).astype(np.float32)
        y, expected = ds.mixture_of_experts(x, experts, weights, form(routed)), truth(x, experts, weights, routed)
        assert np.abs(y - expected).max() <= 2 * TOLERANCE["float32"] * np.abs(expected).max()


@pytest.mark.parametrize("formats", [("Q8_0",) * 3, ("Q8_0", "BF16", "Q8_0"), ("BF16", "BF16", "Q8_0")])
def test_formats_against_the_reference(formats, rng):
    """Few values lie so near to a tie that they are quantised to the other side."""
    formats = [Format[f] for f in formats]
    routed, shared = blocks(rng, formats=formats), blocks(rng, count=1, width=32, formats=formats)
    x, chosen = rng.normal(size=(30, HE)).astype(np.float32), routes(rng, 30, 3)
    y, expected = (ds.mixture_of_experts(x, *chosen, routed, shared, backend=b) for b in ("cpu", "reference"))
    apart = np.abs(y - expected) / np.abs(expected).max()
    assert np.quantile(apart, 0.8) < 2e-6 and apart.max() < 0.01


def test_odd_sizes_and_float64(rng):
    routed = blocks(rng, hidden=7, width=5, count=3)
    x, chosen = rng.normal(size=(4, 7)).astype(np.float32), routes(rng, 4, 2, 3)
    assert_close(ds.mixture_of_experts(x, *chosen, routed, backend="cpu"), truth(x, *chosen, routed))
    y = ds.mixture_of_experts(x.astype(np.float64), chosen[0], chosen[1].astype(np.float64), routed)
    assert y.dtype == np.float64
    assert_close(y, truth(x, *chosen, routed))
    one = blocks(rng, hidden=7, width=5, count=1)
    first = np.zeros((4, 1), np.int64), chosen[1][:, :1]
    assert_close(ds.mixture_of_experts(x, *first, in_panels(one), backend="cpu"), truth(x, *first, one))


@pytest.mark.parametrize("format_", ["F32", "Q8_0"])
def test_a_tokens_bits_are_its_own(format_, rng):
    formats = (Format[format_],) * 3
    routed, shared = blocks(rng, formats=formats), blocks(rng, count=1, formats=formats)
    if format_ == "F32":
        routed, shared = in_panels(routed), in_panels(shared)
    x, (experts, weights) = rng.normal(size=(13, HE)).astype(np.float32), routes(rng, 13, 3)
    alone = [ds.mixture_of_experts(x[[t]], experts[[t]], weights[[t]], routed, shared) for t in range(13)]
    for threads in (1, 2, 5):
        with ds.use_threads(threads):
            y = ds.mixture_of_experts(x, experts, weights, routed, shared)
            np.testing.assert_array_equal(y, np.concatenate(alone))
            turned = ds.mixture_of_experts(x[::-1], experts[::-1, ::-1], weights[::-1, ::-1], routed, shared)
            np.testing.assert_array_equal(turned[::-1], y)


def test_not_a_number_stays_in_its_token(rng):
    routed = in_panels(blocks(rng))
    x, chosen = rng.normal(size=(6, HE)).astype(np.float32), routes(rng, 6, 2)
    expected = ds.mixture_of_experts(x, *chosen, routed)
    x[2, 5] = np.nan
    y = ds.mixture_of_experts(x, *chosen, routed)
    assert np.isnan(y[2]).all()
    np.testing.assert_array_equal(np.delete(y, 2, 0), np.delete(expected, 2, 0))


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_what_overflows_does_so_in_silence(backend, gated, rng):
    rows = blocks(rng)
    routed = rows if gated else replace(rows, gate=None)
    experts, weights = routes(rng, 2, 2)
    y = ds.mixture_of_experts(np.full((2, HE), 1e30, np.float32), experts, weights * 0, routed, backend=backend)
    assert np.isnan(y).all()  # 0 times infinity


def test_tensors_give_tensors_and_no_tokens_or_experts_give_nothing(rng):
    routed = blocks(rng)
    x, (experts, weights) = rng.normal(size=(3, HE)).astype(np.float32), routes(rng, 3, 2)
    y = ds.mixture_of_experts(torch.from_numpy(x), torch.from_numpy(experts), torch.from_numpy(weights), in_panels(routed))
    assert isinstance(y, torch.Tensor)
    np.testing.assert_array_equal(y.numpy(), ds.mixture_of_experts(x, experts, weights, in_panels(routed)))
    assert ds.mixture_of_experts(x[:0], experts[:0], weights[:0], in_panels(routed)).shape == (0, HE)
    assert not ds.mixture_of_experts(x, experts[:, :0], weights[:, :0], in_panels(routed)).any()


def test_a_block_is_a_view(rng):
    routed = blocks(rng)
    panels = in_panels(routed)
    row, panel = routed.block(3), panels.block(3)
    assert row.count == panel.count == 1
    assert np.shares_memory(row.gate.rows, routed.gate.rows) and np.shares_memory(panel.gate.data, panels.gate.data)
    for w in (row.down, panel.down.rows()):
        np.testing.assert_array_equal(w.dense(), routed.down.dense()[:, 3 * HE : 4 * HE])
    for number in (-1, routed.count, 1.0):
        with pytest.raises(ValueError, match=rf"^FeedForward: number must be an integer in \[0, {routed.count}\); got"):
            routed.block(number)


def test_the_bytes_of_blocks_are_those_of_their_weights(rng):
    for routed in (blocks(rng), replace(blocks(rng), gate=None)):
        values = sum(4 * inputs * outputs for inputs, outputs in (weight.shape for weight in routed.weights))
        assert routed.nbytes == in_panels(routed).nbytes == values


W = PackedWeight.from_array(np.zeros((32, 64), np.float32))
ROUTED = FeedForward(W, W, W, 2)
CALL = {"x": np.zeros((1, 32), np.float32), "experts": [[0]], "weights": np.ones((1, 1), np.float32), "routed": ROUTED}


@pytest.mark.parametrize(
    ("message", "changed"),
    [
        ("x must be float32 or float64; got int64 1x32", {"x": np.zeros((1, 32), np.int64)}),
        (r"x must be of shape \(T, 32\); got float32 1x31", {"x": np.zeros((1, 31), np.float32)}),
        (r"experts must be in \[0, 2\); got 2 to 2", {"experts": [[2]]}),
        (r"experts must be in \[0, 2\); got -1 to -1", {"experts": [[-1]]}),
        (r"experts must be of shape \(1, K\); got int64 2x1", {"experts": [[0], [1]]}),
        ("experts must be integers of rank 2; got float64 1x1", {"experts": [[0.0]]}),
        ("weights must be of shape 1x1; got float32 1x2", {"weights": np.ones((1, 2), np.float32)}),
        ("weights must be float32; got float64 1x1", {"weights": np.ones((1, 1))}),
        ("routed must be a FeedForward; got None", {"routed": None}),
        ("shared must be a FeedForward or None; got 3", {"shared": 3}),
        ("shared must be one block of 32 inputs; got 2 of 32", {"shared": ROUTED}),
    ],
)
def test_refusals(message, changed):
    with pytest.raises(ValueError, match=f"^mixture_of_experts: {message}"):
        ds.mixture_of_experts(**{**CALL, **changed})


PANELS = LinearPanels.pack(W)


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("count must be an integer > 0; got 0", (W, W, W, 0)),
        ("count must be an integer > 0; got True", (W, W, W, True)),
        ("count must be an integer > 0; got 1.0", (W, W, W, 1.0)),
        ("gate must be a PackedWeight, a LinearPanels or a DeviceRows; got 5", (5, W, W)),
        ("up must be a PackedWeight, a LinearPanels or a DeviceRows; got None", (None, None, W)),
        ("gate must be of 3 blocks of outputs; got 32x64", (W, W, W, 3)),
        ("gate must be of 4 blocks of outputs, multiples of 32; got 32x64", (PANELS, PANELS, PANELS, 4)),
        ("down must be of shape 64x32; got 32x64", (W, W, W)),
        ("activation must be one of 'silu', 'gelu', 'clamped_silu'; got 1", (W, W, W, 2, 1)),
        ("activation must be one of 'silu'; got 'gelu'", (None, W, W, 2, "gelu")),
        ("gate_bias must be float32 of shape 64; got float32 32", (W, W, W, 2, "silu", np.ones(32, np.float32))),
        ("gate_bias must be None without a gate; got", (None, W, W, 2, "silu", np.ones(64, np.float32))),
        ("gate_bias must be float32 of shape 64; got", (W, W, W, 2, "silu", [1.0] * 64)),
        ("down_bias must be float32 of shape 64; got float64 64", (W, W, W, 2, "silu", None, None, np.ones(64))),
        ("up must be of shape 32x64; got 64x32", (W, PackedWeight.from_array(np.zeros((64, 32), np.float32)), W, 2)),
    ],
)
def test_refused_weights(message, arguments):
    with pytest.raises(ValueError, match=f"^FeedForward: {message}"):
        FeedForward(*arguments)


def native_call(rng, routed):
    experts, weights = routes(rng, 3, 2)
    x, y = rng.normal(size=(3, HE)).astype(np.float32), np.empty((3, HE), np.float32)
    shared = cpu.native_panels(None)
    _native.mixture_of_experts(x=x, experts=experts, weights=weights, routed=routed, count=E, shared=shared, y=y, threads=1)
    return y, ds.mixture_of_experts(x, experts, weights, in_panels(blocks(np.random.default_rng(1))))


def test_the_core_does_not_convert_weights(rng):
    panels, activation, biases = cpu.native_panels(in_panels(blocks(np.random.default_rng(1))))
    wide = [(data.astype(np.int16), *sizes) for data, *sizes in panels]
    with pytest.raises(TypeError, match="routed has the wrong type"):
        native_call(rng, (wide, activation, biases))


def test_weights_that_vanish_while_they_are_read(rng):
    panels, activation, biases = cpu.native_panels(in_panels(blocks(np.random.default_rng(1))))
    data, *sizes = panels[0]
    panels[0] = (Vanishing(data, panels), *sizes)
    np.testing.assert_array_equal(*native_call(rng, (panels, activation, biases)))
    assert not panels
