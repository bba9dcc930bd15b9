"""mla_prolog, V1 to V3, against an oracle that works token by token, and against what must hold of any implementation."""

from __future__ import annotations

import doctest
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import decodestep as ds
from decodestep.ops.linear import Format
from decodestep.ops.mla_prolog import cpu, reference
from mla_prolog_cases import BF16, MODES, SCENARIOS, V1, V2, copied, for_version, legal, make, nz_weight, oracle, slot_of
from tolerances import assert_close
from vectors.read import cases

FUNCTIONS = {1: ds.mla_prolog, 2: ds.mla_prolog_v2, 3: ds.mla_prolog_v3}


def call(arguments: dict[str, Any], version: int = 3, **more: Any) -> dict[str, Any]:
    """Results by name, the caches as they are afterwards among them."""
    result = FUNCTIONS[version](**for_version(arguments, version), **more)
    return {**result._asdict(), "kv_cache": arguments["kv_cache"], "kr_cache": arguments["kr_cache"]}


def parts(name: str, values: np.ndarray, latent: int, rope: int) -> dict[str, np.ndarray]:
    """A cache row quantised by tiles in its three parts."""
    if name != "kv_cache" or values.dtype != np.int8 or values.shape[-1] in (32, 64, 256):
        return {name: values}
    rows = np.ascontiguousarray(values.reshape(-1, values.shape[-1]))
    return {"tile_q": rows[:, :latent], "tile_kr": rows[:, latent : latent + 2 * rope].copy().view(BF16),
            "tile_scale": rows[:, latent + 2 * rope :].copy().view(np.float32)}


def agree(got: dict[str, Any], want: dict[str, Any], flips: Counter | None = None, latent: int = 256, rope: int = 32) -> None:
    """int8 within one unit and seldom that, the others within their dtype's tolerance."""
    for name, value in got.items():
        if value is None or name not in want:
            continue
        expected = parts(name, np.asarray(want[name]), latent, rope)
        for part, actual in parts(name, value, latent, rope).items():
            wanted = expected[part].reshape(actual.shape)
            if actual.dtype != np.int8:
                # A scale follows the largest of bfloat16 values.
                assert_close(actual.astype(BF16) if actual.dtype == np.float32 and flips is not None else actual, wanted)
                continue
            off = np.abs(actual.astype(int) - wanted.astype(int))
            assert off.max(initial=0) <= 1, name
            if flips is not None:
                flips[part, "off"] += int((off > 0).sum())
                flips[part, "all"] += off.size


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
                if scenario != "FULL_KV":
                    assert got["dequant_scale_q_nope"] is None
                if scenario == "NO_QUANT":
                    assert got["dequant_scale_q_norm"] is None
                assert got["query_norm"].dtype == (np.int8 if SCENARIOS[scenario][1] else BF16)
                agree(got, want, flips)
    for (part, kind), count in list(flips.items()):
        assert kind == "all" or count <= 0.01 * flips[part, "all"], part


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
        "query", "query_rope", "dequant_scale_q_nope", "query_norm", "dequant_scale_q_norm")


