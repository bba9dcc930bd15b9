"""linear and its weights against float64 and gguf's own dequantisation, and to the bit against itself."""

from __future__ import annotations

import itertools
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
import torch

import decodestep as ds
from decodestep import _native
from decodestep.ops.linear import Format, LinearPanels, PackedWeight, cpu, reference
from decodestep.weights.blocks import BLOCKS
from support.core_builds import TIERS, printed_under
from support.packed_weights import DENSE, SCALES, put_scales, weight
from support.tolerances import assert_close

FORMATS = list(Format)


def whole(format_: Format, inputs: int) -> int:
    """As many inputs or some more, so that blocks are full."""
    return inputs if format_ in DENSE else -(-inputs // BLOCKS[format_.name].values) * BLOCKS[format_.name].values


def check(x: np.ndarray, w: PackedWeight, **options: Any) -> np.ndarray:
    """Against float64, the error measured by the terms of each sum."""
    y = ds.linear(x, w, **options)
    assert type(y) is np.ndarray and y.dtype == np.float32
    dense = w.dense(np.float64)
    terms = np.abs(x.astype(np.float64)) @ np.abs(dense)
    assert_close(y, x.astype(np.float64) @ dense, terms)
    return y


@pytest.mark.parametrize("format_", FORMATS, ids=lambda f: f.name)
def test_values_have_the_bits_of_the_gguf_package(format_, rng):
    w = weight(format_, 768, 40, rng)
    expected = gguf.quants.dequantize(w.rows, gguf.GGMLQuantizationType[format_.name])
    assert w.shape == (768, 40)
    assert np.array_equal(w.values().view(np.uint32), expected.view(np.uint32))
    assert np.array_equal(w.dense(), expected.T)
    assert w.dense(np.float64).dtype == np.float64
    ids = rng.integers(0, 40, 100)
    taken = cpu.gather_rows(w, ids)
    assert np.array_equal(taken.view(np.uint32), expected[ids].view(np.uint32))
    assert cpu.gather_rows(w, ids[:0]).shape == (0, 768)


@pytest.mark.parametrize("format_", [Format.Q4_0, Format.Q4_1, Format.Q8_0], ids=lambda f: f.name)
def test_values_by_hand(format_):
    header = {Format.Q4_0: [2.0], Format.Q4_1: [2.0, -3.0], Format.Q8_0: [2.0]}[format_]
    body = range(256 - 16, 256 + 16) if format_ == Format.Q8_0 else [i * 16 + 15 - i for i in range(16)]
    row = np.concatenate([np.array(header, np.float16).view(np.uint8), np.array(body, np.int64).astype(np.uint8)])
    values = {
        Format.Q4_0: [2 * (15 - i - 8) for i in range(16)] + [2 * (i - 8) for i in range(16)],
        Format.Q4_1: [2 * (15 - i) - 3 for i in range(16)] + [2 * i - 3 for i in range(16)],
        Format.Q8_0: [2 * q for q in range(-16, 16)],
    }[format_]
    assert PackedWeight(row[None], format_, 32).values().tolist() == [values]


@pytest.mark.parametrize("format_", DENSE, ids=lambda f: f.name)
def test_every_half_is_widened_exactly(format_):
    """All 65536 patterns of the two half types, and as many of float32, in the native look-up."""
    rng = np.random.default_rng(3)
    width = np.dtype(DENSE[format_]).itemsize
    raw = np.arange(2**16, dtype=np.uint16) if width == 2 else rng.integers(0, 2**32, 2**16, np.uint32)
    w = PackedWeight(raw.view(np.uint8).reshape(8, -1), format_, 2**13)
    got, expected = cpu.gather_rows(w, np.arange(8)).reshape(-1), raw.view(DENSE[format_]).astype(np.float32)
    nan = np.isnan(expected)
    assert np.array_equal(np.isnan(got), nan)
    assert np.array_equal(got[~nan].view(np.uint32), expected[~nan].view(np.uint32))


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("format_", FORMATS, ids=lambda f: f.name)
def test_against_float64(format_, backend, rng):
    inputs = (
        [0, 1, 2, 15, 16, 17, 31, 33, 63, 100, 577]
        if format_ in DENSE
        else sorted({whole(format_, k) for k in (0, 32, 64, 96, 576)})
    )
    for k in inputs:
        for tokens, outputs in ((1, 1), (1, 7), (2, 3), (3, 8), (4, 5), (5, 130), (8, 2), (13, 33), (1, 600)):
            check(rng.normal(size=(tokens, k)).astype(np.float32), weight(format_, k, outputs, rng), backend=backend)


def test_many_tokens_are_as_accurate_as_few(rng):
    for format_ in FORMATS:
        k = whole(format_, 320)
        check(rng.normal(size=(130, k)).astype(np.float32), weight(format_, k, 259, rng))


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_no_tokens_outputs_or_inputs(backend, rng):
    for format_ in FORMATS:
        k = whole(format_, 64)
        w = weight(format_, k, 5, rng)
        assert ds.linear(np.zeros((0, k), np.float32), w, backend=backend).shape == (0, 5)
        assert ds.linear(np.zeros((3, k), np.float32), weight(format_, k, 0, rng), backend=backend).shape == (3, 0)
        nothing = ds.linear(np.zeros((3, 0), np.float32), weight(format_, 0, 5, rng), backend=backend)
        assert nothing.tolist() == np.zeros((3, 5)).tolist()


@pytest.mark.parametrize("format_", FORMATS, ids=lambda f: f.name)
def test_a_rows_bits_are_its_own(format_, rng):
    """Neither the batch, nor the place in it, nor the threads change a bit."""
    k = whole(format_, 801)
    w = weight(format_, k, 301, rng)
    x = rng.normal(size=(31, k)).astype(np.float32)
    alone = np.concatenate([ds.linear(row[None], w) for row in x]).view(np.uint32)
    for threads in (1, 2, 5):
        with ds.use_threads(threads):
            for tokens in (*range(1, 14), 25, 31):
                assert np.array_equal(ds.linear(x[:tokens], w).view(np.uint32), alone[:tokens])
            order = rng.permutation(31)
            assert np.array_equal(ds.linear(x[order], w).view(np.uint32), alone[order])
    part = PackedWeight(w.rows[7:200:3], format_, k)
    assert np.array_equal(ds.linear(x, part).view(np.uint32), alone[:, 7:200:3])


@pytest.mark.parametrize("format_", [Format.F32, Format.BF16, Format.Q8_0], ids=lambda f: f.name)
def test_grouped_products_have_the_bits_of_each_group_alone(format_, rng):
    """Each token has the bits of `linear` with its group alone: in groups of one, few and many tokens, and without any."""
    inputs, outputs = whole(format_, 37) + 512, 83
    w = weight(format_, inputs, 5 * outputs, rng)
    for groups in ([3], [0, 1, 1, 4], [0] * 9 + [2] * 3 + [4], []):
        x = rng.normal(size=(len(groups), 5 + inputs)).astype(np.float32)[:, 5:]
        for threads in (1, 2):
            with ds.use_threads(threads):
                actual = cpu.grouped_products(x, w.rows, w.format, np.array(groups, np.int64), outputs)
            for t, group in enumerate(groups):
                alone = ds.linear(x[t : t + 1], PackedWeight(w.rows[group * outputs : (group + 1) * outputs], format_, inputs))
                assert np.array_equal(alone[0].view(np.uint32), actual[t].view(np.uint32))
            assert actual.shape == (len(groups), outputs)


@pytest.mark.parametrize("groups", [[1, 0], [-1, 0], [0, 2], [0], [0, 0, 0]])
def test_refused_groups(groups, rng):
    w = weight(Format.F32, 33, 10, rng)
    with pytest.raises(ValueError, match="group"):
        cpu.grouped_products(np.ones((2, 33), np.float32), w.rows, w.format, np.array(groups), 5)


@pytest.mark.parametrize("format_", [Format.F32, Format.F16, Format.BF16, Format.Q8_0], ids=lambda f: f.name)
@pytest.mark.parametrize("transposed", [False, True])
def test_products_of_heads_equal_float64(format_, transposed, rng):
    """Each head with some of its own rows, both ways, against float64; a token's bits are those that it has alone."""
    heads, of_head, first, count = 3, 83, 6, 70
    inputs = whole(format_, 37) + 512  # more than one task either way
    w = weight(format_, inputs, heads * of_head, rng)
    exact = w.values().astype(np.float64).reshape(heads, of_head, inputs)[:, first : first + count]
    x = rng.normal(size=(7, heads, 5 + (count if transposed else inputs))).astype(np.float32)[..., 5:]
    actual = cpu.head_products(x, w.rows, w.format, w.inputs, first, count, transposed=transposed)
    sums = "thn,hnk->thk" if transposed else "thk,hnk->thn"
    assert_close(actual, np.einsum(sums, x.astype(np.float64), exact), np.einsum(sums, np.abs(x), np.abs(exact)))
    with ds.use_threads(1):
        for t in (0, 6):
            alone = cpu.head_products(x[t : t + 1], w.rows, w.format, w.inputs, first, count, transposed=transposed)
            assert np.array_equal(alone.view(np.uint32), actual[t : t + 1].view(np.uint32))


def test_empty_products_of_heads(rng):
    w = weight(Format.F32, 33, 10, rng)
    given = w.rows, w.format, w.inputs
    assert not cpu.head_products(np.ones((2, 5, 0), np.float32), *given, 1, 0, transposed=True).any()
    assert cpu.head_products(np.ones((0, 5, 33), np.float32), *given, 0, 2, transposed=False).shape == (0, 5, 2)


def test_layouts_of_x(rng):
    w = weight(Format.Q8_0, 64, 9, rng)
    x = rng.normal(size=(12, 128)).astype(np.float32)
    for view in (x[:, :64], x[::2, 64:], x[::-1, 3:67], x[:, ::2], x.T[:64].T, np.broadcast_to(x[:1, :64], (5, 64))):
        assert np.array_equal(ds.linear(view, w), ds.linear(np.array(view, order="C"), w))
        check(view, w)
    crooked = np.frombuffer(b"\0" + x.tobytes(), np.float32, x.size, 1).reshape(x.shape)
    assert not crooked.flags.aligned
    assert np.array_equal(ds.linear(crooked[:, :64], w), ds.linear(x[:, :64], w))
    assert np.array_equal(ds.linear(x[3, :64], w), ds.linear(x[3:4, :64], w)[0])
    assert ds.linear(x[3, ::-2], w).shape == (9,)


def test_layouts_of_the_weight(rng):
    w = weight(Format.F32, 40, 6, rng)
    x = rng.normal(size=(3, 40)).astype(np.float32)
    many = rng.normal(size=(15, 40)).astype(np.float32)
    for offset, width in itertools.product((0, 1, 7), (200, 201)):
        space = np.zeros((6, width), np.uint8)
        space[:, offset : offset + 160] = w.rows
        for given in (x, many):
            assert np.array_equal(
                ds.linear(given, PackedWeight(space[:, offset : offset + 160], Format.F32, 40)), ds.linear(given, w)
            )
    both = PackedWeight.stack(w, PackedWeight(w.rows[::2], Format.F32, 40))
    assert both.shape == (40, 9) and np.array_equal(PackedWeight.stack(w).rows, w.rows)
    assert np.array_equal(ds.linear(x, both), np.concatenate([ds.linear(x, w), ds.linear(x, w)[:, ::2]], axis=1))
    assert np.array_equal(ds.linear(x, PackedWeight(w.rows[3::-9], Format.F32, 40)), ds.linear(x, w)[:, 3:4])
    transposed = np.asfortranarray(rng.normal(size=(40, 6)).astype(np.float32))
    assert np.array_equal(PackedWeight.from_array(transposed).dense(), transposed)


def test_plain_matrices_and_float64(rng):
    x, m = rng.normal(size=(3, 20)), rng.normal(size=(20, 4))
    assert_close(ds.linear(x, m), x @ m)
    single = x.astype(np.float32)
    for dtype in (np.float64, np.float32, np.float16, ml_dtypes.bfloat16):
        y = ds.linear(single, m.astype(dtype))
        assert y.dtype == np.float32
        assert_close(y, single.astype(np.float64) @ m.astype(dtype).astype(np.float64))
    w = PackedWeight.from_array(m.astype(np.float16))
    y = ds.linear(x, w)
    assert y.dtype == np.float64
    assert_close(y, x @ m.astype(np.float16).astype(np.float64))


def test_not_a_number_stays_in_its_row(rng):
    x = rng.normal(size=(6, 64)).astype(np.float32)
    w = weight(Format.Q4_1, 64, 5, rng)
    expected = ds.linear(x, w)
    x[2, 7], x[4, 9] = np.nan, np.inf
    for backend in ("cpu", "reference"):
        y = ds.linear(x, w, backend=backend)
        assert np.isnan(y[2]).all() and not np.isfinite(y[4]).any()
        assert_close(np.delete(y, [2, 4], 0), np.delete(expected, [2, 4], 0))


def test_torch_tensors_give_torch_tensors(rng):
    x, m = torch.randn(3, 32), torch.randn(32, 4)
    y = ds.linear(x, PackedWeight.from_array(m))
    assert isinstance(y, torch.Tensor)
    assert_close(y.numpy(), (x.double() @ m.double()).numpy())
    assert_close(ds.linear(x.double(), m.bfloat16()).numpy(), (x.double() @ m.bfloat16().double()).numpy())
    assert PackedWeight.from_array(m.bfloat16()).format == Format.BF16


W = PackedWeight.from_array(np.ones((32, 3), np.float32))
X = np.ones((2, 32), np.float32)


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("x must be float32 or float64; got float16 2x32", (X.astype(np.float16), W)),
        ("x must be float32 or float64; got >f4 2x32", (X.astype(">f4"), W)),
        ("x must be a NumPy array or a torch tensor; got list", (X.tolist(), W)),
        (r"x must be of shape \(T, 32\) or \(32,\); got float32 2x31", (X[:, :31], W)),
        (r"x must be of shape \(T, 32\) or \(32,\); got float32 1x2x32", (X[None], W)),
        (r"x must be of shape \(T, 32\) or \(32,\); got float32 scalar", (np.array(1, np.float32), W)),
        ("weight must be a matrix; got float32 32", (X, X[0])),
        ("weight must be float32 or float64 or float16 or bfloat16; got int64 32x3", (X, np.ones((32, 3), np.int64))),
        ("weight must be a NumPy array or a torch tensor; got NoneType", (X, None)),
    ],
)
def test_refusals(message, arguments):
    with pytest.raises(ValueError, match=f"^linear: {message}"):
        ds.linear(*arguments)


