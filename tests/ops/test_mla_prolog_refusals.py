"""What mla_prolog refuses, before it writes anything, and the sizes that the device takes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import decodestep as ds
from decodestep._base.arrays import like
from decodestep.ops.mla_prolog import cpu, reference
from support.mla_prolog_cases import (
    BF16,
    FUNCTIONS,
    for_version,
    make,
    nz_weight,
)


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
    ("weight_dq", lambda: wrong("FULL", weight_dq=None)), ("weight_dq", lambda: wrong(weight_dq=None, version=1)),
    ("weight_dq", lambda: wrong(weight_dq=lambda a: a[None])),
    ("weight_uq_qr", lambda: wrong(weight_uq_qr=longer)),
    ("weight_uq_qr", lambda: wrong(weight_uq_qr=lambda a: a[:, 1:])),
    ("weight_uq_qr", lambda: wrong("PARTIAL", weight_uq_qr=lambda a: a.astype(BF16))),
    ("weight_uq_qr", lambda: wrong("PARTIAL", weight_uq_qr=lambda a: ds.PackedWeight.from_array(a.astype(np.float32)))),
    ("weight_uq_qr", lambda: wrong(weight_uq_qr=lambda a: nz_weight(a)[:, :1])),
    ("weight_uk", lambda: wrong(weight_uk=lambda a: a.astype(np.float16))),
    ("weight_uk", lambda: wrong(weight_uk=flat)), ("weight_uk", lambda: wrong(weight_uk=lambda a: a[:0])),
    ("weight_uk", lambda: wrong(weight_uk=lambda a: a.astype(np.int8))),
    ("weight_uk", lambda: wrong("PARTIAL_TILE", weight_uk=lambda a: a[..., :192])),
    ("weight_dkv_kr", lambda: wrong(weight_dkv_kr=lambda a: a[:, 1:])),
    ("weight_dkv_kr", lambda: wrong(weight_dkv_kr=None)), ("rmsnorm_gamma_cq", lambda: wrong(rmsnorm_gamma_cq=longer)),
    ("rmsnorm_gamma_cq", lambda: wrong(rmsnorm_gamma_cq=widened)),
    ("rmsnorm_gamma_cq", lambda: wrong(rmsnorm_gamma_cq=None)),
    ("rmsnorm_gamma_ckv", lambda: wrong(rmsnorm_gamma_ckv=None, version=2)),
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
    ("rmsnorm_epsilon_cq", lambda: wrong(rmsnorm_epsilon_cq=10**400)),
    ("cache_mode", lambda: wrong(cache_mode="BNSD")), ("cache_mode", lambda: wrong(cache_mode="pa_bsnd")),
    ("cache_mode", lambda: wrong(cache_mode="TND", version=2)),
    ("cache_mode", lambda: wrong(cache_mode=np.array(["PA_NZ"]))), ("limits", lambda: wrong(limits=np.array("latest"))),
    ("cache_mode", lambda: wrong("PARTIAL_TILE", cache_mode="PA_NZ")),
    ("query_norm_flag", lambda: wrong(query_norm_flag=1)), ("weight_quant_mode", lambda: wrong(weight_quant_mode=6)),
    ("kv_cache_quant_mode", lambda: wrong(kv_cache_quant_mode=True)),
    ("query_quant_mode", lambda: wrong(query_quant_mode=2)),
    (r"\(weight_quant_mode", lambda: wrong(kv_cache_quant_mode=1)),
    (r"\(weight_quant_mode", lambda: wrong("FULL", query_quant_mode=1)),
    ("ckvkr_repo_mode", lambda: wrong(ckvkr_repo_mode=1)),
    ("ckvkr_repo_mode", lambda: wrong("FULL_TILE", ckvkr_repo_mode=0)),
    ("quant_scale_repo_mode", lambda: wrong("FULL_TILE", quant_scale_repo_mode=0)),
    ("tile_size", lambda: wrong(tile_size=64)), ("qc_qr_scale", lambda: wrong(qc_qr_scale=math.inf)),
    ("kc_scale", lambda: wrong(kc_scale=None)), ("kc_scale", lambda: wrong(kc_scale=10**400)),
    ("limits", lambda: wrong(limits="newest")), ("limits", lambda: wrong(limits=["latest"])),
    ("rounding", lambda: wrong(rounding="up")), ("backend", lambda: wrong(backend="npu")),
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


def repeated(cache: np.ndarray) -> np.ndarray:
    """One block as all of them, writeable."""
    return np.lib.stride_tricks.as_strided(cache, cache.shape, (0, *cache.strides[1:]))


@pytest.mark.parametrize(
    ("name", "rule", "build"),
    [
        ("kv_cache", "of elements that do not overlap", lambda call: {"kv_cache": repeated(call["kv_cache"])}),
        ("kr_cache", "of elements that do not overlap", lambda call: {"kr_cache": repeated(call["kr_cache"])}),
        ("kv_cache", "apart from kr_cache", lambda call: {"kr_cache": call["kv_cache"][..., 16:48]}),
        ("kv_cache", "apart from token_x", lambda call: {"token_x": call["kv_cache"].reshape(-1, 64)[:9, :48]}),
        ("kr_cache", "apart from rope_cos", lambda call: {"rope_cos": call["kr_cache"].reshape(-1, 32)[-9:]}),
    ],
)
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_caches_have_memory_of_their_own(name, rule, build, kind):
    arguments = base()
    arguments |= build(arguments)
    written = {cache: arguments[cache] for cache in ("kv_cache", "kr_cache")}
    before = {cache: array.tobytes() for cache, array in written.items()}
    given = arguments if kind == "numpy" else {n: in_torch(v) for n, v in arguments.items()}
    with pytest.raises(ValueError, match=f"^mla_prolog_v3: {name} must be {rule} in memory; got "):
        ds.mla_prolog_v3(**given)
    assert before == {cache: array.tobytes() for cache, array in written.items()}


def in_torch(value: Any) -> Any:
    return like(torch.empty(0), value) if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize("mode", ["PA_BSND", "PA_NZ"])
def test_caches_may_be_columns_of_one_buffer(mode):
    arguments = base() | {"cache_mode": mode}
    whole = np.concatenate([arguments["kv_cache"], arguments["kr_cache"]], axis=-1)
    parts = arguments | {"kv_cache": whole[..., :64], "kr_cache": whole[..., 64:]}
    want, got = ds.mla_prolog_v3(**arguments), ds.mla_prolog_v3(**parts)
    assert got.query.tobytes() == want.query.tobytes()
    assert whole.tobytes() == np.concatenate([arguments["kv_cache"], arguments["kr_cache"]], axis=-1).tobytes()


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
        token_x=zeros(*axes, He),
        weight_dq=zeros(He, Hcq),
        weight_uq_qr=zeros(Hcq, N * (D + Dr)),
        weight_uk=zeros(N, D, Hckv),
        weight_dkv_kr=zeros(He, Hckv + Dr),
        rmsnorm_gamma_cq=zeros(Hcq),
        rmsnorm_gamma_ckv=zeros(Hckv),
        rope_sin=zeros(*axes, Dr),
        rope_cos=zeros(*axes, Dr),
        cache_index=np.full(axes, -1),
        kv_cache=np.zeros((1, given["BlockSize"], 1, Hckv), BF16),
        kr_cache=np.zeros((1, given["BlockSize"], 1, Dr), BF16),
    )


HEADS = {1, 2, 4, 8, 16, 32, 64, 128}
NOVEMBER = {"He": {6144, 7168, 7680}, "Hcq": {1536}, "Hckv": {512}, "N": HEADS, "D": {128}, "Dr": {64}, "BlockSize": {16, 128}}
LATEST = {
    "He": {1024, 2048, 3072, 4096, 5120, 6144, 7168, 7680, 8192},
    "Hcq": {1536, 2048},
    "Hckv": {512},
    "N": HEADS,
    "D": {128, 192},
    "Dr": {64},
    "BlockSize": set(range(16, 1025, 16)),
}
PROFILES = {"design-note": NOVEMBER | {"He": {7168, 7680}}, "nov2025": NOVEMBER, "latest": LATEST}


@pytest.fixture
def sizes_alone(monkeypatch):
    """The sizes are looked at, and no results are made."""
    monkeypatch.setattr(cpu, "prolog", lambda p: reference.Results(None, np.zeros((len(p.x), 1, 1), np.float32)))


@pytest.mark.parametrize("symbol", LATEST)
@pytest.mark.parametrize("limits", PROFILES)
def test_limits_are_the_devices(sizes_alone, limits, symbol):
    near = {size + off for size in LATEST[symbol] for off in (-2, 0, 2)} - {-1, 0}
    for size in near:
        if size in PROFILES[limits][symbol]:
            ds.mla_prolog(**device_call(**{symbol: size}), limits=limits)
            continue
        with pytest.raises(ValueError, match=f"^mla_prolog: {symbol} must be .*under limits={limits!r}; got {size}$"):
            ds.mla_prolog(**device_call(**{symbol: size}), limits=limits)


@pytest.mark.parametrize(("symbol", "most"), [("T", 1048576), ("B", 65536), ("S", 16)])
def test_limits_of_tokens(sizes_alone, symbol, most):
    unmerged = {"S": {"B": 1}, "B": {"S": 1}}.get(symbol, {})
    for limits in ("design-note", "nov2025"):
        for size in (0, most):
            ds.mla_prolog(**device_call(**unmerged, **{symbol: size}), limits=limits)
        with pytest.raises(ValueError, match=rf"^mla_prolog: {symbol} must be in \[0, {most}\] under limits={limits!r}; got"):
            ds.mla_prolog(**device_call(**unmerged, **{symbol: most + 1}), limits=limits)
    ds.mla_prolog(**device_call(**unmerged, **{symbol: most + 1}), limits="latest")


def test_november_2025_reserves_the_later_attributes(sizes_alone):
    arguments = device_call()
    ds.mla_prolog_v3(**arguments, limits="nov2025", qc_qr_scale=10.0, kc_scale=10.0)
    for more in (dict(query_norm_flag=True), dict(weight_quant_mode=1), dict(tile_size=64), dict(ckvkr_repo_mode=1)):
        with pytest.raises(ValueError, match=f"^mla_prolog_v3: {next(iter(more))} must be .* under limits='nov2025'"):
            ds.mla_prolog_v3(**arguments, limits="nov2025", **more)
    for value in (0.0, False, np.zeros(2, int)):
        with pytest.raises(ValueError, match="^mla_prolog_v3: weight_quant_mode must be 0 under limits='nov2025'; got "):
            ds.mla_prolog_v3(**arguments, limits="nov2025", weight_quant_mode=value)
    with pytest.raises(ValueError, match="query_norm_flag must be False under limits='nov2025'; got 0"):
        ds.mla_prolog_v3(**arguments, limits="nov2025", query_norm_flag=0)
    for limits in ("nov2025", "design-note"):
        with pytest.raises(ValueError, match="cache_mode must be one of 'PA_BSND', 'PA_NZ'; got 'TND'"):
            ds.mla_prolog_v3(**arguments, limits=limits, cache_mode="TND")
    uq = np.lib.stride_tricks.as_strided(np.zeros(1, np.int8), (1536, 6144), (0, 0))
    scale = np.ones((1, 6144), np.float32)
    ds.mla_prolog_v3(**arguments | dict(weight_uq_qr=uq), dequant_scale_w_uq_qr=scale, limits="nov2025")
    with pytest.raises(ValueError, match="weight_uq_qr must be bfloat16"):  # the later V3 goes by its attributes
        ds.mla_prolog_v3(**arguments | dict(weight_uq_qr=uq), dequant_scale_w_uq_qr=scale, limits="latest")
