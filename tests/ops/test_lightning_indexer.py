"""lightning_indexer: against sorted scores, in every layout; ties, NaN, lengths, and the bits of a token."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import decodestep as ds
from support.misaligned import misaligned
from support.sparse_attention_cases import LAYOUTS, index_call, integers, seen

BACKENDS = ("cpu", "reference")
DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16, np.int8)
each_backend = pytest.mark.parametrize("backend", BACKENDS)


def expected(exact, count, mode):
    """Of each sequence the positions (S1, count) and all scores of its tokens."""
    for query, key, weights in exact:
        score = np.einsum("thk,th->tk", np.maximum(np.einsum("thd,kd->thk", query, key), 0), weights)
        positions = np.full((len(query), count), -1)
        for i, row in enumerate(score):
            order = sorted(range(seen(i, len(query), len(key), mode)), key=lambda j: (-row[j], j))[:count]
            positions[i, : len(order)] = order
        yield positions, score


def assert_selects(call, laid, exact, count, mode, backend):
    made = ds.lightning_indexer(**call, sparse_count=count, sparse_mode=mode, return_value=True, backend=backend)
    assert made.sparse_indices.dtype == np.int32 and made.sparse_values.dtype == np.float32
    assert made.sparse_indices.shape == (*call["query"].shape[:-2], 1, count) == made.sparse_values.shape
    own, padding = laid.tokens_of(made.sparse_indices[..., 0, :])
    values, _ = laid.tokens_of(made.sparse_values[..., 0, :])
    for got, value, (positions, score) in zip(own, values, expected(exact, count, mode), strict=True):
        np.testing.assert_array_equal(got, positions)
        rows = np.arange(len(got))[:, None]
        want = np.where(positions < 0, -np.inf, score[rows, positions] if score.size else -np.inf)
        np.testing.assert_array_equal(value, want)
    assert all((row == -1).all() for row in padding)


@each_backend
def test_by_hand(backend):
    """Two heads, of which the second has a negative weight; the first and the last key have equal scores."""
    query = np.array([[[[1, 0], [0, 2]]]], np.float32)
    key = np.array([[3, 1], [-5, 0], [4, 0.5], [9, 9], [3, 1]], np.float32)[None, :, None]
    weights = np.array([[[1, -1]]], np.float32)
    # 3 - 2, 0 - 0, 4 - 1, 9 - 18, 3 - 2
    made = ds.lightning_indexer(query, key, weights, sparse_count=6, return_value=True, backend=backend)
    assert made.sparse_indices.tolist() == [[[[2, 0, 4, 1, 3, -1]]]]
    assert made.sparse_values.tolist() == [[[[3, 1, 1, 0, -9, -np.inf]]]]
    assert ds.lightning_indexer(query, key, weights, sparse_count=2, backend=backend)[0].tolist() == [[[[2, 0]]]]
    ascending = ds.lightning_indexer(query, key, weights, sparse_count=3, ordered=False, backend=backend)
    assert ascending.sparse_indices.tolist() == [[[[0, 2, 4]]]] and ascending.sparse_values is None


@each_backend
@pytest.mark.parametrize("layouts", LAYOUTS, ids="/".join)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", [0, 3])
def test_layouts_dtypes_and_modes(rng, backend, layouts, dtype, mode):
    """Sequences with fewer keys than tokens, with none, and with more than are selected; all full of ties."""
    made = index_call(rng, [3, 1, 5, 2], [70, 0, 2, 33], dtype=dtype, layouts=layouts)
    for count in (1, 7, 40, 80):
        assert_selects(*made, count, mode, backend)


@settings(max_examples=40)
@given(st.data())
def test_any_sizes(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    sequences = data.draw(st.integers(1, 3))
    tokens, keys = ([data.draw(st.integers(low, high)) for _ in range(sequences)] for low, high in ((0, 6), (0, 130)))
    dtype, heads = data.draw(st.sampled_from(DTYPES)), data.draw(st.sampled_from([1, 3, 8, 9, 17]))
    width = 4 * data.draw(st.integers(1, 10)) if dtype == np.int8 else data.draw(st.integers(1, 40))
    if not sum(tokens):
        tokens[0] = 1
    made = index_call(rng, tokens, keys, heads, width, dtype, data.draw(st.sampled_from(LAYOUTS)))
    for backend in BACKENDS:
        assert_selects(*made, data.draw(st.integers(1, 140)), data.draw(st.sampled_from([0, 3])), backend)


def test_bytes_of_every_value(rng):
    """-128 times -128 too, beyond what sixteen bits hold of a pair of products."""
    query = np.full((1, 1, 2, 128), -128, np.int8)
    key = rng.integers(-128, 128, (1, 99, 1, 128)).astype(np.int8)
    key[0, 7], key[0, 50] = -128, 127
    ones = np.ones((1, 1, 2), np.float32)
    made = ds.lightning_indexer(query, key, ones, query_dequant_scale=ones, key_dequant_scale=np.ones((1, 99, 1), np.float32),
                                sparse_count=99, return_value=True)  # fmt: skip
    score = 2 * np.maximum(key[0, :, 0].astype(int) @ query[0, 0, 0].astype(int), 0)
    order = np.argsort(-score, kind="stable")
    np.testing.assert_array_equal(made.sparse_indices[0, 0, 0], order)
    np.testing.assert_array_equal(made.sparse_values[0, 0, 0], score[order])
    assert made.sparse_indices[0, 0, 0, 0] == 7


def test_scores_are_those_of_float64(rng):
    """Random numbers, whose sums round: the scores are near, and what is selected is no smaller than what is not."""
    call, _, [[query, key, weights]] = index_call(
        rng, [3], [3000], 64, 128, draw=lambda rng, *shape: rng.standard_normal(shape, np.float32)
    )
    made = ds.lightning_indexer(**call, sparse_count=500, return_value=True, backend="cpu")
    score = np.einsum("thk,th->tk", np.maximum(np.einsum("thd,kd->thk", query, key), 0), weights)
    bound = 1e-5 * np.abs(score).max()
    for i in range(3):
        chosen = made.sparse_indices[0, i, 0]
        assert np.abs(made.sparse_values[0, i, 0] - score[i, chosen]).max() < bound
        rest = np.setdiff1d(np.arange(2998 + i), chosen)
        assert score[i, chosen].min() >= score[i, rest].max() - bound


@each_backend
def test_nan_and_infinities_and_zeros(backend):
    """NaN is less than -inf; 0 and -0 are equal; what a token does not see has no effect."""
    key = np.array([np.nan, 1, -1, np.inf, 2, np.nan, 7], np.float32)[None, :, None, None]
    query, lengths = np.ones((1, 2, 1, 1), np.float32), {"actual_seq_lengths_query": [2], "actual_seq_lengths_key": [6]}
    made = ds.lightning_indexer(query, key, query[..., 0], sparse_count=7, **lengths, backend=backend)
    assert made.sparse_indices[0, :, 0].tolist() == [[3, 4, 1, 2, 0, -1, -1], [3, 4, 1, 2, 0, 5, -1]]
    made = ds.lightning_indexer(np.ones((1, 1, 1, 1), np.float32), key, -np.ones((1, 1, 1), np.float32), sparse_count=7,
                                backend=backend)  # fmt: skip
    assert made.sparse_indices[0, 0, 0].tolist() == [2, 1, 4, 6, 3, 0, 5]
    tiny = np.full((1, 3, 1, 1), 1e-30, np.float32)  # times 1e-30: 0, and times -1: -0
    for sign in (1, -1):
        made = ds.lightning_indexer(tiny[:, :1], tiny, np.full((1, 1, 1), sign, np.float32), sparse_count=2, backend=backend)
        assert made.sparse_indices[0, 0, 0].tolist() == [0, 1]


@each_backend
def test_a_weight_and_a_scale_whose_product_is_infinite(backend):
    """Infinite scores tie, and one without a product is NaN, which is last."""
    key = np.array([0, 1, 2], np.int8)[None, :, None, None] * np.ones(4, np.int8)
    scale, ones = np.full((1, 1, 1), 1e30, np.float32), np.ones((1, 3, 1), np.float32)
    made = ds.lightning_indexer(key[:, 1:2], key, scale, query_dequant_scale=scale, key_dequant_scale=ones, sparse_count=3,
                                return_value=True, backend=backend)  # fmt: skip
    assert made.sparse_indices.tolist() == [[[[1, 2, 0]]]]
    np.testing.assert_array_equal(made.sparse_values[0, 0, 0], [np.inf, np.inf, np.nan])


def test_bits_depend_on_the_token_alone(rng):
    """On other tokens, on threads and on the layout they do not; several tasks share the keys of one token."""
    draw = lambda rng, *shape: rng.standard_normal(shape, np.float32)  # noqa: E731
    call, _, _ = index_call(rng, [9], [5000], 16, 64, ml_dtypes.bfloat16, ("TND", "PA_BSND"), draw)

    def select(rows, threads):
        part = {**call, **{name: call[name][rows] for name in ("query", "weights")}}
        count = len(part["query"])
        part["actual_seq_lengths_query"] = [count]
        part["actual_seq_lengths_key"] = [5000 - 9 + rows.start + count]
        with ds.use_threads(threads):
            return ds.lightning_indexer(**part, sparse_count=700, return_value=True)

    together = select(slice(0, 9), 1)
    for threads in (1, 2, 5):
        for a, b in zip(select(slice(0, 9), threads), together, strict=True):
            np.testing.assert_array_equal(a, b)
        for t in range(9):
            for a, b in zip(select(slice(t, t + 1), threads), together, strict=True):
                np.testing.assert_array_equal(a[0], b[t])


@pytest.mark.parametrize("dtype", [np.float32, np.int8])
def test_all_positions_in_order_are_those_of_a_longer_list(rng, dtype):
    call, _, _ = index_call(rng, [4], [300], dtype=dtype)
    whole = ds.lightning_indexer(**call, sparse_count=300)[0]
    for count in (1, 63, 64, 299):
        np.testing.assert_array_equal(ds.lightning_indexer(**call, sparse_count=count)[0], whole[..., :count])
        ascending = ds.lightning_indexer(**call, sparse_count=count, ordered=False)[0]
        np.testing.assert_array_equal(ascending[0, -1, 0], np.sort(whole[0, -1, 0, :count]))


@pytest.mark.parametrize("name", ["query", "key", "weights"])
def test_strides_and_misaligned_arrays(rng, name):
    call, _, _ = index_call(rng, [3, 2], [40, 30])
    want = ds.lightning_indexer(**call, sparse_count=9)[0]
    wide = np.full((*call[name].shape, 2), np.nan, np.float32)
    wide[..., 0] = call[name]
    for array in (wide[..., 0], misaligned(call[name]), np.asfortranarray(call[name])):
        np.testing.assert_array_equal(ds.lightning_indexer(**{**call, name: array}, sparse_count=9)[0], want)


def test_torch_in_torch_out(rng):
    call, _, _ = index_call(rng, [3], [40])
    want = ds.lightning_indexer(**call, sparse_count=9, return_value=True)
    tensors = {name: torch.from_numpy(a) if isinstance(a, np.ndarray) else a for name, a in call.items()}
    made = ds.lightning_indexer(**tensors, sparse_count=9, return_value=True)
    for a, b in zip(made, want, strict=True):
        assert isinstance(a, torch.Tensor)
        np.testing.assert_array_equal(a.numpy(), b)


def test_roundings_of_devices(rng):
    """Scores that are one bfloat16 tie; bytes as the kernel rounds them."""
    query, ones = np.ones((1, 1, 1, 4), np.float32), np.ones((1, 1, 1), np.float32)
    key = np.zeros((1, 3, 1, 4), np.float32)
    key[0, :, 0, 0] = 256, 257, 259
    assert ds.lightning_indexer(query, key, ones, sparse_count=3)[0].tolist() == [[[[2, 1, 0]]]]
    made = ds.lightning_indexer(query, key, ones, sparse_count=3, rounding="device", return_value=True)
    assert made.sparse_indices.tolist() == [[[[2, 0, 1]]]] and made.sparse_values.tolist() == [[[[260, 256, 256]]]]
    key = np.array([[100, 27], [101, 0], [127, 127]], np.int8)[None, :, None]
    scale = np.full((1, 3, 1), 2, np.float32)
    made = ds.lightning_indexer(np.full((1, 1, 1, 2), 127, np.int8), key, ones * 0.3, query_dequant_scale=ones,
                                key_dequant_scale=scale, sparse_count=3, return_value=True, rounding="device")  # fmt: skip
    weight = np.float32(np.float16(0.3))
    values = [np.float32(np.float16(np.float32(127 * s / 1024))) * weight * 2 for s in (254, 127, 101)]
    np.testing.assert_array_equal(made.sparse_values[0, 0, 0], values)
    with pytest.raises(
        ValueError, match="backend must be able to serve the call; got 'cpu', which has no roundings of devices"
    ):
        ds.lightning_indexer(query, query, ones, rounding="device", backend="cpu")


def test_no_tokens_and_no_keys():
    none = np.zeros((0, 2, 4), np.float32)
    lengths = {"actual_seq_lengths_query": [0], "actual_seq_lengths_key": [0], "layout_query": "TND", "layout_key": "TND"}
    assert ds.lightning_indexer(none, none[:, :1], none[..., 0], **lengths)[0].shape == (0, 1, 2048)
    one = np.ones((1, 1, 2, 4), np.float32)
    assert (ds.lightning_indexer(one, one[:, :0, :1], one[..., 0])[0] == -1).all()
    scales = {"query_dequant_scale": one[..., 0], "key_dequant_scale": one[:, :0, :1, 0]}
    in_bytes = one.astype(np.int8)
    assert (ds.lightning_indexer(in_bytes, in_bytes[:, :0, :1], one[..., 0], **scales)[0] == -1).all()


def test_rows_after_the_last_sequence_are_padding(rng):
    query, key = integers(rng, 5, 2, 4), integers(rng, 6, 1, 4)
    lengths = {"actual_seq_lengths_query": [3], "actual_seq_lengths_key": [6], "layout_query": "TND", "layout_key": "TND"}
    made = ds.lightning_indexer(query, key, query[..., 0], **lengths, sparse_count=4)[0]
    short = ds.lightning_indexer(query[:3], key, query[:3, :, 0], **lengths, sparse_count=4)[0]
    np.testing.assert_array_equal(made[:3], short)
    assert (made[3:] == -1).all()


Q, K, W = np.zeros((2, 3, 4, 8), np.float32), np.zeros((2, 9, 1, 8), np.float32), np.zeros((2, 3, 4), np.float32)
PAGED = {"layout_key": "PA_BSND", "block_table": [[0], [1]], "actual_seq_lengths_key": [9, 3]}
RAGGED = {"query": Q[0], "weights": W[0], "layout_query": "TND", "actual_seq_lengths_query": [1, 3]}
IN_BYTES = {"query": Q.astype(np.int8), "key": K.astype(np.int8), "query_dequant_scale": W, "key_dequant_scale": K[..., 0]}


def wide(array):
    return np.broadcast_to(array[..., :1], (*array.shape[:-1], 2**17))


@pytest.mark.parametrize(
    ("message", "changed"),
    [
        ("query must be of rank 4 in the layout BSND; got float32 2x3x4", {"query": Q[..., 0]}),
        ("query must be float32 or float64 or float16 or bfloat16; got int8 2x3x4x8", {"query": Q.astype(np.int8)}),
        ("query must be int8; got float32 2x3x4x8", {**IN_BYTES, "query": Q}),
        ("query must be of one head and one column or more; got float32 2x3x4x0", {"query": Q[..., :0], "key": K[..., :0]}),
        ("key must be of rank 4 with one head in the layout BSND; got float32 2x9x2x8", {"key": np.repeat(K, 2, axis=2)}),
        ("key must be of width 8; got float32 2x9x1x7", {"key": K[..., :7]}),
        ("key must be of 2 sequences; got 1", {"key": K[:1]}),
        ("key must be .* or int8; got int32 2x9x1x8", {"key": K.astype(np.int32)}),
        ("weights must be of shape 2x3x4; got float32 2x3x3", {"weights": W[..., :3]}),
        ("query_dequant_scale must be given beside int8 keys, and only there; got float32 2x3x4", {"query_dequant_scale": W}),
        ("key_dequant_scale must be given beside int8 keys, and only there; got None", {**IN_BYTES, "key_dequant_scale": None}),
        ("key_dequant_scale must be of shape 2x9x1; got float32 2x8x1", {**IN_BYTES, "key_dequant_scale": K[:, :8, :, 0]}),
        ("key_dequant_scale must be of shape 2x9x1; got float32 2x9", {**IN_BYTES, "key_dequant_scale": K[..., 0, 0]}),
        (r"query must be narrower than 2\^17 in int8; got int8 2x3x4x131072",
         {**IN_BYTES, "query": wide(IN_BYTES["query"]), "key": wide(IN_BYTES["key"])}),
        (r"sparse_count must be an integer > 0 and < 2\^31; got 2147483648", {"sparse_count": 2**31}),
        ("query_dequant_scale must be numbers >= 0; got -1.0 to -1.0", {**IN_BYTES, "query_dequant_scale": W - 1}),
        ("key_dequant_scale must be numbers >= 0; got nan to nan", {**IN_BYTES, "key_dequant_scale": K[..., 0] + np.nan}),
        ("layout_query must be one of 'BSND', 'TND'; got 'BNSD'", {"layout_query": "BNSD"}),
        ("layout_key must be one of 'BSND', 'TND', 'PA_BSND'; got 'PA_NZ'", {"layout_key": "PA_NZ"}),
        (r"sparse_count must be an integer > 0 and < 2\^31; got 0", {"sparse_count": 0}),
        ("sparse_mode must be one of 0, 3; got 4", {"sparse_mode": 4}),
        ("sparse_mode must be 0 or 3; got 3.0", {"sparse_mode": 3.0}),
        (r"pre_tokens must be 2\^63 - 1; got 5", {"pre_tokens": 5}),
        (r"next_tokens must be 2\^63 - 1; got 0", {"next_tokens": 0}),
        ("return_value must be True or False; got 1", {"return_value": 1}),
        ("ordered must be True or False; got None", {"ordered": None}),
        ("rounding must be one of None, 'device'; got 'bfloat16'", {"rounding": "bfloat16"}),
        ("backend must be one of 'auto', 'cpu', 'reference'; got 'npu'", {"backend": "npu"}),
        (r"actual_seq_lengths_query must be in \[0, 3\]; got 1 to 4", {"actual_seq_lengths_query": [1, 4]}),
        ("actual_seq_lengths_query must be of shape 2; got int64 1", {"actual_seq_lengths_query": [1]}),
        (r"actual_seq_lengths_key must be in \[0, 9\]; got -1 to 9", {"actual_seq_lengths_key": [9, -1]}),
        ("actual_seq_lengths_query must be given in the layout TND; got None", {**RAGGED, "actual_seq_lengths_query": None}),
        ("actual_seq_lengths_query must be prefix sums of lengths, at most 3; got .2, 1.",
         {**RAGGED, "actual_seq_lengths_query": [2, 1]}),
        ("actual_seq_lengths_query must be prefix sums of lengths, at most 3; got .2, 4.",
         {**RAGGED, "actual_seq_lengths_query": [2, 4]}),
        ("block_table must be given in the layout PA_BSND, and only there; got .*", {"block_table": [[0], [1]]}),
        ("block_table must be given in the layout PA_BSND, and only there; got None", {**PAGED, "block_table": None}),
        ("actual_seq_lengths_key must be given in the layout PA_BSND; got None", {**PAGED, "actual_seq_lengths_key": None}),
        (r"actual_seq_lengths_key must be in \[0, 9\]; got 3 to 10", {**PAGED, "actual_seq_lengths_key": [10, 3]}),
        (r"block_table must be in \[0, 2\) where it is read; got 0 to 2", {**PAGED, "block_table": [[0], [2]]}),
        ("block_table must be of 2 rows; got int64 1x1", {**PAGED, "block_table": [[0]]}),
    ],
)  # fmt: skip
def test_refusals(message, changed):
    with pytest.raises(ValueError, match=f"^lightning_indexer: {message}$"):
        ds.lightning_indexer(**{"query": Q, "key": K, "weights": W, **changed})


def test_a_backend_asked_for_by_name_does_not_fall_back():
    with pytest.raises(ValueError, match="has no float64"):
        ds.lightning_indexer(Q.astype(np.float64), K, W, backend="cpu")
    narrow = {name: a[..., :6] if name in ("query", "key") else a for name, a in IN_BYTES.items()}
    with pytest.raises(ValueError, match="of a width that is a multiple of 4"):
        ds.lightning_indexer(**narrow, weights=W, backend="cpu")
