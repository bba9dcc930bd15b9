"""swiglu against float64, and to the bit against itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import decodestep as ds
from support.tolerances import assert_close

BACKENDS = ["cpu", "reference"]
X = np.ones((2, 3), np.float32)


def truth(gate, up):
    gate = gate.astype(np.float64)
    return gate / (1 + np.exp(-gate)) * up.astype(np.float64)


@pytest.mark.parametrize("backend", BACKENDS)
def test_by_hand(backend):
    gate = np.array([[0, np.log(3), -np.log(3), 50]], np.float32)
    up = np.array([[5, 4, 4, -2]], np.float32)
    assert_close(ds.swiglu(gate, up, backend=backend), np.array([[0, 3 * np.log(3), -np.log(3), -100]]))


@pytest.mark.parametrize("backend", BACKENDS)
def test_against_float64(backend, rng):
    for tokens, width in ((1, 1), (3, 15), (2, 16), (5, 17), (4, 31), (1, 1536), (7, 1000)):
        gate = rng.uniform(-80, 80, (tokens, width)).astype(np.float32) * rng.random((tokens, width), np.float32)
        up = rng.normal(size=(tokens, width)).astype(np.float32)
        expected = truth(gate, up)
        assert_close(ds.swiglu(gate, up, backend=backend), expected, np.abs(expected))


@pytest.mark.parametrize("backend", BACKENDS)
def test_extreme_gates_have_their_limits(backend):
    gate = np.array([[-np.inf, -1e38, -1000, -88.5, 1000, 1e38, np.inf, np.nan, 1, -0.0]], np.float32)
    y = ds.swiglu(gate, np.full_like(gate, 2), backend=backend)[0]
    assert (np.abs(y[:4]) < 2e-36).all()
    assert y[4:7].tolist() == [2000, np.float32(2e38), np.inf]
    assert np.isnan(y[7]) and not np.isnan(y[8:]).any()
    assert y[9] == 0


def test_float64_and_torch(rng):
    gate, up = rng.normal(size=(3, 20)), rng.normal(size=(3, 20))
    assert_close(ds.swiglu(gate, up), truth(gate, up))
    y = ds.swiglu(torch.from_numpy(gate).float(), torch.from_numpy(up).float())
    assert isinstance(y, torch.Tensor)
    expected = torch.nn.functional.silu(torch.from_numpy(gate)) * torch.from_numpy(up)
    assert_close(y.numpy(), expected.numpy())


def test_no_tokens_or_columns_give_empty_results():
    for backend in BACKENDS:
        for empty in (X[:0], X[:, :0]):
            assert ds.swiglu(empty, empty, backend=backend).shape == empty.shape


def test_an_elements_bits_are_its_own(rng):
    gate, up = rng.normal(size=(2, 9, 333)).astype(np.float32)
    alone = np.concatenate([ds.swiglu(gate[t : t + 1], up[t : t + 1]) for t in range(9)])
    for threads in (1, 2, 5):
        with ds.use_threads(threads):
            assert np.array_equal(ds.swiglu(gate, up), alone)
            assert np.array_equal(ds.swiglu(gate[::-1], up[::-1]), alone[::-1])
            assert np.array_equal(ds.swiglu(gate[:, 5:], up[:, 5:]), alone[:, 5:])


def test_a_view_gives_the_bits_of_its_copy(rng):
    both = rng.normal(size=(6, 60)).astype(np.float32)
    crooked = np.frombuffer(b"\0" + both.tobytes(), np.float32, both.size, 1).reshape(both.shape)
    pairs = [(both[:, :30], both[:, 30:]), (both[::-1, :30], both[:, ::2]), (both.T, both.T), (crooked, both)]
    for gate, up in pairs:
        assert np.array_equal(ds.swiglu(gate, up), ds.swiglu(np.array(gate, order="C"), np.array(up, order="C")))


@pytest.mark.parametrize(
    ("message", "changed"),
    [
        ("gate must be a NumPy array or a torch tensor; got list", {"gate": X.tolist()}),
        ("gate must be float32 or float64; got int64 2x3", {"gate": X.astype(np.int64)}),
        (r"gate must be of shape \(T, F\); got float32 3", {"gate": X[0], "up": X[0]}),
        ("up must be of gate's shape and dtype; got float64 2x3", {"up": X.astype(np.float64)}),
        ("up must be of gate's shape and dtype; got float32 1x3", {"up": X[:1]}),
        ("up must be a NumPy array or a torch tensor; got NoneType", {"up": None}),
        ("backend must be one of 'auto', 'cpu', 'reference'; got 'gpu'", {"backend": "gpu"}),
        ("backend must be able to serve the call; got 'cpu', which needs float32",
         {"gate": X.astype(np.float64), "up": X.astype(np.float64), "backend": "cpu"}),
    ],
)  # fmt: skip
def test_refusals(message, changed):
    with pytest.raises(ValueError, match=f"^swiglu: {message}"):
        ds.swiglu(**{"gate": X, "up": X, **changed})


def test_rows_without_values_take_no_time():
    rows = np.empty((2**40, 0), np.float32)
    assert ds.swiglu(rows, rows, backend="cpu").shape == rows.shape