def test_backend_by_name():
    for x, w in ((X.astype(np.float64), W), (X, np.ones((32, 3), np.float32))):
        with pytest.raises(ValueError, match="backend must be able to serve the call; got 'cpu', which needs float32 x"):
            ds.linear(x, w, backend="cpu")


ROWS = np.zeros((3, 36), np.uint8)


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("rows must be a matrix of uint8 with contiguous, ascending rows; got float32 3x2", (np.zeros((3, 2), np.float32),)),
        ("rows must be a matrix of uint8", (ROWS[0],)),
        ("rows must be a matrix of uint8", (ROWS[:, ::2],)),
        ("rows must be a matrix of uint8", (ROWS[::-1],)),
        ("rows must be a matrix of uint8", (ROWS[1::-1],)),
        ("rows must be a matrix of uint8", (ROWS[:, :4:2], Format.F16, 1)),
        ("rows must be a matrix of uint8 .*; got None", (None,)),
        ("rows must be 18 bytes wide; got uint8 3x36", (ROWS, Format.Q4_0, 32)),
        ("rows must be 36 bytes wide; got uint8 3x0", (ROWS[:, :0],)),
        ("inputs must be a multiple of 32 in format Q4_0; got 33", (ROWS, Format.Q4_0, 33)),
        ("inputs must be a multiple of 256 in format Q6_K; got 32", (ROWS, Format.Q6_K, 32)),
        ("inputs must be an integer >= 0 in format F32; got -1", (ROWS, Format.F32, -1)),
        ("inputs must be an integer >= 0 in format F32; got 9.0", (ROWS, Format.F32, 9.0)),
        ("format must be a Format; got 0", (ROWS, 0)),
    ],
)
def test_refused_weights(message, arguments):
    with pytest.raises(ValueError, match=f"^PackedWeight: {message}"):
        PackedWeight(*arguments, *(ROWS, Format.F32, 9)[len(arguments) :])


