"""What must hold of any MlaProlog, whatever its arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import decodestep as ds
from support.mla_prolog_cases import BF16, MODES, SCENARIOS, V2, call, copied, legal, make
from support.mla_prolog_oracle import slot_of
from support.tolerances import assert_close


def test_rope_scores_depend_on_the_distance_alone():
    rng, Dr = np.random.default_rng(2), 32
    inverse = 10000.0 ** (-np.arange(Dr // 2) / (Dr // 2))
    positions = np.array([5, 9, 105, 109, 0, 4])
    angle = np.concatenate([positions[:, None] * inverse] * 2, axis=1)
    arguments = make(rng, B=6, S=1, real=np.float64, Dr=Dr, negative=False)
    arguments |= dict(
        token_x=np.repeat(arguments["token_x"][:1], 6, axis=0),
        rope_sin=np.sin(angle),
        rope_cos=np.cos(angle),
        cache_index=np.arange(6),
    )
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
    plain = arguments | {
        "weight_uk": np.stack([np.eye(16)] * 2),
        "kv_cache": np.zeros((8, 4, 1, 16)),
        "weight_dkv_kr": arguments["weight_dkv_kr"][:, 48:].copy(),
        "rmsnorm_gamma_ckv": np.ones(16),
    }
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
    np.testing.assert_array_equal(
        call(copied(plain), qc_qr_scale=4.0)["query"].astype(float), 4 * call(copied(plain))["query"].astype(float)
    )


def test_scores_of_int8_query_and_cache():
    """E.g. the attention of FULL_KV: one factor brings the integer and the rope score back."""
    arguments = make(np.random.default_rng(17), "FULL_KV", negative=False, Hckv=256)
    arguments["cache_index"] = np.arange(9)
    arguments["quant_scale_ckv"] = np.array([40.0], np.float32)
    wide = arguments | dict(
        kv_cache=np.zeros((8, 4, 1, 256), BF16),
        kr_cache=np.zeros((8, 4, 1, 32), BF16),
        kv_cache_quant_mode=0,
        query_quant_mode=0,
    )
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
