"""tensor_scatter against hand examples, an element-by-element oracle, ONNX's node tests and onnxruntime."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx.backend.test.case.node import tensorscatter as node_tests
from onnx.reference import ReferenceEvaluator

import decodestep as ds
from decodestep.integrations.onnx import TensorScatter
from vectors.read import cases as cases_of

BACKENDS = ["cpu", "reference"]
MODES = ["linear", "circular"]
FLOATS_8 = [getattr(ml_dtypes, name) for name in dir(ml_dtypes) if name.startswith("float8_")]
INTEGERS = [np.dtype(f"{sign}int{width}").type for sign in ("", "u") for width in (8, 16, 32, 64)]
PACKABLE = [
    np.bool_, *INTEGERS, ml_dtypes.int4, ml_dtypes.uint4, np.float16, np.float32, np.float64, ml_dtypes.bfloat16,
    *FLOATS_8, ml_dtypes.float4_e2m1fn, np.complex64, np.complex128,
]  # fmt: skip
STRINGS = [np.dtype(object), np.dtype("<U7")]
TYPES = [*map(np.dtype, PACKABLE), *STRINGS]
FOUR_BITS = {"int4", "uint4", "float4_e2m1fn"}


def filled(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Every bit pattern of the type, NaN payloads included."""
    dtype = np.dtype(dtype)
    if dtype.kind in "OU":
        words = ["".join(rng.choice(list("aé漢🙂"), rng.integers(0, 6))) for _ in range(int(np.prod(shape)))]
        return np.array(words, dtype).reshape(shape)
    raw = rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    if dtype == np.bool_ or dtype.name in FOUR_BITS:
        raw &= 1 if dtype == np.bool_ else 15
    return raw.view(dtype).reshape(shape)


def bits(array: np.ndarray) -> list[Any]:
    """The elements as something that compares bit by bit."""
    flat = np.array(array, order="C").reshape(-1)
    return flat.tolist() if flat.dtype.kind in "OU" else flat.view(f"V{flat.itemsize}").tolist()


def assert_same(actual: np.ndarray, expected: np.ndarray) -> None:
    assert type(actual) is np.ndarray
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    assert bits(actual) == bits(expected)


def oracle(cache: np.ndarray, update: np.ndarray, starts: Any, axis: int, mode: str) -> np.ndarray:
    """One element at a time, in Python's integers."""
    dtype = np.promote_types(cache.dtype, update.dtype) if cache.dtype.kind == "U" else cache.dtype
    present = np.empty(cache.shape, dtype)
    for index in np.ndindex(*cache.shape):
        present[index] = cache[index]
    axis %= cache.ndim
    for index in np.ndindex(*update.shape):
        slot = (0 if starts is None else int(starts[index[0]])) + index[axis]
        if mode == "circular":
            slot %= cache.shape[axis]
        present[(*index[:axis], slot, *index[axis + 1 :])] = update[index]
    return present


def test_linear_by_hand() -> None:
    cache = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    update = np.array([[[-1, -2]], [[-3, -4]]], np.float32)
    present = ds.tensor_scatter(cache, update, np.array([1, 2]))
    assert present.tolist() == [[[0, 1], [-1, -2], [4, 5]], [[6, 7], [8, 9], [-3, -4]]]
    assert cache.tolist() == np.arange(12).reshape(2, 3, 2).tolist()


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (0, [9, 8, 2]), (1, [0, 9, 8]), (2, [8, 1, 9]), (3, [9, 8, 2]), (-1, [8, 1, 9]), (-2, [0, 9, 8]),
        (2**63 - 1, [0, 9, 8]), (-(2**63), [0, 9, 8]),
    ],
)  # fmt: skip
def test_circular_by_hand(start: int, expected: list[int]) -> None:
    cache, update = np.array([[0, 1, 2]]), np.array([[9, 8]])
    for backend in BACKENDS:
        present = ds.tensor_scatter(cache, update, [start], axis=1, mode="circular", backend=backend)
        assert present.tolist() == [expected]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_every_type_is_copied_exactly(dtype: np.dtype) -> None:
    rng = np.random.default_rng(1)
    cache, update = filled(rng, (3, 2, 5, 2), dtype), filled(rng, (3, 2, 2, 2), dtype)
    for mode, starts in (("linear", [3, 0, 1]), ("circular", [4, -7, 10])):
        expected = oracle(cache, update, starts, -2, mode)
        for backend in ["reference"] if dtype in STRINGS else BACKENDS:
            assert_same(ds.tensor_scatter(cache, update, starts, mode=mode, backend=backend), expected)
            place = cache.copy()
            assert ds.tensor_scatter(place, update, starts, mode=mode, out=place, backend=backend) is place
            assert_same(place, expected)


