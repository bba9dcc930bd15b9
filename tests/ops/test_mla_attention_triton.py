"""mla_attention's Triton kernels, interpreted where there is no GPU: every form of the cache, several splits and groups."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

import decodestep as ds
from decodestep.ops.mla_attention import triton
from decodestep.ops.mla_attention.triton.tiles import NARROW, Tiles
from support import triton_interpreter as gpu
from support.tolerances import assert_close
from support.triton_interpreter import guard_zones  # noqa: F401
from test_mla_attention import (  # noqa: F401
    STORED,
    make,
    plain,
    refusals,
    stored,
    test_a_backend_asked_for_by_name_does_not_fall_back,
    test_bfloat16_throughout,
    test_large_scores_do_not_overflow,
    test_nan_stays_with_those_who_see_it,
    test_no_tokens_give_no_rows,
    test_one_key_returns_its_latent,
    test_the_quantised_query_of_the_prolog,
)
from test_mla_attention import test_refuses as refuses
from test_mla_attention_tiles import CODES, joined

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(autouse=True)
def _on_the_device(monkeypatch):
    gpu.serve(monkeypatch, "mla_attention")


@pytest.mark.parametrize(("name", "place", "value"), [case for case in refusals() if not isinstance(case[2], list)])
def test_refuses_what_the_cpu_refuses(rng, name, place, value):
    refuses(rng, name, place, value)


def attend(args, **options):
    args = [gpu.on_device(a) if i < 4 else a for i, a in enumerate(args)]
    options = {name: gpu.on_device(v) if name.endswith(("ckv", "ckr", "nope")) else v for name, v in options.items()}
    return gpu.on_host(ds.mla_attention(*args, backend="triton", **options))


@pytest.fixture
def short_splits(monkeypatch):
    """So few that the longest tokens' are longer than the least."""
    monkeypatch.setattr(triton, "LEAST", 16)
    monkeypatch.setattr(triton, "MOST", 4)
    monkeypatch.setattr(triton, "tiles_for", lambda *args, **options: Tiles(16, 16, 4, 2))