def test_refused_ways_to_make_weights():
    for bad in (np.zeros((2, 2)), np.zeros(2, np.float32), np.zeros((2, 2), np.int8)):
        with pytest.raises(ValueError, match=r"^PackedWeight: weight must be a float32, float16 or bfloat16 matrix; got"):
            PackedWeight.from_array(bad)
    with pytest.raises(ValueError, match=r"^PackedWeight: weight must be a NumPy array or a torch tensor; got list"):
        PackedWeight.from_array([[1.0]])
    with pytest.raises(ValueError, match=r"^PackedWeight: weights must be of one format and one number of inputs"):
        PackedWeight.stack(W, PackedWeight.from_array(np.zeros((31, 3), np.float32)))
    with pytest.raises(ValueError, match=r"^PackedWeight: weights must be one or more; got none"):
        PackedWeight.stack()
    for bad in (np.zeros((32, 2), np.float32), LinearPanels.pack(W), None):
        with pytest.raises(ValueError, match="^LinearPanels: weight must be a PackedWeight or LazyRows; got"):
            LinearPanels.pack(bad)
    with pytest.raises(ValueError, match="a row id is out of range"):
        cpu.gather_rows(W, np.array([3]))


def check_panels(x, panels, rows):
    """Against the reference, the error measured by the terms of each sum."""
    seen = reference.quantise(x) if panels.quantises_activations else x
    terms = np.abs(seen).astype(np.float64) @ np.abs(rows.dense(np.float64))
    y = ds.linear(x, panels)
    assert type(y) is np.ndarray and y.dtype == np.float32
    assert_close(y, ds.linear(x.astype(np.float64), panels), terms)
    return y