def test_integer_types_of_the_indices() -> None:
    cache, update = np.zeros((2, 300)), np.ones((2, 1))
    for dtype in INTEGERS:
        starts = np.array([1, 100], dtype)
        for given_ in (starts, starts[::-1], starts.tolist(), starts.astype(starts.dtype.newbyteorder())):
            assert_same(ds.tensor_scatter(cache, update, given_, axis=1), oracle(cache, update, given_, 1, "linear"))
    most = np.array([2**64 - 1, 2**63], np.uint64)
    expected = oracle(cache, update, most, 1, "circular")
    assert_same(ds.tensor_scatter(cache, update, most, axis=1, mode="circular"), expected)


def test_the_starts_of_many_rows_are_checked_and_kept() -> None:
    rng = np.random.default_rng(2)
    cache, update, starts = rng.random((200, 7)), rng.random((200, 2)), rng.integers(0, 6, 200)
    assert_same(ds.tensor_scatter(cache, update, starts, axis=1), oracle(cache, update, starts, 1, "linear"))
    starts[150] = 6
    with pytest.raises(ValueError, match=r"write_indices must be in \[0, 5\] in linear mode; got 0 to 6"):
        ds.tensor_scatter(cache, update, starts, axis=1)


@st.composite
def layouts(draw: st.DrawFn, values: np.ndarray, *, writeable: bool = False) -> np.ndarray:
    """The same values in another memory layout."""
    order = draw(st.permutations(range(values.ndim)))
    steps = [draw(st.sampled_from([1, 1, 2, -1, -3])) for _ in order]
    space = np.zeros([n * abs(s) for n, s in zip(np.transpose(values, order).shape, steps, strict=True)], values.dtype)
    array = space[tuple(slice(None, None, s) for s in steps)].transpose(np.argsort(order))
    array[...] = values
    if not writeable and draw(st.booleans()):
        axis = draw(st.integers(0, values.ndim - 1))
        if values.shape[axis] and len({tuple(bits(part)) for part in np.moveaxis(values, axis, 0)}) == 1:
            array = np.broadcast_to(array.take([0], axis), values.shape)
    return array


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    rank = draw(st.integers(2, 5))
    axis = draw(st.integers(1, rank - 1))
    shape = [draw(st.integers(0, 3)) for _ in range(rank)]
    shape[axis] = draw(st.integers(0, 6))
    new_shape = list(shape)
    new_shape[axis] = draw(st.integers(0, shape[axis]))
    mode = draw(st.sampled_from(MODES))
    low, high = (0, shape[axis] - new_shape[axis]) if mode == "linear" else (-(2**63), 2**63 - 1)
    starts = np.array([draw(st.integers(low, high)) for _ in range(shape[0])], np.int64)
    if draw(st.booleans()) and draw(st.booleans()):
        starts = None
    dtype = draw(st.sampled_from(TYPES))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    cache, update = filled(rng, tuple(shape), dtype), filled(rng, tuple(new_shape), dtype)
    if draw(st.booleans()):
        repeated = draw(st.integers(0, rank - 1))
        if update.shape[repeated]:
            update[...] = update.take([0], repeated)
    return {
        "cache": draw(layouts(cache, writeable=True)),
        "update": draw(layouts(update)),
        "starts": starts,
        "axis": axis - draw(st.sampled_from([0, rank])),
        "mode": mode,
        "out": draw(st.sampled_from(["none", "in place", "other"])),
        "other": draw(layouts(filled(rng, tuple(shape), dtype), writeable=True)),
    }


@pytest.mark.slow
@settings(max_examples=400)
@given(cases())
def test_against_the_oracle(case: dict[str, Any]) -> None:
    cache, update, starts, axis, mode = (case[name] for name in ("cache", "update", "starts", "axis", "mode"))
    expected = oracle(cache, update, starts, axis, mode)
    before = cache.copy(), update.copy()
    for backend in ("cpu", "auto", "reference"):
        cache[...] = before[0]
        out = {"none": None, "in place": cache, "other": case["other"]}[case["out"]]
        refusal = ""
        try:
            present = ds.tensor_scatter(cache, update, starts, axis=axis, mode=mode, out=out, backend=backend)
        except ValueError as error:
            refusal = str(error)
        if refusal:
            assert backend == "cpu" and "backend must be able to serve the call" in refusal
            assert cache.dtype.kind in "OU" or out is not None
            continue
        assert_same(present, expected)
        assert_same(update, before[1])
        if out is None:
            assert not any(np.shares_memory(present, array) for array in (cache, update))
        else:
            assert present is out
        if out is not cache:
            assert_same(cache, before[0])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("axis", range(1, 6))
