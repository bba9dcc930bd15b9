"""Temperature, top-k, top-p, min-p, top-h, typical, epsilon, eta."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers.generation.logits_process as hf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as np_arrays

from decodestep import processors as ds
from support.processor_cases import (
    DTYPES,
    agree,
    both_kinds,
    call,
    cases,
    in_numpy,
    kept,
    make,
    numpy_and_torch,
    same_error,
    same_filter,
    wide,
)

INF = math.inf
# Class name, the range of its parameter, whether it takes min_tokens_to_keep.
FILTERS = {
    "TopPLogitsWarper": ((0.0, 1.0), True),
    "MinPLogitsWarper": ((0.0, 1.0), True),
    "TypicalLogitsWarper": ((1e-6, 1 - 1e-6), True),
    "EpsilonLogitsWarper": ((1e-9, 1 - 1e-6), True),
    "EtaLogitsWarper": ((1e-9, 1 - 1e-6), True),
    "TopHLogitsWarper": ((1e-6, 1.0), False),
}
# In half precision torch's log-softmax rounds twice more than ours on NumPy, and a unit of the entropy moves the cut far.
BY_ENTROPY = ("TypicalLogitsWarper", "EtaLogitsWarper", "TopHLogitsWarper")


def filtered(processor: Any, row: list[float], kind: str) -> list[float]:
    return call(processor, None, make(kind, [row]))[0].tolist()


@numpy_and_torch
@pytest.mark.parametrize(
    ("processor", "row", "expected"),
    [
        (ds.TemperatureLogitsWarper(0.5), [1.0, -2.0, -INF], [2.0, -4.0, -INF]),
        (ds.TopKLogitsWarper(2), [1.0, 3.0, 2.0, 0.0], [-INF, 3.0, 2.0, -INF]),
        (ds.TopKLogitsWarper(2), [3.0, 1.0, 2.0, 2.0], [3.0, -INF, 2.0, 2.0]),  # every tie of the second stays
        (ds.TopKLogitsWarper(9, filter_value=-1.0), [3.0, 1.0], [3.0, 1.0]),
        (ds.TopKLogitsWarper(1, min_tokens_to_keep=3), [3.0, 1.0, 2.0, 0.0], [3.0, 1.0, 2.0, -INF]),
        (ds.TopPLogitsWarper(0.5), [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, -INF, -INF]),  # lowest ids stay; <= drops the boundary
        (ds.TopPLogitsWarper(0.0), [1.0, 2.0, 3.0], [-INF, -INF, 3.0]),
        (ds.TopPLogitsWarper(0.0, min_tokens_to_keep=2), [1.0, 2.0, 3.0], [-INF, 2.0, 3.0]),
        (ds.TopPLogitsWarper(1.0, filter_value=-9.0), [0.0, -500.0, -INF], [0.0, -9.0, -9.0]),  # a probability of 0 goes
        (ds.TopPLogitsWarper(0.1), [-INF, -INF], [-INF, -INF]),
        (ds.TopPLogitsWarper(0.1), [1.0, math.nan, 5.0], [1.0, math.nan, 5.0]),
        (ds.MinPLogitsWarper(0.5), [math.log(4), math.log(2), 0.0], [math.log(4), math.log(2), -INF]),
        (ds.MinPLogitsWarper(1.0), [1.0, 1.0, 0.0], [1.0, 1.0, -INF]),
        (ds.MinPLogitsWarper(0.0), [1.0, -200.0], [1.0, -200.0]),
        (ds.MinPLogitsWarper(0.5, min_tokens_to_keep=2), [0.0, -900.0, -800.0, -800.0], [0.0, -INF, -800.0, -INF]),
        (ds.EpsilonLogitsWarper(0.3), [math.log(2), 0.0, 0.0], [math.log(2), -INF, -INF]),
        (ds.EpsilonLogitsWarper(0.9), [1.0, 1.0, 0.0], [1.0, 1.0, -INF]),
        (ds.EtaLogitsWarper(0.25), [0.0, 0.0, -9.0], [0.0, 0.0, -INF]),
        (ds.TypicalLogitsWarper(0.5), [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]),  # every tie of the last distance stays
        (ds.TopHLogitsWarper(0.4), [0.0, 0.0, 0.0, 0.0], [0.0, -INF, -INF, -INF]),
        (ds.TopHLogitsWarper(0.6), [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, -INF, -INF]),
    ],
)
def test_by_hand(processor, row, expected, kind):
    np.testing.assert_allclose(filtered(processor, row, kind), np.float32(expected))


def test_typical_may_drop_the_most_probable_token():
    p = np.array([[0.4, 0.12, 0.12, 0.12, 0.12, 0.12]])
    result = ds.TypicalLogitsWarper(0.3)(None, np.log(p))
    assert np.isneginf(result).tolist() == [[True, False, False, False, False, False]]


@pytest.mark.parametrize("name", ["TemperatureLogitsWarper", "TopKLogitsWarper"])
def test_rank_and_temperature_equal_transformers(name):
    for rng, scores in cases(1, repeats=2):
        value = float(rng.uniform(0.1, 3)) if name.startswith("T") and "Temp" in name else int(rng.integers(1, 60))
        ours = both_kinds(lambda value=value: getattr(ds, name)(value), None, scores)
        agree(ours, getattr(hf, name)(value)(None, scores), units=1)


@pytest.mark.parametrize("name", FILTERS)
def test_filters_equal_transformers(name):
    limits, takes_minimum = FILTERS[name]
    rounding = rows = 0
    for rng, scores in cases(2, repeats=4):
        value = float(rng.choice([rng.uniform(*limits), 10 ** rng.uniform(-4, -0.1)]))
        keep = int(rng.choice([1, 1, 2, 5, 300])) if takes_minimum else 1
        extra = {"min_tokens_to_keep": keep} if takes_minimum else {}
        if name == "MinPLogitsWarper" and keep > 1 and (torch.softmax(scores, -1) == 0).any():
            continue  # transformers protects arbitrary tokens there

        def theirs(p: float, scores: torch.Tensor = scores, extra: dict[str, int] = extra) -> torch.Tensor:
            return getattr(hf, name)(p, **extra)(None, scores)

        ours = call(getattr(ds, name)(value, **extra), None, scores)
        rounding += same_filter(ours, theirs, value, scores, limits)
        rows += len(scores)
        if scores.dtype in (torch.float32, torch.float64) or name not in BY_ENTROPY:
            on_numpy = call(getattr(ds, name)(value, **extra), None, np.array(in_numpy(scores)))
            same_filter(torch.from_numpy(wide(on_numpy)).to(scores.dtype), theirs, value, scores, limits)
    assert rounding <= rows // 100


@pytest.mark.parametrize("name", FILTERS)
def test_of_ties_the_lowest_ids_stay(name):
    if name in ("TopPLogitsWarper", "TopHLogitsWarper"):
        rng = np.random.default_rng(3)
        for _ in range(40):
            scores = np.round(rng.standard_normal((2, 60)) * 1.5)
            value = float(rng.uniform(0.2, 0.9))
            dropped = np.isneginf(getattr(ds, name)(value)(None, scores))
            for row, gone in zip(scores, dropped, strict=True):
                for level in np.unique(row):
                    marks = gone[row == level]
                    assert not (marks[:-1] > marks[1:]).any()


@settings(max_examples=60)
@given(np_arrays(np.float32, (2, 9), elements=st.floats(-40, 40, width=32)), st.floats(0.01, 0.99))
def test_filters_keep_values_and_the_maximum(scores, value):
    for name in FILTERS:
        result = getattr(ds, name)(value)(None, scores)
        assert np.all((result == scores) | np.isneginf(result))
        assert not np.isneginf(result).all(axis=-1).any()
        if name != "TypicalLogitsWarper":
            assert np.all(result.max(axis=-1) == scores.max(axis=-1))


@settings(max_examples=40)
@given(np_arrays(np.float64, (1, 12), elements=st.floats(-9, 9)), st.floats(0.05, 0.9), st.floats(0.01, 0.09))
def test_a_wider_filter_keeps_more(scores, value, more):
    signs = {"TopPLogitsWarper": 1, "TopHLogitsWarper": 1, "MinPLogitsWarper": -1, "EpsilonLogitsWarper": -1}
    for name, sign in signs.items():
        narrow, wider = (getattr(ds, name)(v)(None, scores) for v in (value, min(max(value + sign * more, 0.001), 0.999)))
        assert np.all(np.isneginf(narrow) | ~np.isneginf(wider))


@pytest.mark.parametrize("name", ["TopPLogitsWarper", "MinPLogitsWarper", "TypicalLogitsWarper", "EpsilonLogitsWarper"])
@numpy_and_torch
def test_rows_without_a_distribution_stay(name, kind):
    rows = make(kind, [[-INF, -INF, -INF], [1.0, math.nan, 2.0], [1.0, INF, 2.0]])
    result = getattr(ds, name)(0.5, min_tokens_to_keep=2)(None, rows)
    np.testing.assert_array_equal(wide(result), wide(rows))


@pytest.mark.parametrize("name", ["EtaLogitsWarper", "TopHLogitsWarper"])
@pytest.mark.parametrize("bad", [[-INF, -INF], [1.0, math.nan], [INF, 0.0]])
@numpy_and_torch
def test_rows_without_an_entropy_are_refused(name, bad, kind, monkeypatch):
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)  # torch.compile turns it off for good
    with pytest.raises(ValueError, match="scores must be"):
        getattr(ds, name)(0.5)(None, make(kind, [bad]))
    with pytest.raises(ValueError, match="constraint"):
        getattr(hf, name)(0.5)(None, torch.tensor([bad]))


@pytest.mark.filterwarnings("ignore:invalid value")  # ml_dtypes warns where NumPy's own types compare NaN in silence
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_top_k_counts_nan_as_the_largest(dtype):
    scores = torch.linspace(-4, 4, 60).to(dtype)[torch.randperm(60, generator=torch.Generator().manual_seed(1))][None]
    scores[0, [5, 31, 58]] = math.nan
    for k in (1, 3, 4, 20, 60):
        agree(both_kinds(lambda k=k: ds.TopKLogitsWarper(k), None, scores), hf.TopKLogitsWarper(k)(None, scores))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_top_h_refuses_nan_wherever_it_is(dtype):
    for place in (0, 150, 299):
        scores = torch.linspace(-4, 4, 300).to(dtype)[None]
        scores[0, place] = math.nan
        for given_scores in (scores, np.array(in_numpy(scores))):
            with pytest.raises(ValueError, match="scores must be"):
                ds.TopHLogitsWarper(0.5)(None, given_scores)


def test_min_p_protects_by_score_where_probabilities_underflow():
    scores = torch.tensor([[0.0, -900.0, -300.0, -400.0]])
    result = ds.MinPLogitsWarper(0.1, min_tokens_to_keep=3)(None, scores)
    assert kept(result) == [[-400.0, -300.0, 0.0]]


VALUES: list[Any] = [
    1,
    0,
    -1,
    0.0,
    0.5,
    1.0,
    1.5,
    -0.5,
    math.nan,
    True,
    None,
    "0.5",
    "abc",
    [0.5],
    np.float64(0.5),
    np.float32(0.5),
    3,
    2.5,
    INF,
]
MINIMA: list[Any] = [1, 0, -1, 1.5, "2", True, np.int64(2)]


@pytest.mark.parametrize("name", ["TemperatureLogitsWarper", "TopKLogitsWarper", *FILTERS])
@pytest.mark.parametrize("value", VALUES)
def test_the_same_arguments_are_refused(name, value):
    same_error(lambda: getattr(ds, name)(value), lambda: getattr(hf, name)(value))


@pytest.mark.parametrize("name", [name for name, (_, takes) in FILTERS.items() if takes])
@pytest.mark.parametrize("keep", MINIMA)
def test_the_same_minima_are_refused(name, keep):
    builders: list[Callable[[], Any]] = [
        lambda module=module: getattr(module, name)(0.5, min_tokens_to_keep=keep) for module in (ds, hf)
    ]
    same_error(*builders)


def test_a_refusal_names_the_argument_and_its_interval():
    with pytest.raises(ValueError, match=r"TopPLogitsWarper: top_p must be in \[0, 1\]; got 1.5"):
        ds.TopPLogitsWarper(1.5)
    with pytest.raises(ValueError, match="do_sample=False"):
        ds.TemperatureLogitsWarper(0.0)