@pytest.mark.parametrize("format_", FORMATS, ids=lambda f: f.name)
def test_panels_give_the_products_of_their_rows(format_, rng):
    for k in [1, 31, 33, 100, 320] if format_ in DENSE else sorted({whole(format_, k) for k in (32, 96, 352)}):
        for tokens, outputs in ((1, 1), (2, 31), (3, 32), (4, 33), (5, 130), (6, 2), (7, 65), (13, 97), (40, 64)):
            w = weight(format_, k, outputs, rng)
            panels = LinearPanels.pack(w)
            assert panels.shape == w.shape and np.array_equal(panels.rows().rows, w.rows)
            check_panels(rng.normal(size=(tokens, k)).astype(np.float32), panels, w)


@pytest.mark.parametrize("format_", FORMATS, ids=lambda f: f.name)
def test_panels_give_back_the_rows_that_were_packed(format_, rng):
    """Any of them, in any order, as bytes and as the values that the rows give: every byte of a row is taken from somewhere."""
    for k in [1, 31, 33, 100, 320] if format_ in DENSE else sorted({whole(format_, k) for k in (32, 96, 512)}):
        for outputs in (1, 31, 32, 33, 130):
            w = weight(format_, k, outputs, rng)
            rows = rng.integers(0, 256, w.rows.shape, np.uint8)  # scales that are infinite or NaN too
            for made in (w, PackedWeight(rows, format_, k)):
                panels = LinearPanels.pack(made)
                ids = np.concatenate([rng.permutation(outputs), rng.integers(0, outputs, 40), [outputs - 1, 0, 0]])
                for chosen in (ids, ids[:1], ids[:0]):
                    assert np.array_equal(panels.rows(chosen).rows, made.rows[chosen])
                values = cpu.gather_rows(panels, ids)
                assert values.tobytes() == cpu.gather_rows(made, ids).tobytes()
                for threads in (1, 3):
                    with ds.use_threads(threads):
                        assert cpu.gather_rows(panels, ids).tobytes() == values.tobytes()
    assert panels.rows([2, 0]).shape == (k, 2) and cpu.gather_rows(panels, ids[:0]).shape == (0, k)


