"""mla_attention as serving engines call it: rows that are quantised by tiles, tokens that pad a batch, log-sum-exp."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import decodestep as ds
from support.mla_prolog_cases import BF16, FLOAT8, copied
from support.mla_prolog_cases import make as make_prolog
from support.tolerances import assert_close
from test_mla_attention import BACKENDS, make, plain

CODES = [np.dtype(np.int8), FLOAT8]


def joined(rng: np.random.Generator, kv: np.ndarray, kr: np.ndarray, code: np.dtype) -> tuple[np.ndarray, ...]:
    """The rows of a cache by tiles, and the latents and keys that they stand for, in float32."""
    latent = kv.shape[3]
    tiles = np.nan_to_num(kv).reshape(*kv.shape[:3], -1, 128)
    scale = (np.abs(tiles).max(-1, keepdims=True) / (127 if code == np.int8 else 448) + 1e-6).astype(np.float32)
    q = (np.rint(tiles / scale) if code == np.int8 else tiles / scale).astype(code)
    keys = np.nan_to_num(kr).astype(BF16)
    parts = (q.reshape(kv.shape), keys, scale[..., 0])
    rows = np.concatenate([np.ascontiguousarray(part).view(np.int8) for part in parts], axis=-1).view(code)
    assert rows.shape[3] == latent + 2 * kr.shape[3] + latent // 32
    return rows, (q.astype(np.float32) * scale).reshape(kv.shape), keys.astype(np.float32)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize(("heads", "tokens", "block_size"), [(1, 1, 16), (5, 3, 7), (17, 2, 64), (40, 6, 16)])
def test_rows_by_tiles_have_the_bits_of_what_they_stand_for(rng, code, heads, tokens, block_size):
    sizes = {"heads": heads, "tokens": tokens, "block_size": block_size, "latent": 256, "rope": 32}
    args, options = make(rng, blocks=1 + 330 // block_size, sequences=1, **sizes)
    rows, kv, kr = joined(rng, *args[2:4], code)
    want, terms = plain(*args[:2], kv, kr, *args[4:], **options)
    bits = ds.mla_attention(*args[:2], kv, kr, *args[4:], **options)
    assert_close(bits, want, terms)
    for empty in (None, np.zeros((0,), BF16), np.zeros((len(rows), block_size, 1, 0), np.int8)):
        np.testing.assert_array_equal(ds.mla_attention(*args[:2], rows, empty, *args[4:], **options), bits)
    assert_close(ds.mla_attention(*args[:2], rows, None, *args[4:], backend="reference", **options), want, terms)
    half = [a.astype(BF16) for a in args[:2]]
    want, terms = plain(*(a.astype(np.float64) for a in half), kv, kr, *args[4:], **options)
    assert_close(ds.mla_attention(*half, rows, None, *args[4:], **options), want, terms)


@pytest.mark.parametrize("scenario", ["PARTIAL_TILE", "FULL_TILE", "MXFP8_TILE", "FP8_TILE"])
def test_what_the_prolog_writes_by_tiles_is_read(rng, scenario):
    call = make_prolog(rng, scenario, negative=False, N=3) | {"cache_index": np.arange(9)}
    own = copied(call)
    made = ds.mla_prolog_v3(**own)
    paging = np.arange(8)[None], np.arange(1, 10)
    options: dict[str, Any] = {"sequence": np.zeros(9, int), "scale": 0.05}
    outs = [
        ds.mla_attention(made.query, made.query_rope, own["kv_cache"], own["kr_cache"], *paging, backend=backend, **options)
        for backend in BACKENDS
    ]
    assert_close(outs[0].astype(np.float32), outs[1].astype(np.float32))
    rows = own["kv_cache"].reshape(-1, own["kv_cache"].shape[3])[:9].view(np.uint8)
    q = rows[:, :256].view(call["kv_cache"].dtype).astype(np.float64)
    latent = q * rows[:, -8:].copy().view(np.float32).repeat(128, axis=1)
    assert_close(outs[1][0].astype(np.float64), np.broadcast_to(latent[0], (3, 256)).astype(BF16).astype(np.float64))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scenario", ["MXFP8_KV", "FP8_KV"])
def test_what_the_prolog_writes_in_float8_with_one_scale_is_read(rng, scenario, backend):
    call = make_prolog(rng, scenario, negative=False, N=3) | {"cache_index": np.arange(9)}
    own = copied(call)
    made = ds.mla_prolog_v3(**own)
    paging, options = (np.arange(8)[None], np.arange(1, 10)), {"sequence": np.zeros(9, int), "scale": 0.05, "groups": 1}
    scale = call["quant_scale_ckv"].reshape(-1)[:1]
    out = ds.mla_attention(
        made.query, made.query_rope, own["kv_cache"], own["kr_cache"], *paging, quant_scale_ckv=scale,
        dequant_scale_q_nope=made.dequant_scale_q_nope, backend=backend, **options,
    )  # fmt: skip
    factor = made.dequant_scale_q_nope.astype(np.float64)
    wide = made.query.astype(np.float64) * factor, made.query_rope.astype(np.float64) * factor / scale
    caches = own["kv_cache"].astype(np.float64) / scale, own["kr_cache"].astype(np.float64)
    assert_close(out, *plain(*wide, *caches, *paging, **options))


@pytest.mark.parametrize("nz", [False, True])
@pytest.mark.parametrize(("heads", "tokens"), [(1, 1), (5, 3), (40, 6)])
def test_float8_latents_have_the_bits_of_what_they_stand_for(rng, heads, tokens, nz):
    args, options = make(rng, blocks=25, sequences=1, heads=heads, tokens=tokens, block_size=16, latent=96, rope=32)
    latents, keys = np.nan_to_num(args[2] * 50).astype(FLOAT8), args[3].astype(BF16)
    stands_for = latents.astype(np.float32)
    caches = [(kv, keys) for kv in (latents, stands_for)]
    if nz:
        caches, options = [tuple(map(ds.cache_to_nz, pair)) for pair in caches], options | {"cache_mode": "PA_NZ"}
    ones = np.ones(96, np.float32)
    got = ds.mla_attention(*args[:2], *caches[0], *args[4:], quant_scale_ckv=ones, backend="cpu", **options)
    np.testing.assert_allclose(got, ds.mla_attention(*args[:2], *caches[1], *args[4:], backend="cpu", **options), rtol=1e-6)
    by_column = 2.0 ** rng.integers(-2, 3, 96).astype(np.float32)
    got = ds.mla_attention(*args[:2], *caches[0], *args[4:], quant_scale_ckv=by_column, backend="cpu", **options)
    exact = ds.mla_attention(
        *args[:2],
        stands_for / by_column,
        keys,
        *args[4:],
        backend="cpu",
        **{k: v for k, v in options.items() if k != "cache_mode"},
    )
    assert_close(got, exact)


def test_rows_that_are_not_aligned_are_the_references(rng):
    args, options = make(rng, tokens=2, heads=2, latent=128, rope=8)
    rows, _, _ = joined(rng, *args[2:4], CODES[0])
    memory = np.zeros(rows.size + 1, np.int8)
    memory[1:] = rows.reshape(-1)
    off = memory[1:].reshape(rows.shape)
    want = ds.mla_attention(*args[:2], rows, None, *args[4:], backend="reference", **options)
    np.testing.assert_array_equal(ds.mla_attention(*args[:2], off, None, *args[4:], **options), want)
    with pytest.raises(ValueError, match="needs rows of bytes aligned to words"):
        ds.mla_attention(*args[:2], off, None, *args[4:], backend="cpu", **options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_cache": lambda rows: rows[..., 1:]}, r"kv_cache must be of shape \(BlockNum, BlockSize, 1, Hckv \+ 16"),
        ({"kv_cache": lambda rows: rows.view(np.uint8)}, "kv_cache must be int8 or float8_e4m3fn"),
        ({"kv_cache": lambda rows: np.repeat(rows, 2, -1)[..., ::2]}, "kv_cache must be of rows whose bytes follow"),
        ({"groups": 2}, "groups must be 1"),
        ({"cache_mode": "PA_NZ"}, "cache_mode must be PA_BSND"),
        ({"quant_scale_ckv": np.ones(1, np.float32)}, "quant_scale_ckv must be None beside a cache quantised by tiles"),
        ({"dequant_scale_q_nope": np.ones((2, 2, 1), np.float32)}, "dequant_scale_q_nope must be None beside a cache"),
        ({"return_lse": 1}, "return_lse must be a bool"),
    ],
)
def test_refusals(rng, change, message):
    args, options = make(rng, tokens=2, heads=2, latent=128, rope=8)
    rows, _, _ = joined(rng, *args[2:4], CODES[0])
    rows = change.pop("kv_cache", lambda rows: rows)(rows)
    with pytest.raises(ValueError, match=f"^mla_attention: {message}"):
        ds.mla_attention(*args[:2], rows, None, *args[4:], **options | change)


# Log-sum-exp.


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("heads", "groups"), [(1, 1), (6, 3), (40, 1)])
def test_the_logarithm_of_the_sum(rng, heads, groups, backend):
    args, options = make(rng, tokens=5, heads=heads, latent=48, rope=24, groups=groups, block_size=16, blocks=50, sequences=1)
    options["scale"] *= 3
    out, lse = ds.mla_attention(*args, backend=backend, return_lse=True, **options)
    np.testing.assert_array_equal(out, ds.mla_attention(*args, backend=backend, **options))
    assert lse.dtype == np.float32 and lse.shape == (5, heads)
    for t, length in enumerate(args[5]):
        at = args[4][0][np.arange(length) // 16], np.arange(length) % 16, 0
        score = args[0][t].astype(float) @ args[2][at].T + args[1][t].astype(float) @ args[3][at].T
        np.testing.assert_allclose(lse[t], np.logaddexp.reduce(options["scale"] * score, axis=1), rtol=2e-6, atol=2e-6)


def test_parts_of_the_keys_join_by_their_logarithms(rng):
    """Two calls on two halves of the blocks are one call on all of them."""
    args, options = make(rng, tokens=3, heads=4, latent=32, rope=16, block_size=16, blocks=41, sequences=1)
    args[5][:] = 600
    args[2][:], args[3][:] = (rng.standard_normal(cache.shape) for cache in args[2:4])
    whole, of_whole = ds.mla_attention(*args, return_lse=True, **options)
    table, first_part = args[4], np.full(3, 304)
    first = ds.mla_attention(*args[:4], table[:, :19], first_part, return_lse=True, **options)
    rest = ds.mla_attention(*args[:4], table[:, 19:], 600 - first_part, return_lse=True, **options)
    together = np.logaddexp(first[1], rest[1])
    np.testing.assert_allclose(together, of_whole, rtol=1e-6)
    joined_ = sum(np.exp(lse - together)[..., None] * out for out, lse in (first, rest))
    np.testing.assert_allclose(joined_, whole, atol=2e-6)


def test_scores_of_minus_infinity_have_no_sum(rng):
    args, options = make(rng, tokens=1, heads=1, latent=16, rope=8)
    args[0][:], args[1][:] = 0, 0
    args[1][..., 0] = 1
    args[3][:] = 0
    args[3][..., 0] = -np.inf
    args[2][:] = 1
    for backend in BACKENDS:
        out, lse = ds.mla_attention(*args, backend=backend, return_lse=True, **options)
        assert np.isneginf(lse).all() and np.isnan(out).all()
        args[0][:] = np.nan
        assert np.isnan(ds.mla_attention(*args, backend=backend, return_lse=True, **options)[1]).all()
        args[0][:] = 0


# Tokens that pad a batch.


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_tokens_without_entries_give_zeros_and_change_no_others(rng, backend, dtype):
    args, options = make(rng, tokens=6, heads=3, latent=32, rope=8)
    args = [a.astype(dtype) if a.dtype == np.float32 else a for a in args]
    want, of_want = ds.mla_attention(*args, backend=backend, return_lse=True, **options)
    padded = [1, 4, 5]
    for place in (0, 1):
        args[place][padded] = np.nan
    args[5][padded] = 0
    options["sequence"] = options["sequence"].copy()
    options["sequence"][padded] = [-1, 99, 0]
    out, lse = ds.mla_attention(*args, backend=backend, return_lse=True, **options)
    seen = [0, 2, 3]
    np.testing.assert_array_equal(out[seen], want[seen])
    np.testing.assert_array_equal(lse[seen], of_want[seen])
    assert not out[padded].astype(float).any() and np.isneginf(lse[padded]).all() and out.dtype == dtype


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_batch_of_padding_alone(rng, backend):
    args, options = make(rng, tokens=2, heads=3, latent=32, rope=8)
    for table in (np.full((2, 3), -1), np.zeros((0, 0), int)):
        out = ds.mla_attention(*args[:4], table, [0, 0], backend=backend, **options | {"sequence": [0, 1]})
        assert out.shape == (2, 3, 32) and not out.any()


def test_padding_with_an_up_projection(rng):
    args, options = make(rng, tokens=3, heads=2, latent=32, rope=8)
    w_uv = ds.PackedWeight.from_array(rng.standard_normal((32, 2 * 24)).astype(np.float32))
    args[5][1] = 0
    out = ds.mla_attention(*args, w_uv=w_uv, **options)
    assert out.shape == (3, 2, 24) and not out[1].any() and out[0].any()
