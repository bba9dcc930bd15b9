"""The noise against a stock MurmurHash3, extended precision and the distributions that it should follow."""

from __future__ import annotations

from typing import Any

import mmh3
import numpy as np
import pytest
import scipy.stats
import torch

import decodestep as ds
from decodestep._base import exact_math
from support.misaligned import misaligned

BACKENDS = ["cpu", "reference"]
MAPS = ["noise_bits", "uniform", "exponential", "gumbel"]


def records(n: int, rng_seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(rng_seed)
    return (
        rng.integers(0, 2**64, n, np.uint64),
        rng.integers(0, 2**32, n, np.uint32),
        rng.integers(0, 2**32, n, np.uint32),
    )


def tokens_for(bits: np.ndarray, seed: int, position: int) -> np.ndarray:
    """The tokens whose records hash to `bits`: every step of the hash can be undone."""

    def unshift(x: np.ndarray, by: int) -> np.ndarray:
        y = x
        for _ in range(32 // by):  # each round recovers `by` bits more
            y = x ^ (y >> np.uint32(by))
        return y

    def divide(x: np.ndarray, factor: int) -> np.ndarray:
        return x * np.uint32(pow(factor, -1, 2**32))

    def rotate(x: np.ndarray, left: int) -> np.ndarray:
        return (x << np.uint32(left)) | (x >> np.uint32(32 - left))

    before = np.zeros(1, np.uint32)
    for word in (seed & 0xFFFFFFFF, seed >> 32, position):
        k = rotate(np.full(1, word, np.uint32) * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
        before = rotate(before ^ k, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    h = unshift(bits.astype(np.uint32), 16)
    h = unshift(divide(h, 0xC2B2AE35), 13)
    h = unshift(divide(h, 0x85EBCA6B), 16) ^ np.uint32(16)
    k = rotate(divide(h - np.uint32(0xE6546B64), 5), 32 - 13) ^ before
    return divide(rotate(divide(k, 0x1B873593), 32 - 15), 0xCC9E2D51)


def bits_to_try() -> np.ndarray:
    """Both ends, all powers of two and their neighbours, the seam of log1p, and as many from every binade."""
    edges = [np.arange(3000), 2**32 - 1 - np.arange(3000)]
    edges += [2**k + np.arange(-200, 200) for k in range(10, 33)]
    edges += [int((1 - 0.5**0.5) * 2**32) + np.arange(-500, 500), int((1 - np.exp(-1)) * 2**32) + np.arange(-500, 500)]
    rng = np.random.default_rng(1)
    edges += [rng.integers(2**k, 2 ** (k + 1), 5000) for k in range(32)]
    every = np.concatenate(edges)
    return every[(every >= 0) & (every < 2**32)].astype(np.uint32)


def noise_of_bits(name: str, bits: np.ndarray, backend: str) -> np.ndarray:
    seed, position = 0x0123456789ABCDEF, 77
    return getattr(ds.random, name)(seed, position, tokens_for(bits, seed, position), backend=backend)


def test_equals_a_stock_murmurhash3() -> None:
    seed, position, token = records(1_000_000)
    packed = np.empty(len(seed), [("seed", "<u8"), ("position", "<u4"), ("token", "<u4")])
    packed["seed"], packed["position"], packed["token"] = seed, position, token
    memory = packed.tobytes()
    expected = [mmh3.hash(memory[i : i + 16], 0, signed=False) for i in range(0, len(memory), 16)]
    for backend in BACKENDS:
        bits = ds.random.noise_bits(seed, position, token, backend=backend)
        assert bits.dtype == np.uint32
        assert np.array_equal(bits, np.array(expected, np.uint32))


def test_one_record_by_hand() -> None:
    record = b"\x2a\0\0\0\0\0\0\0" + b"\x07\0\0\0" + b"\xe8\x03\0\0"
    bits = ds.random.noise_bits(42, 7, 1000)
    assert type(bits) is np.uint32
    assert bits == mmh3.hash(record, 0, signed=False)
    u = min((np.float32(bits) + np.float32(0.5)) * np.float32(2.0**-32), np.float32(1 - 2.0**-24))
    assert ds.random.uniform(42, 7, 1000) == u
    assert ds.random.exponential(42, 7, 1000) == np.float32(-np.log1p(-np.float64(u)))
    assert type(ds.random.gumbel(42, 7, 1000)) is np.float32


def test_any_bits_can_be_reached() -> None:
    bits = bits_to_try()
    assert np.array_equal(noise_of_bits("noise_bits", bits, "reference"), bits)


@pytest.mark.parametrize("name", MAPS)
def test_backends_agree_to_the_bit(name: str) -> None:
    columns = records(300_000, 2)
    pairs = [[getattr(ds.random, name)(*columns, backend=backend) for backend in BACKENDS]]
    pairs.append([noise_of_bits(name, bits_to_try(), backend) for backend in BACKENDS])
    for ours, reference in pairs:
        assert ours.dtype == reference.dtype == (np.uint32 if name == "noise_bits" else np.float32)
        assert np.array_equal(ours.view(np.uint32), reference.view(np.uint32))


def units_in_the_last_place(actual: np.ndarray, truth: np.ndarray) -> float:
    return float((np.abs(actual - truth) / np.spacing(np.abs(truth).astype(np.float32))).max())


def test_maps_over_the_whole_domain() -> None:
    bits = bits_to_try()
    u, q, g = (noise_of_bits(name, bits, "cpu") for name in MAPS[1:])
    exact = (bits.astype(np.float32).astype(np.float64) + 0.5).astype(np.float32).astype(np.float64) * 2.0**-32
    assert np.array_equal(u, np.minimum(exact, 1 - 2.0**-24))
    assert u.min() == np.float32(2.0**-33) and u.max() == np.float32(1 - 2.0**-24)
    # Half a unit is a correctly rounded result; the promise is 2.
    assert units_in_the_last_place(q, -np.log1p(-u.astype(np.longdouble))) < 0.51
    assert units_in_the_last_place(g, -np.log(q.astype(np.longdouble))) < 0.51
    assert q.min() > 0 and np.isfinite(q).all() and np.isfinite(g).all()
    order = np.argsort(bits)
    assert (np.diff(q[order]) >= 0).all() and (np.diff(g[order]) <= 0).all()


@pytest.mark.parametrize(("name", "law"), [("uniform", "uniform"), ("exponential", "expon"), ("gumbel", "gumbel_r")])
def test_noise_has_its_distribution_along_every_argument(name: str, law: str) -> None:
    """Neighbouring records, as a decode loop makes them, and in every argument."""
    steps = np.arange(100_000)
    for columns in ((steps, 5, 9), (12345, steps, 9), (12345, 5, steps), (steps // 100, steps % 100, 3)):
        noise = getattr(ds.random, name)(*columns)
        assert scipy.stats.kstest(noise, law).pvalue > 1e-3


def test_bits_are_balanced_and_rows_uncorrelated() -> None:
    bits = ds.random.noise_bits(np.arange(64)[:, None], 0, np.arange(2000))
    ones = (bits[..., None] >> np.arange(32, dtype=np.uint32)) & 1
    assert np.abs(ones.mean((0, 1)) - 0.5).max() < 5 * 0.5 / np.sqrt(bits.size)
    correlation = np.corrcoef(bits.astype(np.float64))
    assert np.abs(correlation - np.eye(64)).max() < 5.5 / np.sqrt(2000)


def test_gumbel_argmax_draws_from_softmax() -> None:
    score = np.log(np.array([0.5, 0.3, 0.15, 0.05]))
    noise = ds.random.gumbel(np.arange(40_000)[:, None], 0, np.arange(4))
    counts = np.bincount(np.argmax(score + noise, axis=1), minlength=4)
    assert scipy.stats.chisquare(counts, np.exp(score) * 40_000).pvalue > 1e-3


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", MAPS)
def test_arguments_are_broadcast(name: str, backend: str) -> None:
    draw = getattr(ds.random, name)
    seed, position, token = np.array([[[1]], [[2]]]), np.arange(3)[:, None], np.arange(4)
    noise = draw(seed, position, token, backend=backend)
    assert noise.shape == (2, 3, 4)
    for index in np.ndindex(2, 3, 4):
        one = draw(int(seed[index[0], 0, 0]), int(position[index[1], 0]), int(token[index[2]]), backend=backend)
        assert np.ndim(one) == 0 and one == noise[index]
    assert draw(np.zeros((0, 3), np.int64), 1, np.arange(3), backend=backend).shape == (0, 3)
    assert draw(1, 2, np.int64(3), backend=backend) == draw(1, 2, np.array([3], np.uint8), backend=backend)[0]
    assert draw(1, 2, np.array(3), backend=backend).shape == ()
    reverse = draw(5, np.arange(10)[::-2], 6, backend=backend)
    assert np.array_equal(reverse, draw(5, [9, 7, 5, 3, 1], 6, backend=backend))
    assert draw(2**64 - 1, 2**32 - 1, 2**32 - 1, backend=backend) == draw(
        np.uint64(2**64 - 1), np.array(2**32 - 1, ">u4"), [[2**32 - 1]], backend=backend
    )


@pytest.mark.parametrize("name", MAPS)
def test_torch_tensors_give_torch_tensors(name: str) -> None:
    draw = getattr(ds.random, name)
    expected = draw(np.arange(3)[:, None], 5, np.arange(4))
    for columns in (
        (torch.arange(3)[:, None], 5, torch.arange(4)),
        (np.arange(3)[:, None], 5, torch.arange(4, dtype=torch.int32)),
        (torch.arange(3)[:, None], torch.tensor(5), np.arange(4)),
    ):
        noise = draw(*columns)
        assert isinstance(noise, torch.Tensor)
        assert noise.dtype == (torch.uint32 if name == "noise_bits" else torch.float32)
        assert np.array_equal(noise.numpy(), expected)
    assert draw(torch.tensor(1), 2, 3).shape == ()


REFUSALS: list[tuple[str, tuple[Any, Any, Any]]] = [
    (r"seed must be integers in \[0, 2\^64\); got -1", (-1, 0, 0)),
    (r"seed must be integers in \[0, 2\^64\); got 18446744073709551616", (2**64, 0, 0)),
    (r"position must be integers in \[0, 2\^32\); got 4294967296", (0, 2**32, 0)),
    (r"token must be integers in \[0, 2\^32\); got -1", (0, 0, -1)),
    (r"token must be integers in \[0, 2\^32\); got -5", (0, 0, np.array([3, -5]))),
    (r"token must be integers in \[0, 2\^32\); got 4294967296", (0, 0, np.array([3, 2**32], np.uint64))),
    (r"position must be integers in .*; got -1", (0, torch.tensor([-1]), 0)),
    (r"seed must be integers in .*; got bool scalar", (True, 0, 0)),
    (r"seed must be integers in .*; got bool scalar", (np.True_, 0, 0)),
    (r"seed must be integers in .*; got float64 scalar", (1.0, 0, 0)),
    (r"seed must be integers in .*; got bool 1", (np.array([True]), 0, 0)),
    (r"position must be integers in .*; got float32 2", (0, np.zeros(2, np.float32), 0)),
    (r"position must be integers in .*; got float64 1", (0, [0.5], 0)),
    (r"token must be integers in .*; got object scalar", (0, 0, None)),
    (r"token must be integers in .*; got <U1 scalar", (0, 0, "7")),
    (r"token must be an array or a list of numbers; got \[\[1\], \[1, 2\]\]", (0, 0, [[1], [1, 2]])),
    (r"seed, position and token must be of shapes that broadcast; got \[\(2,\), \(3,\), \(\)\]", ([1, 2], [1, 2, 3], 0)),
]  # fmt: skip


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize(("message", "columns"), REFUSALS)
def test_refusals(name: str, message: str, columns: tuple[Any, Any, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{name}: {message}"):
        getattr(ds.random, name)(*columns)


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_arrays_without_axes_give_their_own_kind(name: str, kind: Any) -> None:
    made = [getattr(ds.random, name)(kind(1), 2, 3, backend=backend) for backend in ("cpu", "reference")]
    assert all(isinstance(each, type(kind(1))) and each.shape == () for each in made) and made[0] == made[1]


@pytest.mark.parametrize("seeds", [[5, 2**63], [[2**64 - 1], [0]], [np.int64(3), 2**63 + 1]])
def test_a_list_of_seeds_below_and_above_2_to_the_63(seeds: Any) -> None:
    """NumPy makes floats of such a list."""
    alone = [ds.random.noise_bits(int(seed), 1, 2) for seed in np.array(seeds, object).flat]
    assert ds.random.noise_bits(seeds, 1, 2).ravel().tolist() == alone


def test_backend_by_name() -> None:
    with pytest.raises(ValueError, match=r"^uniform: backend must be one of 'auto', 'cpu', 'reference'; got 'gpu'"):
        ds.random.uniform(1, 2, 3, backend="gpu")
    with ds.profile() as profile:
        ds.random.gumbel(1, 2, 3)
        ds.random.gumbel(1, 2, 3, backend="reference")
    assert set(profile.costs) == {("gumbel", "cpu"), ("gumbel", "reference")}


def test_reference_maps_use_the_stated_logarithms() -> None:
    u = ds.random.uniform(1, 2, np.arange(1000))
    assert np.array_equal(ds.random.exponential(1, 2, np.arange(1000)), (-exact_math.log1p_neg(u)).astype(np.float32))


@pytest.mark.parametrize("name", ["noise_bits", "uniform", "exponential", "gumbel"])
def test_misaligned_columns_are_served(name):
    noise, seed, token = getattr(ds.random, name), np.arange(5, dtype=np.uint64), np.arange(5, dtype=np.uint32)
    np.testing.assert_array_equal(noise(misaligned(seed), 1, misaligned(token)), noise(seed, 1, token))


def test_the_seeds_of_samples_are_noise_of_their_own():
    for seed in (0, 5, 2**64 - 1):
        assert ds.random.sample_seed(seed, 0) == seed
        for sample in (1, 2, 2**32 - 1):
            low, high = (
                mmh3.hash(seed.to_bytes(8, "little") + sample.to_bytes(4, "little") + token.to_bytes(4, "little"), signed=False)
                for token in (0xFFFFFFFE, 0xFFFFFFFD)
            )
            assert ds.random.sample_seed(np.uint64(seed), sample) == (high * 2**32 + low) % 2**53  # a number of JavaScript
    assert len({ds.random.sample_seed(3, k) for k in range(1, 5000)}) == 4999
    for wrong in ((-1, 0), (2**64, 0), (0, -1), (0, 2**32), (0.5, 0), (0, True)):
        with pytest.raises(ValueError, match="^sample_seed: (seed|sample) must be an integer in"):
            ds.random.sample_seed(*wrong)