def gathered() -> str:
    """Values gathered from panels of all formats, and their rows, in hexadecimal."""
    rng, found = np.random.default_rng(6), []
    for format_ in FORMATS:
        panels = LinearPanels.pack(weight(format_, 256 if format_ not in DENSE else 77, 70, rng))
        found += [cpu.gather_rows(panels, np.array([69, 3, 3, 40])), panels.rows().rows]
    return b"".join(array.tobytes() for array in found).hex()


@pytest.mark.tiers
@pytest.mark.parametrize("isa", TIERS)
def test_every_build_gathers_the_same_values_from_panels(isa):
    assert printed_under(isa, "import test_linear; print(test_linear.gathered())") == gathered()


def test_outputs_that_panels_do_not_have():
    panels = LinearPanels.pack(W)  # of 3 outputs, which are padded to 32
    for ids in ([3], [0, -1], [2**40]):
        values = np.full((len(ids), 32), 7, np.float32)
        with pytest.raises(ValueError, match=r"^LinearPanels: ids must be in \[0, 3\); got"):
            panels.rows(ids)
        with pytest.raises(ValueError, match="a row id is out of range"):
            _native.gather_panels(panels.data, int(W.format), 3, np.array(ids), values, 1)
        assert (values == 7).all()
    with pytest.raises(ValueError, match="^LinearPanels: ids must be integers of rank 1; got float64 1"):
        panels.rows([1.0])


@pytest.mark.parametrize("format_", FORMATS, ids=lambda f: f.name)
def test_a_rows_bits_are_its_own_in_panels(format_, rng):
    k = whole(format_, 352)
    panels = LinearPanels.pack(weight(format_, k, 301, rng))
    x = rng.normal(size=(150, k)).astype(np.float32)
    alone = np.concatenate([ds.linear(row[None], panels) for row in x]).view(np.uint32)
    for threads in (1, 2, 5):
        with ds.use_threads(threads):
            for tokens in (*range(1, 33), 49, 60, 150):
                assert np.array_equal(ds.linear(x[:tokens], panels).view(np.uint32), alone[:tokens])


