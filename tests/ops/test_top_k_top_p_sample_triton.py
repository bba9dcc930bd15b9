"""Ascend's samplers in Triton, interpreted where there is no GPU: the bits of the reference, in every branch of the rules."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
import triton.language as tl

import decodestep as ds
from decodestep.ops.top_k_top_p_sample import triton
from decodestep.ops.top_k_top_p_sample.triton import row
from support import triton_interpreter as gpu
from support.triton_interpreter import guard_zones  # noqa: F401
from test_top_k_top_p_sample import test_a_row_of_minus_infinity_gives_id_0 as of_minus_infinity
from test_top_k_top_p_sample import (  # noqa: F401
    test_kernel_exact_takes_a_softmax_of_probabilities,
    test_nan_ranks_below_minus_infinity_and_has_no_mass,
    test_negative_and_nan_probabilities_rank_as_stated,
    test_noise_of_zero_nan_and_infinity_has_the_stated_winner,
    test_numbers_and_lists_are_rounded_to_the_dtype_first,
    test_plus_infinities_share_the_mass,
    test_raw_inputs_keep_the_sign_of_zero,
    test_ties_go_to_the_lower_id,
    test_v1_examples,
    test_worked_examples,
)

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(autouse=True)
def _several_blocks(monkeypatch):
    monkeypatch.setattr(triton, "_BLOCK", 64)
    for name in ("top_k_top_p_sample", "top_k_top_p_sample_v2", "apply_top_k_top_p"):
        gpu.serve(monkeypatch, name)


@pytest.mark.parametrize(("k", "p", "m"), [(0, 1.0, None), (3, 0.5, 0.5), (4, 0.0, 1.0)])
def test_a_row_of_minus_infinity(k, p, m):
    of_minus_infinity(k, p, m)


def rows(rng, kind, batch, vocab):
    x = rng.normal(0, rng.choice([0.3, 2.5, 8]), (batch, vocab))
    if kind == 1:
        x = np.round(x)  # ties
    elif kind == 2:
        x[:, rng.integers(vocab, size=4)] = rng.choice([np.nan, np.inf, -np.inf, 30.0])
    elif kind == 3:
        x[:] = rng.choice([0.0, -np.inf, np.nan, 2.0])
    return x


def same(got, want):
    for name, value in want._asdict().items():
        if value is None:
            assert getattr(got, name) is None
        else:
            np.testing.assert_array_equal(gpu.on_host(getattr(got, name)), value, err_msg=name)


@pytest.mark.parametrize("seed", range(12))
def test_the_second_version_has_the_bits_of_the_reference(seed):
    rng = np.random.default_rng(seed)
    batch, vocab = 2, int(rng.choice([1, 17, 70, 100]))
    dtype = [np.float32, np.float16, ml_dtypes.bfloat16][seed % 3]
    raw = seed % 4 == 3
    x = rows(rng, seed % 4, batch, vocab)
    x = (np.abs(np.nan_to_num(x, posinf=1)) % 1 if raw else x).astype(dtype)
    k = rng.choice([0, 1, 3, vocab, vocab + 1, 60], batch).astype(np.int32)
    p = rng.choice([0.0, 0.5, 0.9, 0.999, 1.0, np.nan], batch).astype(dtype)
    m = rng.choice([0.0, 0.1, 0.5, 1.0], batch).astype(dtype)
    survivors = seed % 3 == 0
    q = rng.exponential(size=(batch, vocab)).astype(np.float32) if seed % 3 == 1 else None
    draw = {"seed": [2**63, 4], "position": 7} if seed % 3 == 2 and seed % 2 else {}
    options = {"input_is_logits": not raw, "is_need_logits": True, "is_need_sample_result": survivors, **draw}
    want = ds.top_k_top_p_sample_v2(x, k, p, q, min_ps=m, backend="reference", **options)
    tensors = [gpu.on_device(a) for a in (x, k, p, q)]
    same(ds.top_k_top_p_sample_v2(*tensors, min_ps=gpu.on_device(m), backend="triton", **options), want)


@pytest.mark.parametrize("seed", range(8))
def test_the_first_version_has_the_bits_of_the_reference(seed):
    rng = np.random.default_rng(seed)
    batch, vocab = 2, int(rng.choice([2, 16, 70]))
    x = rows(rng, seed % 4, batch, vocab).astype([np.float16, ml_dtypes.bfloat16][seed % 2])
    k, p = rng.choice([0, 1, 5, 60], batch).tolist(), rng.choice([0.0, 0.3, 0.9, 1.0], batch).tolist()
    q = rng.exponential(size=(batch, vocab)).astype(np.float32) if seed % 3 == 1 else None
    draw = {"seed": 3, "position": [1, 2]} if seed % 3 == 2 else {}
    options = {"is_need_logits": True, "kernel_exact": seed % 2 == 0, **draw}
    want = ds.top_k_top_p_sample(x, k, p, q, backend="reference", **options)
    same(ds.top_k_top_p_sample(gpu.on_device(x), k, p, gpu.on_device(q), backend="triton", **options), want)


@pytest.mark.skipif(gpu.DEVICE == "cuda", reason="a compiled kernel keeps the constants that it was compiled with")
@pytest.mark.parametrize("seed", [0, 1, 3])
@pytest.mark.parametrize(
    "has_the_bits",
    [test_the_first_version_has_the_bits_of_the_reference, test_the_second_version_has_the_bits_of_the_reference],
)
def test_a_sum_whose_rounding_is_open_is_added_in_the_contracts_order(has_the_bits, seed, monkeypatch):
    monkeypatch.setattr(row, "_ESTIMATE", tl.constexpr(1.0))  # with such an error each is
    has_the_bits(seed)


@pytest.mark.parametrize("kernel_exact", [False, True])
def test_given_noise_races_under_each_rule_of_the_first_version(kernel_exact):
    """It belongs to ids where nothing is cut, else to ranks; kernel_exact takes a second softmax where top-p alone cuts."""
    rng = np.random.default_rng(1)
    x, q = rng.normal(0, 2.5, (16, 20)).astype(np.float16), rng.exponential(size=(16, 20)).astype(np.float32)
    k, p = [0, 0, 9, 9] * 4, [0.0, 0.95] * 8
    want = ds.top_k_top_p_sample(x, k, p, q, kernel_exact=kernel_exact, backend="reference")
    same(ds.top_k_top_p_sample(gpu.on_device(x), k, p, gpu.on_device(q), kernel_exact=kernel_exact, backend="triton"), want)


@pytest.mark.parametrize("seed", range(8))
def test_apply_removes_what_the_reference_removes(seed):
    rng = np.random.default_rng(seed)
    batch, vocab = 2, int(rng.choice([1, 16, 70]))
    x = rows(rng, seed % 4, batch, vocab).astype([np.float32, np.float16, ml_dtypes.bfloat16][seed % 3])
    k = None if seed % 3 == 0 else rng.choice([0, 1, 5, vocab], batch).astype(np.int32)
    p = None if seed % 3 == 1 else rng.choice([-1.0, 0.0, 0.5, 0.9, 1.0, 2.0], batch).tolist()
    want = ds.apply_top_k_top_p(x, p, k, backend="reference")
    got = gpu.on_host(ds.apply_top_k_top_p(gpu.on_device(x), p, gpu.on_device(k), backend="triton"))
    np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))


def test_strided_logits_between_zones_that_would_win():
    rng = np.random.default_rng(0)
    wide = torch.full((3, 2, 90), 1e9)
    logits = wide[:, 1, 20:57]
    logits.copy_(torch.from_numpy(rng.normal(size=(3, 37))))
    want = ds.top_k_top_p_sample_v2(logits.numpy(), 9, 0.8, is_need_sample_result=True, backend="reference")
    on_device = wide.to(gpu.DEVICE)
    same(ds.top_k_top_p_sample_v2(on_device[:, 1, 20:57], 9, 0.8, is_need_sample_result=True, backend="triton"), want)
    assert torch.equal(on_device.cpu(), wide)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": torch.zeros(2, 3, dtype=torch.int8)}, "logits must be float16 or bfloat16 or float32"),
        ({"top_k": torch.zeros(2, dtype=torch.int64)}, "top_k must be int32"),
        ({"top_p": [0.5]}, "top_p must be one value or 2"),
        ({"q": torch.zeros(2, 4)}, "q must be of shape 2x3"),
        ({"q": np.zeros((2, 3), np.float32)}, "q must be a tensor on"),
        ({"seed": 3}, "seed must be given together with position"),
    ],
)
def test_bad_arguments_are_refused_as_on_the_cpu(change, message):
    arguments = {"logits": torch.zeros(2, 3), "top_k": 1, "top_p": 0.5, **change}
    arguments = {name: v.to(gpu.DEVICE) if isinstance(v, torch.Tensor) else v for name, v in arguments.items()}
    with pytest.raises(ValueError, match=message):
        ds.top_k_top_p_sample_v2(**arguments, backend="triton")
