"""TopKTopPSample V1 and V2 and ApplyTopKTopP against worked examples, a slow oracle in plain Python, and their laws."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

import decodestep as ds
from decodestep.ops.top_k_top_p_sample import arguments, reference
from decodestep.ops.top_k_top_p_sample.rules import Rules
from support.tolerances import TOLERANCE, assert_close
from vectors.read import cases

BF16 = ml_dtypes.bfloat16
NAN, INF = math.nan, math.inf
R1, R2 = [0.125, 0.5, 0.125, 0.25], [0.25, 0.125, 0.5, 0.125]
LOG_R1 = np.log(R1).tolist()


@pytest.fixture(params=["cpu", "reference"], autouse=True, scope="module")
def backend(request: Any) -> Iterator[str]:
    """Everything below runs on both."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("top_k_top_p_sample", "top_k_top_p_sample_v2", "apply_top_k_top_p"):
            patch.setattr(ds, name, functools.partial(getattr(ds, name), backend=request.param))
        yield request.param


# The oracle: Python floats, element by element. `sure` is False where float32 may cut, or choose, one token away.


def descending(row: list[float]) -> list[int]:
    return sorted(range(len(row)), key=lambda i: (math.isnan(row[i]), 0 if math.isnan(row[i]) else -row[i], i))


def softmax(row: list[float]) -> list[float]:
    top = max((x for x in row if not math.isnan(x)), default=-INF)
    if math.isinf(top):
        hits = sum(x == top for x in row) if top > 0 else 0
        return [1 / hits if hits and x == top else 0.0 for x in row]
    weights = [0.0 if math.isnan(x) else math.exp(x - top) for x in row]
    return [w / math.fsum(weights) for w in weights]


def prefix(values: list[float], p: float, strict: bool, slack: float) -> tuple[int, bool]:
    total, sure = 0.0, True
    for i, value in enumerate(values):
        total += value
        sure &= abs(total - p) > slack or slack == 0
        if total > p if strict else total >= p:
            return i + 1, sure
    return len(values), sure


def slow(
    row: list[float], k: int, p: float, m: float = 0.0, *, v1: bool = False, ks_max: int = 1024, is_logits: bool = True,
    exact: bool = False, kernel_exact: bool = False,
) -> tuple[list[int], list[float], bool]:  # fmt: skip
    """(ids, values, sure) of the survivors."""
    vocab, sure, order = len(row), True, descending(row)
    slack = 0 if exact else 3e-8 * vocab + 2e-6

    def weigh(ids: list[int]) -> list[float]:
        inputs = [row[i] for i in ids]
        return softmax(inputs) if is_logits else [0.0 if math.isnan(x) else x for x in inputs]

    if p <= 0 and not v1:
        ids = order[:1]
        values = weigh(ids)
    elif 1 <= k <= min(vocab, 1024 if v1 else math.ceil(ks_max / 8) * 8):
        ids = order[:k]
        values = weigh(ids)
        if 0 < p < 1:
            n, sure = prefix(values, p, v1, slack)
            ids, values = ids[:n], weigh(ids[:n]) if v1 else values[:n]
    elif 0 < p < 1:
        whole = weigh(list(range(vocab)))
        n, sure = prefix([whole[i] for i in order], p, v1, slack)
        ids = order[:n]
        values = [whole[i] for i in ids]
        if v1:
            values = softmax(values) if kernel_exact else weigh(ids)
    else:
        ids = list(range(vocab))
        values = weigh(ids)
    if m > 0:
        first = values.index(max(values))
        bound = m * values[first]
        sure &= exact or m >= 1 or all(v == bound or abs(v - bound) > 1e-5 * abs(bound) for v in values)
        keep = [i == first or (m < 1 and v >= bound) for i, v in enumerate(values)]
        ids = [t for t, kept in zip(ids, keep, strict=True) if kept]
        values = [v for v, kept in zip(values, keep, strict=True) if kept]
    return ids, values, sure


def winner(ids: list[int], values: list[float], q: Any, eps: float, exact: bool) -> tuple[int, bool]:
    scores = values if q is None else [v / (abs(float(q[i])) + eps) for i, v in enumerate(values)]
    best = max(scores)
    return ids[scores.index(best)], exact or not any(best > s > best * (1 - 1e-5) for s in scores)


def close(actual: np.ndarray, expected: list[float]) -> None:
    assert_close(np.asarray(actual, np.float32), np.array(expected))


def survivors(logits: Any, top_k: Any, top_p: Any, min_ps: Any = None, **options: Any) -> list[list[int]]:
    """The ids that each row keeps, in order, where none of them is -inf (or 0 among raw values)."""
    result = ds.top_k_top_p_sample_v2(
        logits, top_k, top_p, min_ps=min_ps, is_need_sample_result=True, is_need_logits=True, **options
    )
    background = -np.inf if options.get("input_is_logits", True) else 0
    counts = (np.asarray(result.logits_top_kp_select) != background).sum(1)
    return [ids[:n].tolist() for ids, n in zip(np.asarray(result.logits_idx), counts, strict=True)]


