"""The types of a grouped-query cache: float16 and int8 beside bfloat16, in decoder_forward and in a model."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import decodestep as ds
from decodestep import _native
from decodestep.ops.decoder_forward import group_cache
from decodestep.weights import Format, LinearPanels, PackedWeight
from support.core_builds import FUSED, VECTORS, needs_fused, printed_under
from support.decoder_forward_cases import Sizes, copied, latent_weights, step, weights
from test_decoder_forward_grouped import CASES, build_call, forward, made

BFLOAT16, FLOAT16, INT8 = group_cache.TYPES
NARROW = [FLOAT16, INT8]
NAMES = ["norms of heads", "padded heads", "windows of 16 and 300"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("cache", NARROW, ids=str)
def test_against_the_reference_in_float64(name, cache, rng):
    """Of int8 the reference rounds float64, so that a few values fall to the next integer."""
    w = made(name, Format.F32, rng)
    call = build_call(w, [330 if "300" in name else 40, 3], rng, cache=cache)
    exact = {**copied(call), "sin": call["sin"].astype(np.float64), "cos": call["cos"].astype(np.float64)}
    expected = ds.decoder_forward(**exact, backend="reference")
    apart = np.abs(ds.decoder_forward(**copied(call), backend="cpu") - expected) / np.abs(expected).max()
    assert np.median(apart) < {FLOAT16: 3e-5, INT8: 1e-4}[cache] and apart.max() < {FLOAT16: 1e-3, INT8: 0.03}[cache]


@pytest.mark.parametrize("cache", NARROW, ids=str)
def test_what_the_core_writes_is_what_the_reference_writes(cache, rng):
    """Position by position, with 16 rows of a page and two heads; and nothing else."""
    w = made("biases", Format.F32, rng, layers=1)
    call = build_call(w, [37], rng, cache=cache)
    here, there = copied(call), copied(call)
    ds.decoder_forward(**here, backend="cpu")
    ds.decoder_forward(**there, backend="reference")
    slab, page = np.zeros(3, int), call["page_table"][0]
    pairs = zip(*(group_cache.load(c["keys"][None, 0], c["values"][None, 0], slab, page) for c in (here, there)), strict=True)
    for mine, theirs in pairs:
        assert np.isnan(mine[:, 37:]).all()
        step = 2**-10 if cache == FLOAT16 else 1 / 126
        blocks = np.abs(theirs[:, :37]).reshape(*theirs[:, :37].shape[:2], -1, 16).max(axis=-1).repeat(16, axis=-1)
        assert (np.abs(mine - theirs)[:, :37] <= step * blocks).all()
        assert (mine == theirs)[:, :37].mean() > 0.98


@settings(max_examples=50)
@given(data=st.data())
def test_int8_is_within_half_a_step_of_sixteen_columns(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    x = (rng.normal(size=(5, 2, 32)) * 10.0 ** rng.integers(-33, 30, (5, 2, 2)).repeat(16, axis=2)).astype(np.float32)
    x[0, 0, :16] = 0
    if bad := data.draw(st.sampled_from([None, np.nan, np.inf])):
        x[3, 1, 20] = bad
    keys, values = (np.full((1, 2, 1, *shape), -1, np.int8) for shape in group_cache.page_shapes(INT8, 32))
    places = np.zeros(5, int), np.zeros(5, int), np.array([0, 3, 15, 8, 7])
    group_cache.store(keys, values, places, x, -x)
    k, v = (a[:, places[2]].swapaxes(0, 1) for a in group_cache.load(keys, values, np.array([0]), np.array([0])))
    largest = np.abs(x).reshape(5, 2, 2, 16).max(axis=-1).repeat(16, axis=2)
    for back, sign in ((k, 1), (v, -1)):
        assert (np.isnan(back) == ~np.isfinite(largest)).all()
        ok = np.isfinite(largest)
        assert (np.abs(back - sign * x)[ok] <= np.maximum(largest[ok] / 127 * 0.503, 1e-30)).all()


@pytest.mark.parametrize("name", ["norms of heads", "windows of 16 and 300"])
@pytest.mark.parametrize("cache", NARROW, ids=str)
def test_blocks_batches_and_threads_change_no_bit(name, cache, rng):
    w, length = made(name, Format.BF16, rng), 600 if "300" in name else 40
    call = build_call(w, [length], rng, cache=cache)
    with ds.use_threads(1):
        whole = ds.decoder_forward(**copied(call)).view(np.uint32)
    beside = build_call(w, [9, length, 17], rng, cache=cache, slabs=2)
    own = beside["sequence"] == 1
    beside["token_ids"][own] = call["token_ids"]
    for threads in (1, 3):
        with ds.use_threads(threads):
            paged = copied(call)
            parts = [forward(paged, part) for part in np.split(np.arange(length), [1, 2, 9, 26, length - 3, length - 1])]
            np.testing.assert_array_equal(np.concatenate(parts).view(np.uint32), whole)
            np.testing.assert_array_equal(ds.decoder_forward(**copied(beside))[own].view(np.uint32), whole)


def caches_of_subnormals() -> str:
    """What one layer writes to bfloat16 caches where keys, values and latents are subnormal."""
    rng = np.random.default_rng(5)
    grouped, latent = weights(Sizes(layers=1), Format.F32, rng), latent_weights(Format.F32, rng)
    tiny = (rng.normal(size=(64, 128)) * 1e-40).astype(np.float32)
    parts = {
        grouped: {"values_keys": LinearPanels.pack(PackedWeight.from_array(tiny), Format.F32)},
        latent: {"latent_norm": np.full(64, 1e-39, np.float32)},
    }
    digest = sha256()
    for w, changed in parts.items():
        layer = replace(w.layers[0], mixer=replace(w.layers[0].mixer, **changed))
        call = step(replace(w, layers=(layer,)), [20], rng)
        ds.decoder_forward(**call)
        written = call["values"][~np.isnan(call["values"])].view(np.uint16) & 0x7FFF
        assert (written < 0x80).all() and (written > 0).mean() > 0.9
        digest.update(call["keys"].tobytes() + call["values"].tobytes())
    return digest.hexdigest()


@pytest.mark.tiers
@needs_fused
@pytest.mark.parametrize("isa", VECTORS)
def test_every_build_with_fused_multiply_add_writes_the_same_bits_of_subnormals(isa):
    assert (
        printed_under(isa, "import test_decoder_forward_cache_types as t; print(t.caches_of_subnormals())")
        == caches_of_subnormals()
    )


def bits_of_steps() -> str:
    rng, digest = np.random.default_rng(3), {}
    for name in CASES:
        w = made(name, Format.BF16, rng)
        for cache in NARROW:
            call = build_call(w, [270, 40], rng, cache=cache)
            digest[name, cache.name] = sha256(ds.decoder_forward(**call).tobytes()).hexdigest()[:8]
    return str(digest)


@pytest.mark.tiers
@pytest.mark.skipif(_native.isa() == "baseline", reason="rounds a product and its sum one after the other")
@pytest.mark.parametrize("isa", FUSED)
def test_every_build_with_fused_multiply_add_gives_the_same_bits(isa):
    assert printed_under(isa, "import test_decoder_forward_cache_types as t; print(t.bits_of_steps())") == bits_of_steps()


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        ("keys must be bfloat16 or float16 or int8; got float32", {"keys": np.zeros((2, 2, 1, 2, 16, 16), np.float32)}),
        ("values must be float16; got int8", {"values": np.zeros((2, 2, 1, 2, 18, 16), np.int8)}),
        ("keys must be of shape 1x2x2x1x2x16x16; got float16", {"keys": np.zeros((2, 2, 1, 16, 16, 2), np.float16)}),
    ],
)
def test_refusals(message, changes, rng):
    call = build_call(made("biases", Format.F32, rng), [3], rng, cache=FLOAT16)
    with pytest.raises(ValueError, match=f"^decoder_forward: {message}"):
        ds.decoder_forward(**{**call, **changes})


def test_which_cache_a_model_has(tiny_file):
    """float16 where all weights are of 16 bits or more that bfloat16 has not."""
    for kind, dtype, expected in (
        ("F16", "auto", "float16"),
        ("F32", "auto", "float16"),
        ("BF16", "auto", "bfloat16"),
        ("Q8_0", "auto", "bfloat16"),
        ("F16", "int8", "bfloat16"),
    ):
        assert ds.load(tiny_file(kind=kind), dtype=dtype).decoder.cache_dtype == expected
    assert ds.load(tiny_file(), dtype="float32").decoder.cache_dtype == "float32"
    pages = [ds.load(tiny_file(kind="Q8_0"), cache_dtype=kept).cache.page_bytes for kept in ("bfloat16", "float16", "int8")]
    assert pages == [pages[0], pages[0], pages[0] * 18 // 32]


def test_how_near_each_cache_is(tiny_file, rng):
    path, ids = tiny_file(kind="F16", context=300), rng.integers(0, 297, 200)
    exact = ds.load(path, dtype="float32").logits(ids)
    apart = {}
    for kept in ("bfloat16", "float16", "int8"):
        model = ds.load(path, cache_dtype=kept)
        apart[kept] = np.median(np.abs(model.logits(ids) - exact).max(axis=1) / np.abs(exact).max(axis=1))
        params = ds.SamplingParams(do_sample=False, max_new_tokens=3, ignore_eos=True)
        for one in ds.generate(model, [ids[:40].tolist(), ids[:35].tolist()], params):  # the second copies a page
            whole = one.prompt_token_ids + one.token_ids
            assert model.logits(whole).argmax(axis=1)[len(one.prompt_token_ids) - 1 : -1].tolist() == one.token_ids
    assert 0 < 4 * apart["float16"] < apart["bfloat16"] < apart["int8"] < 0.05
    assert ds.load(path).logits(ids).tobytes() == ds.load(path, cache_dtype="float16").logits(ids).tobytes()
