"""causal_conv1d by hand, against float64, torch's convolution, transformers and ONNX."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import decodestep as ds
from support.recurrent_calls import normal
from support.tolerances import assert_close

BACKENDS = ["cpu", "reference"]
each_backend = pytest.mark.parametrize("backend", BACKENDS)
X, WEIGHT, STATE = np.ones((3, 2), np.float32), np.ones((2, 4), np.float32), np.zeros((1, 3, 2), np.float32)


def truth(x, weight, state, bias=0.0, silu=False):
    """One row in float64, by NumPy's convolution; y and the new state."""
    u = np.concatenate([state, x]).astype(np.float64)
    taps = weight.astype(np.float64)[:, ::-1]
    y = np.stack([np.convolve(u[:, c], taps[c], "valid") for c in range(x.shape[1])], axis=1) if len(x) else x.astype(float)
    y = y + bias
    return (y / (1 + np.exp(-y)) if silu else y), u[len(x) :]


@each_backend
def test_by_hand(backend):
    x = np.array([[1, 10], [2, 20], [3, 30]], np.float32)
    weight = np.array([[1000, 100, 10, 1], [0, 0, 0, -1]], np.float32)
    state = np.array([[[7, 0.5], [8, 0], [9, 0]]], np.float32)
    y = ds.causal_conv1d(x, weight, state, bias=np.array([0.5, 0], np.float32), backend=backend)
    assert y.tolist() == [[7891.5, -10], [8912.5, -20], [9123.5, -30]]
    assert state[0].tolist() == [[1, 10], [2, 20], [3, 30]]
    y = ds.causal_conv1d(x[:2], weight, state, backend=backend)  # fewer tokens than a state has inputs
    assert y.tolist() == [[1231, -10], [2312, -20]]
    assert state[0].tolist() == [[3, 30], [1, 10], [2, 20]]
    assert ds.causal_conv1d(x[:0], weight, state, backend=backend).shape == (0, 2)
    assert state[0].tolist() == [[3, 30], [1, 10], [2, 20]]


@each_backend
def test_one_tap_has_an_empty_state(backend):
    state = np.zeros((1, 0, 2), np.float32)
    y = ds.causal_conv1d(X * 3, WEIGHT[:, :1] * 2, state, bias=np.float32([1, 2]), activation="silu", backend=backend)
    assert_close(y, np.array([[7, 8]] * 3) / (1 + np.exp(-np.array([7.0, 8.0]))))


@each_backend
@pytest.mark.parametrize("channels", [1, 15, 16, 17, 300, 1025])
def test_against_float64(backend, channels, rng):
    for taps in (1, 2, 3, 4, 7):
        for tokens in (0, 1, 2, taps - 1, taps, 9):
            x, weight = normal(rng, tokens, channels), normal(rng, channels, taps)
            bias, state = normal(rng, channels), normal(rng, 1, taps - 1, channels)
            for silu in (False, True):
                held = state.copy()
                y = ds.causal_conv1d(x, weight, held, bias=bias, activation="silu" if silu else None, backend=backend)
                expected, kept = truth(x, weight, state[0], bias, silu)
                assert_close(y, expected)
                np.testing.assert_array_equal(held[0], kept)


def test_float64_gives_the_formulas_numbers(rng):
    x, weight, state = rng.normal(size=(6, 5)), rng.normal(size=(5, 4)), rng.normal(size=(1, 3, 5))
    expected, kept = truth(x, weight, state[0], silu=True)
    y = ds.causal_conv1d(x, weight, state, activation="silu")
    assert y.dtype == np.float64
    assert_close(y, expected)
    np.testing.assert_array_equal(state[0], kept)