EXAMPLES = [  # logits, k, p, m, q, survivors, their values, selected; logits are probabilities unless they are LOG_R1
    (R1, 2, 1, None, None, [1, 3], [0.5, 0.25], 1),
    (R1, 3, 1, None, None, [1, 3, 0], [0.5, 0.25, 0.125], 1),
    (R1, 4, 0.5, None, None, [1], [0.5], 1),
    (R1, 4, 0.75, None, None, [1, 3], [0.5, 0.25], 1),
    (R1, 0, 0.8, None, None, [1, 3, 0], [0.5, 0.25, 0.125], 1),
    (R1, 3, 0, None, None, [1], [0.5], 1),
    (R2, 0, 1, 0.5, None, [0, 2], [0.25, 0.5], 2),
    (R2, 0, 1, 0.5, [0.125, 1, 9, 9], [0, 2], [0.25, 0.5], 0),
    (R2, 4, 1, 0.5, [0.125, 1, 9, 9], [2, 0], [0.5, 0.25], 2),
    (R2, 0, 1, None, [1, 1, 8, 0.0625], [0, 1, 2, 3], R2, 3),
    (R1, 4, 1, 1, None, [1], [0.5], 1),
    (R1, 0, 1, 0.5, None, [1, 3], [0.5, 0.25], 1),
    (R2, 0, 1, 0.5, None, [0, 2], [0.25, 0.5], 2),
    (LOG_R1, 2, 1, None, None, [1, 3], [2 / 3, 1 / 3], 1),
    (LOG_R1, 0, 0.6, None, None, [1, 3], [0.5, 0.25], 1),
    (LOG_R1, 2, 0.6, None, None, [1], [2 / 3], 1),
    (LOG_R1, 3, 0, None, None, [1], [1.0], 1),
]


@pytest.mark.parametrize("example", EXAMPLES, ids=range(1, 18))
def test_worked_examples(example: Any) -> None:
    row, k, p, m, q, ids, values, selected = example
    is_logits = row is LOG_R1
    logits = np.array([row], np.float32)
    noise = None if q is None else np.array([q], np.float32)
    result = ds.top_k_top_p_sample_v2(logits, k, p, noise, min_ps=m, eps=0, input_is_logits=is_logits, is_need_logits=True)
    assert result.logits_select_idx.tolist() == [selected]
    assert result.logits_idx is None and result.logits_sort_masked is None
    masked = [row[i] if i in ids else (-INF if is_logits else 0) for i in range(4)]
    np.testing.assert_array_equal(result.logits_top_kp_select, np.array([masked], np.float32))
    result = ds.top_k_top_p_sample_v2(logits, k, p, min_ps=m, input_is_logits=is_logits, is_need_sample_result=True)
    assert result.logits_select_idx is None and result.logits_top_kp_select is None
    assert result.logits_idx.tolist() == [ids + [0] * (4 - len(ids))]
    compare = close if is_logits else np.testing.assert_array_equal
    compare(result.logits_sort_masked[0], values + [0.0] * (4 - len(ids)))


def test_v1_examples() -> None:
    logits = np.array([[0, 0, 0, 0, -INF]], np.float16)  # four probabilities of 1/4: every sum is exact
    kept = [ds.top_k_top_p_sample(logits, k, 0.5, is_need_logits=True).logits_top_kp_select[0] for k in (0, 4)]
    for row in kept:  # strictly more than p: three tokens, where V2 stops at two
        np.testing.assert_array_equal(row, [0, 0, 0, -INF, -INF])
    assert survivors(logits, [0], [0.5]) == survivors(logits, [4], [0.5]) == [[0, 1]]
    greedy = ds.top_k_top_p_sample(logits, 2, 0.0, np.array([[9, 1, 1, 1, 1]], np.float32), is_need_logits=True)
    assert greedy.logits_select_idx.tolist() == [1]  # p = 0 skips here
    np.testing.assert_array_equal(greedy.logits_top_kp_select, [[0, 0, -INF, -INF, -INF]])


def test_kernel_exact_takes_a_softmax_of_probabilities() -> None:
    logits = np.log([[0.5, 0.3, 0.2]]).astype(np.float16)
    q = np.array([[2, 1, 1]], np.float32)  # 0.625/2 < 0.375/1 of the logits' softmax, 0.55/2 < 0.45 of the double one
    assert ds.top_k_top_p_sample(logits, 0, 0.7, q).logits_select_idx.tolist() == [1]
    q = np.array([[1.4, 1, 1]], np.float32)  # 0.446 > 0.375, but 0.393 < 0.450
    assert ds.top_k_top_p_sample(logits, 0, 0.7, q).logits_select_idx.tolist() == [0]
    assert ds.top_k_top_p_sample(logits, 0, 0.7, q, kernel_exact=True).logits_select_idx.tolist() == [1]


# Scenarios. Each runs rows of its own draw; the rows whose cut or race float32 could decide otherwise are left out.

K_CHOICES = {"active": [1, 5, 40, 97], "skipped": [0, -3, 98, 2000]}
P_CHOICES = {"active": [0.1, 0.5, 0.9, 0.97], "skipped": [1.0, 2.0, NAN, INF], "low": [0.0, -0.5, -INF, -3.0]}
M_CHOICES = {"active": [0.05, 0.3, 1.0, 1.5], "skipped": [0.0, -1.0, NAN, -INF]}


def rows_of(rng: np.random.Generator, dtype: Any, exact: bool) -> tuple[np.ndarray, np.ndarray]:
    if exact:
        rows, q = rng.integers(0, 64, (16, 97)) / 128, 2.0 ** rng.integers(-3, 4, (16, 97))
    else:
        rows, q = rng.standard_normal((16, 97)) * 3, rng.exponential(size=(16, 97))
        for odd, where in ((-INF, slice(0, 4)), (NAN, slice(2, 6)), (INF, slice(5, 7))):
            rows[where, rng.integers(0, 97, 12 if odd != INF else 3)] = odd
    return rows.astype(dtype), q.astype(np.float32)