@pytest.mark.parametrize("cut", range(6))
def test_parts_of_larger_arrays(cut: int, axis: int, backend: str) -> None:
    """All but the last of axis `cut` of an array, which no longer folds with the axis before it."""
    rng = np.random.default_rng(6)

    def part(of: np.ndarray) -> np.ndarray:
        return of[(*[slice(None)] * cut, slice(-1))]

    shape = np.array([2, 2, 3, 2, 3, 2]) + (np.arange(6) == cut)
    shape[axis] += 2
    larger, source = rng.integers(0, 100, shape), rng.integers(0, 100, shape - 2 * (np.arange(6) == axis))
    expected = larger.copy()
    part(expected)[...] = oracle(part(larger), part(source), [2, 0], axis, "linear")
    if backend == "cpu" and cut not in (0, 1, axis, axis + 1):
        with pytest.raises(ValueError, match="needs the axes of out to fold"):
            ds.tensor_scatter(part(larger), part(source), [2, 0], axis=axis, out=part(larger), backend=backend)
        return
    ds.tensor_scatter(part(larger), part(source), [2, 0], axis=axis, out=part(larger), backend=backend)
    assert_same(larger, expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_overlaps_are_as_if_copied(backend: str) -> None:
    rng = np.random.default_rng(3)
    for shift, mode in itertools.product(range(-3, 4), MODES):
        memory = rng.integers(0, 100, 60)
        cache, out = memory[20:40].reshape(2, 5, 2), memory[20 + shift : 40 + shift].reshape(2, 5, 2)
        update = memory[21:37].reshape(2, 2, 4)[:, :, ::2].reshape(2, 2, 2) if shift == 3 else out[:, 1:4]
        starts = memory[18:20]
        starts[...] = [2, 1]
        expected = oracle(cache, update, starts, 1, mode)
        ds.tensor_scatter(cache, update, starts, axis=1, mode=mode, out=out, backend=backend)
        assert_same(out, expected)
    # A cache turned round in its own memory, and indices that lie in the result.
    cache = rng.integers(0, 100, (2, 4, 1))
    expected = oracle(cache, cache[:, 2:], [0, 1], 1, "linear")
    ds.tensor_scatter(cache, cache[:, 2:], [0, 1], axis=1, out=cache[:, ::-1], backend=backend)
    assert_same(np.ascontiguousarray(cache[:, ::-1]), expected)
    cache = np.array([[1, 1], [0, 5]])
    expected = oracle(cache, np.array([[7], [8]]), cache[:, 0], 1, "linear")
    ds.tensor_scatter(cache, np.array([[7], [8]]), cache[:, 0], axis=1, out=cache, backend=backend)
    assert_same(cache, expected)


def test_in_place_moves_only_the_updated_bytes() -> None:
    cache = np.zeros((1, 4, 2))
    frozen = cache[:, 2:]
    alias = cache.view()
    update = np.ones((1, 1, 2))
    assert ds.tensor_scatter(cache, update, [1], out=alias) is alias
    assert cache.tolist() == [[[0, 0], [1, 1], [0, 0], [0, 0]]]
    assert not frozen.any()
    read_only = cache.view()
    read_only.flags.writeable = False
    assert ds.tensor_scatter(read_only, update, [3], out=cache) is cache
    assert cache[0, :, 0].tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int8, np.bool_, ml_dtypes.float8_e5m2])
def test_in_place_in_any_layout(dtype: Any) -> None:
    """What the core checks by itself, and what it leaves to the checks in Python."""
    rng = np.random.default_rng(8)
    for _ in range(60):
        order = (0, *(1 + rng.permutation(3)))
        shape, new_shape = np.array([3, 2, 6, 4]), np.array([3, 2, int(rng.integers(1, 7)), 4])
        cache, update = (
            filled(rng, tuple(sizes[list(order)]), dtype).transpose(np.argsort(order)) for sizes in (shape, new_shape)
        )
        update = update[:, :, :, ::-1] if rng.integers(2) else update
        mode = str(rng.choice(MODES))
        room = shape[2] - new_shape[2]
        starts = rng.integers(*((0, room + 1) if mode == "linear" else (-20, 20)), 3)
        given_ = [starts, starts.astype(np.int32), starts.astype(np.int16), starts.tolist(), np.repeat(starts, 2)[::2]]
        expected = oracle(cache, update, starts, 2, mode)
        assert ds.tensor_scatter(cache, update, given_[rng.integers(5)], mode=mode, out=cache) is cache
        assert_same(cache, expected)


