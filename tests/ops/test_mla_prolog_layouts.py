"""NZ weights and caches, slots, and reading a cache back."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import decodestep as ds
from decodestep.weights.nz import nz_shape
from support.mla_prolog_cases import BF16, MODES, make, nz_block, nz_weight
from support.mla_prolog_oracle import slot_of


def numbered(shape: tuple[int, ...], dtype: type) -> np.ndarray:
    """Every element another value, as far as the type reaches."""
    if np.dtype(dtype) == BF16:
        return np.arange(int(np.prod(shape)), dtype=np.uint16).reshape(shape).view(BF16)
    return np.arange(int(np.prod(shape))).astype(dtype).reshape(shape)


@pytest.mark.parametrize(
    ("dtype", "block_size", "width", "slot", "h", "position"),
    [(BF16, 16, 64, 19, 37, 1589), (np.int8, 128, 512, 130, 100, 77892)],
)
def test_nz_cache_examples(dtype, block_size, width, slot, h, position):
    cache = np.zeros((2, block_size, 1, width), dtype)
    cache[slot // block_size, slot % block_size, 0, h] = 1
    assert ds.cache_to_nz(cache).reshape(-1).nonzero()[0].tolist() == [position]


def test_row_cache_example():
    cache = np.zeros((2, 128, 1, 512), np.int8)
    cache[1, 2, 0, 100] = 1
    assert cache.reshape(-1).nonzero()[0].tolist() == [66660]


@pytest.mark.parametrize(
    ("dtype", "K", "N", "k", "n", "position"), [(BF16, 64, 32, 20, 17, 1345), (np.int8, 64, 64, 20, 40, 2696)]
)
def test_nz_weight_examples(dtype, K, N, k, n, position):
    weight = np.zeros((K, N), dtype)
    weight[k, n] = 1
    assert ds.to_nz(weight).reshape(-1).nonzero()[0].tolist() == [position]


@given(st.integers(1, 70), st.integers(1, 70), st.sampled_from([np.int8, BF16, np.float32, np.float64]))
def test_weights_return_from_nz(K, N, dtype):
    weight = numbered((K, N), dtype)
    storage = ds.to_nz(weight)
    c0 = 32 // weight.itemsize
    assert storage.shape == (-(-N // c0), -(-K // 16), 16, c0) == nz_shape((K, N), weight.itemsize)
    np.testing.assert_array_equal(ds.from_nz(storage, (K, N)), weight)
    whole = ds.from_nz(storage)
    assert not np.shares_memory(whole, storage)  # also of one column of fractals, whose order is the same
    np.testing.assert_array_equal(whole[:K, :N], weight)
    assert not whole[K:].any() and not whole[:, N:].any()
    if K % 16 == 0 and N % c0 == 0:
        np.testing.assert_array_equal(storage, nz_weight(weight))


def test_a_value_may_fill_the_row_of_a_fractal():
    weight = np.array([[f"{k} {n}".encode() for n in range(3)] for k in range(17)], "S32")
    assert ds.to_nz(weight).shape == (3, 2, 16, 1)
    np.testing.assert_array_equal(ds.from_nz(ds.to_nz(weight), (17, 3)), weight)


@given(st.integers(0, 3), st.integers(1, 9), st.integers(1, 4), st.sampled_from([np.int8, BF16, np.float32]))
def test_caches_return_from_nz(blocks, rows, fractals, dtype):
    cache = numbered((blocks, rows, 1, fractals * 32 // np.dtype(dtype).itemsize), dtype)
    nz = ds.cache_to_nz(cache)
    assert nz.shape == cache.shape and nz.flags.c_contiguous
    for block, want in zip(nz, cache, strict=True):
        np.testing.assert_array_equal(block.reshape(-1), nz_block(want[:, 0]))
    rows_again = ds.cache_from_nz(nz)
    np.testing.assert_array_equal(rows_again, cache)
    assert not np.shares_memory(nz, cache) and not np.shares_memory(rows_again, nz)  # also of one fractal a row


def test_slots_from_a_block_table():
    table = np.array([[3, 1], [0, -7]])
    np.testing.assert_array_equal(ds.slots_from_block_table(table, [5, 2], 4), [5, 2])
    np.testing.assert_array_equal(ds.slots_from_block_table(table, [[0, 3, 4], [3, 4, -1]], 4), [[12, 15, 4], [3, -1, -1]])
    np.testing.assert_array_equal(ds.slots_from_block_table(table, [7, 0, 0], 4, sequence=[0, 1, 0]), [7, 0, 12])
    made = ds.slots_from_block_table(torch.tensor([[3, 1]], dtype=torch.int32), torch.tensor([5]), 4)
    assert made.dtype == torch.int64 and made.tolist() == [5]
    assert ds.slots_from_block_table(np.zeros((0, 4), np.int32), np.zeros(0, int), 4).shape == (0,)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("merged", [True, False])
@pytest.mark.parametrize("scenario", ["NO_QUANT", "FULL_KV"])
def test_what_the_prolog_writes_reads_back(mode, merged, scenario):
    if merged == (mode == "BSND") or (mode == "TND" and not merged):
        return
    rng = np.random.default_rng(3)
    lengths = [4, 9, 1] if merged and mode != "PA_BSND" and mode != "PA_NZ" else [5, 5, 5]
    call = make(rng, scenario, mode, merged, lengths=lengths, B=3, S=5, blocks=9, negative=False)
    if "cache_index" in call:
        index = call["cache_index"]
        call["cache_index"] = rng.permutation(9 if mode.startswith("PA_BLK") else 36)[: index.size].reshape(index.shape)
    ds.mla_prolog_v3(**call)
    whole = dict(call, cache_mode="TND", kv_cache=np.zeros((15 if not merged else sum(lengths), 1, 64), call["kv_cache"].dtype))
    whole["kr_cache"] = np.zeros((len(whole["kv_cache"]), 1, 32), call["kr_cache"].dtype)
    for name in ("token_x", "rope_sin", "rope_cos"):
        whole[name] = call[name].reshape(-1, call[name].shape[-1])
    whole = {name: value for name, value in whole.items() if name not in ("cache_index", "actual_seq_len")}
    ds.mla_prolog_v3(**whole)
    ends = np.cumsum(lengths)
    for name in ("kv_cache", "kr_cache"):
        want = whole[name][:, 0]
        if mode in ("PA_BSND", "PA_NZ"):
            got = ds.gather_cache(call[name], call["cache_index"], cache_mode=mode).reshape(want.shape)
        else:
            index = call.get("cache_index")
            table = index if merged or index is None else index.reshape(3, -1)
            sequences = ds.gather_cache(call[name], table, lengths, cache_mode=mode)
            assert [len(s) for s in sequences] == lengths
            got = np.concatenate(sequences)
        np.testing.assert_array_equal(got.view(np.int8), want.view(np.int8))
        if mode in ("PA_BSND", "PA_NZ"):  # the same rows by a block table, where the sequence lies in order
            order = np.arange(9)[None]
            rows = ds.gather_cache(call[name], order, [36], cache_mode=mode)[0]
            slots = [slot_of(call, t) for t in range(ends[-1])]
            np.testing.assert_array_equal(rows[slots].view(np.int8), want.view(np.int8))


def test_gathering_copies_and_keeps_the_kind():
    cache = torch.arange(64, dtype=torch.float32).reshape(2, 2, 1, 16)
    rows = ds.gather_cache(cache, torch.tensor([[3], [0]]))
    assert isinstance(rows, torch.Tensor) and rows.shape == (2, 1, 16) and rows[0, 0, 0] == 48
    rows[:] = -1
    assert cache.min() == 0
    for mode, one in (("BSND", cache), ("TND", cache.reshape(4, 1, 16))):
        for part in ds.gather_cache(one, None, [2, 2], cache_mode=mode):
            part[:] = -1
    assert cache.min() == 0
    nz = ds.cache_to_nz(cache)
    assert isinstance(nz, torch.Tensor) and ds.cache_from_nz(nz).equal(cache)
    weight = torch.arange(512, dtype=torch.bfloat16).reshape(16, 32)
    assert ds.from_nz(ds.to_nz(weight)).equal(weight)


@pytest.mark.parametrize("mode", ["PA_BSND", "PA_NZ"])
def test_nothing_is_gathered_from_no_rows(mode):
    for cache in (CACHE[:0], CACHE[:, :0], CACHE):
        assert ds.gather_cache(cache, np.zeros((0, 3), int), cache_mode=mode).shape == (0, 3, 32)
    assert [part.shape for part in ds.gather_cache(CACHE[:0], np.zeros((2, 0), int), [0, 0], cache_mode=mode)] == [(0, 32)] * 2


CACHE = np.zeros((2, 4, 1, 32), np.int8)
REFUSALS = [
    (lambda: ds.to_nz(np.zeros(3)), "to_nz: weight"),
    (lambda: ds.to_nz([[1]]), "to_nz: weight"),
    (lambda: ds.to_nz(np.zeros((2, 2), "S3")), "to_nz: weight"),
    (lambda: ds.to_nz(np.zeros((2, 2), "V0")), "to_nz: weight"),
    (lambda: ds.to_nz(np.zeros((2, 2), "S64")), "to_nz: weight"),
    (lambda: ds.from_nz(np.zeros((2, 2, 16, 16), np.int8)), "from_nz: storage"),
    (lambda: ds.from_nz(np.zeros((2, 2, 16, 0), "U10")), "from_nz: storage"),
    (lambda: ds.cache_to_nz(np.zeros((2, 4, 1, 32), "U10")), "cache_to_nz: cache"),
    (lambda: ds.cache_from_nz(np.zeros((2, 4, 1, 40), "S3")), "cache_from_nz: cache"),
    (lambda: ds.gather_cache(np.zeros((2, 4, 1, 32), "U10"), [0], cache_mode="PA_NZ"), "gather_cache: cache"),
    (lambda: ds.from_nz(np.zeros((2, 2, 16, 16), BF16), (17, 48)), "from_nz: shape"),
    (lambda: ds.from_nz(np.zeros((3, 2, 16, 16), BF16), (17, 48, 1)), "from_nz: shape"),
    (lambda: ds.cache_to_nz(np.zeros((2, 4, 1, 20), BF16)), "cache_to_nz: cache"),
    (lambda: ds.cache_from_nz(np.zeros((2, 4, 16), BF16)), "cache_from_nz: cache"),
    (lambda: ds.cache_from_nz(np.zeros((2, 4, 2, 16), BF16)), "cache_from_nz: cache"),
    (lambda: ds.cache_to_nz(np.zeros((2, 4, 2, 16), BF16)), "cache_to_nz: cache"),
    (lambda: ds.slots_from_block_table([1], [1], 4), "slots_from_block_table: block_table"),
    (lambda: ds.slots_from_block_table([[1.5]], [1], 4), "slots_from_block_table: block_table"),
    (lambda: ds.slots_from_block_table([[1]], [4], 4), "slots_from_block_table: positions"),
    (lambda: ds.slots_from_block_table([[1]], [1, 2], 4), "slots_from_block_table: positions"),
    (lambda: ds.slots_from_block_table([[1]], [1], 0), "slots_from_block_table: block_size"),
    (lambda: ds.slots_from_block_table([[0]], [1], 2**63), "slots_from_block_table: block_size"),
    (lambda: ds.slots_from_block_table([[1]], [1], 10**400), "slots_from_block_table: block_size"),
    (lambda: ds.slots_from_block_table([[2**60]], [3], 16), "slots_from_block_table: block_size"),
    (lambda: ds.slots_from_block_table(np.array([[2**63]], np.uint64), [3], 16), "slots_from_block_table: block_table"),
    (lambda: ds.slots_from_block_table([[1]], [1], 4, sequence=[1]), "slots_from_block_table: sequence"),
    (lambda: ds.slots_from_block_table([[1]], [1], 4, sequence=[0, 0]), "slots_from_block_table: sequence"),
    (lambda: ds.gather_cache(CACHE, [8]), "gather_cache: index"),
    (lambda: ds.gather_cache(CACHE, [-1]), "gather_cache: index"),
    (lambda: ds.gather_cache(CACHE, [0], cache_mode="PA_BLK_NZ"), "gather_cache: lengths"),
    (lambda: ds.gather_cache(CACHE, [2], [1]), "gather_cache: index"),
    (lambda: ds.gather_cache(CACHE, [0, 1], [1]), "gather_cache: index"),
    (lambda: ds.gather_cache(CACHE, [[0]], [5]), "gather_cache: index"),
    (lambda: ds.gather_cache(CACHE, [[0]], [1, 1]), "gather_cache: index"),
    (lambda: ds.gather_cache(CACHE, [[0], [1]], [1]), "gather_cache: index"),
    (lambda: ds.gather_cache(CACHE.repeat(2, 2), [0]), "gather_cache: cache"),
    (lambda: ds.gather_cache(CACHE, [0], [[1]]), "gather_cache: lengths"),
    (lambda: ds.gather_cache(CACHE, [0], [-1]), "gather_cache: lengths"),
    (lambda: ds.gather_cache(CACHE, [0], [1], cache_mode="BSND"), "gather_cache: index"),
    (lambda: ds.gather_cache(CACHE[:, :1], [], [2**62] * 4), "gather_cache: index"),  # their sum in int64 is 0
    (lambda: ds.gather_cache(CACHE, None, [4, 5], cache_mode="BSND"), "gather_cache: lengths"),
    (lambda: ds.gather_cache(CACHE, None, [8], cache_mode="TND"), "gather_cache: cache"),
    (lambda: ds.gather_cache(CACHE[0], None, [3], cache_mode="TND"), "gather_cache: lengths"),
    (lambda: ds.gather_cache(CACHE[0], None, [2**63 - 1, 2**63 - 1, 6], cache_mode="TND"), "gather_cache: lengths"),
    (lambda: ds.gather_cache(CACHE, [0], cache_mode="NZ"), "gather_cache: cache_mode"),
    (lambda: ds.gather_cache(CACHE, [0], cache_mode=np.array("PA_NZ")), "gather_cache: cache_mode"),
    (lambda: ds.gather_cache(CACHE[..., :16], [0], cache_mode="PA_NZ"), "gather_cache: cache"),
]


@pytest.mark.parametrize(("act", "start"), REFUSALS)
def test_refusals(act, start):
    with pytest.raises(ValueError, match=f"^{start} must be .*; got "):
        act()


def test_refusals_name_the_number_that_is_out_of_range():
    with pytest.raises(ValueError, match="positions must be below 4, .*; got 5$"):
        ds.slots_from_block_table([[1]], [[2, 5]], 4)
    with pytest.raises(ValueError, match=r"sequence must be in \[0, 1\); got 0 to 1$"):
        ds.slots_from_block_table([[1]], [2, 3], 4, sequence=[0, 1])


def test_a_row_quantised_by_tiles_is_656_bytes():
    call = make(np.random.default_rng(0), "PARTIAL_TILE", Dr=64, B=1, S=1, negative=False)
    call["weight_uk"] = np.zeros((2, 16, 512), BF16)
    call["weight_dkv_kr"] = np.ones((48, 576), BF16)
    call["rmsnorm_gamma_ckv"] = np.ones(512, BF16)
    call["kv_cache"] = np.zeros((1, 4, 1, 656), np.int8)
    call["cache_index"] = np.array([2])
    ds.mla_prolog_v3(**call)
    row = call["kv_cache"][0, 2, 0]
    assert (row[:512] == row[0]).all() and abs(int(row[0])) == 127 and not call["kv_cache"][0, [0, 1, 3]].any()
    assert row[512:640].copy().view(ml_dtypes.bfloat16).shape == (64,) and (row[640:].copy().view("<f4") > 0).all()