def column(rng: np.random.Generator, choices: list[Any], dtype: Any) -> np.ndarray:
    with np.errstate(over="ignore"):
        return rng.choice(np.array(choices), 16).astype(dtype)


@pytest.mark.parametrize("exact", [False, True], ids=["logits", "dyadic"])
@pytest.mark.parametrize("dtype", [np.float16, BF16, np.float32])
@pytest.mark.parametrize(("ks", "ps", "ms"), [*product(K_CHOICES, P_CHOICES, M_CHOICES)])
def test_v2_scenarios(ks: str, ps: str, ms: str, dtype: Any, exact: bool) -> None:
    rng = np.random.default_rng([ord(c) for c in ks[0] + ps[0] + ms[0]])
    logits, q = rows_of(rng, dtype, exact)
    k = column(rng, K_CHOICES[ks], np.int32)
    p = column(rng, [0.25, 0.5, 3.75, 16.0] if exact and ps == "skipped" else P_CHOICES[ps], dtype)
    if exact and ps == "active":
        p = column(rng, [0.25, 0.5, 0.75, 0.0078125], dtype)
    m = column(rng, [0.25, 0.5, 1, 2] if exact and ms == "active" else M_CHOICES[ms], dtype)
    eps = 0.0 if exact else 1e-8
    options = {"input_is_logits": not exact, "is_need_logits": True, "eps": eps}
    drawn = ds.top_k_top_p_sample_v2(logits, k, p, q, min_ps=m, **options)
    best = ds.top_k_top_p_sample_v2(logits, k, p, min_ps=m, **options)
    listed = ds.top_k_top_p_sample_v2(logits, k, p, min_ps=m, is_need_sample_result=True, **options)
    checked = 0
    for b, row in enumerate(logits.astype(np.float64).tolist()):
        ids, values, sure = slow(row, int(k[b]), float(p[b]), float(m[b]), is_logits=not exact, exact=exact)
        if not sure:
            continue
        checked += 1
        n = len(ids)
        assert listed.logits_idx[b].tolist() == ids + [0] * (97 - n)
        close(listed.logits_sort_masked[b], values + [0.0] * (97 - n))
        masked = np.full(97, 0 if exact else -np.inf, np.float32)
        masked[ids] = logits[b, ids]
        for result in (drawn, best, listed):
            np.testing.assert_array_equal(result.logits_top_kp_select[b], masked)
        for result, noise in ((drawn, q[b]), (best, None)):
            chosen, clear = winner(ids, values, noise, eps, exact)
            assert not clear or result.logits_select_idx[b] == chosen
    assert checked == 16 if exact else checked >= 13


@pytest.mark.parametrize("dtype", [np.float16, BF16])
@pytest.mark.parametrize("race", [False, True], ids=["best", "race"])
@pytest.mark.parametrize("kernel_exact", [False, True])
@pytest.mark.parametrize(("ks", "ps"), [*product(K_CHOICES, P_CHOICES)])
def test_v1_scenarios(ks: str, ps: str, race: bool, kernel_exact: bool, dtype: Any) -> None:
    rng = np.random.default_rng([ord(c) for c in ks[0] + ps[0]])
    logits, q = rows_of(rng, dtype, exact=False)
    k, p = column(rng, K_CHOICES[ks], np.int32), column(rng, P_CHOICES[ps], dtype)
    result = ds.top_k_top_p_sample(logits, k, p, q if race else None, is_need_logits=True, kernel_exact=kernel_exact)
    checked = 0
    for b, row in enumerate(logits.astype(np.float64).tolist()):
        ids, values, sure = slow(row, int(k[b]), float(p[b]), v1=True, kernel_exact=kernel_exact)
        if not sure:
            continue
        checked += 1
        masked = np.full(97, -np.inf, np.float32)
        masked[ids] = logits[b, ids]
        np.testing.assert_array_equal(result.logits_top_kp_select[b], masked)
        chosen, clear = winner(ids, values, q[b] if race else None, 1e-8, exact=False)
        assert not clear or result.logits_select_idx[b] == chosen
    assert checked >= 13


def test_float64_is_the_oracle_of_large_rows() -> None:
    rng = np.random.default_rng(5)
    logits = (rng.standard_normal((6, 20000)) * 2).astype(np.float32)
    k, p = np.array([0, 0, 0, 900, 0, 1024], np.int32), np.array([0.3, 0.9, 1, 0.8, 0.999, 1], np.float32)
    m = np.array([0, 0, 0.01, 0, 0, 0.2], np.float32)
    rules = Rules(None, 1e-8, 32, need_survivors=True)
    fast, true = (reference.sample_v2(logits, k, p, m, rules, dtype) for dtype in (np.float32, np.float64))
    assert true.values.dtype == np.float64
    for b in range(6):
        counts = [(outputs.values[b] > 0).sum() for outputs in (fast, true)]
        n = min(counts)
        assert abs(fast.values[b, :n].sum(dtype=np.float64) - true.values[b, :n].sum()) < 3e-8 * 20000 + 2e-6
        assert abs(int(counts[0]) - int(counts[1])) <= 1 or p[b] > 0.99
        np.testing.assert_array_equal(fast.ids[b, :n], true.ids[b, :n])


def test_ks_max_rounds_up_to_eight() -> None:
    logits = np.arange(32, dtype=np.float32)[None]
    for ks_max, k, n in [(1, 8, 8), (1, 9, 32), (20, 24, 24), (20, 25, 32), (1024, 32, 32)]:
        assert len(survivors(logits, k, 1.0, ks_max=ks_max)[0]) == n
    wide = np.zeros((1, 1100), np.float32)
    assert [len(survivors(wide, k, 1.0)[0]) for k in (1024, 1025)] == [1024, 1100]
    assert np.isfinite(ds.top_k_top_p_sample(wide.astype(BF16), 1024, 1.0, is_need_logits=True)[1]).sum() == 1024


