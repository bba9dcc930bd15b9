"""mla_attention: against plain softmax attention, in every form of the cache."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import decodestep as ds
from decodestep.weights import LinearPanels, PackedWeight
from support.misaligned import misaligned
from support.mla_prolog_cases import copied
from support.mla_prolog_cases import make as make_prolog
from support.tolerances import assert_close

BACKENDS = ("cpu", "reference")


STORED = (np.float32, np.float16, ml_dtypes.bfloat16, np.int8)


def make(rng, *, tokens, heads, latent, rope, groups=1, block_size=4, blocks=9, dtype=np.float32, nope=True,
         sequences=None):  # fmt: skip
    """Random arguments: the sequences' blocks lie scattered in the cache, the rest of it is poison."""
    rows = sequences or max(1, tokens // 2)
    per_row = (blocks - 1) // rows
    kv = np.full((blocks, block_size, 1, latent), np.nan, dtype)
    kr = np.full((blocks, block_size, 1, rope), np.nan, dtype)
    table = rng.permutation(blocks)[: rows * per_row].reshape(rows, per_row)
    sequence = np.sort(rng.integers(0, rows, tokens))
    lengths = rng.integers(1, per_row * block_size + 1, tokens)
    for row in range(rows):
        for j in range(max(lengths[sequence == row], default=0)):
            kv[table[row, j // block_size], j % block_size] = rng.standard_normal(latent)
            kr[table[row, j // block_size], j % block_size] = rng.standard_normal(rope)
    query_rope = rng.standard_normal((tokens, heads, rope)).astype(dtype)
    if groups > 1:
        pair = np.arange(rope) % (rope // 2) // (rope // 2 // groups)
        query_rope *= pair == (np.arange(heads) // (heads // groups))[:, None]
    query = rng.standard_normal((tokens, heads, latent)).astype(dtype) if nope else None
    # Scores of about one: what rounding does to a score, the weights have once more.
    scale = float((latent * nope + rope) ** -0.5)
    return (query, query_rope, kv, kr, table, lengths), {"scale": scale, "sequence": sequence, "groups": groups}


def stored(rng, cache, dtype):
    """The cache in another dtype, and the scales of an int8 one; its poison is then -128."""
    if dtype != np.int8:
        return cache.astype(dtype), None
    scale = rng.uniform(20, 40, cache.shape[3]).astype(np.float32)
    return np.nan_to_num(np.clip(np.rint(cache * scale), -127, 127), nan=-128).astype(np.int8), scale


def plain(query, query_rope, kv_cache, kr_cache, table, lengths, *, scale, sequence, groups):
    """Softmax attention written out for each token and head in float64, and the magnitudes that it adds up."""
    tokens, heads, _ = query_rope.shape
    latent = kv_cache.shape[3]
    width = latent // groups
    out, terms = np.zeros((tokens, heads, width)), np.zeros((tokens, heads, width))
    for t in range(tokens):
        slots = [(table[sequence[t]][j // kv_cache.shape[1]], j % kv_cache.shape[1]) for j in range(lengths[t])]
        kv = np.array([kv_cache[b, r, 0] for b, r in slots], np.float64)
        kr = np.array([kr_cache[b, r, 0] for b, r in slots], np.float64)
        for n in range(heads):
            scores = kr @ query_rope[t, n].astype(np.float64)
            if query is not None:
                scores += kv @ query[t, n].astype(np.float64)
            weight = np.exp(scale * scores - np.max(scale * scores))
            g = n // (heads // groups)
            out[t, n] = (weight / weight.sum()) @ kv[:, g * width : (g + 1) * width]
            terms[t, n] = (weight / weight.sum()) @ np.abs(kv[:, g * width : (g + 1) * width])
    return out, terms


@settings(max_examples=60)
@given(st.data())
def test_equals_plain_attention(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    groups = data.draw(st.sampled_from([1, 1, 2, 3]))
    args, options = make(
        rng,
        tokens=data.draw(st.integers(1, 7)),
        heads=groups * data.draw(st.integers(1, 3)),
        latent=groups * data.draw(st.sampled_from([1, 5, 16, 33, 64, 72])),
        rope=2 * groups * data.draw(st.sampled_from([1, 8, 9, 32])),
        groups=groups,
        block_size=data.draw(st.sampled_from([1, 4, 16])),
        nope=data.draw(st.booleans()),
    )
    want, terms = plain(*args, **options)
    for backend in BACKENDS:
        assert_close(ds.mla_attention(*args, backend=backend, **options), want, terms)
    wide = [a.astype(np.float64) if a is not None and a.dtype == np.float32 else a for a in args]
    assert_close(ds.mla_attention(*wide, **options), want, terms)


@pytest.mark.slow
@settings(max_examples=60)
@given(st.data())
def test_every_kind_of_cache(data):
    """Several blocks and splits of keys, many tokens of one sequence, rows that fill no register."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    groups, block_size = data.draw(st.sampled_from([1, 1, 2, 3])), data.draw(st.sampled_from([1, 7, 16, 128]))
    args, options = make(
        rng,
        tokens=data.draw(st.integers(1, 40)),
        heads=groups * data.draw(st.integers(1, 5)),
        latent=groups * data.draw(st.sampled_from([1, 9, 16, 33, 64, 130])),
        rope=2 * groups * data.draw(st.sampled_from([1, 9, 32, 65])),
        groups=groups,
        block_size=block_size,
        blocks=data.draw(st.integers(2, max(2, 900 // block_size))),
        nope=data.draw(st.booleans()),
        sequences=1,
    )
    kv, kv_scale = stored(rng, args[2], data.draw(st.sampled_from(STORED)))
    kr, kr_scale = stored(rng, args[3], data.draw(st.sampled_from(STORED)))
    exact = [cache.astype(np.float64) / (1 if scale is None else scale.astype(np.float64))
             for cache, scale in ((kv, kv_scale), (kr, kr_scale))]  # fmt: skip
    want, terms = plain(*args[:2], *exact, *args[4:], **options)
    for backend in BACKENDS:
        out = ds.mla_attention(*args[:2], kv, kr, *args[4:], backend=backend, quant_scale_ckv=kv_scale,
                               quant_scale_ckr=kr_scale, **options)  # fmt: skip
        assert_close(out, want, terms)


@pytest.mark.parametrize("kv_dtype", STORED)
@pytest.mark.parametrize("kr_dtype", STORED)
@pytest.mark.parametrize(("groups", "heads", "nope", "block_size"), [(1, 2, True, 4), (2, 14, True, 16), (2, 2, False, 3)])
def test_a_cache_in_nz_order_gives_the_bits_of_its_rows(rng, kv_dtype, kr_dtype, groups, heads, nope, block_size):
    """With two groups columns begin inside a fractal row of int8."""
    sizes = {"latent": 96, "rope": 32, "groups": groups, "nope": nope, "block_size": block_size, "sequences": 1}
    args, options = make(rng, tokens=3, heads=heads, blocks=330 // block_size, **sizes)
    (kv, kv_scale), (kr, kr_scale) = stored(rng, args[2], kv_dtype), stored(rng, args[3], kr_dtype)
    options |= {"quant_scale_ckv": kv_scale, "quant_scale_ckr": kr_scale}
    for backend in BACKENDS:
        rows, nz = (
            ds.mla_attention(*args[:2], *caches, *args[4:], cache_mode=mode, backend=backend, **options)
            for mode, caches in (("PA_BSND", (kv, kr)), ("PA_NZ", (ds.cache_to_nz(kv), ds.cache_to_nz(kr))))
        )
        np.testing.assert_array_equal(nz, rows)
        assert not np.isnan(nz).any()


@pytest.mark.parametrize("scenario", ["NO_QUANT", "PARTIAL_KV", "FULL_KV"])
def test_what_the_prolog_writes_in_nz_order_is_read(rng, scenario):
    call = make_prolog(rng, scenario, negative=False) | {"cache_index": np.arange(9)}
    options = {name: call[name] for name in ("quant_scale_ckv", "quant_scale_ckr") if name in call}
    options |= {"sequence": np.zeros(9, int), "scale": 0.1}
    if scenario == "FULL_KV":
        options["quant_scale_ckv"] = options["quant_scale_ckv"].reshape(-1)[:1]
    outs = []
    for mode in ("PA_NZ", "PA_BSND"):
        own = copied(call) | {"cache_mode": mode}
        made = ds.mla_prolog_v3(**own)
        options["dequant_scale_q_nope"] = made.dequant_scale_q_nope
        caches = own["kv_cache"], own["kr_cache"]
        paging = np.arange(8)[None], np.arange(1, 10)
        outs.append(ds.mla_attention(made.query, made.query_rope, *caches, *paging, cache_mode=mode, **options))
    np.testing.assert_array_equal(*outs)


def test_a_strided_cache_in_nz_order(rng):
    """Its elements have the numbers that they have in a packed one."""
    args, options = make(rng, tokens=3, heads=2, latent=16, rope=8)
    want = ds.mla_attention(*args, **options)
    wide = [np.full((*cache.shape, 2), np.nan, np.float32) for cache in args[2:4]]
    for pairs, cache in zip(wide, args[2:4], strict=True):
        pairs[..., 0] = ds.cache_to_nz(cache)
    out = ds.mla_attention(*args[:2], *(pairs[..., 0] for pairs in wide), *args[4:], cache_mode="PA_NZ", **options)
    assert_close(out, want)


def test_bfloat16_throughout(rng):
    args, options = make(rng, tokens=5, heads=4, latent=48, rope=16)
    args = [a.astype(ml_dtypes.bfloat16) if a.dtype == np.float32 else a for a in args]
    want, terms = plain(*(a.astype(np.float64) if a.dtype == ml_dtypes.bfloat16 else a for a in args), **options)
    for backend in BACKENDS:
        out = ds.mla_attention(*args, backend=backend, **options)
        assert out.dtype == ml_dtypes.bfloat16
        assert_close(out, want, terms)


def test_the_quantised_query_of_the_prolog(rng):
    """query and query_rope as `mla_prolog_v2` leaves them beside an int8 cache: the score is what it was before."""
    args, options = make(rng, tokens=3, heads=2, latent=32, rope=8)
    query, rope, *rest = args
    kv, _ = stored(rng, rest[0] * 0 + rng.integers(-3, 4, rest[0].shape), np.float32)
    kv, scale = np.nan_to_num(kv * 30, nan=-128).astype(np.int8), np.full((1, 32), 30, np.float32)
    factor = (np.abs(query).max(-1, keepdims=True) / 127).astype(np.float32)
    whole = np.rint(query / factor).astype(np.int8)
    want = ds.mla_attention(whole * factor, rope, kv, *rest[1:], quant_scale_ckv=scale, **options)
    for backend in BACKENDS:
        out = ds.mla_attention(whole, rope * scale[0, 0] / factor, kv, *rest[1:], quant_scale_ckv=scale[:, :1],
                               dequant_scale_q_nope=factor, backend=backend, **options)  # fmt: skip
        assert_close(out, want)


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_scale_is_that_of_all_columns(rng, backend):
    args, options = make(rng, tokens=3, heads=2, latent=16, rope=8)
    for place, name in ((2, "quant_scale_ckv"), (3, "quant_scale_ckr")):
        cache, one = stored(rng, args[place], np.int8)[0], np.array([[30]], np.float32)
        call = [cache if i == place else a for i, a in enumerate(args)]
        each = {name: np.full(cache.shape[3], 30, np.float32)}
        want = ds.mla_attention(*call, backend=backend, **each, **options)
        np.testing.assert_array_equal(ds.mla_attention(*call, backend=backend, **{name: one}, **options), want)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("unread", [-1, 9, 2**40])
def test_blocks_after_a_sequences_length_are_not_read(rng, backend, unread):
    args, options = make(rng, tokens=2, heads=2, latent=16, rope=8)
    call = *args[:4], np.array([[0, 1, 2], [3, 0, 4]]), np.array([12, 4])
    args[2][:5], args[3][:5] = (rng.standard_normal((5, *cache.shape[1:])) for cache in args[2:4])
    options["sequence"] = None
    want = ds.mla_attention(*call, backend=backend, **options)
    call[4][1, 1:] = unread
    np.testing.assert_array_equal(ds.mla_attention(*call, backend=backend, **options), want)


def test_one_key_returns_its_latent():
    args, options = make(np.random.default_rng(1), tokens=1, heads=2, latent=8, rope=4)
    args[-1][:] = 1
    block = args[4][0, 0]
    out = ds.mla_attention(*args, **options)
    np.testing.assert_array_equal(out[0, 0], args[2][block, 0, 0])


def test_bits_depend_on_the_token_alone(rng):
    args, options = make(rng, tokens=6, heads=6, latent=48, rope=48, groups=3)
    together = ds.mla_attention(*args, **options)
    for threads in (1, 2, 5):
        with ds.use_threads(threads):
            np.testing.assert_array_equal(ds.mla_attention(*args, **options), together)
    query, query_rope, kv, kr, table, lengths = args
    for t in range(6):
        alone = ds.mla_attention(
            query[t : t + 1],
            query_rope[t : t + 1],
            kv,
            kr,
            table,
            lengths[t : t + 1],
            scale=options["scale"],
            sequence=options["sequence"][t : t + 1],
            groups=3,
        )
        np.testing.assert_array_equal(alone[0], together[t])


@pytest.mark.parametrize("dtype", STORED)
def test_bits_depend_on_the_token_alone_in_long_contexts(rng, dtype):
    args, options = make(rng, tokens=30, heads=6, latent=48, rope=48, groups=3, block_size=16, blocks=60, sequences=1)
    (kv, kv_scale), (kr, kr_scale) = (stored(rng, cache, dtype) for cache in args[2:4])

    def attend(tokens):
        return ds.mla_attention(
            *(a[tokens] for a in args[:2]), kv, kr, args[4], args[5][tokens], scale=options["scale"], groups=3,
            sequence=options["sequence"][tokens], quant_scale_ckv=kv_scale, quant_scale_ckr=kr_scale,
        )  # fmt: skip

    together = attend(slice(None))
    for threads in (1, 2, 5):
        with ds.use_threads(threads):
            np.testing.assert_array_equal(attend(slice(None)), together)
            for t in range(0, 30, 7):
                np.testing.assert_array_equal(attend(slice(t, t + 1))[0], together[t])


@pytest.mark.parametrize("heads", [16, 17, 50, 100])
def test_heads_that_fill_vectors_and_tiles(rng, heads):
    """Sixteen heads fill a vector, 48 a tile: whole ones, and those with a rest."""
    args, options = make(rng, tokens=3, heads=heads, latent=72, rope=10, block_size=16, blocks=13, sequences=2)
    together = ds.mla_attention(*args, **options)
    want, terms = plain(*args, **options)
    assert_close(together, want, terms)
    for h in (0, 15, heads - 1):
        one = slice(h, h + 1)
        alone = ds.mla_attention(args[0][:, one], args[1][:, one], *args[2:], **options)
        np.testing.assert_array_equal(alone, together[:, one])


@pytest.mark.parametrize("dtype", STORED)
def test_a_head_has_the_same_bits_alone_and_among_sixteen(rng, dtype):
    """A few heads are multiplied with keys in the lanes, many with queries in the lanes."""
    args, options = make(rng, tokens=1, heads=16, latent=184, rope=26, block_size=16, blocks=21)
    args[-1][:] = 300  # two splits; neither the keys of a block nor the columns fill vectors
    args[2][:], args[3][:] = (rng.standard_normal(cache.shape) for cache in args[2:4])
    (kv, kv_scale), (kr, kr_scale) = (stored(rng, cache, dtype) for cache in args[2:4])
    options |= {"quant_scale_ckv": kv_scale, "quant_scale_ckr": kr_scale}
    together = ds.mla_attention(*args[:2], kv, kr, *args[4:], **options)
    for count in range(1, 9):
        some = slice(8 - count, 8)
        alone = ds.mla_attention(args[0][:, some], args[1][:, some], kv, kr, *args[4:], **options)
        np.testing.assert_array_equal(alone, together[:, some])


def test_nan_stays_with_those_who_see_it(rng):
    """Tokens of one sequence are summed together; a key that is NaN reaches those that are long enough, and no other."""
    args, options = make(rng, tokens=8, heads=2, latent=16, rope=8, block_size=16, blocks=20, sequences=1)
    lengths = np.arange(94, 102)
    args[2][:], args[3][:] = (rng.standard_normal(cache.shape) for cache in args[2:4])
    clean = ds.mla_attention(*args[:5], lengths, **options)
    args[2][args[4][0, 97 // 16], 97 % 16] = np.nan
    spoilt = ds.mla_attention(*args[:5], lengths, **options)
    np.testing.assert_array_equal(spoilt[:4], clean[:4])
    assert np.isnan(spoilt[4:]).all()


def test_infinities_propagate_in_silence(rng):
    args, options = make(rng, tokens=2, heads=2, latent=16, rope=8)
    args[2][...] = np.inf
    for backend in BACKENDS:
        assert not np.isfinite(ds.mla_attention(*args, backend=backend, **options)).any()


def test_a_head_of_zeros_with_an_infinite_rope_part(rng):
    """As `mla_prolog_v2` leaves it: the scale is 0, so that the score is 0 times infinity."""
    args, options = make(rng, tokens=1, heads=2, latent=16, rope=8)
    kv, one = np.ones(args[2].shape, np.int8), np.ones(1, np.float32)
    call = np.zeros((1, 2, 16), np.int8), np.full((1, 2, 8), np.inf, np.float32), kv, *args[3:]
    for backend in BACKENDS:
        out = ds.mla_attention(*call, quant_scale_ckv=one, dequant_scale_q_nope=np.zeros((1, 2, 1), np.float32),
                               backend=backend, **options)  # fmt: skip
        assert np.isnan(out).all()


def test_large_scores_do_not_overflow(rng):
    args, options = make(rng, tokens=2, heads=2, latent=16, rope=8)
    want, terms = plain(*args, **{**options, "scale": 1e4})
    for backend in BACKENDS:
        assert_close(ds.mla_attention(*args, backend=backend, **{**options, "scale": 1e4}), want, terms)


def test_torch_in_torch_out(rng):
    args, options = make(rng, tokens=3, heads=2, latent=16, rope=8)
    out = ds.mla_attention(*(torch.from_numpy(a) for a in args), **{**options, "sequence": torch.tensor(options["sequence"])})
    assert isinstance(out, torch.Tensor)
    np.testing.assert_array_equal(out.numpy(), ds.mla_attention(*args, **options))


@pytest.mark.parametrize("place", range(4))
def test_misaligned_arrays_are_served(rng, place):
    args, options = make(rng, tokens=3, heads=2, latent=16, rope=8)
    want = ds.mla_attention(*args, backend="reference", **options)
    shifted = [misaligned(a) if i == place else a for i, a in enumerate(args)]
    assert_close(ds.mla_attention(*shifted, **options), want)


def test_no_tokens_give_no_rows():
    args, options = make(np.random.default_rng(1), tokens=2, heads=2, latent=16, rope=8)
    none = [a[:0] for a in args[:2]], args[2:5], [args[5][:0]]
    out = ds.mla_attention(*none[0], *none[1], *none[2], **{**options, "sequence": options["sequence"][:0]})
    assert out.shape == (0, 2, 16)


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_rotary_part(rng, backend):
    args, options = make(rng, tokens=4, heads=2, latent=16, rope=0)
    out = ds.mla_attention(*args, **options, backend=backend)
    assert_close(out, *plain(*args, **options))


def refusals():
    """(name of the argument, its position or keyword, a value that is wrong)."""
    return [
        ("query", 0, np.zeros((2, 2, 15), np.float32)),
        ("query", 0, np.zeros((2, 2, 16), np.float64)),
        ("query_rope", 1, np.zeros((2, 2), np.float32)),
        ("query_rope", 1, np.zeros((2, 2, 8), np.float16)),
        ("quant_scale_ckv", 2, np.zeros((9, 4, 1, 16), np.int8)),
        ("quant_scale_ckv", "quant_scale_ckv", np.ones(16, np.float32)),
        ("quant_scale_ckr", "quant_scale_ckr", np.ones(8, np.float32)),
        ("query", "dequant_scale_q_nope", np.ones((2, 2, 1), np.float32)),
        ("query_rope", 1, [[1.0]]),
        ("query_rope", 1, np.zeros((2, 0, 8), np.float32)),
        ("query_rope", 1, np.zeros((2, 2, 7), np.float32)),
        ("kv_cache", 2, np.zeros((9, 4, 1, 0), np.float32)),
        ("kv_cache", 2, np.zeros((9, 4, 2, 16), np.float32)),
        ("kv_cache", 2, np.zeros((9, 4, 1), np.float32)),
        ("kr_cache", 3, np.zeros((9, 4, 1, 6), np.float32)),
        ("kr_cache", 3, np.zeros((8, 4, 1, 8), np.float32)),
        ("block_table", 4, np.full((1, 8), 9)),
        ("block_table", 4, np.full((1, 8), -1)),
        ("block_table", 4, np.zeros((1, 8))),
        ("lengths", 5, np.array([-1, 1])),
        ("lengths", 5, np.array([1, 33])),
        ("lengths", 5, np.array([1])),
        ("sequence", "sequence", np.array([0, 1])),
        ("sequence", "sequence", np.array([0, -1])),
        ("scale", "scale", np.nan),
        ("scale", "scale", "1"),
        ("groups", "groups", 3),
        ("groups", "groups", 0),
        ("groups", "groups", 1.0),
        ("groups", "groups", True),
        ("cache_mode", "cache_mode", "PA_BLK_NZ"),
        ("cache_mode", "cache_mode", None),
        ("backend", "backend", "cuda"),
    ]


@pytest.mark.parametrize(("name", "place", "value"), refusals())
def test_refuses(rng, name, place, value):
    args, options = make(rng, tokens=2, heads=2, latent=16, rope=8)
    args, options = list(args), dict(options)
    (args if isinstance(place, int) else options)[place] = value
    with pytest.raises(ValueError, match=rf"^mla_attention: {name} must be .*; got "):
        ds.mla_attention(*args, **options)


@pytest.mark.parametrize(
    ("name", "latent", "rope", "dtype"),
    [("kv_cache", 12, 8, np.float32), ("kr_cache", 16, 4, np.float32), ("kv_cache", 24, 16, np.float16)],
)
def test_refuses_rows_in_nz_order_that_end_inside_a_fractal(rng, name, latent, rope, dtype):
    args, options = make(rng, tokens=2, heads=2, latent=latent, rope=rope)
    caches = [cache.astype(dtype) for cache in args[2:4]]
    with pytest.raises(
        ValueError, match=f"{name} must be of a width that is a multiple of {32 // np.dtype(dtype).itemsize}; got"
    ):
        ds.mla_attention(*args[:2], *caches, *args[4:], cache_mode="PA_NZ", **options)


@pytest.mark.parametrize(("heads", "latent", "rope"), [(3, 16, 8), (2, 15, 8), (2, 16, 6)])
def test_refuses_groups_that_do_not_divide_every_size(rng, heads, latent, rope):
    args, options = make(rng, tokens=2, heads=heads, latent=latent, rope=rope)
    with pytest.raises(
        ValueError, match=rf"groups must be a divisor of N {heads}, Hckv {latent} and Dr / 2 = {rope // 2}; got 2"
    ):
        ds.mla_attention(*args, **{**options, "groups": 2})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dequant_scale_q_nope", np.ones((2, 2), np.float32)),
        ("dequant_scale_q_nope", np.ones((2, 1, 1), np.float32)),
        ("dequant_scale_q_nope", np.ones((2, 2, 1))),
        ("quant_scale_ckv", np.ones(16, np.float32)),
        ("query", None),
        ("query", np.zeros((2, 2, 16), np.float32)),
    ],
)
def test_refuses_beside_a_quantised_query(rng, name, value):
    args, options = make(rng, tokens=2, heads=2, latent=16, rope=8)
    names = ("query", "query_rope", "kv_cache", "kr_cache", "block_table", "lengths")
    call = dict(zip(names, args, strict=True)) | options
    call |= {"query": np.ones((2, 2, 16), np.int8), "dequant_scale_q_nope": np.ones((2, 2, 1), np.float32)}
    call |= {"kv_cache": np.ones((9, 4, 1, 16), np.int8), "quant_scale_ckv": np.ones(1, np.float32)}
    ds.mla_attention(**call)
    with pytest.raises(ValueError, match=rf"^mla_attention: {name} must be .*; got "):
        ds.mla_attention(**{**call, name: value})


def test_a_refusal_shows_the_block_ids_that_are_read(rng):
    args, options = make(rng, tokens=2, heads=2, latent=16, rope=8)
    with pytest.raises(ValueError, match=r"block_table must be in \[0, 9\) where it is read; got 0 to 9$"):
        ds.mla_attention(*args[:4], [[0, 9, 77]], [5, 1], **options)


def test_a_backend_asked_for_by_name_does_not_fall_back(rng):
    args, options = make(rng, tokens=2, heads=2, latent=16, rope=8, dtype=np.float64)
    with pytest.raises(ValueError, match="has no float64"):
        ds.mla_attention(*args, backend="cpu", **options)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("in_panels", [False, True])
def test_values_are_projected_by_head(backend, in_panels, rng):
    arguments, options = make(rng, tokens=5, heads=3, latent=32, rope=16)
    width = 64 if in_panels else 5
    w_uv = rng.standard_normal((32, 3 * width)).astype(np.float32)
    weight = PackedWeight.from_array(w_uv)
    attended = ds.mla_attention(*arguments, **options, backend=backend)
    values = ds.mla_attention(*arguments, **options, backend=backend, w_uv=LinearPanels.pack(weight) if in_panels else weight)
    assert values.shape == (5, 3, width)
    by_head = w_uv.reshape(32, 3, width).transpose(1, 0, 2).astype(np.float64)
    assert_close(values, np.einsum("tnk,nkv->tnv", attended, by_head), np.einsum("tnk,nkv->tnv", abs(attended), abs(by_head)))


def test_refused_value_projections(rng):
    arguments, options = make(rng, tokens=2, heads=3, latent=32, rope=16)
    for shape, panels, message in (
        ((31, 96), False, r"of shape \(32, 3 \* Dv\); got 31x96"),
        ((32, 97), False, r"of shape \(32, 3 \* Dv\); got 32x97"),
        ((32, 48), True, r"of shape \(32, 3 \* Dv\), Dv a multiple of 32; got 32x48"),
    ):
        weight = PackedWeight.from_array(np.zeros(shape, np.float32))
        with pytest.raises(ValueError, match=f"^mla_attention: w_uv must be {message}"):
            ds.mla_attention(*arguments, **options, w_uv=LinearPanels.pack(weight) if panels else weight)
    with pytest.raises(ValueError, match="w_uv must be a PackedWeight, a LinearPanels or None; got float32 2"):
        ds.mla_attention(*arguments, **options, w_uv=np.zeros(2, np.float32))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("tokens", "dtype"), [(1, np.float32), (1, ml_dtypes.bfloat16), (40, np.float32)])
def test_scores_that_overflow_weigh_nothing(backend, tokens, dtype, rng):
    """-inf beside others has no weight, in splits of its own too; without others the softmax is 0 / 0."""
    (query, query_rope, kv, kr, table, lengths), options = make(
        rng, tokens=tokens, heads=2, latent=32, rope=16, block_size=16, blocks=41, sequences=1, dtype=dtype
    )
    lengths[:] = 600
    kv[:], kr[:] = rng.standard_normal(kv.shape), -1e30
    query[:], query_rope[:] = 0, 1e30
    arguments = (query, query_rope, kv, kr, table, lengths)
    assert np.isnan(ds.mla_attention(*arguments, **options, backend=backend)).all()
    kr[table[0, 550 // 16], 550 % 16] = 0
    expected = np.broadcast_to(kv[table[0, 550 // 16], 550 % 16].astype(np.float32), (tokens, 2, 32))
    np.testing.assert_allclose(ds.mla_attention(*arguments, **options, backend=backend), expected, rtol=1e-6)