def test_an_update_from_the_cache_itself() -> None:
    for first, start in itertools.product(range(4), range(4)):
        cache = np.arange(24).reshape(2, 6, 2)
        expected = oracle(cache, cache[:, first : first + 3], [start, 3 - start], 1, "linear")
        ds.tensor_scatter(cache, cache[:, first : first + 3], np.array([start, 3 - start]), axis=1, out=cache)
        assert_same(cache, expected)


def test_what_is_refused_in_place_is_refused_as_elsewhere() -> None:
    def read_only(array: np.ndarray) -> np.ndarray:
        array.flags.writeable = False
        return array

    right: dict[str, Any] = {"update": np.ones((2, 2, 2), np.float32), "write_indices": np.array([0, 1]), "axis": 1}
    wrong = [
        {"update": np.ones((2, 2, 2))}, {"update": np.ones((2, 2, 2), ">f4")}, {"update": np.ones((2, 4, 2), np.float32)},
        {"update": np.ones((2, 2, 3), np.float32)}, {"update": np.ones((2, 2), np.float32)}, {"update": [1.0]},
        {"write_indices": np.array([0, 2])}, {"write_indices": np.array([-1, 0])}, {"write_indices": np.array([0])},
        {"write_indices": np.array([0, 2**63], np.uint64)}, {"write_indices": np.array([0.0, 1.0])},
        {"write_indices": np.array([[0, 1]])}, {"write_indices": "no"}, {"axis": 0}, {"axis": -3}, {"axis": 3}, {"axis": 1.0},
        {"axis": True}, {"axis": 2**70}, {"axis": -(2**70)}, {"mode": "round"}, {"mode": np.array(["linear"])}, {"mode": None},
        {"backend": "gpu"}, {"backend": np.array(["cpu", "auto"])},
    ]  # fmt: skip
    for arguments in wrong:
        texts = []
        for alias in (False, True):
            cache = np.zeros((2, 3, 2), np.float32)
            with pytest.raises(ValueError, match="tensor_scatter: ") as error:
                ds.tensor_scatter(cache, **(right | arguments), out=cache.view() if alias else cache)
            texts.append(str(error.value))
            assert not cache.any()
        assert texts[0] == texts[1]
    frozen = read_only(np.zeros((2, 3, 2), np.float32))
    broadcast = np.lib.stride_tricks.as_strided(np.zeros(8, np.float32), (2, 3, 2), (16, 0, 4))
    for cache, text in ((frozen, "out must be writeable"), (broadcast, "out must be of elements that do not overlap")):
        with pytest.raises(ValueError, match=text):
            ds.tensor_scatter(cache, **right, out=cache)
        assert not cache.any()


def test_a_call_in_place_is_recorded_once() -> None:
    cache, update = np.zeros((2, 3, 2)), np.ones((2, 1, 2))
    with ds.profile() as profile:
        ds.tensor_scatter(cache, update, np.array([0, 1]), out=cache)
        ds.tensor_scatter(cache, update, [0, 1], out=cache)
    assert {key: cost.calls for key, cost in profile.costs.items()} == {("tensor_scatter", "cpu"): 2}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("shape", "new_shape"),
    [
        ((0, 3, 2), (0, 1, 2)), ((2, 3, 2), (2, 0, 2)), ((2, 0, 2), (2, 0, 2)), ((2, 3, 0), (2, 1, 0)),
        ((2, 0, 3, 2), (2, 0, 1, 2)),
    ],
)  # fmt: skip
def test_empty_caches_and_updates_change_nothing(backend: str, shape: tuple[int, ...], new_shape: tuple[int, ...]) -> None:
    cache, update = np.arange(np.prod(shape)).reshape(shape), np.ones(new_shape, np.int64)
    for mode, starts in (("linear", None), ("linear", [0] * shape[0]), ("circular", [-5] * shape[0])):
        for out in (None, cache, np.full_like(cache, 7)):
            present = ds.tensor_scatter(cache, update, starts, mode=mode, out=out, backend=backend)
            assert_same(present, np.arange(np.prod(shape)).reshape(shape))
    if shape[0]:
        room = shape[-2] - new_shape[-2]
        ds.tensor_scatter(cache, update, [room] * shape[0], backend=backend)
        for wrong in (-1, room + 1):
            with pytest.raises(ValueError, match="write_indices must be in"):
                ds.tensor_scatter(cache, update, [wrong] * shape[0], backend=backend)