# Laws.

ROWS = st.lists(st.integers(-12, 12).map(lambda n: n / 4), min_size=1, max_size=40)  # plenty of ties
COUNTS, SHARES = st.integers(-1, 42), st.integers(0, 33).map(lambda n: n / 32 + 0.003)
LAW = settings(max_examples=60)


@LAW
@given(ROWS, COUNTS, SHARES, st.sampled_from([0, 1, 32, 1024, 2**31 - 1]))
def test_the_guess_changes_nothing(row: list[float], k: int, p: float, guess: int) -> None:
    logits = np.array([row], np.float32)
    results = [ds.top_k_top_p_sample_v2(logits, k, p, is_need_sample_result=True, top_k_guess=g) for g in (32, guess)]
    np.testing.assert_array_equal(results[0].logits_idx, results[1].logits_idx)
    np.testing.assert_array_equal(results[0].logits_sort_masked, results[1].logits_sort_masked)


@LAW
@given(ROWS, COUNTS, SHARES, SHARES)
def test_cuts_are_nested(row: list[float], k: int, p: float, m: float) -> None:
    logits = np.array([row], np.float32)
    (both,), (by_k,) = survivors(logits, k, p, m), survivors(logits, k, 1.0)
    assert set(both) <= set(survivors(logits, k, p)[0]) <= set(by_k)
    assert set(survivors(logits, k, p, m + 0.1)[0]) <= set(both)
    if p < 0.95:
        assert set(survivors(logits, k, p)[0]) <= set(survivors(logits, k, p + 0.05)[0])
    if 1 <= k < len(row):
        assert set(by_k) < set(survivors(logits, k + 1, 1.0)[0])
        assert by_k == descending(row)[:k]


@LAW
@given(ROWS, COUNTS, st.integers(1, 31).map(lambda n: n / 32 + 0.003))
def test_the_mass_kept_just_reaches_p(row: list[float], k: int, p: float) -> None:
    result = ds.top_k_top_p_sample_v2(np.array([row], np.float32), k, p, is_need_sample_result=True)
    values = result.logits_sort_masked[0].astype(np.float64)
    n = np.count_nonzero(values)
    assert values.sum() >= p - 4e-6
    assert values[: n - 1].sum() < p + 4e-6
    assert (np.diff(values[:n]) <= 0).all()


@LAW
@given(ROWS, COUNTS, SHARES, st.integers(-40, 40))
def test_a_shift_of_the_logits_changes_no_set(row: list[float], k: int, p: float, shift: int) -> None:
    logits = np.array([row], np.float32)
    assert survivors(logits, k, p, 0.1) == survivors(logits + np.float32(shift), k, p, 0.1)  # the sums are exact


@LAW
@given(st.permutations(range(24)), st.integers(1, 24), SHARES)
def test_a_permuted_vocabulary_permutes_the_result(order: list[int], k: int, p: float) -> None:
    row = np.random.default_rng(0).permutation(24).astype(np.float32) / 4
    (plain,), (moved,) = survivors(row[None], k, p), survivors(row[order][None], k, p)
    assert plain == [order[i] for i in moved]


@LAW
@given(ROWS, COUNTS, SHARES, SHARES, st.integers(0, 2**64 - 1))
def test_the_listed_survivors_reproduce_both_races(row: list[float], k: int, p: float, m: float, seed: int) -> None:
    logits = np.array([row], np.float32)
    q = ds.random.exponential(seed, 0, np.arange(len(row)))[None]
    (ids,) = survivors(logits, k, p, m)
    listed = ds.top_k_top_p_sample_v2(logits, k, p, min_ps=m, is_need_sample_result=True)
    values = listed.logits_sort_masked[0, : len(ids)]
    by_rank = ids[np.argmax(values / (q[0, : len(ids)] + np.float32(1e-8)))]
    by_id = ids[np.argmax(values / (q[0, ids] + np.float32(1e-8)))]
    assert ds.top_k_top_p_sample_v2(logits, k, p, q, min_ps=m).logits_select_idx[0] == by_rank
    assert ds.top_k_top_p_sample_v2(logits, k, p, -q, min_ps=m).logits_select_idx[0] == by_rank
    assert ds.top_k_top_p_sample_v2(logits, k, p, min_ps=m, seed=seed, position=0).logits_select_idx[0] == by_id


def test_the_sorted_and_the_unsorted_path_agree_on_the_best() -> None:
    logits = np.random.default_rng(1).integers(-9, 9, (50, 30)).astype(np.float32)
    best = [ds.top_k_top_p_sample_v2(logits, k, 1.0).logits_select_idx for k in (30, 0)]
    np.testing.assert_array_equal(best[0], best[1])
    np.testing.assert_array_equal(best[0], logits.argmax(1))


# Draws by seed.