@each_backend
def test_extremes_stay_in_their_channels(backend, rng):
    x, weight, state = normal(rng, 6, 40), normal(rng, 40, 4), normal(rng, 1, 3, 40)
    calm = ds.causal_conv1d(x, weight, state.copy(), activation="silu", backend=backend)
    x[2, 3], x[1, 7], state[0, 0, 9], x[:, 11] = np.nan, np.inf, np.nan, -1e30
    weight[11], weight[7] = 1, 1
    held = state.copy()
    y = ds.causal_conv1d(x, weight, held, activation="silu", backend=backend)
    assert np.isnan(y[2:6, 3]).all() and not np.isnan(y[:2, 3]).any()
    assert np.isposinf(y[1:5, 7]).all()
    assert np.isnan(y[0, 9]) and not np.isnan(y[1:, 9]).any()
    assert (np.abs(y[3:, 11]) < 1e-6).all()
    others = np.delete(np.arange(40), [3, 7, 9, 11])
    np.testing.assert_array_equal(y[:, others], calm[:, others])
    np.testing.assert_array_equal(held[0], x[3:])


def test_a_weight_with_taps_first_is_read_in_place(rng):
    x, taps, state = normal(rng, 5, 33), normal(rng, 4, 33), normal(rng, 1, 3, 33)
    a, b = state.copy(), state.copy()
    y = ds.causal_conv1d(x, taps.T, a)
    np.testing.assert_array_equal(y, ds.causal_conv1d(x, np.ascontiguousarray(taps.T), b))


@pytest.mark.parametrize("bias", [False, True])
def test_against_torchs_convolution(bias, rng):
    x, weight, state = normal(rng, 50, 24), normal(rng, 24, 3), np.zeros((1, 2, 24), np.float32)
    offsets = normal(rng, 24) if bias else None
    y = ds.causal_conv1d(x, weight, state, bias=offsets)
    tensors = torch.from_numpy(x.T[None]), torch.from_numpy(weight[:, None])
    theirs = torch.nn.functional.conv1d(*tensors, None if offsets is None else torch.from_numpy(offsets), padding=2, groups=24)
    assert_close(y, theirs[0, :, :50].T.double().numpy())


def test_against_transformers(rng):
    """Its step for one token keeps K inputs, of which the oldest is never used again."""
    modeling = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    x, weight, state = normal(rng, 6, 20), normal(rng, 20, 4), normal(rng, 1, 3, 20)
    theirs = torch.from_numpy(np.concatenate([normal(rng, 1, 20), state[0]]).T[None].copy())
    for t in range(6):
        token = torch.from_numpy(x[t][None, :, None].copy())
        step = modeling.causal_conv1d_update(token, theirs, torch.from_numpy(weight), None, "silu")
        assert_close(ds.causal_conv1d(x[[t]], weight, state, activation="silu"), step[0].T.double().numpy())
        np.testing.assert_array_equal(state[0], theirs[0, :, 1:].T.numpy())


@pytest.mark.parametrize(
    ("message", "changed"),
    [
        ("x must be a NumPy array or a torch tensor; got list", {"x": X.tolist()}),
        ("x must be float32 or float64; got float16 3x2", {"x": X.astype(np.float16)}),
        (r"x must be of shape \(T, C\); got float32 3", {"x": X[:, 0]}),
        (r"weight must be float32 of shape \(2, K\) with K >= 1; got float64 2x4", {"weight": WEIGHT.astype(float)}),
        (r"weight must be float32 of shape \(2, K\) with K >= 1; got float32 2x1x4", {"weight": WEIGHT[:, None]}),
        (r"weight must be float32 of shape \(2, K\) with K >= 1; got float32 2x0", {"weight": WEIGHT[:, :0]}),
        (r"weight must be float32 of shape \(2, K\) with K >= 1; got float32 4x2", {"weight": WEIGHT.T}),
        ("bias must be float32 of shape 2; got float32 3", {"bias": np.ones(3, np.float32)}),
        ("bias must be float32 of shape 2; got float64 2", {"bias": np.ones(2)}),
        ("activation must be one of None, 'silu'; got 'swish'", {"activation": "swish"}),
        (r"state must be float32 of shape \(S, 3, 2\); got float32 1x4x2", {"state": np.zeros((1, 4, 2), np.float32)}),
    ],
)  # fmt: skip
def test_refusals(message, changed):
    state = STATE.copy()
    with pytest.raises(ValueError, match=f"^causal_conv1d: {message}$"):
        ds.causal_conv1d(**{"x": X, "weight": WEIGHT, "state": state, **changed})
    assert not state.any()
