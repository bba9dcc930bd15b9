"""Scores to try the processors on, and what it means that two results are the same."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from decodestep._base import arrays
from decodestep._base.checks import RequestError

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
SHAPES = ((1, 1), (1, 7), (3, 5), (2, 40), (4, 257))
# How far a threshold may move through the roundings of one implementation, relative to the threshold.
SLACK = {torch.float64: 1e-9, torch.float32: 3e-5, torch.float16: 8e-3, torch.bfloat16: 6e-2}
KINDS = ("normal", "ties", "forbidden", "steep", "flat")


def scores_of(kind: str, shape: tuple[int, int], dtype: torch.dtype, rng: np.random.Generator) -> torch.Tensor:
    """Scores of one character; each row of every kind has a finite entry."""
    values = rng.standard_normal(shape) * 3
    if kind == "ties":
        values = np.round(values / 2)
    elif kind == "forbidden":
        values[rng.random(shape) < 0.5] = -np.inf
        values[np.isneginf(values).all(axis=-1), -1] = 0.5
    elif kind == "steep":
        values *= 60
    elif kind == "flat":
        values[:] = 0.25
    return torch.from_numpy(values).to(dtype)


def cases(seed: int, repeats: int = 1) -> Iterator[tuple[np.random.Generator, torch.Tensor]]:
    rng = np.random.default_rng(seed)
    for _ in range(repeats):
        for dtype in DTYPES:
            for shape in SHAPES:
                for kind in KINDS:
                    yield rng, scores_of(kind, shape, dtype, rng)


def ids_of(rng: np.random.Generator, batch: int, length: int, vocab: int) -> torch.Tensor:
    return torch.from_numpy(rng.integers(0, vocab, (batch, length)))


def in_numpy(value: Any) -> Any:
    return arrays.view("test", "value", value) if isinstance(value, torch.Tensor) else value


def wide(value: Any) -> np.ndarray:
    return np.asarray(in_numpy(value)).astype(np.float64)


def agree(ours: Any, theirs: Any, *, units: float = 2.0) -> None:
    """The same dtype and shape, the same NaN and infinities, finite values within a few units in the last place."""
    assert str(in_numpy(ours).dtype) == str(in_numpy(theirs).dtype)
    eps = float(torch.finfo(theirs.dtype).eps) if isinstance(theirs, torch.Tensor) else 1e-12
    theirs = wide(theirs)
    finite = np.abs(theirs[np.isfinite(theirs)])
    scale = finite.max() if finite.size else 0.0
    np.testing.assert_allclose(wide(ours), theirs, rtol=units * eps, atol=units * eps * scale)


def call(processor: Any, ids: Any, scores: Any) -> Any:
    """The result, after checking that the scores were not written to."""
    before = scores.clone() if isinstance(scores, torch.Tensor) else scores.copy()
    result = processor(ids, scores)
    assert (in_numpy(before).tobytes()) == in_numpy(scores).tobytes()
    assert type(result) is type(scores)
    assert result.dtype == scores.dtype
    return result


def both_kinds(processor: Callable[[], Any], ids: Any, scores: torch.Tensor, *, units: float = 4.0) -> torch.Tensor:
    """The result on torch tensors; that on NumPy arrays, from a processor of its own, is the same."""
    on_torch = call(processor(), ids, scores)
    on_numpy = call(processor(), in_numpy(ids), np.array(in_numpy(scores)))
    agree(on_numpy, on_torch, units=units)
    return on_torch


def same_error(ours: Callable[[], Any], theirs: Callable[[], Any]) -> None:
    """Both raise an exception of one type, or neither raises; our RequestError is the ValueError of theirs."""
    raised = []
    for build in (theirs, ours):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                build()
            raised.append(None)
        except Exception as error:
            raised.append(ValueError if type(error) is RequestError else type(error))
    assert raised[0] == raised[1]


def kept(result: torch.Tensor) -> list[list[float]]:
    """The values that each row keeps, in order: what is left to compare where ties may fall either way."""
    return [sorted(row[mask].tolist()) for row, mask in zip(wide(result), ~np.isneginf(wide(result)), strict=True)]


def same_filter(
    ours: torch.Tensor,
    theirs: Callable[[float], torch.Tensor],
    parameter: float,
    scores: torch.Tensor,
    limits: tuple[float, float],
) -> int:
    """Asserts that each row keeps the same values, or as many as a threshold within rounding would; returns how many of those.

    theirs: the other implementation's result for a parameter; limits: the open interval that the parameter must stay in.
    """
    hits = 0
    exact = kept(theirs(parameter))
    mine = kept(ours)
    if mine == exact:
        return 0
    slack = SLACK[scores.dtype]
    near = [min(max(parameter * (1 + s), limits[0]), limits[1]) for s in (-slack, slack)]
    near += [min(max(1 - (1 - parameter) * (1 + s), limits[0]), limits[1]) for s in (-slack, slack)]
    around = [kept(theirs(p)) for p in near]
    for row, (mine_row, exact_row) in enumerate(zip(mine, exact, strict=True)):
        if mine_row != exact_row:
            counts = [len(a[row]) for a in around]
            assert min(counts) <= len(mine_row) <= max(counts), (row, parameter, mine_row, exact_row)
            hits += 1
    return hits


numpy_and_torch = pytest.mark.parametrize("kind", ["numpy", "torch"])


def make(kind: str, values: Any, dtype: str = "float32") -> Any:
    array = np.array(values, dtype)
    return array if kind == "numpy" else torch.from_numpy(array)
