"""lightning_indexer and sparse_mla_attention on a GPU, interpreted where there is none: the tests of the native kernels."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import decodestep as ds
from support import triton_interpreter as gpu
from support.sparse_attention_cases import LAYOUTS, attention_call, index_call
from support.tolerances import assert_close
from support.triton_interpreter import guard_zones  # noqa: F401
from test_lightning_indexer import DTYPES, assert_selects, expected
from test_lightning_indexer import test_by_hand as index_by_hand
from test_lightning_indexer import test_nan_and_infinities_and_zeros as index_nan
from test_sparse_mla_attention import assert_attends
from test_sparse_mla_attention import test_by_hand as attention_by_hand
from test_sparse_mla_attention import test_nan_stays_with_those_who_name_it as attention_nan

HOST = ("actual_seq_lengths_query", "actual_seq_lengths_key", "actual_seq_lengths_kv", "block_table", "sparse_indices")


@pytest.fixture
def served(monkeypatch):
    for name in ("lightning_indexer", "sparse_mla_attention"):
        gpu.serve(monkeypatch, name)


def test_what_the_native_kernels_pass(served, rng):
    index_by_hand("cpu")
    index_nan("cpu")
    attention_by_hand("cpu")
    attention_nan(rng, "cpu")


@pytest.mark.parametrize("layouts", LAYOUTS, ids="/".join)
@pytest.mark.parametrize("dtype", DTYPES)
def test_indexer_in_layouts_and_dtypes(served, rng, layouts, dtype):
    made = index_call(rng, [3, 1, 2], [70, 0, 2], heads=5, width=20, dtype=dtype, layouts=layouts)
    for count, mode in ((7, 0), (80, 3)):
        assert_selects(*made, count, mode, "cpu")


@pytest.mark.parametrize("layouts", LAYOUTS, ids="/".join)
@pytest.mark.parametrize("dtype", DTYPES[:3])
def test_attention_in_layouts_and_dtypes(served, rng, layouts, dtype):
    assert_attends(*attention_call(rng, [3, 1, 2], [70, 0, 2], layouts=layouts, dtype=dtype, block=2), 3, "cpu")


def on_device(call, change=lambda tensor: tensor):
    return {n: change(gpu.on_device(a)) if isinstance(a, np.ndarray) and n not in HOST else a for n, a in call.items()}


def test_ascending_positions_and_strided_tensors(rng):
    call, _, exact = index_call(rng, [3], [40], layouts=("TND", "PA_BSND"))
    [(positions, _)] = expected(exact, 9, 3)
    for change in (lambda tensor: tensor, gpu.strided):
        made = ds.lightning_indexer(**on_device(call, change), sparse_count=9, ordered=False, backend="triton")
        np.testing.assert_array_equal(gpu.on_host(made.sparse_indices)[:, 0], np.sort(positions, axis=1))
    call, _, _ = attention_call(rng, [3], [40], layouts=("TND", "PA_BSND"))
    out = ds.sparse_mla_attention(**on_device(call, gpu.strided), backend="triton")
    assert_close(gpu.on_host(out), ds.sparse_mla_attention(**call))


def test_what_is_refused():
    one = torch.zeros((1, 1, 2, 16), dtype=torch.float64, device=gpu.DEVICE)
    with pytest.raises(ValueError, match="'triton', which has no float64"):
        ds.lightning_indexer(one, one[:, :, :1], one[..., 0], backend="triton")
    indices = torch.zeros((1, 1, 1, 1), dtype=torch.int32)
    with pytest.raises(ValueError, match="'triton', which has no roundings of devices"):
        ds.sparse_mla_attention(one, one[:, :, :1], None, indices, 1.0, query_rope=one, key_rope=one[:, :, :1],
                                rounding="device", backend="triton")  # fmt: skip
