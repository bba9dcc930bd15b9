"""mla_prolog_v3 with eight-bit floats: values by hand, what saturates, what is refused. The oracle is in test_mla_prolog.py."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import decodestep as ds
from decodestep.ops.mla_prolog import float8
from support.mla_prolog_cases import BF16, EXPONENT8, FLOAT8, call, copied, make
from support.mla_prolog_oracle import blocks_float8, dynamic_float8
from support.mla_prolog_oracle import float8 as exact_float8

BACKENDS = ("cpu", "reference")
FLOAT8_SCENARIOS = ["MXFP8", "MXFP8_KV", "MXFP8_TILE", "FP8", "FP8_KV", "FP8_TILE"]


def zeros_and(value: float, count: int) -> np.ndarray:
    row = np.zeros(count)
    row[0] = value
    return row


def unit_call(scenario: str, latent: np.ndarray, **more: Any) -> dict[str, Any]:
    """One token that selects `latent` as the row of weight_dkv_kr, whose norm divides and multiplies by 2^40."""
    made = make(np.random.default_rng(0), scenario, B=1, S=1, negative=False, tiles=len(latent) // 128, Hckv=len(latent))
    made["token_x"][:] = zeros_and(1, made["token_x"].shape[1])
    made["weight_dkv_kr"][:] = 0
    made["weight_dkv_kr"][0, : len(latent)] = latent
    for name in ("dequant_scale_x", "dequant_scale_w_dkv_kr"):
        made[name][:] = 1
    made["rmsnorm_gamma_ckv"][:] = 2.0**40
    return made | {"rmsnorm_epsilon_ckv": 2.0**80, "cache_index": np.array([2])} | more


def test_every_value_returns_and_what_lies_between_goes_to_the_even_one():
    every = np.arange(256, dtype=np.uint8).view(FLOAT8)
    values = every.astype(np.float64)
    finite = np.isfinite(values)
    np.testing.assert_array_equal(float8.to_float8(values[finite]).astype(float), values[finite])
    np.testing.assert_array_equal(exact_float8(values[finite]), values[finite])
    upwards = np.sort(values[finite & (values >= 0)])
    middle = (upwards[:-1] + upwards[1:]) / 2
    for factor in (1, 1 + 2.0**-20, 1 - 2.0**-20):
        np.testing.assert_array_equal(float8.to_float8(middle * factor).astype(float), exact_float8(middle * factor))
    np.testing.assert_array_equal(float8.to_float8(np.array([449.0, 464, 1e9, -np.inf])).astype(float), [448, 448, 448, -448])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_cache_with_one_scale_saturates(backend):
    latent = np.zeros(64)
    latent[:6] = [448, -448, 1, 0.9375, 0.0625, -3]
    made = unit_call("FP8_KV", latent, quant_scale_ckv=np.array([2.25], np.float32))
    got = call(made, backend=backend)
    row = got["kv_cache"].reshape(-1, 64)[2].astype(float)
    np.testing.assert_array_equal(row[:7], [448, -448, 2.25, 2, 0.140625, -7, 0])  # 2.109375 and 6.75 round


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scenario", ["MXFP8_TILE", "FP8_TILE"])
def test_tiles_by_hand(scenario, backend):
    """A tile of 1, 2, ... 16, whose scale is 16 / 448, and one of zeros, whose largest magnitude counts as 1e-4."""
    latent = np.zeros(256)
    latent[:16] = np.arange(1, 17)
    alphas = [np.array([a], np.float32) for a in (1, 0.5)] if scenario == "FP8_TILE" else [None]
    for alpha in (*alphas, None):
        got = call(unit_call(scenario, latent, k_nope_clip_alpha=alpha), backend=backend)
        row = got["kv_cache"].reshape(-1, 256 + 64 + 8)[2].view(np.uint8)
        np.testing.assert_array_equal(row[:256].view(FLOAT8).astype(float)[:16], exact_float8(latent[:16] * 28))
        assert not row[16:256].any()
        np.testing.assert_allclose(row[-8:].view(np.float32), np.array([16, 1e-4]) / 448, rtol=2e-7)


def test_blocks_share_the_power_of_two_of_their_largest():
    z = np.zeros((1, 160))
    z[0, :32] = np.linspace(-1, 1, 32)
    z[0, 32:64] = np.linspace(0.5, 1.9, 32)  # 1.9 / 2^-8 = 486.4 saturates
    z[0, 64], z[0, 96], z[0, 128] = np.inf, 2.0**-126, 2.0**-130
    q, scale = float8.quantise_blocks(z)
    assert scale.view(np.uint8).tolist() == [[119, 119, 255, 0, 0]]
    np.testing.assert_array_equal(q[0, :32].astype(float), exact_float8(z[0, :32] * 256))
    assert q[0, 63] == 448 and np.isnan(q[0, 64:96].astype(float)).all()
    assert q[0, 96] == 2 and not q[0, 128:].astype(float).any()
    rows = np.random.default_rng(0).normal(size=(4, 96))
    for row in rows:
        q, scale = float8.quantise_blocks(row[None])
        want, power = blocks_float8(row)
        np.testing.assert_array_equal(q[0].astype(float), want)
        np.testing.assert_array_equal(scale[0].astype(float), power)
        q, one = float8.quantise_rows(row[None])
        np.testing.assert_allclose(one[0, 0], dynamic_float8(row)[1])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scenario", FLOAT8_SCENARIOS)
def test_rows_of_zeros(scenario, backend):
    made = make(np.random.default_rng(1), scenario, B=1, S=2, negative=False)
    made["weight_dq"][:] = 0
    made |= {"rmsnorm_epsilon_cq": 1.0, "query_norm_flag": True}
    got = call(made, backend=backend)
    assert not got["query"].astype(float).any() and not got["query_norm"].astype(float).any()
    wanted = np.zeros((2, 1)) if scenario.startswith("FP8") else np.full((2, 1), 2.0**-127)
    np.testing.assert_array_equal(got["dequant_scale_q_norm"].astype(float), wanted)
    assert got["dequant_scale_q_norm"].dtype == (EXPONENT8 if scenario.startswith("MX") else np.float32)


@pytest.mark.parametrize("scenario", FLOAT8_SCENARIOS)
def test_the_kernel_has_the_references_bits_but_for_the_order_of_sums(scenario):
    """Tokens and weights of few values, so that every sum is exact."""
    made = make(np.random.default_rng(3), scenario, negative=False) | {"query_norm_flag": True}
    for name in ("token_x", "weight_dq", "weight_uq_qr", "weight_dkv_kr"):
        made[name] = np.sign(made[name].astype(float)).astype(FLOAT8)
    got, want = call(copied(made), backend="cpu"), call(copied(made), backend="reference")
    for name, value in want.items():
        if value is not None and name != "query_rope":
            np.testing.assert_array_equal(got[name].view(np.uint8), value.view(np.uint8), name)


def test_bytes_are_read_as_the_named_dtype():
    made = make(np.random.default_rng(4), "FP8_KV", negative=False)
    names = ("token_x", "weight_dq", "weight_uq_qr", "weight_dkv_kr", "kv_cache")
    as_bytes = copied(made)
    as_bytes |= {name: as_bytes[name].view(np.uint8) for name in names} | {f"{name}_dtype": 292 for name in names}
    want, got = call(copied(made)), call(as_bytes)
    np.testing.assert_array_equal(got["query"], want["query"])
    np.testing.assert_array_equal(as_bytes["kv_cache"], want["kv_cache"].view(np.uint8))


def test_torch_tensors():
    made = make(np.random.default_rng(5), "MXFP8_KV", negative=False) | {"query_norm_flag": True}

    def tensor(a: np.ndarray) -> torch.Tensor:
        carrier = {FLOAT8: torch.float8_e4m3fn, EXPONENT8: torch.float8_e8m0fnu, BF16: torch.bfloat16}.get(a.dtype)
        return torch.from_numpy(a.view(f"u{a.itemsize}") if carrier else a).view(carrier or torch.from_numpy(a).dtype)

    want = call(copied(made))
    given = {name: tensor(value) if isinstance(value, np.ndarray) else value for name, value in made.items()}
    got = ds.mla_prolog_v3(**given)
    assert got.query.dtype == torch.float8_e4m3fn and got.dequant_scale_q_norm.dtype == torch.float8_e8m0fnu
    np.testing.assert_array_equal(got.query.view(torch.uint8).numpy(), want["query"].view(np.uint8))


@pytest.mark.parametrize(
    ("scenario", "change", "message"),
    [
        ("FP8", {"weight_quant_mode": 5}, "weight_quant_mode must be below 5: the format of 5, HiFloat8, is not published"),
        ("FP8", {"token_x_dtype": 290}, "token_x_dtype must be None or 292, float8_e4m3fn: the format of 290, HiFloat8"),
        ("FP8", {"weight_dq_dtype": 291}, "weight_dq_dtype must be None or 292, float8_e4m3fn; got 291"),
        ("FULL", {"token_x_dtype": 292}, "token_x must be float8_e4m3fn or uint8"),
        ("FP8", {"weight_quant_mode": 2}, "token_x must be int8"),
        ("FP8", {"query_quant_mode": 1}, r"\(weight_quant_mode, kv_cache_quant_mode, query_quant_mode\) must be one of"),
        ("MXFP8", {"smooth_scales_cq": np.ones((1, 32), np.float32)}, "smooth_scales_cq must be None in scenario MXFP8"),
        ("MXFP8_TILE", {"k_nope_clip_alpha": np.ones(1, np.float32)}, "k_nope_clip_alpha must be None in scenario MXFP8_TILE"),
        ("MXFP8", {"dequant_scale_x": np.ones((9, 2), np.float32)}, "dequant_scale_x must be float8_e8m0fnu of shape"),
        ("MXFP8", {"dequant_scale_w_dq": np.ones((2, 32), EXPONENT8)}, "dequant_scale_w_dq must be float8_e8m0fnu of shape"),
        ("FP8", {"dequant_scale_x": np.ones((9, 1), EXPONENT8)}, "dequant_scale_x must be float32"),
        ("FP8", {"kv_cache": np.zeros((8, 4, 1, 64), FLOAT8)}, "kv_cache must be bfloat16"),
        ("FP8", {"token_x": np.zeros((9, 48), ml_dtypes.float8_e5m2)}, "token_x must be float8_e4m3fn"),
    ],
)
def test_refusals(scenario, change, message):
    with pytest.raises(ValueError, match=f"^mla_prolog_v3: {message}"):
        ds.mla_prolog_v3(**make(np.random.default_rng(6), scenario) | change)


def test_refusals_of_what_has_no_form():
    made = make(np.random.default_rng(6), "FP8")
    packed = ds.PackedWeight.from_array(np.zeros((48, 32), np.float32))
    with pytest.raises(ValueError, match="weight_dq must be float8_e4m3fn of shape 48x32"):
        ds.mla_prolog_v3(**made | {"weight_dq": packed})
    with pytest.raises(ValueError, match="weight must be"):
        ds.PanelWeight.from_array(made["weight_dq"])
    odd = make(np.random.default_rng(6), "MXFP8")
    odd |= {"token_x": odd["token_x"][:, :48], "weight_dq": odd["weight_dq"][:48], "weight_dkv_kr": odd["weight_dkv_kr"][:48]}
    with pytest.raises(ValueError, match="He and Hcq that are multiples of 32 in scenario MXFP8"):
        ds.mla_prolog_v3(**odd)
    for name in ("token_x_dtype", "weight_quant_mode"):
        with pytest.raises(ValueError, match=f"{name} must be .* under limits='nov2025'"):
            ds.mla_prolog_v3(**make(np.random.default_rng(6)) | {name: 4}, limits="nov2025")