@pytest.mark.parametrize("format_", FORMATS, ids=lambda f: f.name)
def test_panels_of_another_format(format_, rng):
    k = whole(format_, 96)
    w = weight(format_, k, 40, rng)
    values = w.values()
    halves = LinearPanels.pack(w, Format.BF16).rows()
    if format_ != Format.BF16:
        assert np.array_equal(halves.values(), values.astype(ml_dtypes.bfloat16).astype(np.float32))
    packed = LinearPanels.pack(w, Format.Q8_0).rows()
    blocks = values.reshape(40, -1, 32)
    scale = (np.abs(blocks).max(2, keepdims=True) / np.float32(127)).astype(np.float16).astype(np.float32)
    assert (np.abs(packed.values().reshape(blocks.shape) - blocks) <= 0.6 * scale).all()
    check_panels(rng.normal(size=(3, k)).astype(np.float32), LinearPanels.pack(w, Format.Q8_0), packed)


def test_bytes_at_their_ends():
    """The largest sums: bytes of one sign against nibbles and bytes at their ends, where narrow sums would overflow."""
    for format_, body in ((Format.Q4_0, [0xFF, 0x00]), (Format.Q4_1, [0xFF, 0x00]), (Format.Q8_0, [0x80, 0x7F])):
        rows = np.zeros((2, 3, {Format.Q4_0: 18, Format.Q4_1: 20, Format.Q8_0: 34}[format_]), np.uint8)
        rows[..., :2] = np.array([1.0], np.float16).view(np.uint8)
        rows[..., 4 if format_ == Format.Q4_1 else 2 :] = np.array(body, np.uint8)[:, None, None]
        w = PackedWeight(rows.reshape(2, -1), format_, 96)
        for sign in (1, -1):
            x = np.full((1, 96), sign * 127, np.float32)
            assert np.array_equal(ds.linear(x, LinearPanels.pack(w)), x @ w.dense())