@pytest.mark.parametrize(("k", "p", "m"), [(0, 1.0, None), (6, 1.0, None), (0, 0.8, None), (8, 0.9, 0.1)])
def test_seeded_draws_follow_the_values(backend: str, k: int, p: float, m: float | None) -> None:
    draws = 4000 if backend == "cpu" else 1000  # the reference is slow, and draws the same tokens
    row = np.random.default_rng(2).standard_normal(12).astype(np.float16)
    logits, position = np.broadcast_to(row, (draws, 12)), np.arange(draws)
    listed = ds.top_k_top_p_sample_v2(row[None], k, p, min_ps=m, is_need_sample_result=True)
    ids, values = listed.logits_idx[0], listed.logits_sort_masked[0].astype(np.float64)
    n = np.count_nonzero(values)
    share = np.zeros(12)
    share[ids[:n]] = values[:n] / values.sum()
    drawn = [ds.top_k_top_p_sample_v2(logits, k, p, min_ps=m, seed=7, position=position).logits_select_idx]
    if m is None:  # V1 keeps the same set here and draws from the same distribution
        drawn.append(ds.top_k_top_p_sample(logits, k, p, seed=8, position=position).logits_select_idx)
    for chosen in drawn:
        seen = np.bincount(chosen, minlength=12)
        assert seen[share == 0].sum() == 0
        assert chisquare(seen[share > 0], draws * share[share > 0]).pvalue > 1e-3


def test_a_seeded_draw_depends_on_its_row_alone() -> None:
    rng = np.random.default_rng(3)
    logits = rng.standard_normal((9, 50)).astype(BF16)
    seeds, positions = rng.integers(0, 2**63, 9, np.uint64), np.arange(9)
    options = {"seed": seeds, "position": positions[:, None]}
    whole = ds.top_k_top_p_sample_v2(logits, 20, 0.9, **options).logits_select_idx
    for b in range(9):
        alone = ds.top_k_top_p_sample_v2(logits[b : b + 1], 20, 0.9, seed=int(seeds[b]), position=[b])
        assert alone.logits_select_idx.tolist() == [whole[b]]
    narrow = survivors(logits, 5, 1.0)
    short = ds.top_k_top_p_sample_v2(logits, 5, 1.0, **options).logits_select_idx
    wide = ds.top_k_top_p_sample_v2(logits, 0, 1.0, **options).logits_select_idx
    agree = [short[b] == wide[b] for b in range(9) if wide[b] in narrow[b]]
    assert agree and all(agree)  # a token keeps its noise whatever else survives


# Ties, NaN and infinities.


def test_ties_go_to_the_lower_id() -> None:
    logits = np.array([[1, 3, 3, 0, 3, 1]], np.float32)
    assert [survivors(logits, k, 1.0)[0] for k in (1, 2, 4, 6)] == [[1], [1, 2], [1, 2, 4, 0], [1, 2, 4, 0, 5, 3]]
    assert survivors(np.array([[-0.0, 0.0, -0.0]], np.float32), 2, 1.0) == [[0, 1]]
    assert ds.top_k_top_p_sample_v2(logits, 0, 1.0).logits_select_idx.tolist() == [1]


def test_nan_ranks_below_minus_infinity_and_has_no_mass() -> None:
    logits = np.array([[NAN, 1, -INF, 1, NAN, -INF]], np.float32)
    listed = ds.top_k_top_p_sample_v2(logits, 6, 1.0, is_need_sample_result=True)
    assert listed.logits_idx.tolist() == [[1, 3, 2, 5, 0, 4]]
    np.testing.assert_array_equal(listed.logits_sort_masked, [[0.5, 0.5, 0, 0, 0, 0]])
    assert survivors(logits, 0, 0.9) == [[1, 3]]
    assert ds.top_k_top_p_sample_v2(logits, 0, 1.0).logits_select_idx.tolist() == [1]
    assert ds.top_k_top_p_sample_v2(logits, 0, 1.0, seed=1, position=2).logits_select_idx[0] in (1, 3)


@pytest.mark.parametrize("k", [0, 3, 4])
@pytest.mark.parametrize("p", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("m", [None, 0.5, 1.0])
def test_a_row_of_minus_infinity_gives_id_0(k: int, p: float, m: float | None) -> None:
    logits, q = np.full((1, 4), -np.inf, np.float16), np.array([[4, 3, 2, 1]], np.float32)
    for race in ({}, {"q": q}, {"seed": 1, "position": 0}):
        assert ds.top_k_top_p_sample_v2(logits, k, p, min_ps=m, **race).logits_select_idx.tolist() == [0]
        assert ds.top_k_top_p_sample(logits, k, p, **race).logits_select_idx.tolist() == [0]
    listed = ds.top_k_top_p_sample_v2(logits, k, p, min_ps=m, is_need_sample_result=True)
    assert not listed.logits_sort_masked.any()
    n = 1 if p == 0 or m == 1 else k or 4
    assert listed.logits_idx.tolist() == [list(range(n)) + [0] * (4 - n)]


def test_plus_infinities_share_the_mass() -> None:
    logits = np.array([[5, INF, NAN, INF, -INF, 5]], np.float16)
    for k, p, ids, values in [
        (0, 1.0, range(6), [0, 0.5, 0, 0.5, 0, 0]),
        (3, 1.0, [1, 3, 0], [0.5, 0.5, 0]),
        (0, 0.5, [1], [0.5]),
        (0, 0.75, [1, 3], [0.5, 0.5]),
    ]:
        listed = ds.top_k_top_p_sample_v2(logits, k, p, is_need_sample_result=True)
        assert listed.logits_idx[0, : len(ids)].tolist() == list(ids)
        np.testing.assert_array_equal(listed.logits_sort_masked[0, : len(ids)], values)


def test_noise_of_zero_nan_and_infinity_has_the_stated_winner() -> None:
    logits = np.zeros((1, 3), np.float32)
    for q, eps, chosen in [
        ([1, 0, 0], 1e-8, 1),
        ([1, NAN, 2], 1e-8, 0),
        ([NAN, 5, 2], 1e-8, 2),
        ([INF, INF, 1], 0, 2),
        ([0, 0, 0], 0, 0),
        ([NAN, NAN, NAN], 0, 0),
    ]:
        drawn = ds.top_k_top_p_sample_v2(logits, 0, 1.0, np.array([q], np.float32), eps=eps)
        assert drawn.logits_select_idx.tolist() == [chosen]


def test_negative_and_nan_probabilities_rank_as_stated() -> None:
    negative = np.array([[-2, -1, -3]], np.float32)  # half the largest is above it: the largest stays
    assert survivors(negative, [0], [1.0], [0.5], input_is_logits=False) == [[1]]
    raw = np.array([[NAN, 0.25, 0.5]], np.float32)
    for k, ids, values in [(0, [0, 1, 2], [0, 0.25, 0.5]), (3, [2, 1, 0], [0.5, 0.25, 0])]:
        listed = ds.top_k_top_p_sample_v2(raw, k, 1.0, input_is_logits=False, is_need_sample_result=True)
        assert listed.logits_idx.tolist() == [ids] and listed.logits_sort_masked.tolist() == [values]


@pytest.mark.parametrize(
    ("k", "p", "m", "kept"), [(3, 1.0, None, 3), (0, 0.5, None, 4), (0, 1.0, 1e-6, 4), (0, 1.0, None, 4), (2, 0.0, 1.0, 1)]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, BF16])
