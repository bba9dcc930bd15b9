"""sparse_mla_attention: against plain softmax over the named positions, in every layout; its bits against the dense one's."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

import decodestep as ds
from support.misaligned import misaligned
from support.sparse_attention_cases import LAYOUTS, attention_call, normal, seen
from support.tolerances import assert_close

BACKENDS = ("cpu", "reference")
DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16)
each_backend = pytest.mark.parametrize("backend", BACKENDS)


def plain(parts, s, scale, mode, block):
    """Softmax attention of sequence s written out in float64, and the magnitudes that it adds up."""
    query, rope, key, key_rope = (parts[name][s].astype(np.float64) for name in ("query", "query_rope", "key", "key_rope"))
    out, terms = np.zeros(query.shape), np.zeros(query.shape)
    for i in range(len(query)):
        end = seen(i, len(query), len(key), mode)
        positions = []
        for index in parts["sparse_indices"][s][i, 0][: -(-end // block)].tolist():
            if index == -1:
                break
            positions += [p for p in range(index * block, (index + 1) * block) if p < end]
        if positions:
            k, kr = key[positions], key_rope[positions]
            score = scale * (query[i] @ k.T + rope[i] @ kr.T)
            weight = np.exp(score - score.max(axis=-1, keepdims=True))
            weight /= weight.sum(axis=-1, keepdims=True)
            out[i], terms[i] = weight @ k, weight @ np.abs(k)
    return out, terms


def assert_attends(call, laid, parts, mode, backend):
    out = ds.sparse_mla_attention(**call, sparse_mode=mode, backend=backend)
    assert out.dtype == call["query"].dtype and out.shape == call["query"].shape
    own, padding = laid.tokens_of(out)
    for s, got in enumerate(own):
        assert_close(got, *plain(parts, s, call["scale_value"], mode, call["sparse_block_size"]))
    assert not any(row.any() for row in padding)


@each_backend
def test_by_hand(backend):
    """Equal scores: the mean of the named latents; what follows -1, or more entries than a token sees, is not read."""
    key = np.arange(12, dtype=np.float32).reshape(1, 6, 1, 2)
    zeros = np.zeros((1, 6, 1, 2), np.float32)
    query = np.zeros((1, 3, 1, 2), np.float32)  # the last three of six positions

    def attend(indices, **how):
        given = np.array(indices)[None, :, None]
        return ds.sparse_mla_attention(query, key, None, given, 1.0, query_rope=query, key_rope=zeros, backend=backend, **how)

    given = [[3, 0, -1, 1], [2, 5, -1, 4], [-1, 3, 3, 3]]
    assert attend(given)[0, :, 0].tolist() == [[3, 4], [4, 5], [0, 0]]  # 5 is after the second token
    assert attend(given, sparse_mode=0)[0, :, 0].tolist() == [[3, 4], [7, 8], [0, 0]]
    out = attend([[1, -1], [0, 1], [2, 0]], sparse_block_size=2)  # pairs; of the second one the token sees the first
    assert out[0, :, 0].tolist() == [[5, 6], [3, 4], [5, 6]]
    lengths = {"actual_seq_lengths_query": [3], "actual_seq_lengths_kv": [2]}
    out = attend([[0, 1], [0, 1], [0, 1]], **lengths)  # more tokens than positions
    assert out[0, :, 0].tolist() == [[0, 0], [0, 1], [1, 2]]


@each_backend
@pytest.mark.parametrize("layouts", LAYOUTS, ids="/".join)
@pytest.mark.parametrize("mode", [0, 3])
@pytest.mark.parametrize("block", [1, 4])
def test_layouts_modes_and_blocks(rng, backend, layouts, mode, block):
    assert_attends(*attention_call(rng, [3, 1, 5, 2], [70, 0, 2, 333], layouts=layouts, block=block, size=60), mode, backend)


@each_backend
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cache_dtype", DTYPES)
def test_dtypes(rng, backend, dtype, cache_dtype):
    made = attention_call(
        rng, [2, 3], [300, 40], heads=5, size=290, dtype=dtype, cache_dtype=cache_dtype, layouts=("TND", "PA_BSND")
    )
    assert_attends(*made, 3, backend)


def test_float64(rng):
    made = attention_call(rng, [2], [30])
    call = {name: a.astype(np.float64) if getattr(a, "dtype", None) == np.float32 else a for name, a in made[0].items()}
    assert_attends(call, *made[1:], 3, "auto")
    with pytest.raises(ValueError, match="has no float64"):
        ds.sparse_mla_attention(**call, backend="cpu")


@pytest.mark.parametrize("heads", [2, 7, 50, 128])
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_positions_have_the_bits_of_the_dense_attention(rng, heads, dtype):
    """Shuffled, and whatever the tokens beside."""
    call, _, _ = attention_call(
        rng, [6], [600], heads=heads, width=80, rope=16, size=600, dtype=dtype, layouts=("TND", "PA_BSND")
    )
    call["sparse_indices"][:] = rng.permutation(600)
    call["sparse_indices"][2:, 0] = [rng.permutation(600) for _ in range(4)]
    out = ds.sparse_mla_attention(**call, sparse_mode=0)
    table = call["block_table"][:, :-1]
    dense = ds.mla_attention(
        *(a.astype(np.float32) if dtype == np.float16 else a for a in (call["query"], call["query_rope"])), call["key"],
        call["key_rope"], table, [600] * 6, scale=call["scale_value"], sequence=[0] * 6,
    )  # fmt: skip
    np.testing.assert_array_equal(out, dense.astype(out.dtype))


def test_bits_depend_on_the_token_alone(rng):
    call, _, _ = attention_call(rng, [7], [900], heads=20, size=700, dtype=ml_dtypes.bfloat16, layouts=("TND", "PA_BSND"))

    def attend(rows):
        part = {**call, **{name: call[name][rows] for name in ("query", "query_rope", "sparse_indices")}}
        return ds.sparse_mla_attention(**part | {"actual_seq_lengths_query": [len(part["query"])]}, sparse_mode=0)

    together = attend(slice(None))
    for threads in (1, 2, 5):
        with ds.use_threads(threads):
            np.testing.assert_array_equal(attend(slice(None)), together)
            for t in range(7):
                np.testing.assert_array_equal(attend(slice(t, t + 1))[0], together[t])
    backwards = call["sparse_indices"].copy()
    for row in backwards[:, 0]:
        end = np.append(np.flatnonzero(row == -1), len(row))[0]
        row[:end] = row[:end][::-1]
    np.testing.assert_array_equal(attend(slice(None)), together)
    call["sparse_indices"] = backwards
    np.testing.assert_array_equal(attend(slice(None)), together)


@each_backend
def test_nan_stays_with_those_who_name_it(rng, backend):
    call, _, _ = attention_call(rng, [2], [20], layouts=("BSND", "BSND"))
    call["sparse_indices"][0, :2, 0] = -1
    call["sparse_indices"][0, 0, 0, :3], call["sparse_indices"][0, 1, 0, :3] = [1, 2, 3], [1, 2, 7]
    clean = ds.sparse_mla_attention(**call, backend=backend)
    call["key"][0, 7], call["key"][0, 9:15] = np.nan, np.nan
    out = ds.sparse_mla_attention(**call, backend=backend)
    np.testing.assert_array_equal(out[0, 0], clean[0, 0])
    assert np.isnan(out[0, 1]).all()
    call["query"][0, 0, 1, 3] = np.nan
    out = ds.sparse_mla_attention(**call, backend=backend)
    np.testing.assert_array_equal(out[0, 0, ::2], clean[0, 0, ::2])
    assert np.isnan(out[0, 0, 1]).all()


@each_backend
def test_large_scores(rng, backend):
    """One weight is 1, others are 0; -inf has no weight beside others, and gives NaN alone."""
    call, laid, parts = attention_call(rng, [2], [20])
    assert_attends(call | {"scale_value": 1e6}, laid, parts, 3, backend)
    call["key_rope"][:], call["query_rope"][:] = -1e30, 1e30
    call["sparse_indices"][0, 0, 0] = [0, 1, *[-1] * 38]
    assert np.isnan(ds.sparse_mla_attention(**call, backend=backend)[0, 0]).all()
    call["key_rope"][0, 1] = 0
    out = ds.sparse_mla_attention(**call, backend=backend)
    np.testing.assert_array_equal(out[0, 0], np.broadcast_to(call["key"][0, 1, 0], (3, 24)))


@pytest.mark.parametrize("name", ["query", "query_rope", "key", "key_rope", "sparse_indices"])
def test_strides_and_misaligned_arrays(rng, name):
    call, _, _ = attention_call(rng, [3, 2], [40, 30])
    want = ds.sparse_mla_attention(**call)
    wide = np.zeros((*call[name].shape, 2), call[name].dtype)
    wide[..., 0] = call[name]
    for array in (wide[..., 0], misaligned(call[name]), np.asfortranarray(call[name])):
        assert_close(ds.sparse_mla_attention(**{**call, name: array}), want)


def test_misaligned_arrays_without_items(rng):
    """NumPy calls them aligned wherever they lie: here there are no columns with rope."""
    call, laid, parts = attention_call(rng, [3], [40], rope=0)
    for name in ("query_rope", "key_rope"):
        call[name] = np.ndarray(call[name].shape, np.float32, bytearray(8), offset=1)
    assert_attends(call, laid, parts, 3, "cpu")


def test_latents_and_rope_keys_in_one_row(rng):
    """Columns of one buffer, as serving engines keep them, are read where they are."""
    call, _, _ = attention_call(rng, [3], [70], layouts=("TND", "PA_BSND"))
    want = ds.sparse_mla_attention(**call, backend="cpu")
    both = np.concatenate([call["key"], call["key_rope"]], axis=3)
    parts = {"key": both[..., :24], "key_rope": both[..., 24:]}
    np.testing.assert_array_equal(ds.sparse_mla_attention(**call | parts, backend="cpu"), want)


def test_torch_in_torch_out(rng):
    call, _, _ = attention_call(rng, [3], [40], dtype=ml_dtypes.bfloat16)
    as_tensor = {np.dtype(ml_dtypes.bfloat16): lambda a: torch.from_numpy(a.view(np.int16)).view(torch.bfloat16)}
    tensors = {
        name: as_tensor.get(a.dtype, torch.from_numpy)(a) if isinstance(a, np.ndarray) else a for name, a in call.items()
    }
    tensors["value"] = tensors["key"]
    out = ds.sparse_flash_attention(**tensors)
    assert out.dtype == torch.bfloat16
    np.testing.assert_array_equal(out.float().numpy(), ds.sparse_mla_attention(**call).astype(np.float32))


def test_weights_rounded_as_devices_do():
    """Of two weights of 1 / 3 and 2 / 3, in bfloat16."""
    bfloat16 = ml_dtypes.bfloat16
    query, rope = np.zeros((1, 1, 1, 1), bfloat16), np.ones((1, 1, 1, 2), bfloat16)
    key = np.array([0, 1], bfloat16).reshape(1, 2, 1, 1)
    key_rope = np.array([[0, 0], [np.log(2), 0]], np.float32).reshape(1, 2, 1, 2)
    indices = np.array([[[[0, 1]]]])
    out = ds.sparse_mla_attention(query, key, None, indices, 1.0, query_rope=rope, key_rope=key_rope, rounding="device")
    assert out.astype(float).item() == float(bfloat16(2 / 3))
    with pytest.raises(ValueError, match="'cpu', which has no roundings of devices"):
        ds.sparse_mla_attention(query, key, None, indices, 1.0, query_rope=rope, key_rope=key_rope, rounding="device",
                                backend="cpu")  # fmt: skip


@each_backend
@pytest.mark.parametrize("layouts", LAYOUTS, ids="/".join)
def test_maxima_and_sums_by_which_parts_can_be_joined(rng, backend, layouts):
    """Of positions named in two calls: the result of all."""
    call, laid, _ = attention_call(rng, [3, 2], [700, 40], size=600, layouts=layouts)
    whole = call["sparse_indices"]
    place, lead = np.arange(600), whole.shape[:-2]
    ends = np.where((whole == -1).any(-1, keepdims=True), (whole == -1).argmax(-1)[..., None], 600)
    first = np.where(place < ends // 2, whole, -1)
    rest = np.where(place < ends - ends // 2, np.take_along_axis(whole, (place + ends // 2) % 600, -1), -1)
    plain = ds.sparse_mla_attention(**call, backend=backend, sparse_mode=0)
    outs, largest, sums = zip(*(
        ds.sparse_mla_attention(**call | {"sparse_indices": part}, backend=backend, sparse_mode=0, return_softmax_lse=True)
        for part in (first, rest)
    ), strict=True)  # fmt: skip
    shape = (lead[0], 1, lead[1], 3) if len(lead) == 2 else (1, lead[0], 3)
    assert {part.shape for part in (*largest, *sums)} == {shape} and largest[0].dtype == np.float32
    both = np.maximum(*(np.where(total > 0, top, -np.inf) for top, total in zip(largest, sums, strict=True)))
    weights = [total * np.exp(np.where(total > 0, top - both, 0)) for top, total in zip(largest, sums, strict=True)]
    weights = [weight.reshape(*lead, 3, 1) for weight in weights]
    joined = sum(w * out for w, out in zip(weights, outs, strict=True)) / np.maximum(sum(weights), 1e-30)
    for got, want in zip(laid.tokens_of(joined)[0], laid.tokens_of(plain)[0], strict=True):
        np.testing.assert_allclose(got, want, atol=3e-6)


@each_backend
def test_sinks_take_a_part_of_the_weights(rng, backend):
    call, _, _ = attention_call(rng, [3], [40], heads=4)
    call["sparse_indices"][0, 2] = -1
    plain, top, total = ds.sparse_mla_attention(**call, backend=backend, return_softmax_lse=True)
    sinks = np.array([0.5, -np.inf, 20.0, -3.0], np.float32)
    out, largest, sums = ds.sparse_mla_attention(**call, sinks=sinks, backend=backend, return_softmax_lse=True)
    both = np.where(total > 0, np.maximum(top, sinks), sinks)
    with np.errstate(invalid="ignore"):
        of_keys = np.where(total > 0, total * np.exp(top - both), 0)
        wanted = of_keys + np.where(np.isneginf(sinks) & np.isneginf(both), 1, np.exp(sinks - both))
    np.testing.assert_array_equal(largest, both)
    np.testing.assert_allclose(sums, wanted, rtol=1e-6)
    np.testing.assert_allclose(out, plain * (of_keys / wanted)[0, ..., None], atol=1e-6)
    assert not out[0, 2].any()


@pytest.mark.parametrize("code", [np.int8, ml_dtypes.float8_e4m3fn])
@pytest.mark.parametrize("layouts", LAYOUTS, ids="/".join)
@pytest.mark.parametrize("dtype", DTYPES)
def test_quantised_rows_have_the_bits_of_what_they_stand_for(rng, code, layouts, dtype):
    call, _, _ = attention_call(rng, [3, 2], [70, 30], width=256, layouts=layouts, dtype=dtype, cache_dtype=ml_dtypes.bfloat16)
    q = np.nan_to_num(call["key"].astype(np.float32) * 30).astype(code)
    scales = rng.uniform(0.01, 0.1, (*q.shape[:-1], 2)).astype(np.float32)
    parts = q.view(np.int8), call["key_rope"].view(np.int8), scales.view(np.int8)
    rows = np.concatenate(parts, axis=-1).view(code)
    assert rows.shape[-1] == 256 + 2 * 8 + 8
    stand_for = call | {"key": q.astype(np.float32) * np.repeat(scales, 128, axis=-1)}
    want = ds.sparse_mla_attention(**stand_for, backend="cpu")
    got = ds.sparse_mla_attention(**call | {"key": rows, "key_rope": None}, backend="cpu")
    np.testing.assert_array_equal(got, want)
    assert_close(ds.sparse_mla_attention(**call | {"key": rows, "key_rope": None}, backend="reference"), want)


def test_no_tokens_no_keys_and_no_entries():
    none = np.zeros((0, 2, 4), np.float32)
    ragged = {"actual_seq_lengths_query": [0], "actual_seq_lengths_kv": [0], "layout_query": "TND", "layout_kv": "TND"}
    keys = np.zeros((0, 1, 4), np.float32)
    out = ds.sparse_mla_attention(none, keys, None, np.zeros((0, 1, 3), int), 1.0, query_rope=none, key_rope=keys, **ragged)
    assert out.shape == (0, 2, 4)
    one, key = np.ones((1, 1, 2, 4), np.float32), np.ones((1, 3, 1, 4), np.float32)
    for cache, indices in ((key[:, :0], np.zeros((1, 1, 1, 3), int)), (key, np.zeros((1, 1, 1, 0), int))):
        out = ds.sparse_mla_attention(one, cache, None, indices, 1.0, query_rope=one, key_rope=cache)
        assert out.shape == one.shape and not out.any()


Q, K, NAMED = np.zeros((2, 3, 4, 8), np.float32), np.zeros((2, 9, 1, 8), np.float32), np.zeros((2, 3, 1, 5), np.int32) - 1
CALL = {"query": Q, "key": K, "value": None, "sparse_indices": NAMED, "scale_value": 1.0, "query_rope": Q, "key_rope": K}


def indices(*first):
    made = NAMED.copy()
    made[1, 2, 0, : len(first)] = first
    return made


@pytest.mark.parametrize(
    ("message", "changed"),
    [
        ("query must be of rank 4 in the layout BSND; got float32 2x3x4", {"query": Q[..., 0]}),
        ("query must be .*; got int8 2x3x4x8", {"query": Q.astype(np.int8)}),
        ("query_rope must be float32; got float64 2x3x4x8", {"query_rope": Q.astype(np.float64)}),
        ("query_rope must be of an even width; got float32 2x3x4x7", {"query_rope": Q[..., :7], "key_rope": K[..., :7]}),
        ("query_rope must be of shape 2x3x4x8; got float32 2x3x3x8", {"query_rope": Q[:, :, :3]}),
        ("key must be .*; got int8 2x9x1x8", {"key": K.astype(np.int8)}),
        ("key must be of shape 2x9x1x8; got float32 2x9x1x7", {"key": K[..., :7]}),
        ("key_rope must be of shape 2x9x1x8; got float32 2x8x1x8", {"key_rope": K[:, :8]}),
        ("value must be key itself, or None; got float32 2x9x1x8", {"value": K.copy()}),
        ("sparse_indices must be of shape 2x3x1x5; got int32 2x3x5", {"sparse_indices": NAMED[:, :, 0]}),
        ("sparse_indices must be integers; got float32 2x3x1x5", {"sparse_indices": NAMED.astype(np.float32)}),
        ("sparse_indices must be -1 or a block of positions of the token's sequence, where it is read; got 9",
         {"sparse_indices": indices(0, 9)}),
        ("sparse_indices must be -1 or .*; got -2", {"sparse_indices": indices(0, -2)}),
        ("sparse_indices must be different for a token; got 4 twice", {"sparse_indices": indices(4, 3, 4)}),
        ("scale_value must be a finite number; got inf", {"scale_value": np.inf}),
        ("sparse_block_size must be a power of two, at most 128; got 3", {"sparse_block_size": 3}),
        ("sparse_block_size must be a power of two, at most 128; got 256", {"sparse_block_size": 256}),
        ("sparse_block_size must be a divisor of the block size 9; got 2",
         {"sparse_block_size": 2, "layout_kv": "PA_BSND", "block_table": [[0], [1]], "actual_seq_lengths_kv": [9, 9]}),
        ("key_rope must be given beside a key of float32; got None", {"key_rope": None}),
        ("sparse_indices must be -1 or .*; got 9223372036854775807", {"sparse_indices": NAMED.astype(np.uint64)}),
        (r"key must be of shape \(BlockNum, BlockSize, 1, Hckv \+ 16 \+ Hckv / 32\), Hckv a multiple of 128, where rope keys "
         "have no cache of their own; got int8 18x1x1x8", {"key": K.astype(np.int8), "key_rope": None}),
        ("sinks must be of shape 4; got float32 3", {"sinks": np.zeros(3, np.float32)}),
        ("sinks must be float32; got float64 4", {"sinks": np.zeros(4)}),
        ("return_softmax_lse must be a bool; got 1", {"return_softmax_lse": 1}),
        ("layout_kv must be one of 'BSND', 'TND', 'PA_BSND'; got 'PA_NZ'", {"layout_kv": "PA_NZ"}),
        ("sparse_mode must be one of 0, 3; got 1", {"sparse_mode": 1}),
        ("attention_mode must be one of 2; got 0", {"attention_mode": 0}),
        ("rounding must be one of None, 'device'; got 'half_even'", {"rounding": "half_even"}),
        (r"actual_seq_lengths_kv must be in \[0, 9\]; got 9 to 10", {"actual_seq_lengths_kv": [9, 10]}),
        ("backend must be one of 'auto', 'cpu', 'reference'; got 'npu'", {"backend": "npu"}),
    ],
)  # fmt: skip
def test_refusals(message, changed):
    with pytest.raises(ValueError, match=f"^sparse_mla_attention: {message}$"):
        ds.sparse_mla_attention(**CALL | changed)


def test_indexer_and_attention_together(rng):
    """What the indexer returns is what the attention takes."""
    heads, keys = 4, normal(rng, 1, 90, 1, 16)
    chosen = ds.lightning_indexer(normal(rng, 1, 5, heads, 16), keys, normal(rng, 1, 5, heads), sparse_count=20)
    query = normal(rng, 1, 5, heads, 16)
    out = ds.sparse_mla_attention(query, keys, keys, chosen.sparse_indices, 0.2, query_rope=query, key_rope=keys)
    ascending = np.sort(chosen.sparse_indices[0, :, 0], axis=1)
    for t in range(5):
        own = keys[:, ascending[t]].reshape(1, 20, 1, 16)
        dense = ds.mla_attention(query[0, t : t + 1], query[0, t : t + 1], own, own, [[0]], [20], scale=0.2)
        np.testing.assert_array_equal(out[0, t], dense[0])
