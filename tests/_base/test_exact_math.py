"""log, log1p and exp against extended precision."""

from __future__ import annotations

import numpy as np
import pytest

from decodestep._base import exact_math

# Units in the last place of float64, over every argument tried.
LARGEST_ERROR = 3.0

extended = pytest.mark.skipif(np.finfo(np.longdouble).nmant <= 52, reason="longdouble is float64 on this machine")


def error(actual: np.ndarray, truth: np.ndarray) -> float:
    return float((np.abs(actual - truth) / np.spacing(np.abs(truth).astype(np.float64))).max())


@extended
def test_log_is_within_units_of_the_last_place() -> None:
    rng = np.random.default_rng(0)
    around_one = 1 + rng.uniform(-1, 1, 20_000) * 2.0 ** rng.integers(-52, 0, 20_000)
    x = np.concatenate([2.0 ** rng.uniform(-1022, 1023, 50_000), around_one[around_one > 0], np.sqrt(0.5) * around_one[:500]])
    assert error(exact_math.log(x), np.log(x.astype(np.longdouble))) < LARGEST_ERROR


def test_log_of_exact_arguments() -> None:
    assert exact_math.log(np.array([1.0]))[0] == 0 and not np.signbit(exact_math.log(np.array([1.0]))[0])
    powers = np.arange(-1074, 1024)
    assert np.array_equal(exact_math.log(np.ldexp(1.0, powers)), powers * np.log(2.0))


@extended
def test_log1p_neg() -> None:
    rng = np.random.default_rng(1)
    seam = 1 - np.sqrt(0.5) + np.arange(-500, 500) * 2.0**-53
    u = np.concatenate([rng.random(50_000), 2.0 ** rng.uniform(-300, 0, 50_000), seam, 1 - 2.0 ** -np.arange(1.0, 54)])
    assert error(exact_math.log1p_neg(u), np.log1p(-u.astype(np.longdouble))) < LARGEST_ERROR
    assert exact_math.log1p_neg(np.zeros(1))[0] == 0


@extended
def test_exp_is_within_units_of_the_last_place() -> None:
    rng = np.random.default_rng(2)
    x = np.concatenate([rng.uniform(-708, 709, 50_000), rng.uniform(-1, 1, 50_000) * 2.0 ** rng.integers(-60, 0, 50_000)])
    assert error(exact_math.exp(x), np.exp(x.astype(np.longdouble))) < LARGEST_ERROR


def test_exp_at_the_ends() -> None:
    assert exact_math.exp(np.array([0.0, -0.0])).tolist() == [1, 1]
    assert exact_math.exp(np.array([-np.inf, -1e308, -708.1])).tolist() == [0, 0, 0]
    assert np.isfinite(exact_math.exp(np.array([709.0, -708.0]))).all()


def test_exp_float32() -> None:
    x = np.concatenate([-np.logspace(-9, 0, 100_000), np.linspace(-87, 0, 1_000_000)]).astype(np.float32)
    value, truth = exact_math.exp_float32(x), np.exp(x.astype(np.float64))
    assert value.dtype == np.float32 and value.max() == 1
    assert (np.abs(value - truth) <= np.spacing(truth.astype(np.float32))).all()
    ends = np.array([0.0, -0.0, -87.00001, -np.inf, np.nan], np.float32)
    assert exact_math.exp_float32(ends).tolist() == [1, 1, 0, 0, 0]


@pytest.mark.parametrize("function", [exact_math.log, exact_math.log1p_neg, exact_math.exp])
def test_shape_and_type(function: object) -> None:
    for x in (np.full((2, 3), 0.25, np.float32), np.full((0, 3), 0.25), np.array(0.25)):
        y = function(x)  # type: ignore[operator]
        assert y.shape == x.shape and y.dtype == np.float64
    one = np.array([0.3, 0.7, 0.9])
    assert np.array_equal(function(one[::-1]), function(one)[::-1])  # type: ignore[operator]