def test_raw_inputs_keep_the_sign_of_zero(dtype: Any, k: int, p: float, m: float | None, kept: int) -> None:
    """0 and -0 are equal: they rank by their ids."""
    raw, negative = np.array([[-0.0, 0.0, -0.0, 0.0]], dtype), [True, False, True, False][:kept]
    options = {"input_is_logits": False, "is_need_sample_result": True, "is_need_logits": True}
    listed = ds.top_k_top_p_sample_v2(raw, k, p, min_ps=m, **options)
    assert listed.logits_idx[0, :kept].tolist() == list(range(kept))
    assert np.signbit(listed.logits_sort_masked[0, :kept]).tolist() == negative
    assert np.signbit(listed.logits_top_kp_select[0, :kept]).tolist() == negative


def test_what_follows_the_noise_is_named() -> None:
    """The fifth argument of npu_top_k_top_p_sample is eps."""
    with pytest.raises(TypeError):
        ds.top_k_top_p_sample(XH, 3, 0.5, Q, 1e-8)
    with pytest.raises(TypeError):
        ds.top_k_top_p_sample_v2(X, 3, 0.5, Q, 1e-8)


def test_post_sample_says_whether_noise_decides() -> None:
    logits, q = np.array([[1, 2, 3]], np.float32), np.array([[9, 9, 0.01]], np.float32)
    raced = ds.top_k_top_p_sample_v2(logits, 3, 1.0, q, post_sample="qSample")
    assert raced.logits_select_idx == ds.top_k_top_p_sample_v2(logits, 3, 1.0, q).logits_select_idx == [0]
    assert ds.top_k_top_p_sample_v2(logits, 3, 1.0, post_sample="None").logits_select_idx == [2]
    for wrong, name in (
        ({"post_sample": "multiNomial"}, "post_sample must be 'qSample' or 'None': the draw of 'multiNomial'"),
        ({"post_sample": None}, "post_sample"),
        ({"generator": torch.Generator()}, "generator must be None"),
        ({"post_sample": "None", "q": q}, "q must be None where post_sample is 'None'"),
        ({"post_sample": "None", "seed": 1, "position": 0}, "seed must be None where post_sample is 'None'"),
    ):
        with pytest.raises(ValueError, match=f"^top_k_top_p_sample_v2: {name}"):
            ds.top_k_top_p_sample_v2(logits, 3, 1.0, **wrong)


# Arguments.


def test_numbers_and_lists_are_rounded_to_the_dtype_first() -> None:
    logits = np.array([[0.0, -30.0]], BF16)
    assert survivors(logits, 0, 0.9999) == [[0, 1]]  # 1 in bfloat16: skipped
    assert survivors(logits.astype(np.float32), 0, 0.9999) == [[0]]
    three = np.repeat(np.array([[1, 2, 3, 4]], np.float16), 3, 0)
    expected = survivors(three, np.array([1, 2, 3], np.int32), np.array([1, 0.9, 1], np.float16))
    assert expected == survivors(three, [1, np.int64(2), 3], [[1], [0.9], [np.float32(1)]])
    assert expected == survivors(three, torch.tensor([[1], [2], [3]], dtype=torch.int32), (1, 0.9, 1e300))


