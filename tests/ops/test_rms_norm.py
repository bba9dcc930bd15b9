"""rms_norm against float64, and to the bit against itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import decodestep as ds
from support.tolerances import assert_close

BACKENDS = ["cpu", "reference"]
X, GAMMA = np.ones((2, 3), np.float32), np.ones(3, np.float32)


def truth(x, gamma, eps):
    x = x.astype(np.float64)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * gamma.astype(np.float64)


@pytest.mark.parametrize("backend", BACKENDS)
def test_by_hand(backend):
    x = np.array([[3, -4, 0, 0], [0, 0, 0, 0]], np.float32)
    y = ds.rms_norm(x, np.array([1, 2, 3, 4], np.float32), eps=0.0, backend=backend)
    assert_close(y[0], np.array([1.2, -3.2, 0, 0]))
    assert np.isnan(y[1]).all()
    y = ds.rms_norm(x, np.ones(4, np.float32), eps=93.75, backend=backend)
    assert_close(y, x.astype(np.float64) / 10)


@pytest.mark.parametrize("backend", BACKENDS)
def test_against_float64(backend, rng):
    for tokens, width in ((1, 1), (3, 15), (2, 16), (5, 17), (4, 31), (1, 576), (7, 1000), (2, 4097)):
        for size in (1e-8, 1.0, 1e6):
            x, gamma = (size * rng.normal(size=(tokens, width))).astype(np.float32), rng.normal(size=width).astype(np.float32)
            expected = truth(x, gamma, 1e-5)
            assert_close(ds.rms_norm(x, gamma, backend=backend), expected, np.abs(expected) * 2)
            assert_close(ds.rms_norm(x, gamma, eps=1, backend=backend), truth(x, gamma, 1), np.abs(truth(x, gamma, 1)) * 2)


def test_float64_and_torch(rng):
    x, gamma = rng.normal(size=(3, 20)), rng.normal(size=20)
    assert_close(ds.rms_norm(x, gamma), truth(x, gamma, 1e-5))
    y = ds.rms_norm(torch.from_numpy(x).float(), torch.from_numpy(gamma).float(), eps=1e-6)
    assert isinstance(y, torch.Tensor)
    expected = torch.nn.functional.rms_norm(torch.from_numpy(x), (20,), torch.from_numpy(gamma), 1e-6)
    assert_close(y.numpy(), expected.numpy())


def test_no_tokens_or_columns_give_empty_results():
    for backend in BACKENDS:
        assert ds.rms_norm(X[:0], GAMMA, backend=backend).shape == (0, 3)
        assert ds.rms_norm(X[:, :0], GAMMA[:0], backend=backend).shape == (2, 0)


def test_a_rows_bits_are_its_own(rng):
    x, gamma = rng.normal(size=(9, 333)).astype(np.float32), rng.normal(size=333).astype(np.float32)
    alone = np.concatenate([ds.rms_norm(row[None], gamma) for row in x])
    for threads in (1, 2, 5):
        with ds.use_threads(threads):
            for tokens in range(1, 10):
                assert np.array_equal(ds.rms_norm(x[:tokens], gamma), alone[:tokens])
            assert np.array_equal(ds.rms_norm(x[::-1], gamma), alone[::-1])


def test_a_view_gives_the_bits_of_its_copy(rng):
    x, gamma = rng.normal(size=(8, 80)).astype(np.float32), rng.normal(size=80).astype(np.float32)
    crooked = np.frombuffer(b"\0" + x.tobytes(), np.float32, x.size, 1).reshape(x.shape)
    views = [(x[:, 3:40], gamma[3:40]), (x[::-2], gamma), (x[:, ::2], gamma[::-2]), (x.T, gamma[:8]), (crooked, gamma)]
    for view, scale in views:
        expected = ds.rms_norm(np.array(view, order="C"), np.array(scale))
        assert np.array_equal(ds.rms_norm(view, scale), expected)


def test_extremes_stay_in_their_rows(rng):
    x = rng.normal(size=(5, 40)).astype(np.float32)
    calm = ds.rms_norm(x, np.ones(40, np.float32))
    x[1, 3], x[2, 4], x[3] = np.nan, np.inf, 1e30  # the squares of the last are beyond float32
    for backend in BACKENDS:
        y = ds.rms_norm(x, np.ones(40, np.float32), backend=backend)
        assert np.isnan(y[1]).all()
        assert np.isnan(y[2, 4]) and not np.delete(y[2], 4).any()
        assert not y[3].any()
        assert_close(y[[0, 4]], calm[[0, 4]])


@pytest.mark.parametrize(
    ("message", "changed"),
    [
        ("x must be a NumPy array or a torch tensor; got list", {"x": X.tolist()}),
        ("x must be float32 or float64; got float16 2x3", {"x": X.astype(np.float16)}),
        (r"x must be of shape \(T, K\); got float32 3", {"x": X[0]}),
        ("gamma must be float32 of shape 3; got float64 3", {"gamma": GAMMA.astype(np.float64)}),
        ("gamma must be float32 of shape 3; got float32 2", {"gamma": GAMMA[:2]}),
        ("gamma must be float32 of shape 3; got float32 1x3", {"gamma": GAMMA[None]}),
        ("gamma must be a NumPy array or a torch tensor; got NoneType", {"gamma": None}),
        ("eps must be a finite number >= 0; got -1", {"eps": -1}),
        ("eps must be a finite number >= 0; got nan", {"eps": np.nan}),
        ("eps must be a finite number >= 0; got inf", {"eps": np.inf}),
        ("eps must be a finite number >= 0; got 1000", {"eps": 10**400}),
        ("eps must be a finite number >= 0; got True", {"eps": True}),
        ("eps must be a finite number >= 0; got None", {"eps": None}),
        ("backend must be one of 'auto', 'cpu', 'reference'; got 'gpu'", {"backend": "gpu"}),
        ("backend must be able to serve the call; got 'cpu', which needs float32",
         {"x": X.astype(np.float64), "gamma": GAMMA.astype(np.float64), "backend": "cpu"}),
    ],
)  # fmt: skip
def test_refusals(message, changed):
    with pytest.raises(ValueError, match=f"^rms_norm: {message}"):
        ds.rms_norm(**{"x": X, "gamma": GAMMA, **changed})


def test_rows_without_values_take_no_time():
    rows = np.empty((2**40, 0), np.float32)
    assert ds.rms_norm(rows, rows[0], backend="cpu").shape == rows.shape
