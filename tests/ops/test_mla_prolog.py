"""mla_prolog, V1 to V3, against an oracle that works token by token in float64, by hand, and on every backend."""

from __future__ import annotations

import inspect
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import decodestep as ds
from decodestep.ops.linear import Format, LinearPanels
from support.misaligned import misaligned
from support.mla_prolog_cases import BF16, MODES, SCENARIOS, V1, V2, agree, call, copied, for_version, legal, make
from support.mla_prolog_oracle import oracle
from support.tolerances import assert_close
from vectors.read import cases

# The specification's signatures: the tensors that every call has, then its optional tensors and attributes with their defaults.
WEIGHTS = ("token_x", "weight_dq", "weight_uq_qr", "weight_uk", "weight_dkv_kr")
NORMS = ("rmsnorm_gamma_cq", "rmsnorm_gamma_ckv", "rope_sin", "rope_cos")
CACHES = ("kv_cache", "kr_cache")
SCALES = (
    *("dequant_scale_x", "dequant_scale_w_dq", "dequant_scale_w_uq_qr", "dequant_scale_w_dkv_kr"),
    *("quant_scale_ckv", "quant_scale_ckr", "smooth_scales_cq"),
)
ATTRIBUTES = {"rmsnorm_epsilon_cq": 1e-5, "rmsnorm_epsilon_ckv": 1e-5, "cache_mode": "PA_BSND"}
MODE_ATTRIBUTES = ("weight_quant_mode", "kv_cache_quant_mode", "query_quant_mode", "ckvkr_repo_mode", "quant_scale_repo_mode")
FIRST = (*WEIGHTS, *NORMS, "cache_index", *CACHES), dict.fromkeys(SCALES) | ATTRIBUTES
THIRD = (
    (*WEIGHTS, *NORMS, *CACHES),
    dict.fromkeys(("cache_index", *SCALES, "actual_seq_len", "k_nope_clip_alpha"))
    | ATTRIBUTES
    | {"query_norm_flag": False, **dict.fromkeys(MODE_ATTRIBUTES, 0), "tile_size": 128, "qc_qr_scale": 1.0, "kc_scale": 1.0}
    | dict.fromkeys(f"{name}_dtype" for name in ("token_x", "weight_dq", "weight_uq_qr", "weight_dkv_kr", "kv_cache")),
)


@pytest.mark.parametrize(
    ("function", "documented", "more"),
    [
        (ds.mla_prolog, FIRST, {"limits": None, "backend": "auto"}),
        (ds.mla_prolog_v2, FIRST, {"limits": None, "rounding": "half_even", "backend": "auto"}),
        (ds.mla_prolog_v3, THIRD, {"limits": None, "rounding": "half_even", "backend": "auto"}),
    ],
)
def test_the_arguments_are_the_specifications(function, documented, more):
    """With what says how they are computed here after them."""
    parameters = inspect.signature(function).parameters.values()
    required = [p.name for p in parameters if p.default is p.empty]
    options = {p.name: p.default for p in parameters if p.default is not p.empty}
    assert required == list(documented[0]) and list(options.items()) == list((documented[1] | more).items())
    assert all((p.kind is p.KEYWORD_ONLY) == (p.name in options) for p in parameters)