def test_eps_is_a_number_of_any_float_type() -> None:
    tokens = [
        ds.top_k_top_p_sample_v2(X, 3, 0.5, Q, eps=eps).logits_select_idx for eps in (0.5, np.float16(0.5), np.float32(0.5))
    ]
    np.testing.assert_array_equal(tokens[1:], [tokens[0]] * 2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_torch_in_torch_out(dtype: torch.dtype) -> None:
    logits = torch.randn(4, 33, generator=torch.Generator().manual_seed(0)).to(dtype)
    array = logits.view(torch.int16).numpy().view(BF16) if dtype == torch.bfloat16 else logits.numpy()
    p = torch.full((4,), 0.9, dtype=dtype)
    seeded = {"seed": torch.arange(4), "position": 3}
    for options in ({"is_need_sample_result": True}, {"q": torch.ones(4, 33)}, seeded):
        tensors = ds.top_k_top_p_sample_v2(logits, 9, p, is_need_logits=True, **options)
        plain = ds.top_k_top_p_sample_v2(array, 9, 0.9, is_need_logits=True, **options)
        for tensor, expected in zip(tensors, plain, strict=True):
            assert (tensor is None) == (expected is None)
            if expected is not None:
                assert isinstance(tensor, torch.Tensor) and isinstance(expected, np.ndarray)
                np.testing.assert_array_equal(tensor.numpy(), expected)
    if dtype != torch.float32:
        assert isinstance(ds.top_k_top_p_sample(logits, 9, p).logits_select_idx, torch.Tensor)
    filtered = ds.apply_top_k_top_p(logits, p, 9)
    assert filtered.dtype == dtype and filtered.data_ptr() != logits.data_ptr()


def test_strides_do_not_matter_and_arguments_are_left_alone() -> None:
    base = np.random.default_rng(4).standard_normal((6, 80)).astype(np.float32)
    view, packed = base[::2, ::-2], base[::2, ::-2].copy()
    q = np.random.default_rng(5).exponential(size=(40, 3)).astype(np.float32).T
    before = base.copy()
    for k, p in [(9, 0.9), (0, 0.9), (0, 1.0)]:
        one, two = (ds.top_k_top_p_sample_v2(x, k, p, q, is_need_logits=True) for x in (view, packed))
        np.testing.assert_array_equal(one.logits_select_idx, two.logits_select_idx)
        np.testing.assert_array_equal(one.logits_top_kp_select, two.logits_top_kp_select)
        np.testing.assert_array_equal(ds.apply_top_k_top_p(view, p, k), ds.apply_top_k_top_p(packed, p, k))
    np.testing.assert_array_equal(base, before)


X, XH = np.zeros((2, 8), np.float32), np.zeros((2, 8), np.float16)
Q = np.ones((2, 8), np.float32)
REFUSALS = [  # argument, changes to a good call of V2
    ("logits", {"logits": X.astype(np.float64)}), ("logits", {"logits": X[0]}), ("logits", {"logits": X[None]}),
    ("logits", {"logits": X[:0]}), ("logits", {"logits": X[:, :0]}), ("logits", {"logits": X.tolist()}),
    ("logits", {"logits": np.broadcast_to(np.float32(0), (1, 2**20 + 1))}),
    ("top_k", {"top_k": np.array([1, 2])}), ("top_k", {"top_k": np.ones(3, np.int32)}), ("top_k", {"top_k": None}),
    ("top_k", {"top_k": np.ones((1, 2), np.int32)}), ("top_k", {"top_k": 2.0}), ("top_k", {"top_k": True}),
    ("top_k", {"top_k": 2**31}), ("top_k", {"top_k": [1]}), ("top_k", {"top_k": [1, 2.5]}), ("top_k", {"top_k": []}),
    ("top_k", {"top_k": np.array(1, np.int32)}), ("top_k", {"top_k": [[1, 2], [3, 4]]}),
    ("top_p", {"top_p": np.ones(2, np.float16)}), ("top_p", {"top_p": np.ones(2)}), ("top_p", {"top_p": "0.5"}),
    ("top_p", {"top_p": [0.5, None]}), ("top_p", {"top_p": 10**400}), ("top_p", {"top_p": np.ones((2, 2), np.float32)}),
    ("top_p", {"top_p": 1j}), ("min_ps", {"min_ps": np.ones(2)}), ("min_ps", {"min_ps": [0.5]}),
    ("min_ps", {"min_ps": False}), ("q", {"q": Q.astype(np.float64)}), ("q", {"q": Q[:1]}), ("q", {"q": Q.tolist()}),
    ("q", {"q": Q[0]}), ("q", {"q": Q, "is_need_sample_result": True}), ("eps", {"eps": -1e-9}), ("eps", {"eps": NAN}),
    ("eps", {"eps": INF}), ("eps", {"eps": 1e39}), ("eps", {"eps": "0"}), ("eps", {"eps": np.float16(INF)}),
    ("is_need_logits", {"is_need_logits": 1}),
    *[("top_k_guess", {"top_k_guess": guess}) for guess in (-1, 32.0, 2**31)],
    ("ks_max", {"ks_max": 0}), ("ks_max", {"ks_max": 1025}), ("ks_max", {"ks_max": 8.0}), ("ks_max", {"ks_max": True}),
    ("input_is_logits", {"input_is_logits": None}), ("is_need_sample_result", {"is_need_sample_result": "yes"}),
    ("seed", {"seed": 1}), ("seed", {"position": 1}), ("seed", {"seed": 1, "position": 0, "q": Q}),
    ("seed", {"seed": 1, "position": 0, "is_need_sample_result": True}), ("seed", {"seed": -1, "position": 0}),
    ("seed", {"seed": 2**64, "position": 0}), ("seed", {"seed": 1.0, "position": 0}),
    ("seed", {"seed": np.ones(2), "position": 0}), ("seed", {"seed": np.array([1, -1]), "position": 0}),
    ("seed", {"seed": [1, 2, 3], "position": 0}), ("position", {"seed": 1, "position": 2**32}),
    ("position", {"seed": 1, "position": [0, True]}), ("position", {"seed": 1, "position": np.arange(3)}),
    ("backend", {"backend": "cuda"}),
]  # fmt: skip


@pytest.mark.parametrize(("arg", "changes"), REFUSALS)
def test_refusals(arg: str, changes: dict[str, Any]) -> None:
    call = {"logits": X, "top_k": 3, "top_p": 0.5} | changes
    with pytest.raises(ValueError, match=rf"^top_k_top_p_sample_v2: {arg} must be .+; got .+"):
        ds.top_k_top_p_sample_v2(**call)
    shared = {"logits", "top_k", "top_p", "q", "eps", "is_need_logits", "top_k_guess", "seed", "position", "backend"}
    if call.keys() <= shared:
        call = {"logits": XH, "top_k": 3, "top_p": 0.5} | changes
        if arg == "top_p" and getattr(call["top_p"], "dtype", None) == np.float16:
            call["top_p"] = call["top_p"].astype(np.float32)
        with pytest.raises(ValueError, match=rf"^top_k_top_p_sample: {arg} must be .+; got .+"):
            ds.top_k_top_p_sample(**call)


def test_refusals_of_the_other_two() -> None:
    for arg, changes in [("logits", {"logits": X}), ("kernel_exact", {"kernel_exact": 0})]:
        with pytest.raises(ValueError, match=f"^top_k_top_p_sample: {arg} must be .+; got .+"):
            ds.top_k_top_p_sample(**{"logits": XH, "top_k": 3, "top_p": 0.5} | changes)
    for arg, changes in [
        ("logits", {"logits": X[0]}),
        ("p", {"p": np.ones(2)}),
        ("p", {"p": [1.0]}),
        ("k", {"k": 1.5}),
        ("k", {"k": np.ones(2, np.int64)}),
        ("backend", {"backend": "gpu"}),
    ]:
        with pytest.raises(ValueError, match=f"^apply_top_k_top_p: {arg} must be .+; got .+"):
            ds.apply_top_k_top_p(**{"logits": X} | changes)


# ApplyTopKTopP.


def slow_apply(row: list[float], p: float | None, k: int | None) -> tuple[list[float], bool]:
    order = descending(row[::-1])[::-1]
    order = [len(row) - 1 - i for i in order]  # ascending and stable
    out, sure = list(row), True
    if k is not None and 1 <= k <= len(row):
        bound = row[order[-k]]
        out = [x if math.isnan(bound) or x >= bound else -INF for x in out]
    if p is not None:
        values, total = softmax([out[i] for i in order]), 0.0
        for i, value in zip(order[:-1], values, strict=False):
            total += value
            sure &= not 0 < p < 1 or total == 0 or abs(total - (1 - p)) > 3e-8 * len(row) + 2e-6
            if p <= 0 or total <= 1 - p:
                out[i] = -INF
    return out, sure


@pytest.mark.parametrize("dtype", [np.float16, BF16, np.float32])
@pytest.mark.parametrize("k", [None, [1, 5, 40, 97, 0, -3, 98, 2000]])
@pytest.mark.parametrize("p", [None, [0.1, 0.5, 0.9, 0.97, 1.0, 0.0, 2.0, NAN]])
def test_apply_removes_what_the_oracle_removes(p: Any, k: Any, dtype: Any) -> None:
    rng = np.random.default_rng(6)
    logits = (rng.standard_normal((16, 97)) * 3).astype(dtype)
    logits[rng.random(logits.shape) < 0.05] = -np.inf
    logits[:4, ::9] = np.nan
    ps = None if p is None else column(rng, p, dtype)
    ks = None if k is None else column(rng, k, np.int32)
    out = ds.apply_top_k_top_p(logits, ps, ks)
    assert out.dtype == logits.dtype
    checked = 0
    for b, row in enumerate(logits.astype(np.float64).tolist()):
        expected, sure = slow_apply(row, None if ps is None else float(ps[b]), None if ks is None else int(ks[b]))
        if sure:
            checked += 1
            np.testing.assert_array_equal(out[b].astype(np.float64), expected)
    assert checked >= 13


def test_apply_keeps_all_ties_of_top_k_and_the_highest_id_of_top_p() -> None:
    logits = np.array([[2, 1, 2, 0, 1]], np.float32)
    np.testing.assert_array_equal(ds.apply_top_k_top_p(logits, k=3), [[2, 1, 2, -INF, 1]])
    flat = np.zeros((1, 4), np.float32)  # quarters: exact sums
    for p, kept in [(0.0, [3]), (0.25, [3]), (0.5, [2, 3]), (0.75, [1, 2, 3]), (1.0, [0, 1, 2, 3])]:
        assert np.flatnonzero(ds.apply_top_k_top_p(flat, p)[0] == 0).tolist() == kept
    np.testing.assert_array_equal(ds.apply_top_k_top_p(logits), logits)
    wide = np.zeros((1, 100_001), np.float32)  # the float32 sums run past 1 here
    assert np.flatnonzero(ds.apply_top_k_top_p(wide, 0.0)[0] == 0).tolist() == [100_000]


# Conformance data and the page.


@pytest.mark.parametrize("case", [*cases("top_k_top_p_sample")], ids=lambda case: case[0])
def test_conformance_data(case: Any) -> None:
    _, call, inputs, outputs = case
    result = getattr(ds, call["op"])(**inputs, **call["arguments"])
    names = result._asdict() if isinstance(result, tuple) else {"out": result}
    assert {name for name, value in names.items() if value is not None} == outputs.keys()
    for name, expected in outputs.items():
        assert names[name].dtype == expected.dtype
        assert_close(names[name], expected.astype(np.float64) if expected.dtype.name in TOLERANCE else expected)


def test_noise_of_a_seed_is_by_id() -> None:
    noise = arguments.noise("op", None, 3, [5, 6], (2, 8))
    assert noise is not None
    np.testing.assert_array_equal(noise(1, np.array([4, 2])), ds.random.exponential(3, 6, np.array([4, 2])))