@pytest.mark.usefixtures("short_splits")
@pytest.mark.parametrize("kind", range(4))
@pytest.mark.parametrize(("groups", "nope", "block_size"), [(1, True, 7), (2, True, 16), (3, False, 4)])
def test_every_kind_of_cache(kind, groups, nope, block_size):
    rng = np.random.default_rng(kind)
    sizes = {"tokens": 3, "heads": 6 * groups, "latent": 9 * groups, "rope": 6 * groups}
    args, options = make(rng, **sizes, groups=groups, nope=nope, block_size=block_size, blocks=80 // block_size, sequences=1)
    kv, kv_scale = stored(rng, args[2], STORED[kind])
    kr, kr_scale = stored(rng, args[3], STORED[kind - 1])
    exact = [c.astype(np.float64) / (1 if f is None else f.astype(np.float64)) for c, f in ((kv, kv_scale), (kr, kr_scale))]
    want, terms = plain(*args[:2], *exact, *args[4:], **options)
    out = attend((*args[:2], kv, kr, *args[4:]), quant_scale_ckv=kv_scale, quant_scale_ckr=kr_scale, **options)
    assert_close(out, want, terms)
    # A token's bits do not depend on the others, nor on the cache beyond its length.
    last = len(out) - 1
    one = (*(None if a is None else a[last:] for a in args[:2]), kv, kr, args[4], args[5][last:])
    options["sequence"] = options["sequence"][last:]
    alone = attend(one, quant_scale_ckv=kv_scale, quant_scale_ckr=kr_scale, **options)
    np.testing.assert_array_equal(alone[0], out[last])


@pytest.mark.usefixtures("short_splits")
@pytest.mark.parametrize("kind", range(4))
@pytest.mark.parametrize(("block_size", "apart"), [(7, False), (16, True)])
def test_caches_in_nz_order(kind, block_size, apart):
    """The bits of rows, whether the elements of the cache follow each other or not."""
    rng = np.random.default_rng(kind)
    sizes = {"tokens": 2, "heads": 4, "latent": 64, "rope": 32, "groups": 2, "block_size": block_size}
    args, options = make(rng, **sizes, blocks=64 // block_size, sequences=1)
    (kv, kv_scale), (kr, kr_scale) = stored(rng, args[2], STORED[kind]), stored(rng, args[3], STORED[kind - 1])
    options |= {"quant_scale_ckv": kv_scale, "quant_scale_ckr": kr_scale}
    want = attend((*args[:2], kv, kr, *args[4:]), **options)
    on_device = [gpu.on_device(a) for a in (*args[:2], ds.cache_to_nz(kv), ds.cache_to_nz(kr))]
    on_device[2:] = [gpu.strided(cache) if apart else cache for cache in on_device[2:]]
    options = {name: gpu.on_device(v) if name.startswith("quant") else v for name, v in options.items()}
    out = ds.mla_attention(*on_device, *args[4:], cache_mode="PA_NZ", backend="triton", **options)
    np.testing.assert_array_equal(gpu.on_host(out), want)


def test_bfloat16_throughout_and_strided_caches():
    rng = np.random.default_rng(4)
    args, options = make(rng, tokens=3, heads=4, latent=48, rope=16)
    args = [a.astype(ml_dtypes.bfloat16) if a.dtype == np.float32 else a for a in args]
    want = ds.mla_attention(*args, backend="cpu", **options)
    on_device = [gpu.on_device(a) if i < 4 else a for i, a in enumerate(args)]
    on_device[2:4] = map(gpu.strided, on_device[2:4])
    out = ds.mla_attention(*on_device, backend="triton", **options)
    assert out.dtype == torch.bfloat16
    assert_close(gpu.on_host(out), want)


@pytest.mark.parametrize("strides", [(12, 3, 3, 2**30), (0, 2**30, 0, 1)], ids=["values", "rows"])
@pytest.mark.usefixtures("short_splits")
def test_caches_whose_parts_lie_far_apart(strides):
    """So far that an int32 does not hold the distance."""
    rng = np.random.default_rng(5)
    queries = [gpu.on_device(rng.normal(size=(2, 2, width)).astype(np.float32)) for width in (3, 2)]
    kv, kr = (gpu.on_device(rng.integers(-9, 9, (1, 4, 1, width)).astype(np.int8)) for width in (3, 2))
    far = torch.empty_strided(kv.shape, strides, dtype=torch.int8, device=gpu.DEVICE)
    far.copy_(kv)
    options = {f"quant_scale_{name}": gpu.on_device(np.ones(1, np.float32)) for name in ("ckv", "ckr")}
    options |= {"scale": 1.0, "sequence": np.zeros(2, np.int64), "backend": "triton"}
    near, moved = (ds.mla_attention(*queries, cache, kr, np.zeros((1, 1), np.int64), [4, 3], **options) for cache in (kv, far))
    assert torch.equal(moved, near)


@pytest.mark.parametrize("tiles", NARROW)
@pytest.mark.parametrize("block_size", [64, 24])
def test_bfloat16_tiles_before_the_result_is_rounded(tiles, block_size, monkeypatch):
    """The softmax's weights keep 16 bits: two bfloat16 numbers, each of which the interpreter cuts off and does not round."""
    monkeypatch.setattr(triton, "tiles_for", lambda *args, **options: tiles)
    rng = np.random.default_rng(8)
    args, options = make(
        rng, tokens=2, heads=70, latent=48, rope=16, block_size=block_size, blocks=400 // block_size, sequences=1
    )
    args = [a.astype(ml_dtypes.bfloat16) if a.dtype == np.float32 else a for a in args]
    want, terms = plain(*(a.astype(np.float64) if a.dtype == ml_dtypes.bfloat16 else a for a in args), **options)
    tensors = [gpu.on_device(np.asarray(a)) for a in (*args, options["sequence"])]
    work = triton.Workspace(2, 70, 48, 400, gpu.DEVICE, torch.float32)
    out = gpu.on_host(triton.launch(*tensors, work, scale=options["scale"]))
    assert (np.abs(out - want) <= 2.0**-16 * terms).all()


@pytest.mark.usefixtures("short_splits")
@pytest.mark.parametrize("longest", [20, 999])
@pytest.mark.parametrize("block_size", [4, 16])
def test_a_launch_leaves_out_what_does_not_exist(block_size, longest):
    """Unchecked indexes: lengths beyond the workspace and the table, sequences that the table lacks, blocks that the cache
    lacks, among them the first of a split."""
    rng = np.random.default_rng(9)
    args, options = make(rng, tokens=6, heads=3, latent=16, rope=4, block_size=block_size, blocks=9, sequences=1)
    query, rope, kv, kr, table, _ = args
    kv, kr = np.nan_to_num(kv), np.nan_to_num(kr)
    table = np.concatenate([table] * 3)
    table[1, 1::2], table[1, 2::2], table[2, :3] = -1, 10**6, (-1, 9, -(10**6))
    lengths, sequence = np.array([2**32 + 5, 5, 5, 32, 100, 5]), np.array([0, 0, 3, 1, 2, -1])
    work = triton.Workspace(6, 3, 16, longest, gpu.DEVICE, torch.float32)
    tensors = [gpu.on_device(a) for a in (query, rope, kv, kr, table, lengths, sequence)]
    out = gpu.on_host(triton.launch(*tensors, work, scale=options["scale"]))
    by_key = [cache.reshape(-1, 1, 1, cache.shape[3]) for cache in (kv, kr)]
    for t, row in enumerate(sequence):
        keys = np.arange(min(lengths[t], longest, table.shape[1] * block_size) if 0 <= row < 3 else 0)
        blocks = table[row % 3, keys // block_size]
        there = (blocks * block_size + keys % block_size)[(blocks >= 0) & (blocks < 9)]
        if len(there):
            one = (query[[t]], rope[[t]], *by_key, there[None], [len(there)])
            assert_close(out[[t]], ds.mla_attention(*one, scale=options["scale"], backend="reference"))
        else:
            assert np.isnan(out[t]).all()


def test_queries_quantised_by_head():
    rng = np.random.default_rng(6)
    args, options = make(rng, tokens=2, heads=3, latent=32, rope=8, sequences=1)
    kv = np.nan_to_num(np.clip(np.rint(args[2] * 30), -127, 127)).astype(np.int8)
    query = rng.integers(-127, 128, args[0].shape).astype(np.int8)
    kr = np.nan_to_num(args[3])
    factor = rng.uniform(0.01, 0.02, (2, 3, 1)).astype(np.float32)
    scales = {"dequant_scale_q_nope": factor, "quant_scale_ckv": np.full(1, 30, np.float32)}
    call = (query, args[1], kv, kr, *args[4:])
    want = ds.mla_attention(*call, backend="reference", **scales, **options)
    assert_close(attend(call, **scales, **options), want)


def test_bad_arguments_are_refused_as_on_the_cpu():
    args, options = make(np.random.default_rng(0), tokens=2, heads=2, latent=16, rope=4)
    good = [gpu.on_device(a) if i < 4 else a for i, a in enumerate(args)]
    for place, value, message in (
        (5, [-1, 1], r"lengths must be in \[0,"),
        (4, args[4] + 99, "block_table must be in"),
        (2, good[2][..., :5], "query must be of shape"),
        (1, good[1].double(), "query must be float64"),
        (3, args[3], "kr_cache must be a tensor on"),
        (0, good[0].to("meta"), "query must be on"),
    ):
        call = [value if i == place else a for i, a in enumerate(good)]
        with pytest.raises(ValueError, match=message):
            ds.mla_attention(*call, backend="triton", **options)
    wide = [a.double() if i < 4 else a for i, a in enumerate(good)]
    with pytest.raises(ValueError, match="has no float64"):
        ds.mla_attention(*wide, backend="triton", **options)


@pytest.mark.usefixtures("short_splits")
@pytest.mark.parametrize("code", CODES)
def test_rows_by_tiles(rng, code):
    args, options = make(rng, tokens=3, heads=2, latent=128, rope=16, block_size=8, blocks=13, sequences=1)
    rows, kv, kr = joined(rng, *args[2:4], code)
    want, terms = plain(*args[:2], kv, kr, *args[4:], **options)
    assert_close(attend([*args[:2], rows, None, *args[4:]], **options), want, terms)


@pytest.mark.usefixtures("short_splits")
def test_log_sum_exp_and_tokens_without_entries(rng):
    args, options = make(rng, tokens=5, heads=3, latent=32, rope=16, block_size=8, blocks=31, sequences=1)
    args[5][3] = 0
    given = [gpu.on_device(a) if i < 4 else a for i, a in enumerate(args)]
    out, lse = map(gpu.on_host, ds.mla_attention(*given, backend="triton", return_lse=True, **options))
    want, of_want = ds.mla_attention(*args, return_lse=True, **options)
    assert not out[3].any() and np.isneginf(lse[3]).all()
    assert_close(out, want)
    seen = [0, 1, 2, 4]
    np.testing.assert_allclose(lse[seen], of_want[seen], rtol=2e-6, atol=2e-6)