def extreme_weight(format_: Format, rng: np.random.Generator) -> PackedWeight:
    """Blocks whose bytes are all zeros, all ones, 0x80, 0x7F or random, with scales and minima of every kind but infinities."""
    w = weight(format_, 768, 161, rng)
    values, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[format_.name]]
    blocks = w.rows.reshape(161, 768 // values, size).copy()
    for byte in (0x00, 0xFF, 0x80, 0x7F):
        blocks[rng.random(blocks.shape[:2]) < 0.2] = byte
    put_scales(format_, blocks, rng.choice(np.float16([0, -0.0, 6e-8, -6e-8, 6e-5, 65504, -65504, 1]), (*blocks.shape[:2], 1)))
    if format_ == Format.MXFP4:
        blocks[..., 0] = rng.choice(np.uint8([0, 1, 2, 110, 127, 140]), blocks.shape[:2])
    return PackedWeight(blocks.reshape(161, -1), format_, 768)


QUANTISED = [f for f in FORMATS if f not in DENSE]


@pytest.mark.parametrize("format_", QUANTISED, ids=lambda f: f.name)
def test_extreme_blocks(format_, rng):
    """Activations at both ends of their range too, in the sizes of tile that a product is made of."""
    w = extreme_weight(format_, rng)
    panels = LinearPanels.pack(w)
    assert np.array_equal(panels.rows().rows, w.rows)
    x = rng.normal(size=(53, 768)).astype(np.float32)
    x[::2] = np.where(rng.random((27, 768)) < 0.5, -127, 127)
    x[::5] *= 127
    x[3], x[4] = 1e25, 1e-25
    check_panels(x, panels, w)
    for tokens in (1, 2, 3, 7, 16, 29):
        check_panels(x[:tokens], panels, w)


@pytest.mark.parametrize("format_", [f for f in QUANTISED if f != Format.MXFP4], ids=lambda f: f.name)
def test_an_infinite_scale_stays_with_its_output(format_, rng):
    w = weight(format_, 512, 40, rng)
    x = rng.normal(size=(9, 512)).astype(np.float32)
    expected = ds.linear(x, LinearPanels.pack(w))
    size = BLOCKS[format_.name].bytes
    for i, number in enumerate((np.inf, -np.inf, np.nan)):
        put_scales(format_, w.rows[3 + i, size : 2 * size], np.array([number]))
    y = ds.linear(x, LinearPanels.pack(w))
    assert not np.isfinite(y[:, 3:6]).any()
    others = np.delete(np.arange(40), [3, 4, 5])
    assert np.array_equal(y[:, others], expected[:, others])


@pytest.mark.parametrize(
    "format_", [Format.Q4_0, Format.Q5_0, Format.Q8_0, Format.Q2_K, Format.Q3_K, Format.Q4_K], ids=lambda f: f.name
)
def test_panels_tell_scales_that_are_no_numbers_from_bytes_that_look_like_such(format_, rng):
    size = BLOCKS[format_.name].bytes
    for at in SCALES[format_]:
        w = weight(format_, 512, 40, rng)
        w.rows[33, size : 2 * size] = 255
        put_scales(format_, w.rows[33, size : 2 * size], np.ones(1))
        w.rows[33, size + 2 : size + 4] = 0  # of Q4_K the minimum
        assert LinearPanels.pack(w).has_finite_scales()
        w.rows[33, size + at : size + at + 2] = np.array([np.inf], np.float16).view(np.uint8)
        assert not LinearPanels.pack(w).has_finite_scales()
    for other in (Format.F32, Format.Q5_1):
        assert LinearPanels.pack(weight(other, 512, 40, rng)).has_finite_scales()


def exact_products() -> str:
    """The products of all quantised formats in hexadecimal, of values whose sums float32 holds: no rounding, so that a build
    without a fused multiply-add gives the same bits."""
    rng, products = np.random.default_rng(5), []
    for format_ in QUANTISED:
        w = weight(format_, 512, 161, rng)
        size = BLOCKS[format_.name].bytes
        put_scales(format_, w.rows.reshape(161, -1, size), np.full((161, w.rows.shape[1] // size, 1), 0.5))
        x = rng.integers(-3, 4, (51, 512)).astype(np.float32)
        x[:, ::32] = 127
        panels = LinearPanels.pack(w)
        products += [ds.linear(x[:tokens], panels) for tokens in (*range(1, 10), 13, 29, 51)]
        assert np.array_equal(products[-1], ds.linear(x.astype(np.float64), panels))
    return b"".join(y.tobytes() for y in products).hex()


@pytest.mark.tiers
@pytest.mark.parametrize("isa", TIERS)
def test_every_build_gives_the_same_products_of_blocks(isa):
    assert printed_under(isa, "import test_linear; print(test_linear.exact_products())") == exact_products()


@pytest.mark.parametrize("inputs", [33, 64])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_many_tokens_read_no_more_than_the_rows(dtype, inputs, rng):
    """Not what an earlier product has left where rows are padded; rows may lie any number of bytes apart."""
    x, w = rng.normal(size=(40, inputs)).astype(np.float32), rng.normal(size=(inputs, 25)).astype(dtype)
    rows = PackedWeight.from_array(w)
    apart = np.zeros((25, rows.rows.shape[1] + 3), np.uint8)
    apart[:, 1:-2] = rows.rows
    with ds.use_threads(1):
        ds.linear(np.ones((40, 353), np.float32), PackedWeight.from_array(np.full((353, 25), np.nan, dtype)))
        y = ds.linear(x, rows)
        assert_close(y, x.astype(np.float64) @ w.astype(np.float64), np.abs(x) @ np.abs(w.astype(np.float32)))
        assert np.array_equal(ds.linear(x, PackedWeight(apart[:, 1:-2], rows.format, inputs)), y)


def test_rounding_to_bytes():
    """By hand: ties to even, zeros, and blocks too small for a unit."""
    x = np.zeros((4, 32), np.float32)
    x[0, :5] = [127, 2.5, 3.5, -0.5, -1.5]
    x[1, :2] = [1e-37, -1e-38]
    x[2, :2] = [254, 3]
    x = np.concatenate([x, np.zeros_like(x)], axis=1)
    x[:, 32] = 1e6  # the coarser block, which has the rest
    expected = x.copy()
    expected[0, 1:5] = [2, 4, 0, -2]
    expected[1, :32] = 0
    expected[2, 1] = 4
    assert np.array_equal(reference.quantise(x)[:, :32], expected[:, :32])
    identity = LinearPanels.pack(PackedWeight.from_array(np.eye(64, dtype=np.float32)), Format.Q8_0)
    assert np.array_equal(ds.linear(x, identity)[:, :32].round(1), expected[:, :32])
    x[:2, 0], x[:2, 1:32] = [1.01e-36, 0.99e-36], 0  # either side of the smallest block that counts
    assert (ds.linear(x[:2], identity)[:, 0] > 0).tolist() == [True, False]
    x[0, [0, 32]], x[0, [1, 33]] = 127, 0.3  # of two blocks with one scale, the first has the rest
    assert (ds.linear(x[:1], identity)[0, [1, 33]] > 0.2).tolist() == [True, False]


@pytest.mark.parametrize("format_", FORMATS, ids=lambda f: f.name)
@pytest.mark.parametrize("inputs", [32, 352, 1568])
def test_outliers_of_a_row_leave_the_others_as_they_are(format_, inputs, rng):
    """Rows with outliers in the same block, in others, in none, beside each other in a tile."""
    inputs = whole(format_, inputs)
    w = weight(format_, inputs, 70, rng)
    panels = LinearPanels.pack(w)
    x = rng.normal(size=(13, inputs)).astype(np.float32)
    x[6:][rng.random(x[6:].shape) < 0.01] *= 40
    x[:6, 17] = 200
    x[8] = np.sign(x[8])
    y = check_panels(x, panels, w)
    alone = np.concatenate([ds.linear(row[None], panels) for row in x])
    assert np.array_equal(y.view(np.uint32), alone.view(np.uint32))


def test_the_coarsest_block_keeps_what_rounding_leaves():
    """By hand: units 1, 8, 1, 8; of the first of the coarsest the rest 10.25 - 8 counts, of the other it does not."""
    x = np.zeros((1, 128), np.float32)
    x[0, ::32] = [127, 8 * 127, 127, 8 * 127]
    x[0, 1::32] = 10.25
    seen = reference.quantise(x)
    assert np.array_equal(seen[0, ::32], x[0, ::32])
    assert seen[0, 1::32].tolist() == [10, pytest.approx(10.25), 10, 8]


@pytest.mark.parametrize("format_", FORMATS, ids=lambda f: f.name)
def test_not_a_number_stays_in_its_row_of_panels(format_, rng):
    k = whole(format_, 64)
    x = rng.normal(size=(9, k)).astype(np.float32)
    panels = LinearPanels.pack(weight(format_, k, 5, rng))
    expected = ds.linear(x, panels)
    x[2, 7], x[4, 9] = np.nan, np.inf
    y = ds.linear(x, panels)
    assert np.isnan(y[2]).all() and not np.isfinite(y[4]).any()
    assert np.array_equal(np.delete(y, [2, 4], 0), np.delete(expected, [2, 4], 0))


def test_panels_refuse():
    with pytest.raises(ValueError, match=r"^LinearPanels: inputs must be a multiple of 32 in format Q8_0; got 33"):
        LinearPanels.pack(PackedWeight.from_array(np.zeros((33, 2), np.float32)), Format.Q8_0)
    for bad in (Format.Q4_1, int(Format.Q8_0)):
        with pytest.raises(ValueError, match=r"^LinearPanels: format must be"):
            LinearPanels.pack(W, bad)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": int(Format.Q8_0)}, "format must be a Format; got 5"),
        ({"inputs": 65}, "inputs must be a multiple of 32 in format Q8_0; got 65"),
        ({"inputs": 64.0}, "inputs must be a multiple of 32 in format Q8_0; got 64.0"),
        ({"format": Format.F32, "inputs": -1}, "inputs must be an integer >= 0 in format F32; got -1"),
        ({"outputs": True}, "outputs must be an integer >= 0; got True"),
        ({"outputs": 33}, "data must be 4352 contiguous bytes of uint8; got uint8 2176"),
        ({"data": np.zeros(2176, np.int8)}, "data must be 2176 contiguous bytes of uint8; got int8 2176"),
        ({"data": np.zeros(4352, np.uint8)[::2]}, "data must be 2176 contiguous bytes of uint8; got uint8 2176"),
        ({"data": bytes(2176)}, "data must be 2176 contiguous bytes of uint8; got b"),
    ],
)
def test_panels_whose_fields_contradict_each_other(changes, message):
    fields = {"data": np.zeros(2176, np.uint8), "format": Format.Q8_0, "inputs": 64, "outputs": 32}
    assert LinearPanels(**fields).shape == (64, 32)
    with pytest.raises(ValueError, match=f"^LinearPanels: {message}"):
        LinearPanels(**fields | changes)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("format_", FORMATS, ids=lambda f: f.name)
def test_empty_panels(format_, backend, rng):
    k = whole(format_, 32)
    for tokens, inputs, outputs in ((0, k, 3), (3, k, 0), (3, 0, 5)):
        panels = LinearPanels.pack(weight(format_, inputs, outputs, rng))
        y = ds.linear(np.ones((tokens, inputs), np.float32), panels, backend=backend)
        assert y.shape == (tokens, outputs) and not y.any()


def test_the_size_of_panels_does_not_wrap_around():
    wide = np.empty((0, 2**31 - 1), np.float32)  # 2^26 panels of 2^26 blocks of 2^12 bytes
    with pytest.raises(ValueError, match="panels have the wrong size"):
        _native.linear_panels(wide, np.empty(0, np.uint8), 0, wide, 1)


@pytest.mark.parametrize("form", [lambda w: w, LinearPanels.pack])
def test_rows_without_values_take_no_time(form):
    none = form(PackedWeight.from_array(np.empty((0, 0), np.float32)))
    assert ds.linear(np.empty((2**40, 0), np.float32), none, backend="cpu").shape == (2**40, 0)