def test_strings_widen_the_result_but_not_out() -> None:
    cache, update = np.array([["a", "b"]]), np.array([["long"]])
    present = ds.tensor_scatter(cache, update, [1], axis=1)
    assert present.dtype == "<U4"
    assert present.tolist() == [["a", "long"]]
    with pytest.raises(ValueError, match="update must be no wider than out's <U1"):
        ds.tensor_scatter(cache, update, [1], axis=1, out=cache)
    assert cache.tolist() == [["a", "b"]]
    wide = np.array([["xxxx", "yyyy"]])
    assert ds.tensor_scatter(wide, np.array([["é"]]), [0], axis=1, out=wide).tolist() == [["é", "yyyy"]]


def test_strings_keep_their_byte_order() -> None:
    cache, update = np.array([["ab", "c"]], ">U2"), np.array([["é"]], ">U1")
    present = ds.tensor_scatter(cache, update, [1], axis=1)
    assert present.dtype == cache.dtype
    assert present.tolist() == [["ab", "é"]]


def test_subclasses_count_as_plain_arrays() -> None:
    cache = np.zeros((2, 3)).view(np.matrix)
    assert_same(ds.tensor_scatter(cache, np.ones((2, 1)), [0, 2], axis=1), np.array([[1.0, 0, 0], [0, 0, 1]]))


TORCH_TYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32,
    torch.uint64, torch.float16, torch.float32, torch.float64, torch.bfloat16, torch.float8_e4m3fn,
    torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz, torch.float8_e8m0fnu, torch.complex64,
    torch.complex128,
]  # fmt: skip


@pytest.mark.parametrize("dtype", TORCH_TYPES, ids=str)
def test_torch_tensors_give_torch_tensors(dtype: torch.dtype) -> None:
    rng = np.random.default_rng(4)

    def tensor(*shape: int) -> torch.Tensor:
        raw = rng.integers(0, 2 if dtype == torch.bool else 256, (*shape, dtype.itemsize), np.uint8)
        return torch.from_numpy(raw).view(dtype).reshape(shape)

    def raw(t: torch.Tensor) -> list[int]:
        return t.contiguous().view(torch.uint8).flatten().tolist()

    cache, update, starts = tensor(2, 3, 4, 2), tensor(2, 3, 1, 2), torch.tensor([1, 3])
    expected = cache.clone()
    expected[0, :, 1], expected[1, :, 3] = update[0, :, 0], update[1, :, 0]
    for backend in BACKENDS:
        present = ds.tensor_scatter(cache, update, starts, backend=backend)
        assert isinstance(present, torch.Tensor) and present.dtype == dtype
        assert raw(present) == raw(expected)
        assert present.data_ptr() != cache.data_ptr()
        place = cache.clone().transpose(0, 1).contiguous().transpose(0, 1)
        assert ds.tensor_scatter(place, update, starts, out=place, backend=backend) is place
        assert raw(place) == raw(expected)


def test_torch_tensors_that_numpy_cannot_view() -> None:
    cache, update = torch.zeros(1, 2, dtype=torch.complex64), torch.ones(1, 1, dtype=torch.complex64)
    for odd in (cache.conj(), cache.to_sparse()):
        with pytest.raises(ValueError, match="past_cache must be a tensor that NumPy can view; got"):
            ds.tensor_scatter(odd, update, axis=1)
    with pytest.raises(ValueError, match="update must be on the CPU for this backend; got a tensor on meta"):
        ds.tensor_scatter(cache, update.to("meta"), axis=1)
    learnt = torch.zeros(1, 2, requires_grad=True)
    assert ds.tensor_scatter(learnt, torch.ones(1, 1), axis=1).tolist() == [[1, 0]]


