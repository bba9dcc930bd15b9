"""The arguments of lightning_indexer as given, and once they are checked."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from decodestep._base import arrays
from decodestep._base.arrays import Array, Integers, IntegerTable
from decodestep._base.checks import describe_range, is_int, refuse, require, require_choice, require_dtype, require_shape
from decodestep.ops.lightning_indexer.layouts import FLOATS, ROUNDINGS, Keys, Layout, find_keys, find_tokens, visible

OP = "lightning_indexer"
INT8 = np.dtype(np.int8)
SCALES = (np.float32, np.float16)
_SCALES_OF_BYTES = ("query_dequant_scale", "key_dequant_scale")
_WIDTH_OF_BYTES = 2**17  # from here on -128 times -128 in every column is more than an int32 holds


class Call(NamedTuple):
    """The arguments of `lightning_indexer` by name, but for the backend; for `bind` the arrays may be outlines."""

    query: Array
    key: Array
    weights: Array
    query_dequant_scale: Array | None
    key_dequant_scale: Array | None
    actual_seq_lengths_query: Integers | None
    actual_seq_lengths_key: Integers | None
    block_table: IntegerTable | None
    layout_query: str
    layout_key: str
    sparse_count: int
    sparse_mode: int
    pre_tokens: int
    next_tokens: int
    return_value: bool
    ordered: bool
    rounding: str | None

    @property
    def layout(self) -> Layout:
        layouts = self.layout_query, self.layout_key
        return Layout(OP, "key", *layouts, self.sparse_mode, self.pre_tokens, self.next_tokens)


class Arrays(NamedTuple):
    """The arrays of a call as rows: query (T, N, D), weights (T, N), keys (blocks, block size, 1, D), and the scales of int8
    as (T, N) and (blocks, block size)."""

    query: Array
    keys: Array
    weights: Array
    query_scale: Array | None
    key_scale: Array | None


class Problem(NamedTuple):
    """A checked call. table, sequence, visible: int64, the blocks of each sequence, the sequence of each row, and how many of
    its first keys that sees. most: sparse_count."""

    arrays: Arrays
    table: np.ndarray
    sequence: np.ndarray
    visible: np.ndarray
    most: int
    ordered: bool
    with_values: bool
    rounding: str | None
    shape: tuple[int, ...]  # of the results

    @property
    def in_bytes(self) -> bool:
        return bool(self.arrays.keys.dtype == INT8)

    @property
    def has_float64(self) -> bool:
        return np.float64 in (self.arrays.query.dtype, self.arrays.keys.dtype, self.arrays.weights.dtype)


def bind(call: Call) -> Problem:
    """Checks every rule of the contract."""
    layout = call.layout
    layout.check()
    query, key, weights = (arrays.view(OP, name, getattr(call, name)) for name in ("query", "key", "weights"))
    scales = tuple(arrays.optional_view(OP, name, getattr(call, name)) for name in _SCALES_OF_BYTES)
    _check_dtypes(query, key, weights, *scales)
    layout.require_tokens("query", query)
    layout.require_keys("key", key)
    require_shape(OP, "weights", weights, query.shape[:-1])
    for name, scale, shape in zip(_SCALES_OF_BYTES, scales, (query.shape[:-1], key.shape[:-1]), strict=True):
        if scale is not None:
            require_shape(OP, name, scale, shape)
    made = in_rows(layout, query, key, weights, *scales)
    _, heads, width = made.query.shape
    require(heads > 0 and width > 0, OP, "query", "of one head and one column or more", query)
    require(made.keys.shape[3] == width, OP, "key", f"of width {width}", key)
    require(key.dtype != INT8 or width < _WIDTH_OF_BYTES, OP, "query", "narrower than 2^17 in int8", query)
    ok = is_int(call.sparse_count) and 0 < call.sparse_count < 2**31
    require(ok, OP, "sparse_count", "an integer > 0 and < 2^31", call.sparse_count)
    for name in ("return_value", "ordered"):
        require(isinstance(getattr(call, name), bool), OP, name, "True or False", getattr(call, name))
    require_choice(OP, "rounding", call.rounding, ROUNDINGS)
    placed = find_tokens(layout, query.shape, call.actual_seq_lengths_query)
    keys = find_keys(layout, key.shape, call.actual_seq_lengths_key, call.block_table, len(placed.counts))
    require(keys.counts.max(initial=0) < 2**31, OP, "key", "shorter sequences than 2^31", key)
    shape = (*query.shape[:-2], 1, int(call.sparse_count))
    seen = visible(layout, placed, keys)
    if made.query_scale is not None and made.key_scale is not None:
        _require_not_negative("query_dequant_scale", made.query_scale[placed.is_real])
        _require_not_negative("key_dequant_scale", _of_read_keys(made.key_scale, keys))
    options = call.ordered, call.return_value, call.rounding
    return Problem(made, keys.table, placed.sequence, seen, int(call.sparse_count), *options, shape)


def in_rows(
    layout: Layout, query: Array, key: Array, weights: Array, query_scale: Array | None, key_scale: Array | None
) -> Arrays:
    """NumPy arrays or tensors."""
    of_query = None if query_scale is None else layout.rows("query_dequant_scale", query_scale, has_width=False)
    of_keys = None if key_scale is None else layout.in_blocks("key_dequant_scale", key_scale[..., None])[..., 0, 0]
    by_head = layout.rows("weights", weights, has_width=False)
    return Arrays(layout.rows("query", query), layout.in_blocks("key", key), by_head, of_query, of_keys)


def _check_dtypes(
    query: np.ndarray, key: np.ndarray, weights: np.ndarray, query_scale: np.ndarray | None, key_scale: np.ndarray | None
) -> None:
    require_dtype(OP, "key", key, (*FLOATS, INT8))
    require_dtype(OP, "query", query, (INT8,) if key.dtype == INT8 else FLOATS)
    require_dtype(OP, "weights", weights, FLOATS)
    for name, scale in zip(_SCALES_OF_BYTES, (query_scale, key_scale), strict=True):
        if (scale is not None) != (key.dtype == INT8):
            refuse(OP, name, "given beside int8 keys, and only there", scale)
        if scale is not None:
            require_dtype(OP, name, scale, SCALES)


def _of_read_keys(scale: np.ndarray, keys: Keys) -> np.ndarray:
    """The scales of the sequences' keys: others may have any."""
    block_size = scale.shape[1]
    read = [scale[row[: -(-n // block_size)]].reshape(-1)[:n] for row, n in zip(*keys, strict=True) if n]
    return np.concatenate([*read, np.empty(0, scale.dtype)])


def _require_not_negative(name: str, scale: np.ndarray) -> None:
    """max(., 0) commutes with such factors alone."""
    if not (scale >= 0).all():
        refuse(OP, name, "numbers >= 0", describe_range(scale))