# Against the oracle.


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_scenario_mode_and_token_axis(scenario, backend):
    flips: Counter = Counter()
    for mode in MODES:
        for merged in (True, False):
            if not legal(scenario, mode, merged):
                continue
            for seed in range(3):
                rng = np.random.default_rng((seed, merged))
                more = {"lengths": [2, 0, 7, 1]} if merged and mode.startswith("PA_BLK") and seed else {}
                arguments = make(rng, scenario, mode, merged, smooth=seed != 1, nz_weights=seed == 2, **more)
                arguments |= dict(query_norm_flag=True, qc_qr_scale=[1.0, 2.5, 1.0][seed], kc_scale=[1.0, 0.75, 1.25][seed])
                want = oracle(arguments, scenario=scenario)
                got = call(arguments, backend=backend)
                if SCENARIOS[scenario].kv != "tensor":
                    assert got["dequant_scale_q_nope"] is None
                if scenario == "NO_QUANT":
                    assert got["dequant_scale_q_norm"] is None
                assert got["query_norm"].dtype == (SCENARIOS[scenario].code if SCENARIOS[scenario].uq else BF16)
                agree(got, want, flips)
    # One int8 of the normed query on the other side of a tie moves its whole row.
    allowed = {"query": 0.03, "query_rope": 0.03} if SCENARIOS[scenario].uq else {}
    for part in {part for part, _ in flips}:
        assert flips[part, "off"] <= allowed.get(part, 0.01) * flips[part, "all"], part


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("mode", ["PA_BSND", "PA_NZ"])
def test_the_earlier_versions_name_the_scenario_by_dtypes(version, mode):
    for scenario in V1 if version == 1 else V2:
        for merged in (True, False):
            arguments = make(np.random.default_rng(7), scenario, mode, merged)
            want, got = oracle(arguments, scenario=scenario), call(copied(arguments), version)
            agree(got, want, Counter())
            assert got["query"].shape == (*arguments["token_x"].shape[:-1], 2, arguments["weight_uk"].shape[2])
            if version == 2 and scenario == "FULL_KV":
                assert got["dequant_scale_q_nope"].shape == (9, 2, 1) and got["query"].dtype == np.int8


def test_the_caches_come_back_themselves():
    arguments = for_version(make(np.random.default_rng(0)), 1)
    result = ds.mla_prolog(**arguments)
    assert result.kv_cache_out is arguments["kv_cache"] and result.kr_cache_out is arguments["kr_cache"]
    assert result._fields == ("query", "query_rope", "kv_cache_out", "kr_cache_out")
    assert ds.mla_prolog_v2(**arguments)._fields == (*result._fields, "dequant_scale_q_nope")
    arguments = make(np.random.default_rng(0))
    assert ds.mla_prolog_v3(**arguments)._fields == (
        "query",
        "query_rope",
        "dequant_scale_q_nope",
        "query_norm",
        "dequant_scale_q_norm",
    )


@pytest.mark.parametrize("real", [np.float32, np.float64])
@pytest.mark.parametrize("scenario", ["NO_QUANT", "PARTIAL", "FULL_KV", "MXFP8_KV", "FP8"])
def test_wider_tensors_are_not_rounded(real, scenario):
    arguments = make(np.random.default_rng(3), scenario, real=real)
    want, got = oracle(arguments, scenario=scenario), call(arguments)
    if scenario == "NO_QUANT":
        for name in ("query", "query_rope", "kv_cache", "kr_cache"):
            assert got[name].dtype == real
            assert_close(got[name], want[name].reshape(got[name].shape))
    else:
        agree(got, want, Counter())


def test_half_away_rounds_twice_as_the_device():
    arguments = make(np.random.default_rng(5), "FULL_KV", Hckv=256, N=8)
    want = oracle(arguments, "half_away", "FULL_KV")
    got, even = call(copied(arguments), rounding="half_away"), call(copied(arguments))
    assert (got["query"] == want["query"].reshape(got["query"].shape)).mean() > 0.99
    assert np.abs(got["query"].astype(int) - even["query"]).max() == 1
    assert (got["query"] != even["query"]).mean() > 0.005


# Hand examples.


def unit_call(**more: Any) -> dict[str, Any]:
    """One token of two values, one head, all weights selecting: exact by hand. The norms divide by 4 and multiply by 4."""
    f32 = np.float32
    base = dict(
        token_x=np.array([[3, 4]], f32),
        weight_dq=np.eye(2, dtype=f32),
        weight_uq_qr=np.array([[1, 0, 1, 0], [0, 1, 0, 1]], f32),
        weight_uk=np.array([[[1, 0], [0, 2]]], f32),
        weight_dkv_kr=np.array([[1, 0, 0, 1], [0, 1, 1, 0]], f32),
        rmsnorm_gamma_cq=np.full(2, 4, f32),
        rmsnorm_gamma_ckv=np.full(2, 4, f32),
        rmsnorm_epsilon_cq=3.5,
        rmsnorm_epsilon_ckv=3.5,
        rope_sin=np.array([[0.5, 0.25]], f32),
        rope_cos=np.array([[2, 4]], f32),
        cache_index=np.array([3]),
        kv_cache=np.zeros((2, 2, 1, 2), f32),
        kr_cache=np.zeros((2, 2, 1, 2), f32),
    )
    return base | more