CACHE, UPDATE = np.zeros((2, 3, 2), np.float32), np.ones((2, 2, 2), np.float32)
REFUSALS: list[tuple[str, dict[str, Any]]] = [
    ("past_cache must be a NumPy array or a torch tensor; got list", {"past_cache": CACHE.tolist()}),
    ("past_cache must be of rank 2 or more; got float32 3", {"past_cache": CACHE[0, :, 0]}),
    ("past_cache must be of an ONNX tensor type; got (longdouble|float128)",
     {"past_cache": CACHE.astype(np.longdouble), "update": UPDATE.astype(np.longdouble)}),
    ("past_cache must be of an ONNX tensor type", {"past_cache": CACHE.astype("S1"), "update": UPDATE.astype("S1")}),
    ("past_cache must be of an ONNX tensor type", {"past_cache": CACHE.astype("m8"), "update": UPDATE.astype("m8")}),
    ("past_cache must be of an ONNX tensor type", {"past_cache": CACHE.view("V4"), "update": UPDATE.view("V4")}),
    ("past_cache must be of an ONNX tensor type",
     {"past_cache": CACHE.view([("a", "f4")]), "update": UPDATE.view([("a", "f4")])}),
    ("past_cache must be of an ONNX tensor type",
     {"past_cache": CACHE.astype(ml_dtypes.int2), "update": UPDATE.astype(ml_dtypes.int2)}),
    ("update must be a NumPy array or a torch tensor; got NoneType", {"update": None}),
    ("update must be of past_cache's dtype float32; got float64 2x2x2", {"update": UPDATE.astype(np.float64)}),
    ("update must be of past_cache's shape 2x3x2 but for axis 1; got float32 2x2", {"update": UPDATE[0]}),
    ("update must be of past_cache's shape 2x3x2 but for axis 1; got float32 1x2x2", {"update": UPDATE[:1]}),
    ("update must be of past_cache's shape 2x3x2 but for axis 1; got float32 2x2x1", {"update": UPDATE[:, :, :1]}),
    ("update must be of past_cache's shape 2x3x2 but for axis 1; got float32 2x2x2x1", {"update": UPDATE[..., None]}),
    ("update must be at most 3 long on axis 1; got float32 2x4x2", {"update": UPDATE.repeat(2, 1)}),
    ("update must be at most 3 long on axis 1", {"update": UPDATE.repeat(2, 1), "mode": "circular"}),
    ("write_indices must be integers; got float64 2", {"write_indices": [0.0, 1.0]}),
    ("write_indices must be integers; got bool 2", {"write_indices": np.array([False, True])}),
    ("write_indices must be integers; got object 2", {"write_indices": [0, 2**70], "mode": "circular"}),
    ("write_indices must be an array or a list of numbers", {"write_indices": [[0], [0, 1]]}),
    ("write_indices must be of shape 2; got int64 scalar", {"write_indices": 0}),
    ("write_indices must be of shape 2; got int64 3", {"write_indices": [0, 1, 1]}),
    ("write_indices must be of shape 2; got int64 2x1", {"write_indices": [[0], [1]]}),
    (r"write_indices must be in \[0, 1\] in linear mode; got -1 to 0", {"write_indices": [0, -1]}),
    (r"write_indices must be in \[0, 1\] in linear mode; got 0 to 2", {"write_indices": [0, 2]}),
    (r"write_indices must be in \[0, 1\] in linear mode; got 0 to 18446744073709551615",
     {"write_indices": np.array([0, 2**64 - 1], np.uint64)}),
    (r"axis must be an integer in \[-3, 3\); got 3", {"axis": 3}),
    (r"axis must be an integer in \[-3, 3\); got -4", {"axis": -4}),
    (r"axis must be an integer in \[-3, 3\); got 1.0", {"axis": 1.0}),
    (r"axis must be an integer in \[-3, 3\); got True", {"axis": True}),
    (r"axis must be an integer in \[-3, 3\); got None", {"axis": None}),
    ("axis must be another than the batch axis; got 0", {"axis": 0}),
    ("axis must be another than the batch axis; got -3", {"axis": -3}),
    ("mode must be one of 'linear', 'circular'; got 'ring'", {"mode": "ring"}),
    ("mode must be one of 'linear', 'circular'; got None", {"mode": None}),
    ("out must be a NumPy array or a torch tensor; got list", {"out": CACHE.tolist()}),
    ("out must be of past_cache's shape and dtype; got float32 2x3x1", {"out": CACHE[:, :, :1].copy()}),
    ("out must be of past_cache's shape and dtype; got float64 2x3x2", {"out": CACHE.astype(np.float64)}),
    ("out must be writeable; got a read-only array", {"out": np.broadcast_to(np.float32(7), CACHE.shape)}),
    ("out must be of past_cache's kind, ndarray; got Tensor", {"out": torch.full((2, 3, 2), 7.0)}),
    ("backend must be one of 'auto', 'cpu', 'reference'; got 'gpu'", {"backend": "gpu"}),
    ("backend must be able to serve the call; got 'cpu', which does not hold strings",
     {"past_cache": CACHE.astype("U1"), "update": UPDATE.astype("U1"), "backend": "cpu"}),
    ("backend must be able to serve the call; got 'cpu', which needs the axes of out to fold",
     {"backend": "cpu", "out": np.full((2, 3, 4), 7, np.float32)[:, :, ::2]}),
]  # fmt: skip