@pytest.mark.parametrize("real", [np.float32, np.float64])
@pytest.mark.parametrize("scenario", ["NO_QUANT", "PARTIAL", "FULL_KV"])
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
    """One token of two values, one head, all weights selecting: exact by hand."""
    f32 = np.float32
    base = dict(
        token_x=np.array([[3, 4]], f32), weight_dq=np.eye(2, dtype=f32),
        weight_uq_qr=np.array([[1, 0, 1, 0], [0, 1, 0, 1]], f32),
        weight_uk=np.array([[[1, 0], [0, 2]]], f32), weight_dkv_kr=np.array([[1, 0, 0, 1], [0, 1, 1, 0]], f32),
        rmsnorm_gamma_cq=None, rmsnorm_gamma_ckv=None, rope_sin=np.array([[0.5, 0.25]], f32),
        rope_cos=np.array([[2, 4]], f32), cache_index=np.array([3]), kv_cache=np.zeros((2, 2, 1, 2), f32),
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
    made = ds.mla_prolog(**unit_call(rmsnorm_gamma_cq=ones, rmsnorm_gamma_ckv=2 * ones), rmsnorm_epsilon_cq=3.5,
                         rmsnorm_epsilon_ckv=12.5)
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
    """Two tiles: one of the values 1..128 clipped at 0.6 of its largest, and one of zeros."""
    rng = np.random.default_rng(0)
    arguments = make(rng, "PARTIAL_TILE", B=1, S=1, He=16, negative=False)
    arguments["token_x"][:] = 0
    arguments["token_x"][0, 0] = 1
    arguments["weight_dkv_kr"][0] = 0
    arguments["weight_dkv_kr"][0, :128] = np.arange(1, 129)
    arguments["weight_dkv_kr"][0, 256:] = 1
    arguments["rmsnorm_gamma_ckv"][:] = 1
    arguments |= dict(k_nope_clip_alpha=np.array([0.6], np.float32), cache_index=np.array([5]), kc_scale=2.0)
    ds.mla_prolog_v3(**arguments)
    row = arguments["kv_cache"][1, 1, 0]
    value = np.arange(1, 129) / math.sqrt((np.arange(1, 129) ** 2).sum() / 256 + 1e-5) * 2
    bound = 0.6 * value[-1]
    np.testing.assert_array_equal(row[:128], np.rint(np.minimum(value, bound) / bound * 127))
    np.testing.assert_array_equal(row[128:256], 0)
    scales = row[256 + 64 :].copy().view(np.float32)
    np.testing.assert_allclose(scales, [bound / 127, 0], rtol=1e-6)
    assert row.max() == 127 and row[:256].min() == 0


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


# What must hold of any implementation.


def test_rope_scores_depend_on_the_distance_alone():
    rng, Dr = np.random.default_rng(2), 32
    inverse = 10000.0 ** (-np.arange(Dr // 2) / (Dr // 2))
    positions = np.array([5, 9, 105, 109, 0, 4])
    angle = np.concatenate([positions[:, None] * inverse] * 2, axis=1)
    arguments = make(rng, B=6, S=1, real=np.float64, Dr=Dr, negative=False)
    arguments |= dict(token_x=np.repeat(arguments["token_x"][:1], 6, axis=0), rope_sin=np.sin(angle), rope_cos=np.cos(angle),
                      cache_index=np.arange(6))
    got = call(arguments)
    keys = arguments["kr_cache"].reshape(-1, Dr)[:6]
    scores = [got["query_rope"][q] @ keys[k] for q, k in ((1, 0), (3, 2), (5, 4))]
    np.testing.assert_allclose(scores, [scores[0]] * 3, rtol=1e-12)
    # The textbook's interleaved rotation, its outputs left in pairs, gives the same scores.
    raw = plain_projection(arguments)
    turn = np.exp(1j * positions[:, None] * inverse)
    q, k = ((part[..., 0::2] + 1j * part[..., 1::2]) for part in raw)
    textbook = np.real((q[1] * turn[1]) @ np.conj(k[0] * turn[0]))
    np.testing.assert_allclose(scores[0], textbook, rtol=1e-10)


def plain_projection(arguments: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """The rope parts before the rotation, (T, N, Dr) and (T, Dr)."""
    a = arguments
    c = a["token_x"] @ a["weight_dq"]
    c = c / np.sqrt((c * c).mean(-1, keepdims=True) + 1e-5) * a["rmsnorm_gamma_cq"]
    N, D, Hckv = a["weight_uk"].shape
    return (c @ a["weight_uq_qr"]).reshape(len(c), N, -1)[..., D:], (a["token_x"] @ a["weight_dkv_kr"])[:, Hckv:]


def test_absorbed_scores_are_the_unabsorbed_ones():
    arguments = make(np.random.default_rng(4), real=np.float64, negative=False)
    arguments["cache_index"] = np.arange(9)
    got = call(arguments)
    latents = arguments["kv_cache"].reshape(-1, 64)[:9]
    plain = arguments | {"weight_uk": np.stack([np.eye(16)] * 2), "kv_cache": np.zeros((8, 4, 1, 16)),
                         "weight_dkv_kr": arguments["weight_dkv_kr"][:, 48:].copy(),
                         "rmsnorm_gamma_ckv": np.ones(16)}
    nope = call(plain)["query"]
    absorbed = np.einsum("tnh,sh->nts", got["query"], latents)
    keys = np.einsum("ndh,sh->nsd", arguments["weight_uk"], latents)
    np.testing.assert_allclose(absorbed, np.einsum("tnd,nsd->nts", nope, keys), atol=1e-12)


@pytest.mark.parametrize("scenario", V2)
def test_nz_caches_are_pa_bsnd_caches_reordered(scenario):
    rows = make(np.random.default_rng(6), scenario, "PA_BSND")
    nz = rows | dict(cache_mode="PA_NZ", kv_cache=ds.cache_to_nz(rows["kv_cache"]), kr_cache=ds.cache_to_nz(rows["kr_cache"]))
    a, b = call(rows), call(nz)
    np.testing.assert_array_equal(a["query"], b["query"])
    for name in ("kv_cache", "kr_cache"):
        np.testing.assert_array_equal(ds.cache_from_nz(nz[name]).view(np.int8), rows[name].view(np.int8))


@pytest.mark.parametrize("scenario", ["NO_QUANT", "FULL_KV"])
@pytest.mark.parametrize("mode", MODES)
def test_rows_that_no_token_names_keep_their_bits(scenario, mode):
    merged = mode != "BSND"
    arguments = make(np.random.default_rng(8), scenario, mode, merged, blocks=12)
    if mode in ("PA_BSND", "PA_NZ"):
        arguments["cache_index"] = np.array([7, -1, 0, 3, 40, -(2**62), 11, 7, 46])
    before = copied(arguments)
    call(arguments)
    if not mode.startswith("PA"):
        return
    block = 4
    touched = {slot_of(arguments, t) for t in range(9)} - {-1}
    for name in ("kv_cache", "kr_cache"):
        old, new = (cache if mode.endswith("BSND") else ds.cache_from_nz(cache) for cache in (before[name], arguments[name]))
        rows = [slot for slot in range(12 * block) if slot not in touched]
        np.testing.assert_array_equal(new.reshape(48, -1)[rows].view(np.int8), old.reshape(48, -1)[rows].view(np.int8))
        changed = (new.reshape(48, -1) != old.reshape(48, -1)).any(axis=1)
        assert changed[sorted(slot for slot in touched if slot >= 0)].all()


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_permutation_of_tokens_permutes_the_results(scenario):
    arguments = make(np.random.default_rng(9), scenario, negative=False)
    arguments["cache_index"] = np.random.default_rng(9).permutation(32)[:9]
    order = np.random.default_rng(10).permutation(9)
    moved = copied(arguments)
    for name in ("token_x", "rope_sin", "rope_cos", "cache_index", "dequant_scale_x"):
        if name in moved:
            moved[name] = moved[name][order]
    a, b = call(arguments), call(moved)
    np.testing.assert_array_equal(a["query"][order], b["query"])
    np.testing.assert_array_equal(a["query_rope"][order], b["query_rope"])
    np.testing.assert_array_equal(a["kv_cache"].view(np.int8), b["kv_cache"].view(np.int8))
    np.testing.assert_array_equal(a["kr_cache"].view(np.int8), b["kr_cache"].view(np.int8))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_merged_and_unmerged_tokens_give_the_same(scenario):
    unmerged = make(np.random.default_rng(11), scenario, merged=False)
    merged = copied(unmerged)
    for name in ("token_x", "rope_sin", "rope_cos", "cache_index"):
        merged[name] = merged[name].reshape(9, *merged[name].shape[2:])
    a, b = call(unmerged, query_norm_flag=True), call(merged, query_norm_flag=True)
    for name, value in a.items():
        if value is not None:
            np.testing.assert_array_equal(value.view(np.int8).reshape(-1), b[name].view(np.int8).reshape(-1))
    assert a["query_norm"].shape == (3, 3, 32) and b["query_norm"].shape == (9, 32)


def test_steps_of_128_tokens_do_not_show():
    arguments = make(np.random.default_rng(12), lengths=[131], blocks=40, negative=False)
    arguments["cache_index"] = np.random.default_rng(0).permutation(160)[:131]
    whole = call(copied(arguments))
    for cut in (1, 3, 127, 128):
        pieces = copied(arguments)
        both = []
        for part in (slice(0, cut), slice(cut, 131)):
            piece = {name: pieces[name][part] for name in ("token_x", "rope_sin", "rope_cos", "cache_index")}
            both.append(call(pieces | piece)["query"])
        assert_close(np.concatenate(both), whole["query"].astype(float))
        assert_close(pieces["kv_cache"], whole["kv_cache"].astype(float))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_nz_weights_give_the_same(scenario):
    arguments = make(np.random.default_rng(13), scenario)
    nz = copied(arguments)
    for name in ("weight_dq", "weight_uq_qr", "weight_dkv_kr"):
        nz[name] = ds.to_nz(arguments[name])
        assert nz[name].ndim == 4
    a, b = call(arguments), call(nz)
    for name in ("query", "query_rope", "kv_cache", "kr_cache"):
        np.testing.assert_array_equal(a[name].view(np.int8), b[name].view(np.int8))


def test_nz_weights_may_be_padded():
    arguments = make(np.random.default_rng(14), He=20, N=3, D=5, Dr=6)
    nz = copied(arguments)
    for name in ("weight_dq", "weight_uq_qr", "weight_dkv_kr"):
        nz[name] = ds.to_nz(arguments[name])
    a, b = call(arguments), call(nz)
    for name in ("query", "query_rope", "kv_cache", "kr_cache"):
        np.testing.assert_array_equal(a[name].view(np.int8), b[name].view(np.int8))


def test_dynamic_quantisation_of_the_query_norm():
    arguments = make(np.random.default_rng(15), "PARTIAL", smooth=False, real=np.float32)
    got = call(copied(arguments), query_norm_flag=True)
    q, s = got["query_norm"].astype(float), got["dequant_scale_q_norm"].astype(float)
    assert (np.abs(q).max(axis=1) == 127).all()
    floats = arguments | dict(weight_uq_qr=arguments["weight_uq_qr"].astype(np.float32), weight_quant_mode=0)
    del floats["dequant_scale_w_uq_qr"]
    y = call(copied(floats), query_norm_flag=True)["query_norm"].astype(float)
    assert (np.abs(q * s - y) <= s * 0.5001).all()
    for c in (4.0, 0.125):  # a constant factor of smooth is not undone: q stays, the scale and the results carry it
        smooth = call(copied(arguments) | dict(smooth_scales_cq=np.full((1, 32), c, np.float32)), query_norm_flag=True)
        np.testing.assert_array_equal(smooth["query_norm"], got["query_norm"])
        np.testing.assert_array_equal(smooth["dequant_scale_q_norm"], c * got["dequant_scale_q_norm"])
        np.testing.assert_array_equal(smooth["query_rope"], c * got["query_rope"])
    zero = copied(arguments)
    zero["token_x"] = zero["token_x"].copy()
    zero["token_x"][4] = 0
    got = call(zero, query_norm_flag=True)
    assert not got["query_norm"][4].any() and got["dequant_scale_q_norm"][4] == 0 and not got["query"][4].any()


@pytest.mark.parametrize("scenario", ["PARTIAL", "FULL"])
def test_the_query_factor_leaves_int8_alone(scenario):
    arguments = make(np.random.default_rng(16), scenario)
    one = call(copied(arguments), query_norm_flag=True)
    for factor in (0.25, 8.0):
        other = call(copied(arguments), query_norm_flag=True, qc_qr_scale=factor)
        np.testing.assert_array_equal(other["query_norm"], one["query_norm"])
        np.testing.assert_array_equal(other["dequant_scale_q_norm"], factor * one["dequant_scale_q_norm"])
    plain = make(np.random.default_rng(16), "NO_QUANT")
    np.testing.assert_array_equal(call(copied(plain), qc_qr_scale=4.0)["query"].astype(float),
                                  4 * call(copied(plain))["query"].astype(float))


def test_scores_of_int8_query_and_cache():
    """E.g. the attention of FULL_KV: one factor brings the integer and the rope score back."""
    arguments = make(np.random.default_rng(17), "FULL_KV", negative=False, Hckv=256)
    arguments["cache_index"] = np.arange(9)
    arguments["quant_scale_ckv"] = np.array([40.0], np.float32)
    wide = arguments | dict(kv_cache=np.zeros((8, 4, 1, 256), BF16), kr_cache=np.zeros((8, 4, 1, 32), BF16),
                            kv_cache_quant_mode=0, query_quant_mode=0)
    del wide["quant_scale_ckv"]
    got, want = call(arguments), call(wide)

    def rows(cache: np.ndarray) -> np.ndarray:
        return cache.reshape(32, -1)[:9].astype(float)

    score = np.einsum("tnh,sh->tns", got["query"].astype(float), rows(arguments["kv_cache"]))
    score += np.einsum("tnh,sh->tns", got["query_rope"].astype(float), rows(arguments["kr_cache"]))
    score *= got["dequant_scale_q_nope"].astype(float) / 40
    exact = np.einsum("tnh,sh->tns", want["query"].astype(float), rows(wide["kv_cache"]))
    exact += np.einsum("tnh,sh->tns", want["query_rope"].astype(float), rows(wide["kr_cache"]))
    assert np.abs(score - exact).max() < 0.02 * np.abs(exact).max()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_tokens_and_no_cache(mode, scenario):
    merged = mode != "BSND"
    if not legal(scenario, mode, merged):
        return
    for lengths in ([], [0, 0]):
        arguments = make(np.random.default_rng(18), scenario, mode, merged, lengths=lengths, B=len(lengths), S=0)
        before = copied(arguments)
        got = call(arguments, query_norm_flag=True)
        assert got["query"].shape == (*arguments["token_x"].shape[:-1], 2, arguments["weight_uk"].shape[2])
        assert got["query"].size == 0 and got["query_norm"].size == 0
        np.testing.assert_array_equal(arguments["kv_cache"].view(np.int8), before["kv_cache"].view(np.int8))
    if not mode.startswith("PA"):
        return
    arguments = make(np.random.default_rng(18), scenario, mode)
    want = call(copied(arguments))
    empty = arguments | {name: arguments[name][:0] for name in ("kv_cache", "kr_cache")}
    empty["cache_index"] = empty["cache_index"] + 10**9  # nothing is written, so the values are not read
    np.testing.assert_array_equal(call(empty)["query"], want["query"])


def test_the_later_of_two_tokens_with_one_slot_stays():
    for mode in ("PA_BSND", "PA_NZ", "PA_BLK_BSND", "PA_BLK_NZ"):
        arguments = make(np.random.default_rng(19), mode=mode, merged=False, negative=False)
        by_block = mode.startswith("PA_BLK")
        arguments["cache_index"] = np.array([[2], [5], [2]]) if by_block else np.array([[9, 9, 9], [1, 2, 1], [9, 0, 0]])
        alone = copied(arguments)
        alone["cache_index"] = np.array([[-1], [5], [2]]) if by_block else np.array([[-1, -1, -1], [-1, 2, 1], [9, -1, 0]])
        call(arguments)
        call(alone)
        np.testing.assert_array_equal(arguments["kv_cache"].view(np.int8), alone["kv_cache"].view(np.int8))


@pytest.mark.parametrize("scenario", ["NO_QUANT", "FULL_KV"])
@pytest.mark.parametrize("real", [BF16, np.float32])
def test_inputs_in_any_order_and_place(scenario, real):
    arguments = make(np.random.default_rng(20), scenario, real=real)
    want = call(copied(arguments))
    odd = copied(arguments)
    for name, value in odd.items():
        if isinstance(value, np.ndarray) and name not in ("kv_cache", "kr_cache"):
            value = np.asfortranarray(value) if value.ndim < 3 else np.ascontiguousarray(value.T).T
            room = np.zeros(value.nbytes + 1, np.uint8)  # one byte off
            odd[name] = np.ndarray(value.shape, value.dtype, room, 1, value.strides)
            odd[name][:] = value
    for name in ("kv_cache", "kr_cache"):
        odd[name] = np.ndarray(odd[name].shape, odd[name].dtype, np.zeros(odd[name].nbytes + 1, np.uint8), 1)
        odd[name][:] = arguments[name]
    got = call(odd)
    for name in ("query", "query_rope", "kv_cache", "kr_cache"):
        assert_close(np.ascontiguousarray(got[name]), want[name])


def test_strided_caches_and_inputs():
    for mode in ("PA_BSND", "PA_NZ"):
        for scenario in ("NO_QUANT", "FULL_KV"):
            packed = make(np.random.default_rng(20), scenario, mode)
            strided = dict(packed)
            for name in ("kv_cache", "kr_cache"):
                blocks, rows, _, width = packed[name].shape
                room = np.zeros((blocks * 2, rows, 3, width * 2), packed[name].dtype)
                strided[name] = room[::-2, :, 1:2, ::2]
                strided[name][:] = packed[name]
            for name in ("token_x", "weight_uk", "weight_dq", "weight_uq_qr", "weight_dkv_kr", "rope_cos"):
                room = np.zeros((*packed[name].shape[:-1], 2 * packed[name].shape[-1]), packed[name].dtype)
                room[..., 1::2] = packed[name]
                strided[name] = room[..., 1::2]
            a, b = call(packed), call(strided)
            assert_close(b["query"], a["query"].astype(float))
            for name in ("kv_cache", "kr_cache"):
                assert_close(np.ascontiguousarray(b[name]), a[name])


# The extensions.


def gqa_call(rng: np.random.Generator, G: int, real: Any = np.float32) -> tuple[dict[str, Any], dict[str, Any]]:
    """A grouped-query model as a prolog: with the zeros stored, and without."""
    N, He, d, T = 2 * G, 64, 8, 5
    Dr = G * d
    dense = np.zeros((He, N, Dr), real)
    own = rng.standard_normal((He, N, d)).astype(real)
    for n in range(N):
        g = n // (N // G)
        dense[:, n, g * d : (g + 1) * d] = own[:, n]
    angle = rng.uniform(0, 6, (T, Dr))
    base = dict(
        token_x=rng.standard_normal((T, He)).astype(real), weight_dq=None, weight_uk=np.zeros((N, 0, 32), real),
        weight_dkv_kr=rng.standard_normal((He, 32 + Dr)).astype(real), rmsnorm_gamma_cq=None, rmsnorm_gamma_ckv=None,
        rope_sin=np.sin(angle).astype(real), rope_cos=np.cos(angle).astype(real), cache_index=np.array([0, 4, 4, -1, 9]),
        kv_cache=np.ones((3, 4, 1, 32), real), kr_cache=np.ones((3, 4, 1, Dr), real),
    )
    return base | {"weight_uq_qr": dense.reshape(He, -1)}, base | {"weight_uq_qr": own.reshape(He, -1), "rope_groups": G}


@pytest.mark.parametrize("G", [1, 2, 4])
@pytest.mark.parametrize("real", [np.float32, BF16])
def test_rope_groups_leave_the_zeros_out(G, real):
    dense, grouped = gqa_call(np.random.default_rng(21), G, real)
    want, got = ds.mla_prolog(**copied(dense)), ds.mla_prolog(**copied(grouped))
    assert got.query_rope.shape == want.query_rope.shape and not got.query.any() and got.query.shape == (5, 2 * G, 32)
    for name in want._fields:
        assert_close(getattr(got, name), getattr(want, name).astype(float))
    assert ds.mla_prolog(**copied(grouped), need_query=False).query is None


def test_without_down_projection_and_norms():
    arguments = make(np.random.default_rng(22), real=np.float64)
    a = arguments
    normed = plain_c(a["token_x"], np.ones(48))
    identity = a | dict(weight_dq=None, weight_uq_qr=np.random.default_rng(0).standard_normal((48, 96)))
    got = call(copied(identity | dict(rmsnorm_gamma_cq=np.ones(48))), query_norm_flag=True)
    np.testing.assert_allclose(got["query_norm"], normed, rtol=1e-12)
    got = call(copied(identity | dict(rmsnorm_gamma_cq=None)), query_norm_flag=True, qc_qr_scale=3.0)
    np.testing.assert_allclose(got["query_norm"], 3 * a["token_x"], rtol=1e-12)
    bare = copied(a | dict(rmsnorm_gamma_ckv=None))
    call(bare, kc_scale=2.0)
    t = 8 if a["cache_index"][8] >= 0 else int(np.argmax(a["cache_index"]))
    latent = (a["token_x"] @ a["weight_dkv_kr"])[t, :64]
    np.testing.assert_allclose(bare["kv_cache"].reshape(32, -1)[a["cache_index"][t]], 2 * latent)


def plain_c(x: np.ndarray, gamma: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * gamma


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


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_cpu_against_reference(data):
    draw = data.draw
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kind, real = draw(st.sampled_from(list(Format))), draw(st.sampled_from([np.float32, BF16]))
    G = draw(st.sampled_from([1, 2, 3]))
    N, pairs, D = G * draw(st.integers(1, 3)), draw(st.integers(1, 5)), draw(st.sampled_from([0, 1, 7, 16]))
    He, Hcq, Hckv = 32 * draw(st.integers(1, 3)), draw(st.sampled_from([0, 32, 64])), draw(st.integers(1, 70))
    T, Dr, blocks, rows = draw(st.integers(0, 6)), 2 * pairs * G, draw(st.integers(0, 3)), draw(st.integers(1, 4))

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(real)

    width = Hcq or He
    norms = draw(st.booleans())
    arguments = dict(
        token_x=normal(T, He), weight_dq=pack(normal(He, Hcq), kind, rng) if Hcq else None,
        weight_uq_qr=pack(normal(width, N * (D + Dr // G)), kind, rng), weight_uk=normal(N, D, Hckv),
        weight_dkv_kr=pack(normal(He, Hckv + Dr), kind, rng), rmsnorm_gamma_cq=normal(width) if norms else None,
        rmsnorm_gamma_ckv=normal(Hckv) if norms else None, rope_sin=normal(T, Dr), rope_cos=normal(T, Dr),
        cache_index=rng.integers(-2, max(blocks * rows, 1), T), kv_cache=normal(blocks, rows, 1, Hckv),
        kr_cache=normal(blocks, rows, 1, Dr), rope_groups=G, need_query=D > 0 or draw(st.booleans()),
    )
    a, b = copied(arguments), copied(arguments)
    with ds.use_threads(draw(st.sampled_from([1, 2]))):
        got, want = ds.mla_prolog(**a, backend="cpu"), ds.mla_prolog(**b, backend="reference")
    for name in want._fields:
        wanted = getattr(want, name)
        if wanted is None:
            assert getattr(got, name) is None
            continue
        assert getattr(got, name).dtype == real
        off, wanted = 2.0**-6 if real == BF16 else 2e-5, wanted.astype(float)
        np.testing.assert_allclose(getattr(got, name).astype(float), wanted, rtol=off, atol=off * np.abs(wanted).max(initial=0))


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


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_native_products_of_any_shape(data):
    draw = data.draw
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    scenario, real = draw(st.sampled_from([("NO_QUANT", np.float32), ("NO_QUANT", BF16), ("FULL", BF16)]))
    nz, wide = draw(st.booleans()), draw(st.integers(1, 300))
    sizes = dict(He=wide, Hcq=draw(st.integers(1, 150)), N=draw(st.integers(1, 3)), D=draw(st.integers(0, 40)),
                 Hckv=draw(st.integers(1, 90)), Dr=2 * draw(st.integers(1, 9)), lengths=[draw(st.integers(0, 9))])
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
    arguments |= dict(rmsnorm_gamma_cq=None, rmsnorm_gamma_ckv=None)
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


# Refusals.


def base(scenario: str = "NO_QUANT", mode: str = "PA_BSND", merged: bool = True, **sizes: Any) -> dict[str, Any]:
    return make(np.random.default_rng(26), scenario, mode, merged, negative=False, **sizes)


def wrong(scenario: str = "NO_QUANT", mode: str = "PA_BSND", merged: bool = True, version: int = 3, **change: Any) -> Any:
    arguments = base(scenario, mode, merged)
    for name, value in change.items():
        arguments[name] = value(arguments[name]) if callable(value) else value
    return version, arguments


def widened(a: np.ndarray) -> np.ndarray:
    return a.astype(np.float32)


def longer(a: np.ndarray) -> np.ndarray:
    return np.concatenate([a, a[:1]])


def flat(a: np.ndarray) -> np.ndarray:
    return a.reshape(-1)


F32 = np.ones((1, 1), np.float32)
REFUSALS = [
    ("token_x", lambda: wrong(token_x=widened)), ("token_x", lambda: wrong(token_x=flat)),
    ("token_x", lambda: wrong(token_x="tokens")), ("token_x", lambda: wrong(token_x=lambda a: a[:, :0])),
    ("token_x", lambda: wrong("FULL", version=1)), ("token_x", lambda: wrong(mode="BSND")),
    ("token_x", lambda: wrong(mode="TND", merged=False)),
    ("token_x", lambda: wrong("FULL", token_x=lambda a: a.astype(BF16))),
    ("weight_dq", lambda: wrong(weight_dq=longer)), ("weight_dq", lambda: wrong(weight_dq=widened)),
    ("weight_dq", lambda: wrong(weight_dq=lambda a: a[:, :0], rmsnorm_gamma_cq=lambda a: a[:0])),
    ("weight_dq", lambda: wrong("FULL", weight_dq=None)), ("weight_dq", lambda: wrong(weight_dq=lambda a: a[None])),
    ("weight_uq_qr", lambda: wrong(weight_uq_qr=longer)),
    ("weight_uq_qr", lambda: wrong(weight_uq_qr=lambda a: a[:, 1:])),
    ("weight_uq_qr", lambda: wrong("PARTIAL", weight_uq_qr=lambda a: a.astype(BF16))),
    ("weight_uq_qr", lambda: wrong("PARTIAL", weight_uq_qr=lambda a: ds.PackedWeight.from_array(a.astype(np.float32)))),
    ("weight_uq_qr", lambda: wrong(weight_uq_qr=lambda a: nz_weight(a)[:, :1])),
    ("weight_uk", lambda: wrong(weight_uk=lambda a: a.astype(np.float16))),
    ("weight_uk", lambda: wrong(weight_uk=flat)), ("weight_uk", lambda: wrong(weight_uk=lambda a: a[:0])),
    ("weight_uk", lambda: wrong(weight_uk=lambda a: a.astype(np.int8))),
    ("weight_dkv_kr", lambda: wrong(weight_dkv_kr=lambda a: a[:, 1:])),
    ("weight_dkv_kr", lambda: wrong(weight_dkv_kr=None)), ("rmsnorm_gamma_cq", lambda: wrong(rmsnorm_gamma_cq=longer)),
    ("rmsnorm_gamma_cq", lambda: wrong(rmsnorm_gamma_cq=widened)),
    ("rmsnorm_gamma_ckv", lambda: wrong(rmsnorm_gamma_ckv=lambda a: a[None])),
    ("rope_sin", lambda: wrong(rope_sin=widened)), ("rope_sin", lambda: wrong(rope_sin=longer)),
    ("rope_sin", lambda: wrong(rope_sin=lambda a: a[:, :0])), ("rope_sin", lambda: wrong(rope_sin=lambda a: a[:, :31])),
    ("rope_sin", lambda: wrong(rope_sin=None)), ("rope_cos", lambda: wrong(rope_cos=lambda a: a[:, :16])),
    ("cache_index", lambda: wrong(cache_index=lambda a: a.astype(np.int32))),
    ("cache_index", lambda: wrong(cache_index=longer)),
    ("cache_index", lambda: wrong(cache_index=lambda a: np.where(a == a[-1], 32, a))),
    ("cache_index", lambda: wrong(cache_index=np.full(9, 2**63 - 1))), ("cache_index", lambda: wrong(cache_index=None)),
    ("cache_index", lambda: wrong(cache_index=lambda a: a.reshape(3, 3))),
    ("cache_index", lambda: wrong(merged=False, cache_index=flat)),
    ("cache_index", lambda: wrong(mode="BSND", merged=False, cache_index=np.arange(9).reshape(3, 3))),
    ("cache_index", lambda: wrong(mode="TND", cache_index=np.arange(9))),
    ("cache_index", lambda: wrong(mode="PA_BLK_BSND", cache_index=lambda a: a + 8)),
    ("cache_index", lambda: wrong(mode="PA_BLK_NZ", cache_index=longer)),
    ("cache_index", lambda: wrong(mode="PA_BLK_NZ", merged=False, cache_index=flat)),
    ("kv_cache", lambda: wrong(kv_cache=widened)), ("kv_cache", lambda: wrong(kv_cache=lambda a: a[..., 1:])),
    ("kv_cache", lambda: wrong(kv_cache=lambda a: a.repeat(2, axis=2))), ("kv_cache", lambda: wrong(kv_cache=flat)),
    ("kv_cache", lambda: wrong("PARTIAL_KV", kv_cache=lambda a: a.astype(BF16))),
    ("kv_cache", lambda: wrong("PARTIAL_TILE", kv_cache=lambda a: a[..., :256])),
    ("kv_cache", lambda: wrong(mode="TND", kv_cache=longer)),
    ("kv_cache", lambda: wrong(mode="BSND", merged=False, kv_cache=longer)),
    ("kv_cache", lambda: wrong(kv_cache=lambda a: a[:, :0], kr_cache=lambda a: a[:, :0])),
    ("kr_cache", lambda: wrong(kr_cache=longer)), ("kr_cache", lambda: wrong(kr_cache=widened)),
    ("kr_cache", lambda: wrong(kr_cache=lambda a: a[:, :2])),
    ("kr_cache", lambda: wrong("PARTIAL_KV", kr_cache=lambda a: a.astype(BF16))),
    ("kr_cache", lambda: wrong("FULL_TILE", kr_cache=np.zeros((8, 4, 1, 32), BF16))),
    ("dequant_scale_x", lambda: wrong(dequant_scale_x=np.ones((9, 1), np.float32))),
    ("dequant_scale_x", lambda: wrong("FULL", dequant_scale_x=None)),
    ("dequant_scale_x", lambda: wrong("FULL", dequant_scale_x=flat)),
    ("dequant_scale_w_dq", lambda: wrong("FULL_KV", dequant_scale_w_dq=None)),
    ("dequant_scale_w_uq_qr", lambda: wrong("PARTIAL", dequant_scale_w_uq_qr=None)),
    ("dequant_scale_w_uq_qr", lambda: wrong("PARTIAL", version=1, dequant_scale_w_uq_qr=lambda a: a.astype(np.float64))),
    ("dequant_scale_w_dkv_kr", lambda: wrong("FULL", dequant_scale_w_dkv_kr=lambda a: a[:, 1:])),
    ("quant_scale_ckv", lambda: wrong("PARTIAL_KV", quant_scale_ckv=F32)),
    ("quant_scale_ckv", lambda: wrong("FULL", quant_scale_ckv=F32)),
    ("quant_scale_ckv", lambda: wrong("FULL_KV", quant_scale_ckv=F32[:, 0:0])),
    ("quant_scale_ckr", lambda: wrong("PARTIAL_KV", version=2, quant_scale_ckr=None)),
    ("quant_scale_ckr", lambda: wrong("FULL_KV", version=2, quant_scale_ckr=np.ones((1, 32), np.float32))),
    ("smooth_scales_cq", lambda: wrong(smooth_scales_cq=np.ones((1, 32), np.float32))),
    ("smooth_scales_cq", lambda: wrong("PARTIAL", smooth_scales_cq=F32)),
    ("k_nope_clip_alpha", lambda: wrong("FULL_TILE", k_nope_clip_alpha=None)),
    ("k_nope_clip_alpha", lambda: wrong("FULL", k_nope_clip_alpha=F32[0])),
    ("actual_seq_len", lambda: wrong(actual_seq_len=np.array([9], np.int32))),
    ("actual_seq_len", lambda: wrong(mode="PA_BLK_NZ", actual_seq_len=None)),
    ("actual_seq_len", lambda: wrong(mode="PA_BLK_NZ", actual_seq_len=lambda a: a[::-1].copy())),
    ("actual_seq_len", lambda: wrong(mode="PA_BLK_NZ", actual_seq_len=lambda a: a.astype(np.int64))),
    ("actual_seq_len", lambda: wrong(mode="PA_BLK_NZ", actual_seq_len=lambda a: a - 1)),
    ("actual_seq_len", lambda: wrong(mode="PA_BLK_NZ", actual_seq_len=np.array([-3, 3, 9], np.int32))),
    ("rmsnorm_epsilon_cq", lambda: wrong(rmsnorm_epsilon_cq=-1e-9)),
    ("rmsnorm_epsilon_ckv", lambda: wrong(rmsnorm_epsilon_ckv=math.nan)),
    ("rmsnorm_epsilon_ckv", lambda: wrong(rmsnorm_epsilon_ckv="1e-5")),
    ("cache_mode", lambda: wrong(cache_mode="BNSD")), ("cache_mode", lambda: wrong(cache_mode="pa_bsnd")),
    ("cache_mode", lambda: wrong(cache_mode="TND", version=2)),
    ("cache_mode", lambda: wrong("PARTIAL_TILE", cache_mode="PA_NZ")),
    ("query_norm_flag", lambda: wrong(query_norm_flag=1)), ("weight_quant_mode", lambda: wrong(weight_quant_mode=3)),
    ("kv_cache_quant_mode", lambda: wrong(kv_cache_quant_mode=True)),
    ("query_quant_mode", lambda: wrong(query_quant_mode=2)),
    (r"\(weight_quant_mode", lambda: wrong(kv_cache_quant_mode=1)),
    (r"\(weight_quant_mode", lambda: wrong("FULL", query_quant_mode=1)),
    ("ckvkr_repo_mode", lambda: wrong(ckvkr_repo_mode=1)),
    ("ckvkr_repo_mode", lambda: wrong("FULL_TILE", ckvkr_repo_mode=0)),
    ("quant_scale_repo_mode", lambda: wrong("FULL_TILE", quant_scale_repo_mode=0)),
    ("tile_size", lambda: wrong(tile_size=64)), ("qc_qr_scale", lambda: wrong(qc_qr_scale=math.inf)),
    ("kc_scale", lambda: wrong(kc_scale=None)), ("limits", lambda: wrong(limits="newest")),
    ("rounding", lambda: wrong(rounding="up")), ("backend", lambda: wrong(backend="npu")),
    ("rope_groups", lambda: wrong(rope_groups=3)),
    ("rope_groups", lambda: wrong(rope_groups=0)), ("need_query", lambda: wrong(need_query=False)),
    ("He", lambda: wrong(limits="latest")),
]  # fmt: skip


@pytest.mark.parametrize(("argument", "build"), REFUSALS)
def test_refusals_come_before_any_write(argument, build):
    version, arguments = build()
    kept = {name: np.array(arguments[name]) for name in ("kv_cache", "kr_cache")}
    name = {1: "mla_prolog", 2: "mla_prolog_v2", 3: "mla_prolog_v3"}[version]
    with pytest.raises(ValueError, match=rf"^{name}: {argument}.* must be .*; got "):
        FUNCTIONS[version](**for_version(arguments, version))
    for cache, value in kept.items():
        np.testing.assert_array_equal(value.view(np.int8), np.asarray(arguments[cache]).view(np.int8))


def test_read_only_caches_and_narrow_fractals_are_refused():
    arguments = base()
    arguments["kr_cache"].flags.writeable = False
    with pytest.raises(ValueError, match="kr_cache must be writeable"):
        ds.mla_prolog_v3(**arguments)
    with pytest.raises(ValueError, match="kr_cache must be of a width that is a multiple of 16"):
        ds.mla_prolog_v3(**base(mode="PA_NZ", Dr=8))


def device_call(**sizes: Any) -> dict[str, Any]:
    """The device's sizes, without memory: zero strides."""
    given = dict(T=2, B=None, S=None, He=7168, Hcq=1536, N=32, D=128, Hckv=512, Dr=64, BlockSize=16) | sizes
    T, He, Hcq, N, D, Hckv, Dr = (given[k] for k in ("T", "He", "Hcq", "N", "D", "Hckv", "Dr"))
    axes = (T,) if given["B"] is None else (given["B"], given["S"])

    def zeros(*shape: int) -> np.ndarray:
        return np.lib.stride_tricks.as_strided(np.zeros(1, BF16), shape, (0,) * len(shape))

    return dict(
        token_x=zeros(*axes, He), weight_dq=zeros(He, Hcq), weight_uq_qr=zeros(Hcq, N * (D + Dr)),
        weight_uk=zeros(N, D, Hckv),
        weight_dkv_kr=zeros(He, Hckv + Dr), rmsnorm_gamma_cq=zeros(Hcq), rmsnorm_gamma_ckv=zeros(Hckv),
        rope_sin=zeros(*axes, Dr), rope_cos=zeros(*axes, Dr), cache_index=np.full(axes, -1),
        kv_cache=np.zeros((1, given["BlockSize"], 1, Hckv), BF16), kr_cache=np.zeros((1, given["BlockSize"], 1, Dr), BF16),
    )


LIMITS = [
    ("design-note", "He", 7680, 6144), ("nov2025", "He", 6144, 1024), ("latest", "He", 1024, 1536),
    ("nov2025", "Hcq", 1536, 2048), ("latest", "Hcq", 2048, 7168), ("nov2025", "N", 64, 7), ("latest", "N", 1, 256),
    ("nov2025", "D", 128, 192), ("latest", "D", 192, 129), ("nov2025", "Dr", 64, 32), ("nov2025", "BlockSize", 128, 129),
    ("nov2025", "BlockSize", 16, 32), ("latest", "BlockSize", 32, 1040), ("latest", "Hckv", 512, 256),
    ("nov2025", "T", 0, 1048577), ("nov2025", "S", 16, 17), ("nov2025", "B", 0, 65537), ("latest", "S", 20, None),
]


@pytest.mark.parametrize(("limits", "symbol", "good", "bad"), LIMITS)
def test_limits_are_the_devices(monkeypatch, limits, symbol, good, bad):
    # The sizes alone are looked at here, not the results.
    monkeypatch.setattr(cpu, "prolog", lambda p: reference.Results(None, np.zeros((len(p.x), 1, 1), np.float32)))
    unmerged = {"S": {"B": 1}, "B": {"S": 1}}.get(symbol, {})
    ds.mla_prolog(**device_call(**{symbol: good}, **unmerged), limits=limits)
    if bad is not None:
        with pytest.raises(ValueError, match=f"^mla_prolog: {symbol} must be .*under limits={limits!r}; got {bad}"):
            ds.mla_prolog(**device_call(**{symbol: bad}, **unmerged), limits=limits)


def test_november_2025_reserves_the_later_attributes(monkeypatch):
    monkeypatch.setattr(cpu, "prolog", lambda p: reference.Results(None, np.zeros((len(p.x), 1, 1), np.float32)))
    arguments = device_call()
    ds.mla_prolog_v3(**arguments, limits="nov2025", qc_qr_scale=10.0, kc_scale=10.0)
    for more in (dict(query_norm_flag=True), dict(weight_quant_mode=1), dict(tile_size=64), dict(ckvkr_repo_mode=1)):
        with pytest.raises(ValueError, match=f"^mla_prolog_v3: {next(iter(more))} must be .* under limits='nov2025'"):
            ds.mla_prolog_v3(**arguments, limits="nov2025", **more)
    for limits in ("nov2025", "design-note"):
        with pytest.raises(ValueError, match="cache_mode must be one of 'PA_BSND', 'PA_NZ'; got 'TND'"):
            ds.mla_prolog_v3(**arguments, limits=limits, cache_mode="TND")
    uq = np.lib.stride_tricks.as_strided(np.zeros(1, np.int8), (1536, 6144), (0, 0))
    scale = np.ones((1, 6144), np.float32)
    ds.mla_prolog_v3(**arguments | dict(weight_uq_qr=uq), dequant_scale_w_uq_qr=scale, limits="nov2025")
    with pytest.raises(ValueError, match="weight_uq_qr must be bfloat16"):  # the later V3 goes by its attributes
        ds.mla_prolog_v3(**arguments | dict(weight_uq_qr=uq), dequant_scale_w_uq_qr=scale, limits="latest")


# The page and the stored calls.


def test_the_page_is_right():
    page = Path(__file__).parent.parent / "docs" / "ops" / "mla_prolog.md"
    assert doctest.testfile(str(page), module_relative=False).failed == 0


STORED = {name: rest for name, *rest in cases("mla_prolog")}


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("name", STORED)
def test_stored_calls(name, backend):
    stored, inputs, outputs = STORED[name]
    arguments = {key: value.copy() for key, value in inputs.items()} | stored["arguments"]
    result = getattr(ds, stored["op"])(**arguments, backend=backend)
    got = {key: value for key, value in result._asdict().items() if value is not None and not key.endswith("out")}
    got |= {key: arguments[key] for key in ("kv_cache", "kr_cache")}
    assert set(got) == set(outputs)
    for key, value in got.items():
        assert value.dtype == outputs[key].dtype and value.shape == outputs[key].shape
    agree(got, outputs, Counter(), latent=128, rope=8)