def test_a_token_by_hand():
    arguments = unit_call()
    query, query_rope, kv, kr = ds.mla_prolog(**arguments)
    np.testing.assert_array_equal(query, [[[3, 8]]])
    np.testing.assert_array_equal(query_rope, [[[3 * 2 - 4 * 0.5, 4 * 4 + 3 * 0.25]]])  # each half has its own sin and cos
    np.testing.assert_array_equal(kv[:, :, 0], [[[0, 0], [0, 0]], [[0, 0], [3, 4]]])
    np.testing.assert_array_equal(kr[1, 1, 0], [4 * 2 - 3 * 0.5, 3 * 4 + 4 * 0.25])


def test_the_norm_by_hand():
    ones = np.ones(2, np.float32)
    made = ds.mla_prolog(**unit_call(rmsnorm_gamma_cq=ones, rmsnorm_gamma_ckv=2 * ones, rmsnorm_epsilon_ckv=12.5))
    np.testing.assert_array_equal(made.query, [[[0.75, 2]]])  # 3 / sqrt(12.5 + 3.5)
    np.testing.assert_array_equal(made.kv_cache_out[1, 1, 0], np.float32([6, 8]) / np.float32(5))


def test_the_factors_reach_what_they_should():
    plain, scaled = unit_call(), unit_call()
    for arguments in (plain, scaled):
        arguments["weight_dq"] = arguments["weight_dq"].copy()
    one = ds.mla_prolog_v3(**plain)
    two = ds.mla_prolog_v3(**scaled, qc_qr_scale=2.0, kc_scale=4.0)
    np.testing.assert_array_equal(two.query, 2 * one.query)
    np.testing.assert_array_equal(two.query_rope, 2 * one.query_rope)
    np.testing.assert_array_equal(scaled["kv_cache"], 4 * plain["kv_cache"])
    np.testing.assert_array_equal(scaled["kr_cache"], plain["kr_cache"])
    np.testing.assert_array_equal(ds.mla_prolog_v3(**unit_call(), qc_qr_scale=1 + 1e-8).query, one.query)


def test_tiles_by_hand():
    """Two tiles: one of the values 1, -2, 3, ... -128 clipped at 0.6 of the largest, and one of zeros."""
    rng = np.random.default_rng(0)
    arguments = make(rng, "PARTIAL_TILE", B=1, S=1, He=16, negative=False)
    arguments["token_x"][:] = 0
    arguments["token_x"][0, 0] = 1
    arguments["weight_dkv_kr"][0] = 0
    whole = np.arange(1, 129) * np.tile([1, -1], 64)
    arguments["weight_dkv_kr"][0, :128] = whole
    arguments["weight_dkv_kr"][0, 256:] = 1
    arguments["rmsnorm_gamma_ckv"][:] = 1
    arguments |= dict(k_nope_clip_alpha=np.array([0.6], np.float32), cache_index=np.array([5]), kc_scale=2.0)
    ds.mla_prolog_v3(**arguments)
    row = arguments["kv_cache"][1, 1, 0]
    value = whole / math.sqrt((whole**2).sum() / 256 + 1e-5) * 2
    bound = 0.6 * abs(value[-1])
    np.testing.assert_array_equal(row[:128], np.rint(np.clip(value, -bound, bound) / bound * 127))
    np.testing.assert_array_equal(row[128:256], 0)
    scales = row[256 + 64 :].copy().view(np.float32)
    np.testing.assert_allclose(scales, [bound / 127, 0], rtol=1e-6)
    assert row[:256].max() == 127 and row[:256].min() == -127  # the clip comes before the rounding


def test_a_zero_head_in_full_kv():
    arguments = make(np.random.default_rng(1), "FULL_KV", B=1, S=2)
    heads = arguments["weight_uk"]
    heads[0] = 0
    got = call(arguments)
    assert not got["query"][:, 0].any() and not got["dequant_scale_q_nope"][:, 0].any()
    rope = got["query_rope"][:, 0].astype(float)
    assert np.isinf(rope).all()
    arguments["weight_uq_qr"].reshape(32, 2, 48)[:, 0, 16:] = 0  # and now its rope part is zero too
    got = call(arguments)
    assert not got["query_rope"][:, 0].any() and np.isfinite(got["query_rope"].astype(float)).all()


