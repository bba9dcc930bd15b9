"""The samplers' native core against the reference: the same bits in every result, on every build, with any thread count."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import decodestep as ds
from support.core_builds import TIERS, printed_under

BF16 = ml_dtypes.bfloat16
INF, NAN = np.inf, np.nan
ODD = [0.0, -0.0, INF, -INF, NAN, 3e38, -3e38, 1e-45, -1e-40, 65504.0, 1.0]
WIDTHS = [1, 2, 7, 15, 16, 17, 31, 33, 100, 511, 512, 513, 1500, 5000]


def rows_of(rng: np.random.Generator, kind: str, batch: int, vocab: int) -> np.ndarray:
    shape = (batch, vocab)
    normal = rng.standard_normal(shape)
    with np.errstate(all="ignore"):
        rows: np.ndarray = {
            "flat": lambda: normal * 0.01,
            "sharp": lambda: normal * 8,
            "usual": lambda: normal * 3,
            "equal": lambda: np.full(shape, rng.choice([0.0, 1.0, -7.5, -INF, INF, NAN])),
            "two": lambda: rng.choice([1.0, 1.0 + 2**-23, 0.0], shape),
            "near": lambda: 1 + rng.integers(-4, 1, shape) * 2.0**-23,
            "ties": lambda: np.rint(normal * 2),
            "ascending": lambda: np.sort(normal * 4),
            "descending": lambda: -np.sort(normal * 4),
            "huge": lambda: normal * 1e38,
            "denormal": lambda: normal * 1e-44,
            "odd": lambda: np.where(rng.random(shape) < 0.3, rng.choice(ODD, shape), normal),
            "lonely": lambda: np.where(np.arange(vocab) == rng.integers(vocab), 1.5, rng.choice([-INF, NAN, -INF], shape)),
            "few": lambda: np.where(rng.random(shape) < 0.02, normal, rng.choice([-INF, -INF, NAN], shape)),
            "shares": lambda: rng.dirichlet(np.full(vocab, 0.3), batch),
        }[kind]()
    return rows


KINDS = ("flat", "sharp", "usual", "equal", "two", "near", "ties", "ascending", "descending", "huge", "denormal", "odd",
         "lonely", "few", "shares")  # fmt: skip


def noise_of(rng: np.random.Generator, shape: tuple[int, int]) -> dict[str, Any]:
    kind = rng.integers(5)
    if kind == 0:
        return {}
    if kind == 1:
        return {"seed": rng.integers(0, 2**63, shape[0], np.uint64), "position": int(rng.integers(2**32))}
    q = rng.standard_exponential(shape).astype(np.float32)
    if kind == 2:
        q = np.where(rng.random(shape) < 0.4, rng.choice([0, INF, NAN, -1, 1e-45, 1e-38, 3e38], shape), q).astype(np.float32)
    if kind == 3:
        q = np.rint(q)
    return {"q": q, "eps": float(rng.choice([0, 1e-8, 1, 1e-30]))}


def column(rng: np.random.Generator, choices: list[Any], batch: int, dtype: Any) -> np.ndarray:
    with np.errstate(over="ignore"):
        return rng.choice(np.array(choices), batch).astype(dtype)


def same(one: Any, two: Any) -> None:
    for a, b in zip(one, two, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(np.asarray(a, np.float64 if a.dtype == BF16 else None),
                                          np.asarray(b, np.float64 if b.dtype == BF16 else None))  # fmt: skip


def compare(kind: str, vocab: int, seed: int) -> None:
    """One call of each function in both backends."""
    rng = np.random.default_rng([seed, vocab, KINDS.index(kind)])
    batch = int(rng.integers(1, 6))
    dtype = rng.choice([0, 1, 2])
    with np.errstate(over="ignore"):
        logits = rows_of(rng, kind, batch, vocab).astype((np.float32, np.float16, BF16)[dtype])
    k = column(rng, [0, 1, 2, 3, 20, 50, vocab // 2, vocab - 1, vocab, 1024, -1], batch, np.int32)
    p = column(rng, [0.0, 1.0, 0.1, 0.5, 0.9, 0.99, 0.999999, 1e-30, -1.0, NAN, 2.0], batch, logits.dtype)
    m = column(rng, [0.0, 0.0, 0.01, 0.1, 0.5, 1.0, 1e-40, NAN, 1e-7], batch, logits.dtype)
    raw = kind == "shares" or rng.random() < 0.1
    noise = noise_of(rng, logits.shape)
    survivors = rng.random() < 0.4
    options = {
        "ks_max": int(rng.choice([1, 20, 1024])),
        "top_k_guess": int(rng.choice([0, 1, 32, 2**31 - 1])),
        "is_need_logits": bool(rng.integers(2)),
    }
    results = [
        ds.top_k_top_p_sample_v2(
            logits, k, p, min_ps=m, input_is_logits=not raw, is_need_sample_result=survivors,
            **({} if survivors else noise), **options, backend=backend,
        )
        for backend in ("cpu", "reference")
    ]  # fmt: skip
    same(*results)
    if dtype != 0:
        del options["ks_max"]
        exact = bool(rng.integers(2))
        same(*(ds.top_k_top_p_sample(logits, k, p, **noise, **options, kernel_exact=exact, backend=backend)
               for backend in ("cpu", "reference")))  # fmt: skip
    given_p, given_k = (None if rng.random() < 0.2 else value for value in (p, k))
    same(*([ds.apply_top_k_top_p(logits, given_p, given_k, backend=backend)] for backend in ("cpu", "reference")))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vocab", WIDTHS)
def test_both_backends_have_the_same_bits(kind: str, vocab: int) -> None:
    for seed in range(6):
        compare(kind, vocab, seed)


@settings(max_examples=150)
@given(st.sampled_from(KINDS), st.integers(1, 700), st.integers(0, 2**32 - 1))
def test_drawn_rows_have_the_same_bits(kind: str, vocab: int, seed: int) -> None:
    compare(kind, vocab, seed)


@pytest.mark.slow
@pytest.mark.parametrize("p", [0.3, 0.9, 0.999])
@pytest.mark.parametrize("spread", [0.1, 1.0, 4.0])
def test_long_rows_have_the_same_bits(p: float, spread: float) -> None:
    rng = np.random.default_rng(1)
    logits = (rng.standard_normal((2, 131072)) * spread).astype(np.float32)
    q = rng.standard_exponential(logits.shape).astype(np.float32)
    for k, m in [([0, 1024], None), (0, 0.05), ([0, 50], 0.0)]:
        for noise in ({"q": q}, {"seed": 4, "position": [7, 8]}, {}):
            call = {"top_p": [p, 1.0], "min_ps": m, "is_need_logits": True, **noise}
            same(*(ds.top_k_top_p_sample_v2(logits, k, **call, backend=b) for b in ("cpu", "reference")))
    same(*([ds.apply_top_k_top_p(logits, p, [0, 3000], backend=b)] for b in ("cpu", "reference")))


def results_of_a_batch() -> list[Any]:
    rng = np.random.default_rng(7)
    found: list[Any] = []
    for spread in (0.2, 3.0):
        logits = (rng.standard_normal((12, 40000)) * spread).astype(np.float16)
        p, m = np.tile([0.9, 1.0, 0.5], 4).astype(np.float16), np.tile([0, 0.1], 6).astype(np.float16)
        k = np.tile([0, 50, 0, 1000], 3).astype(np.int32)
        q = rng.standard_exponential(logits.shape).astype(np.float32)
        for noise in ({"q": q}, {"seed": 3, "position": np.arange(12)}, {}):
            found += ds.top_k_top_p_sample_v2(logits, k, p, min_ps=m, is_need_logits=True, **noise, backend="cpu")
        found += ds.top_k_top_p_sample_v2(logits, k, p, min_ps=m, is_need_sample_result=True, backend="cpu")
        found.append(ds.apply_top_k_top_p(logits, p, k, backend="cpu"))
    return [result for result in found if result is not None]


def checksum(results: list[Any]) -> str:
    import hashlib

    return hashlib.sha256(b"".join(result.tobytes() for result in results)).hexdigest()


def test_any_thread_count_gives_the_same_bits() -> None:
    with ds.use_threads(1):
        alone = results_of_a_batch()
    for threads in (2, 3, 16):
        with ds.use_threads(threads):
            same(alone, results_of_a_batch())


@pytest.mark.tiers
@pytest.mark.parametrize("isa", TIERS)
def test_every_build_gives_the_same_bits(isa: str) -> None:
    code = "import test_top_k_top_p_sample_native as t; print(t.checksum(t.results_of_a_batch()))"
    assert printed_under(isa, code) == checksum(results_of_a_batch())