@pytest.mark.parametrize(("message", "wrong"), REFUSALS, ids=map(str, range(len(REFUSALS))))
def test_refusals_leave_out_alone(message: str, wrong: dict[str, Any]) -> None:
    arguments = {"past_cache": CACHE, "update": UPDATE, "write_indices": [0, 1], "axis": 1, **wrong}
    poison = np.full((2, 3, 2), 7, np.float32)
    dtype = getattr(arguments["past_cache"], "dtype", poison.dtype)
    arguments.setdefault("out", poison.view(dtype) if dtype.kind == "V" else poison.astype(dtype))
    before = bits(np.asarray(arguments["out"]))
    with pytest.raises(ValueError, match=f"^tensor_scatter: ({message})"):
        ds.tensor_scatter(**arguments)
    assert bits(np.asarray(arguments["out"])) == before
    assert not CACHE.any() and UPDATE.all()


def overlapping_outputs() -> list[Any]:
    """Of shape (2, 4, 1), with the memory that they lie in."""
    row, buffer = torch.zeros(1, 4, 1), np.zeros(8, np.float32)
    return [
        (row.expand(2, 4, 1), row),
        (row.as_strided((2, 4, 1), (2, 0, 1)), row),
        (np.lib.stride_tricks.as_strided(buffer, (2, 4, 1), (12, 4, 4)), buffer),
        (np.lib.stride_tricks.as_strided(buffer[7:], (2, 4, 1), (-8, -4, 4)), buffer),
    ]


@pytest.mark.parametrize("case", range(4))
@pytest.mark.parametrize("in_place", [True, False])
def test_outputs_that_overlap_themselves_are_refused(case: int, in_place: bool) -> None:
    out, memory = overlapping_outputs()[case]
    kind = torch if isinstance(out, torch.Tensor) else np
    update, cache = kind.ones((2, 1, 1), dtype=kind.float32), kind.ones((2, 4, 1), dtype=kind.float32)
    for backend in BACKENDS:
        with pytest.raises(ValueError, match="^tensor_scatter: out must be of elements that do not overlap in memory; got "):
            ds.tensor_scatter(out if in_place else cache, update, [0, 1], out=out, backend=backend)
    assert not memory.any()


def test_outputs_whose_elements_interleave_are_written() -> None:
    buffer, update = np.zeros((2, 4, 3), np.float32), np.ones((2, 1, 1), np.float32)
    for column in (0, 2):
        ds.tensor_scatter(buffer[..., column : column + 1], update, [0, 3], out=buffer[..., column : column + 1])
    assert buffer.sum(axis=2).tolist() == [[2, 0, 0, 0], [0, 0, 0, 2]] and not buffer[..., 1].any()


def test_profile_counts_the_copy() -> None:
    with ds.profile() as profile:
        ds.tensor_scatter(CACHE, UPDATE, axis=1)
        ds.tensor_scatter(CACHE.astype("U3"), UPDATE.astype("U3"), axis=1)
    assert {key: cost.calls for key, cost in profile.costs.items()} == {
        ("tensor_scatter", "cpu"): 1, ("tensor_scatter", "reference"): 1,
    }  # fmt: skip


@pytest.mark.parametrize("case", [*cases_of("tensor_scatter")], ids=lambda case: case[0])
def test_the_conformance_data_holds(case: Any) -> None:
    _, call, inputs, outputs = case
    arguments = {**inputs, **call["arguments"]}
    for backend in ("auto", "reference"):
        if "refused" in call:
            with pytest.raises(ValueError, match=f"^tensor_scatter: {call['refused']} must be"):
                ds.tensor_scatter(**arguments, backend=backend)
        else:
            assert_same(ds.tensor_scatter(**arguments, backend=backend), outputs["present_cache"])
    if outputs:
        axis, mode = arguments.get("axis", -2), arguments.get("mode", "linear")
        starts = inputs.get("write_indices")
        assert_same(outputs["present_cache"], oracle(inputs["past_cache"], inputs["update"], starts, axis, mode))


