"""The arguments of sparse_mla_attention as given, and once they are checked."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from decodestep._base import arrays
from decodestep._base.arrays import Array, Integers, IntegerTable
from decodestep._base.checks import (
    Phrase,
    is_finite,
    is_int,
    refuse,
    require,
    require_choice,
    require_dtype,
    require_shape,
)
from decodestep.ops.lightning_indexer.layouts import FLOATS, ROUNDINGS, Keys, Layout, find_keys, find_tokens, visible
from decodestep.ops.mla_attention.arguments import Softmax
from decodestep.ops.mla_attention.caches import Cache, check_joined, joined_parts

OP = "sparse_mla_attention"
ABSORBED = 2  # an attention mode: keys and values are latents
MOST_IN_BLOCK = 128


class Call(NamedTuple):
    """The arguments of `sparse_mla_attention` by name, but for the backend; for `bind` the arrays may be outlines."""

    query: Array
    key: Array
    value: Array | None
    sparse_indices: Array
    scale_value: float
    query_rope: Array
    key_rope: Array | None
    actual_seq_lengths_query: Integers | None
    actual_seq_lengths_kv: Integers | None
    block_table: IntegerTable | None
    sparse_block_size: int
    layout_query: str
    layout_kv: str
    sparse_mode: int
    pre_tokens: int
    next_tokens: int
    attention_mode: int
    sinks: Array | None
    rounding: str | None

    @property
    def layout(self) -> Layout:
        layouts = self.layout_query, self.layout_kv
        return Layout(OP, "kv", *layouts, self.sparse_mode, self.pre_tokens, self.next_tokens)


class Arrays(NamedTuple):
    """The arrays of a call as rows: queries (T, N, width), and keys of the cache one after another, (slots, 1, 1, width)."""

    query: Array
    query_rope: Array
    latents: Array
    rope_keys: Array | None  # None: latents are rows that hold both


class Problem(NamedTuple):
    """A checked call.

    caches: of the latents and of the rope keys, in blocks of one row. slots: int64 (T, most), the rows of the caches that each
    token attends to, in the order of their positions. counts: int64 (T,), how many of them. sinks: float32 (N,).
    """

    arrays: Arrays
    caches: tuple[Cache, Cache]
    slots: np.ndarray
    counts: np.ndarray
    scale: float
    sinks: np.ndarray | None
    rounding: str | None

    @property
    def has_float64(self) -> bool:
        return any(array is not None and array.dtype == np.float64 for array in self.arrays)

    def empty_softmax(self, dtype: np.dtype | type) -> Softmax:
        """Of tokens that attend to nothing, but to sinks."""
        made = Softmax(*(np.zeros(self.arrays.query.shape[:2], dtype) for _ in Softmax._fields))
        if self.sinks is not None:
            made.largest[:], made.sums[:] = self.sinks, 1
        return made


def bind(call: Call, *, outlined: bool = False) -> Problem:
    """Checks every rule of the contract. outlined: the arrays are outlines."""
    layout = call.layout
    layout.check()
    query, key, query_rope, indices = (
        arrays.view(OP, name, getattr(call, name)) for name in ("query", "key", "query_rope", "sparse_indices")
    )
    key_rope = arrays.optional_view(OP, "key_rope", call.key_rope)
    if key_rope is None and key.dtype in FLOATS:
        refuse(OP, "key_rope", f"given beside a key of {key.dtype}", None)
    if call.value is not None and not is_same(call.key, call.value):
        refuse(OP, "value", "key itself, or None", call.value)
    require_choice(OP, "attention_mode", call.attention_mode, (ABSORBED,))
    require_choice(OP, "rounding", call.rounding, ROUNDINGS)
    if not is_finite(call.scale_value):
        refuse(OP, "scale_value", "a finite number", call.scale_value)
    made = in_rows(layout, query, query_rope, key, key_rope)
    _check_widths(query, query_rope, key, key_rope, made)
    if key_rope is None:
        check_joined(OP, "key", made.latents, query_rope.shape[-1], outlined)
    caches = _caches(made, query.shape[-1], query_rope.shape[-1], outlined)
    sinks = arrays.optional_view(OP, "sinks", call.sinks)
    if sinks is not None:
        require_dtype(OP, "sinks", sinks, (np.float32,))
        require_shape(OP, "sinks", sinks, query.shape[-2:-1])
    require_shape(OP, "sparse_indices", indices, (*query.shape[:-2], 1, indices.shape[-1] if indices.ndim else 0))
    require(indices.dtype.kind in "iu", OP, "sparse_indices", "integers", indices)
    tokens = find_tokens(layout, query.shape, call.actual_seq_lengths_query)
    keys = find_keys(layout, key.shape, call.actual_seq_lengths_kv, call.block_table, len(tokens.counts))
    block = call.sparse_block_size
    ok = is_int(block) and 0 < block <= MOST_IN_BLOCK and block & (block - 1) == 0
    require(ok, OP, "sparse_block_size", f"a power of two, at most {MOST_IN_BLOCK}", block)
    if layout.of_keys == "PA_BSND":
        require(key.shape[1] % block == 0, OP, "sparse_block_size", f"a divisor of the block size {key.shape[1]}", block)
    seen = visible(layout, tokens, keys)
    if indices.dtype == np.uint64:  # the largest is not -1
        indices = np.minimum(indices, np.uint64(2**63 - 1))
    given = indices.reshape(len(seen), indices.shape[-1]).astype(np.int64, copy=False)
    chosen, counts = positions(given, seen, keys.counts[tokens.sequence], int(block))
    block_size = max(1, layout.in_blocks("key", key).shape[1])
    slots = slots_of(chosen, keys, tokens.sequence, block_size)
    return Problem(made, caches, slots, counts, float(call.scale_value), sinks, call.rounding)


def in_rows(layout: Layout, query: Array, query_rope: Array, key: Array, key_rope: Array | None) -> Arrays:
    """NumPy arrays or tensors."""

    def flat(name: str, array: Any) -> Any:
        cache = layout.in_blocks(name, array)
        return cache.reshape(cache.shape[0] * cache.shape[1], 1, 1, cache.shape[3])

    rope_keys = None if key_rope is None else flat("key_rope", key_rope)
    return Arrays(layout.rows("query", query), layout.rows("query_rope", query_rope), flat("key", key), rope_keys)


def _caches(made: Arrays, width: int, rope: int, outlined: bool) -> tuple[Cache, Cache]:
    if made.rope_keys is not None:
        return Cache(made.latents, None), Cache(made.rope_keys, None)
    latents, rope_keys = joined_parts(made.latents, rope, outlined)
    require(latents.rows.shape[3] == width, OP, "key", f"rows with a latent of {width}", latents.rows)
    return latents, rope_keys


def positions(indices: np.ndarray, seen: np.ndarray, lengths: np.ndarray, block: int) -> tuple[np.ndarray, np.ndarray]:
    """The positions (T, most) that tokens attend to, ascending, and how many of each; what follows them is 0.

    indices: (T, size), blocks of positions. seen: (T,), how many first positions a token sees. lengths: (T,), of its sequence.
    """
    size = indices.shape[1]
    place = np.arange(size)
    ends = np.where((indices == -1).any(axis=1), (indices == -1).argmax(axis=1), size) if size else np.zeros(len(indices), int)
    is_read = place < np.minimum(ends, -(-seen // block))[:, None]
    outside = is_read & ((indices < 0) | (indices >= -(-lengths // block)[:, None]))
    if outside.any():
        rule = "-1 or a block of positions of the token's sequence, where it is read"
        refuse(OP, "sparse_indices", rule, Phrase(str(indices[outside][0])))
    far = np.iinfo(np.int64).max // MOST_IN_BLOCK
    chosen = np.sort(np.where(is_read & (indices * block < seen[:, None]), indices, far), axis=1)
    is_chosen = chosen < far
    twice = (chosen[:, 1:] == chosen[:, :-1]) & is_chosen[:, 1:]
    if twice.any():
        refuse(OP, "sparse_indices", "different for a token", Phrase(f"{chosen[:, 1:][twice][0]} twice"))
    all_of_them = (chosen[:, :, None] * block + np.arange(block)).reshape(len(chosen), size * block)
    is_position = all_of_them < seen[:, None]  # only the last block may be cut
    return np.where(is_position, all_of_them, 0), is_position.sum(axis=1)


def slots_of(chosen: np.ndarray, keys: Keys, sequence: np.ndarray, block_size: int) -> np.ndarray:
    """The rows of the cache that hold positions (T, most)."""
    if keys.table.shape[1] == 0:
        return np.zeros_like(chosen)
    slots: np.ndarray = keys.table[sequence[:, None], chosen // block_size] * block_size + chosen % block_size
    return slots


def is_same(a: Any, b: Any) -> bool:
    """Whether two arrays have the same elements in memory."""
    if a is b:
        return True
    if arrays.is_torch(a) and arrays.is_torch(b):
        return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride() and a.dtype == b.dtype
    both = isinstance(a, np.ndarray) and isinstance(b, np.ndarray)
    return both and a.__array_interface__ == b.__array_interface__


def _check_widths(
    query: np.ndarray, query_rope: np.ndarray, key: np.ndarray, key_rope: np.ndarray | None, made: Arrays
) -> None:
    _, heads, width = made.query.shape
    require_dtype(OP, "query", query, FLOATS)
    require_dtype(OP, "query_rope", query_rope, (query.dtype,))
    require(heads > 0 and width > 0, OP, "query", "of one head and one column or more", query)
    require_shape(OP, "query_rope", query_rope, (*query.shape[:-1], query_rope.shape[-1]))
    require(query_rope.shape[-1] % 2 == 0, OP, "query_rope", "of an even width", query_rope)
    if key_rope is None:
        return
    require_dtype(OP, "key", key, FLOATS)
    require_dtype(OP, "key_rope", key_rope, FLOATS)
    require_shape(OP, "key", key, (*key.shape[:-1], width))
    require_shape(OP, "key_rope", key_rope, (*key.shape[:-1], query_rope.shape[-1]))