def test_nan_and_infinity_go_through():
    for scenario in V2:
        arguments = make(np.random.default_rng(1), scenario, B=1, S=3, negative=False)
        arguments["cache_index"] = np.array([0, 1, 2])
        if scenario.startswith("FULL"):
            arguments["dequant_scale_x"][:2, 0] = [np.nan, np.inf]
        else:
            arguments["token_x"][:2, 0] = [np.nan, np.inf]
        clean = arguments | {name: value.copy() for name, value in arguments.items() if isinstance(value, np.ndarray)}
        clean["token_x" if "dequant_scale_x" not in clean else "dequant_scale_x"][:2] = 1
        got, want = call(arguments), call(clean)
        np.testing.assert_array_equal(got["query"][2], want["query"][2])
        np.testing.assert_array_equal(got["kv_cache"][0, 2], want["kv_cache"][0, 2])
        if scenario == "NO_QUANT":
            assert np.isnan(got["query"][0].astype(float)).all()


# The native kernel against the reference.


def pack(w: np.ndarray, kind: Format, rng: np.random.Generator) -> ds.PackedWeight:
    if kind == Format.F32:
        return ds.PackedWeight.from_array(w.astype(np.float32))
    if kind in (Format.F16, Format.BF16):
        return ds.PackedWeight.from_array(w.astype(np.float16 if kind == Format.F16 else BF16))
    size = {Format.Q4_0: 18, Format.Q4_1: 20, Format.Q8_0: 34}[kind]
    rows = rng.integers(0, 256, (w.shape[1], w.shape[0] // 32, size), np.uint8)
    rows[..., :2] = np.float16(0.01).tobytes()[0], np.float16(0.01).tobytes()[1]
    if kind == Format.Q4_1:
        rows[..., 2:4] = np.frombuffer(np.float16(-0.07).tobytes(), np.uint8)
    return ds.PackedWeight(rows.reshape(w.shape[1], -1), kind, w.shape[0])


@settings(max_examples=60)
@given(st.data())
def test_cpu_against_reference(data):
    draw = data.draw
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kind, real = draw(st.sampled_from([f for f in Format if f < Format.Q4_K])), draw(st.sampled_from([np.float32, BF16]))
    N, D, Dr = draw(st.integers(1, 9)), draw(st.sampled_from([0, 1, 7, 16])), 2 * draw(st.integers(1, 15))
    He, Hcq, Hckv = 32 * draw(st.integers(1, 3)), draw(st.sampled_from([32, 64])), draw(st.integers(1, 70))
    T, blocks, rows = draw(st.integers(0, 6)), draw(st.integers(0, 3)), draw(st.integers(1, 4))

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(real)

    arguments = dict(
        token_x=normal(T, He),
        weight_dq=pack(normal(He, Hcq), kind, rng),
        weight_uq_qr=pack(normal(Hcq, N * (D + Dr)), kind, rng),
        weight_uk=normal(N, D, Hckv),
        weight_dkv_kr=pack(normal(He, Hckv + Dr), kind, rng),
        rmsnorm_gamma_cq=normal(Hcq),
        rmsnorm_gamma_ckv=normal(Hckv),
        rope_sin=normal(T, Dr),
        rope_cos=normal(T, Dr),
        cache_index=rng.integers(-2, max(blocks * rows, 1), T),
        kv_cache=normal(blocks, rows, 1, Hckv),
        kr_cache=normal(blocks, rows, 1, Dr),
    )
    a, b = copied(arguments), copied(arguments)
    with ds.use_threads(draw(st.sampled_from([1, 2]))):
        got, want = ds.mla_prolog(**a, backend="cpu"), ds.mla_prolog(**b, backend="reference")
    for name in want._fields:
        assert getattr(got, name).dtype == real
        off, wanted = 2.0**-6 if real == BF16 else 2e-5, getattr(want, name).astype(float)
        np.testing.assert_allclose(getattr(got, name).astype(float), wanted, rtol=off, atol=off * np.abs(wanted).max(initial=0))


PANEL_FORMATS = [Format.F32, Format.F16, Format.BF16, Format.Q4_0, Format.Q4_1, Format.Q8_0]


def without_norms(arguments: dict[str, Any]) -> dict[str, Any]:
    """A call whose norms divide by 2^40, beside which a mean square is nothing, and multiply by 2^40: they change no bit."""
    gammas = {name: np.full_like(arguments[name], 2.0**40) for name in ("rmsnorm_gamma_cq", "rmsnorm_gamma_ckv")}
    return arguments | gammas | dict.fromkeys(("rmsnorm_epsilon_cq", "rmsnorm_epsilon_ckv"), 2.0**80)


def quantised_call(kind: Format, real: Any, tokens: int, *, Hcq: int = 64) -> dict[str, Any]:
    """A call of V1 whose projections are GGUF blocks of random values, as PackedWeight."""
    rng = np.random.default_rng(27)
    He, N, D, Hckv, Dr = 96, 3, 16, 70, 8
    made = make(rng, real=real, He=He, Hcq=Hcq, N=N, D=D, Hckv=Hckv, Dr=Dr, lengths=[tokens], blocks=60)
    arguments = for_version(made, 1)
    for name in ("weight_dq", "weight_uq_qr", "weight_dkv_kr"):
        arguments[name] = pack(arguments[name], kind, rng)
    return arguments


def in_linear_panels(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: LinearPanels.pack(w) if isinstance(w, ds.PackedWeight) else w for name, w in arguments.items()}


def assert_near(got: Any, want: Any, off: float) -> None:
    for name, value in want._asdict().items():
        wanted = value.astype(float)
        actual = getattr(got, name).astype(float)
        np.testing.assert_allclose(actual, wanted, rtol=off, atol=off * np.abs(wanted).max(), err_msg=name)


@pytest.mark.parametrize("kind", PANEL_FORMATS)
@pytest.mark.parametrize("real", [np.float32, BF16])
@pytest.mark.parametrize(("tokens", "given_c"), [(1, False), (5, False), (7, True), (140, False)])
def test_linear_panels_against_reference(kind, real, tokens, given_c):
    """given_c: with c the same as x."""
    arguments = in_linear_panels(quantised_call(kind, real, tokens, Hcq=96 if given_c else 64))
    if given_c:
        arguments = without_norms(arguments) | {"weight_dq": np.eye(96, dtype=real)}
    got, want = (ds.mla_prolog(**copied(arguments), backend=backend) for backend in ("cpu", "reference"))
    # Where c is computed, its last bits may differ, and a value near a tie is then quantised to the next integer.
    near_ties = not given_c and kind in (Format.Q4_0, Format.Q4_1, Format.Q8_0)
    assert_near(got, want, 2.0**-6 if real == BF16 else 1e-2 if near_ties else 2e-5)
    for threads in (1, 3):
        with ds.use_threads(threads):
            again = ds.mla_prolog(**copied(arguments))
        for name in want._fields:
            np.testing.assert_array_equal(getattr(again, name), getattr(got, name))


@pytest.mark.parametrize("kind", [Format.Q4_0, Format.Q4_1, Format.Q8_0])
def test_linear_panels_are_close_to_their_rows(kind):
    """Rounding activations to int8 moves a result by less than a hundredth of the largest."""
    arguments = quantised_call(kind, np.float32, 5)
    rows, panels = ds.mla_prolog(**copied(arguments)), ds.mla_prolog(**copied(in_linear_panels(arguments)))
    for name in rows._fields:
        a, b = getattr(panels, name), getattr(rows, name)
        assert 0 < np.abs(a - b).max() < 0.01 * np.abs(b).max(), name


@pytest.mark.parametrize("kind", PANEL_FORMATS)
def test_a_token_with_linear_panels_does_not_depend_on_its_batch(kind):
    arguments = in_linear_panels(quantised_call(kind, BF16, 140))
    want = ds.mla_prolog(**copied(arguments))
    for t in (0, 77, 139):
        one = copied(arguments)
        for name in ("token_x", "rope_sin", "rope_cos", "cache_index"):
            one[name] = one[name][t : t + 1]
        got = ds.mla_prolog(**one)
        for name in ("query", "query_rope"):
            np.testing.assert_array_equal(getattr(got, name)[0].view(np.uint16), getattr(want, name)[t].view(np.uint16))


def test_forms_of_weights_may_be_mixed():
    arguments = quantised_call(Format.Q8_0, np.float32, 6)
    panels = in_linear_panels(arguments)
    arrays = {name: arguments[name].dense() for name in ("weight_dq", "weight_uq_qr", "weight_dkv_kr")}
    for forms in ((panels, arrays, arguments), (arguments, panels, arrays), (arrays, arguments, panels)):
        names = ("weight_dq", "weight_uq_qr", "weight_dkv_kr")
        mixed = arguments | {name: form[name] for name, form in zip(names, forms, strict=True)}
        got, want = (ds.mla_prolog(**copied(mixed), backend=backend) for backend in ("cpu", "reference"))
        assert_near(got, want, 1e-2)


def test_an_int8_scenario_takes_no_linear_panels():
    arguments = for_version(make(np.random.default_rng(28), "PARTIAL"), 1)
    dense = ds.PackedWeight.from_array(arguments["weight_uq_qr"].astype(np.float32))
    with pytest.raises(ValueError, match="^mla_prolog: dequant_scale_w_uq_qr must be None"):
        ds.mla_prolog(**arguments | {"weight_uq_qr": LinearPanels.pack(dense)})


def packed_call(real: Any = np.float32) -> dict[str, Any]:
    arguments = for_version(make(np.random.default_rng(23), real=real), 1)
    for name in ("weight_dq", "weight_uq_qr", "weight_dkv_kr"):
        arguments[name] = ds.PackedWeight.from_array(arguments[name])
    return arguments


def test_auto_takes_the_kernel_where_it_serves():
    def wide(real: Any) -> dict[str, Any]:
        return for_version(make(np.random.default_rng(0), real=real), 1)

    with ds.profile() as p:
        ds.mla_prolog(**packed_call())
        ds.mla_prolog(**wide(BF16))
        ds.mla_prolog(**wide(np.float64))
    assert {key: cost.calls for key, cost in p.costs.items()} == {("mla_prolog", "cpu"): 2, ("mla_prolog", "reference"): 1}
    with pytest.raises(ValueError, match=r"^mla_prolog: backend must be able to serve the call; got 'cpu', which has no f"):
        ds.mla_prolog(**wide(np.float64), backend="cpu")


@pytest.mark.parametrize("real", [np.float32, BF16])
def test_packed_weights_in_any_cache(real):
    """Where the kernel does not do it all it does the products."""
    for change in (dict(cache_mode="PA_NZ"), dict(kv_cache=np.zeros((8, 4, 1, 128), real)[..., ::2])):
        a, b = packed_call(real) | change, packed_call(real) | change
        want, got = ds.mla_prolog(**copied(a), backend="reference"), ds.mla_prolog(**copied(b), backend="cpu")
        for name in want._fields:
            assert_close(getattr(got, name), getattr(want, name).astype(float))


@settings(max_examples=60)
@given(st.data())
def test_native_products_of_any_shape(data):
    draw = data.draw
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    scenario, real = draw(st.sampled_from([("NO_QUANT", np.float32), ("NO_QUANT", BF16), ("FULL", BF16)]))
    nz, wide = draw(st.booleans()), draw(st.integers(1, 300))
    sizes = dict(
        He=wide,
        Hcq=draw(st.integers(1, 150)),
        N=draw(st.integers(1, 3)),
        D=draw(st.integers(0, 40)),
        Hckv=draw(st.integers(1, 90)),
        Dr=2 * draw(st.integers(1, 9)),
        lengths=[draw(st.integers(0, 9))],
    )
    arguments = make(rng, scenario, real=real, **sizes)
    if nz and sizes["Hcq"] % (32 // arguments["weight_dq"].itemsize) == 0:
        for name in ("weight_dq", "weight_uq_qr", "weight_dkv_kr"):
            arguments[name] = ds.to_nz(arguments[name])
    a, b = copied(arguments), copied(arguments)
    with ds.use_threads(draw(st.sampled_from([1, 3]))):
        agree(call(a, backend="cpu"), call(b, backend="reference"), Counter())


def test_int8_products_are_exact():
    """At the largest magnitudes, over sums far beyond 2^24."""
    arguments = make(np.random.default_rng(0), "FULL", He=3000, Hcq=64, negative=False)
    for name in ("token_x", "weight_dq", "weight_dkv_kr"):
        arguments[name][:] = -128
    arguments["token_x"][:, ::3] = 127
    got, want = call(copied(arguments), backend="cpu"), call(copied(arguments), backend="reference")
    for name in ("query", "query_rope", "kv_cache", "kr_cache"):
        np.testing.assert_array_equal(got[name].view(np.int8), want[name].view(np.int8))


@pytest.mark.parametrize("real", [np.float32, BF16])
def test_blocks_may_lie_apart_and_threads_do_not_show(real):
    arguments = packed_call(real)
    apart = dict(arguments)
    for name in ("kv_cache", "kr_cache"):
        room = np.zeros((16, *arguments[name].shape[1:]), real)
        apart[name] = room[::-2]
        apart[name][:] = arguments[name]
    want = ds.mla_prolog(**arguments, backend="cpu")
    with ds.use_threads(3):
        got = ds.mla_prolog(**apart, backend="cpu")
    for name in want._fields:
        np.testing.assert_array_equal(getattr(got, name), getattr(want, name))


def test_the_kernel_rounds_as_the_reference():
    """With sums that float32 holds exactly every result of the two is the same bits."""
    rng = np.random.default_rng(24)
    arguments = for_version(make(rng), 1)
    for name, value in arguments.items():
        if isinstance(value, np.ndarray) and value.dtype == BF16 and "cache" not in name:
            arguments[name] = (rng.integers(-8, 9, value.shape) / 8).astype(BF16)
    arguments = without_norms(arguments)
    native = copied(arguments)
    for name in ("weight_dq", "weight_uq_qr", "weight_dkv_kr"):
        native[name] = ds.PackedWeight.from_array(arguments[name])
    want, got = ds.mla_prolog(**arguments, backend="reference"), ds.mla_prolog(**native, backend="cpu")
    for name in want._fields:
        np.testing.assert_array_equal(getattr(got, name).view(np.uint16), getattr(want, name).view(np.uint16))


@pytest.mark.parametrize("scenario", ["NO_QUANT", "FULL_KV"])
def test_torch_in_torch_out(scenario):
    arguments = make(np.random.default_rng(25), scenario)

    def tensor(a: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(a.view(np.int16)).view(torch.bfloat16) if a.dtype == BF16 else torch.from_numpy(a)

    tensors = {name: tensor(value.copy()) if isinstance(value, np.ndarray) else value for name, value in arguments.items()}
    want, got = call(arguments, query_norm_flag=True), ds.mla_prolog_v3(**tensors, query_norm_flag=True)
    for name, value in got._asdict().items():
        if value is None:
            assert want[name] is None
            continue
        assert isinstance(value, torch.Tensor)
        np.testing.assert_array_equal(value.view(torch.int8).numpy(), want[name].view(np.int8))
    np.testing.assert_array_equal(tensors["kv_cache"].view(torch.int8).numpy(), arguments["kv_cache"].view(np.int8))


# The page and the stored calls.


STORED = {name: rest for name, *rest in cases("mla_prolog")}


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("name", STORED)
def test_the_conformance_data_holds(name, backend):
    stored, inputs, outputs = STORED[name]
    arguments = {key: value.copy() for key, value in inputs.items()} | stored["arguments"]
    result = getattr(ds, stored["op"])(**arguments, backend=backend)
    got = {key: value for key, value in result._asdict().items() if value is not None and not key.endswith("out")}
    got |= {key: arguments[key] for key in ("kv_cache", "kr_cache")}
    assert set(got) == set(outputs)
    for key, value in got.items():
        assert value.dtype == outputs[key].dtype and value.shape == outputs[key].shape
    agree(got, outputs, Counter(), latent=128, rope=8)


def test_misaligned_arguments_are_served():
    given = for_version(make(np.random.default_rng(3), real=np.dtype(np.float32)), 1)
    want = ds.mla_prolog(**copied(given), backend="cpu")
    for name in (name for name, value in given.items() if isinstance(value, np.ndarray)):
        shifted = copied(given)
        got = ds.mla_prolog(**shifted | {name: misaligned(shifted[name])}, backend="cpu")
        for mine, theirs in zip(got, want, strict=True):
            np.testing.assert_array_equal(mine, theirs)