def model(tensor_type: int, rank: int, axis: int, mode: str) -> onnx.ModelProto:
    def value(name: str, type_: int, n: int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, type_, [None] * n)

    node = helper.make_node("TensorScatter", ["past_cache", "update", "w"], ["present"], axis=axis, mode=mode)
    inputs = [value(name, tensor_type, rank) for name in ("past_cache", "update")] + [value("w", TensorProto.INT64, 1)]
    graph = helper.make_graph([node], "one", inputs, [value("present", tensor_type, rank)])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)
    onnx.checker.check_model(made, full_check=True)
    return made


def test_onnx_node_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX's own cases, run through the reference evaluator with our operator in it."""
    seen = []

    def expect(node: Any, inputs: list[np.ndarray], outputs: list[np.ndarray], name: str) -> None:
        tensors = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
                   for n, a in zip([*node.input, *node.output], inputs + outputs, strict=True)]  # fmt: skip
        graph = helper.make_graph([node], name, tensors[: len(inputs)], tensors[len(inputs) :])
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)])
        evaluator = ReferenceEvaluator(made, new_ops=[TensorScatter])
        with ds.profile() as profile:
            results = evaluator.run(None, dict(zip(node.input, inputs, strict=True)))
        assert ("tensor_scatter", "cpu") in profile.costs
        assert_same(results[0], outputs[0])
        seen.append(name)

    monkeypatch.setattr(node_tests, "expect", expect)
    exports = [name for name in dir(node_tests.TensorScatter) if name.startswith("export")]
    for name in exports:
        getattr(node_tests.TensorScatter, name)()
    assert len(seen) == len(exports) >= 3


def test_onnx_evaluator_refuses_what_the_specification_forbids() -> None:
    evaluator = ReferenceEvaluator(model(TensorProto.FLOAT, 3, 1, "linear"), new_ops=[TensorScatter])
    with pytest.raises(ValueError, match="write_indices must be in"):
        evaluator.run(None, {"past_cache": CACHE, "update": UPDATE, "w": np.array([0, -1])})


# The types that onnxruntime's kernel serves on the CPU.
ONNXRUNTIME_TYPES = [np.bool_, *INTEGERS, np.float16, np.float32, np.float64, ml_dtypes.bfloat16]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ONNXRUNTIME_TYPES, ids=lambda d: d.__name__)
def test_onnxruntime(dtype: Any, mode: str) -> None:
    import onnxruntime

    rng = np.random.default_rng(5)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    tensor_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    for rank in (2, 3, 4):
        axis = int(rng.integers(1, rank))
        made = model(tensor_type, rank, axis, mode)
        session = onnxruntime.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
        for _ in range(5):
            shape = rng.integers(1, 5, rank)
            new_shape = shape.copy()
            new_shape[axis] = rng.integers(0, shape[axis] + 1)
            cache, update = filled(rng, tuple(shape), dtype), filled(rng, tuple(new_shape), dtype)
            end = shape[axis] - new_shape[axis] + 1 if mode == "linear" else 1000
            starts = rng.integers(0, end, shape[0])  # its kernel refuses a negative index in either mode
            theirs = run_onnxruntime(session, tensor_type, cache, update, starts)
            ours = ds.tensor_scatter(cache, update, starts, axis=axis, mode=mode)
            assert bits(ours) == bits(theirs)


def run_onnxruntime(session: Any, tensor_type: int, cache: np.ndarray, update: np.ndarray, starts: np.ndarray) -> np.ndarray:
    if cache.dtype != ml_dtypes.bfloat16:
        return session.run(None, {"past_cache": cache, "update": update, "w": starts})[0]
    binding = session.io_binding()
    present = np.empty(cache.shape, np.uint16)
    from onnxruntime import OrtValue

    wrap = OrtValue.ortvalue_from_numpy_with_onnx_type
    values = {"past_cache": cache.view(np.uint16), "update": update.view(np.uint16)}
    for name, array in values.items():
        binding.bind_ortvalue_input(name, wrap(array, tensor_type))
    binding.bind_cpu_input("w", starts)
    binding.bind_ortvalue_output("present", wrap(present, tensor_type))
    session.run_with_iobinding(binding)
    return present
