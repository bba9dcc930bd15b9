"""Checks the arguments of decoder_forward."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from decodestep._base import arrays
from decodestep._base.aliasing import require_apart
from decodestep._base.arrays import BFLOAT16, Array, Integers, IntegerTable
from decodestep._base.checks import Phrase, refuse, require, require_dtype, require_shape, require_within
from decodestep.ops.decoder_forward.group_cache import PAGE as PAGE
from decodestep.ops.decoder_forward.group_cache import TYPES, page_shapes
from decodestep.ops.decoder_forward.latent_cache import latent_page_shapes, page_shape, rope_key_dtype
from decodestep.ops.decoder_forward.weights import DecoderWeights

OP = "decoder_forward"


class Call(NamedTuple):  # quicker to make than a frozen dataclass, and one is made for each step
    """The arguments of decoder_forward as NumPy arrays; the integers are copies, int64 in C order.

    kept, kept_rows: of the package's own calls, float32 (K, values of a token) and int64 (T,): where the core keeps what
    `cpu.replay_states` reads of each token, -1 for none.
    """

    weights: DecoderWeights
    token_ids: np.ndarray
    sequence: np.ndarray
    positions: np.ndarray
    sin: np.ndarray
    cos: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    page_table: np.ndarray
    wanted: np.ndarray
    hidden: np.ndarray | None = None
    layer_inputs: np.ndarray | None = None
    states: np.ndarray | None = None
    slots: np.ndarray | None = None
    into: np.ndarray | None = None
    index_keys: np.ndarray | None = None
    kept: np.ndarray | None = None
    kept_rows: np.ndarray | None = None


def bind(
    weights: DecoderWeights,
    token_ids: Integers,
    sequence: Integers,
    positions: Integers,
    sin: Array,
    cos: Array,
    keys: Array,
    values: Array,
    page_table: IntegerTable,
    wanted: Integers,
    hidden: Array | None = None,
    layer_inputs: Array | None = None,
    states: Array | None = None,
    slots: Integers | None = None,
    into: Integers | None = None,
    index_keys: Array | None = None,
) -> Call:
    """Checks every rule of the contract, before anything is written."""
    read = None if slots is None else arrays.integers(OP, "slots", slots, rank=1)
    require(isinstance(weights, DecoderWeights), OP, "weights", "a DecoderWeights", weights)
    call = Call(
        weights,
        arrays.integers(OP, "token_ids", token_ids, rank=1),
        arrays.integers(OP, "sequence", sequence, rank=1),
        arrays.integers(OP, "positions", positions, rank=1),
        _in_ropes(arrays.view(OP, "sin", sin)),
        _in_ropes(arrays.view(OP, "cos", cos)),
        _in_slabs(arrays.view(OP, "keys", keys)),
        _in_slabs(arrays.view(OP, "values", values)),
        arrays.integers(OP, "page_table", page_table, rank=2),
        arrays.integers(OP, "wanted", wanted, rank=1),
        arrays.optional_view(OP, "hidden", hidden),
        arrays.optional_view(OP, "layer_inputs", layer_inputs),
        arrays.optional_view(OP, "states", states),
        read,
        read if into is None else arrays.integers(OP, "into", into, rank=1),
        None if index_keys is None else _in_slabs(arrays.view(OP, "index_keys", index_keys)),
    )
    tokens = call.token_ids.shape
    require_shape(OP, "sequence", call.sequence, tokens)
    require_shape(OP, "positions", call.positions, tokens)
    _check_rope(call)
    pages = _check_cache(call)
    rows, table_width = call.page_table.shape
    require_within(OP, "token_ids", call.token_ids, weights.vocab_size)
    require_within(OP, "sequence", call.sequence, rows)
    require_within(OP, "positions", call.positions, min(call.sin.shape[1], PAGE * table_width))
    require_within(OP, "wanted", call.wanted, tokens[0])
    _check_index(call)
    _check_pages(call, pages)
    _require_distinct_places(call)
    if call.hidden is not None:
        _check_hidden(call, call.hidden)
    _check_inputs(call)
    _check_states(call)
    return call


def _in_slabs(cache: np.ndarray) -> np.ndarray:
    """The cache with an axis of slabs: grouped-query attention has 7 axes then, latent attention 5."""
    return cache[None] if cache.ndim in (4, 6) else cache


def _in_ropes(table: np.ndarray) -> np.ndarray:
    """The table with an axis of ropes."""
    return table[None] if table.ndim == 2 else table


def _check_rope(call: Call) -> None:
    sin, cos = (table[0] if table.ndim == 3 and len(table) == 1 else table for table in (call.sin, call.cos))
    require_dtype(OP, "sin", sin, (np.float32, np.float64))
    require_dtype(OP, "cos", cos, (sin.dtype,))
    half, ropes = call.weights.rope_dim // 2, call.weights.rope_count
    ok = call.sin.ndim == 3 and call.sin.shape[2] == half and call.sin.shape[0] >= ropes
    shape = f"(P, {half})" if ropes == 1 else f"({ropes}, P, {half})"
    require(ok, OP, "sin", f"of shape {shape}", sin)
    require_shape(OP, "cos", cos, sin.shape)


def _check_cache(call: Call) -> int:
    """The number of pages."""
    w = call.weights
    layers, axis = w.cache_depth, 3 if w.latent is None else 2
    slabs, pages = (call.keys.shape[0], call.keys.shape[axis]) if call.keys.ndim > axis else (1, 0)
    if w.latent is None:
        require_dtype(OP, "keys", call.keys, TYPES)
        require_dtype(OP, "values", call.values, (call.keys.dtype,))
        ok = call.keys.dtype == BFLOAT16 or w.head_dim % 16 == 0
        require(
            ok, OP, "keys", "bfloat16 where heads are not a multiple of 16", Phrase(f"{call.keys.dtype}, heads of {w.head_dim}")
        )
        keys, values = ((slabs, layers, w.kv_heads, pages, *page) for page in page_shapes(call.keys.dtype, w.head_dim))
    else:
        require_dtype(OP, "values", call.values, TYPES)
        require_dtype(OP, "keys", call.keys, (rope_key_dtype(call.values.dtype),))
        shapes_of_page = latent_page_shapes(call.values.dtype, w.latent.latent, w.latent.rope)
        keys, values = ((slabs, layers, pages, *page) for page in shapes_of_page)
    shapes: dict[str, tuple[int, ...]] = {"keys": keys, "values": values}
    for (name, shape), array in zip(shapes.items(), (call.keys, call.values), strict=True):
        require_shape(OP, name, array, shape)
        _require_writeable(name, array)
    require_apart(OP, {"keys": call.keys, "values": call.values}, {"sin": call.sin, "cos": call.cos})
    return slabs * pages


def _check_index(call: Call) -> None:
    w, given = call.weights, call.index_keys
    selects = w.latent is not None and w.latent.selected > 0
    require((given is not None) == selects, OP, "index_keys", "given where layers select positions, and only there", given)
    if given is None or w.latent is None:
        return
    require_dtype(OP, "index_keys", given, (rope_key_dtype(call.values.dtype), np.int8))
    slabs, _, pages = call.keys.shape[:3]
    require_shape(OP, "index_keys", given, (slabs, w.index_depth, pages, *page_shape(given.dtype, w.latent.index_width)))
    _require_writeable("index_keys", given)
    require_apart(OP, {"index_keys": given}, {name: getattr(call, name) for name in ("keys", "values", "sin", "cos")})


def _check_hidden(call: Call, hidden: np.ndarray) -> None:
    require_dtype(OP, "hidden", hidden, (call.sin.dtype,))
    require_shape(OP, "hidden", hidden, (*call.token_ids.shape, call.weights.hidden))
    _require_writeable("hidden", hidden)
    require_apart(OP, {"hidden": hidden}, {name: getattr(call, name) for name in ("keys", "values", "sin", "cos")})


def _check_inputs(call: Call) -> None:
    width, given = call.weights.input_width, call.layer_inputs
    require((given is not None) == (width > 0), OP, "layer_inputs", "given where layers have inputs, and only there", given)
    if given is not None:
        require_dtype(OP, "layer_inputs", given, (call.sin.dtype,))
        require_shape(OP, "layer_inputs", given, (*call.token_ids.shape, len(call.weights.layers), width))


def _check_states(call: Call) -> None:
    size, states, slots, into = call.weights.state_size, call.states, call.slots, call.into
    for name, given in (("states", states), ("slots", slots)):
        require((given is not None) == (size > 0), OP, name, "given where layers have states, and only there", given)
    if states is None or slots is None or into is None:
        require(into is None, OP, "into", "given with slots alone", into)
        return
    require_dtype(OP, "states", states, (np.float32,))
    require(states.ndim == 2 and states.shape[1] == size, OP, "states", f"of shape (S, {size})", states)
    _require_writeable("states", states)
    others = {name: value for name in ("keys", "values", "sin", "cos", "hidden") if (value := getattr(call, name)) is not None}
    require_apart(OP, {"states": states}, others)
    runs = token_runs(call.sequence)
    sequences = call.sequence[[run.start for run in runs]]
    for name, given in (("slots", slots), ("into", into)):
        require_shape(OP, name, given, call.page_table.shape[:1])
        require_within(OP, name, given[sequences], len(states))
    together = len(runs) == len(np.unique(call.sequence))
    in_order = all((np.diff(call.positions[run]) == 1).all() for run in runs)
    require(together and in_order, OP, "positions", "those of a sequence side by side and one after another", call.positions)
    read, written = slots[sequences].tolist(), into[sequences].tolist()
    writer = dict(zip(written, range(len(written)), strict=True))
    own = len(writer) == len(written) and all(writer.get(slot, row) == row for row, slot in enumerate(read))
    rule = "states of their own, that no other sequence of the call reads"
    require(own, OP, "into", rule, Phrase(f"{read} read, {written} written"))


def token_runs(sequence: np.ndarray) -> list[slice]:
    """Neighbouring tokens of the same sequence."""
    bounds = [0, *(np.flatnonzero(np.diff(sequence)) + 1).tolist(), len(sequence)]
    return [slice(first, end) for first, end in pairwise(bounds) if first < end]


def _require_writeable(name: str, array: np.ndarray) -> None:
    ok = array.flags.c_contiguous and array.flags.aligned and array.flags.writeable
    require(ok, OP, name, "writeable and contiguous in C order", Phrase("an array that is not"))


def _require_distinct_places(call: Call) -> None:
    """Of two tokens at one place of the cache, which one's keys and values remained would be a matter of chance."""
    block, row = np.divmod(call.positions, PAGE)
    pages = call.page_table[call.sequence, block]
    places = (pages * PAGE + row).tolist()
    if len(set(places)) == len(places):
        return
    token_at: dict[int, int] = {}
    u = next(i for i, place in enumerate(places) if token_at.setdefault(place, i) != i)
    t = token_at[places[u]]
    if (call.sequence[t], call.positions[t]) == (call.sequence[u], call.positions[u]):
        rule = "different for the tokens of a sequence"
        refuse(OP, "positions", rule, Phrase(f"{call.positions[t]} twice for sequence {call.sequence[t]}"))
    both = " and ".join(f"position {call.positions[i]} of sequence {call.sequence[i]}" for i in (t, u))
    refuse(OP, "page_table", "such that every token has a place of its own", Phrase(f"page {pages[t]} for {both}"))


def _check_pages(call: Call, pages: int) -> None:
    """Every page up to a token's own must exist."""
    last = np.full(len(call.page_table), -1, np.int64)  # the last page that each sequence reads
    np.maximum.at(last, call.sequence, call.positions // PAGE)
    is_read = np.arange(call.page_table.shape[1]) <= last[:, None]
    if ((call.page_table < 0) | (call.page_table >= pages))[is_read].any():
        refuse(OP, "page_table", f"in [0, {pages}) where it is read", call.page_table)
