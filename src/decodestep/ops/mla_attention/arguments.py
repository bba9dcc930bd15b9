"""The arguments of mla_attention as given, and once they are checked."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from decodestep._base import arrays
from decodestep._base.arrays import BFLOAT16, FLOAT8, Array, Integers, IntegerTable
from decodestep._base.checks import (
    Phrase,
    describe_range,
    is_finite,
    is_int,
    refuse,
    require,
    require_blocks,
    require_choice,
    require_dtype,
    require_shape,
    require_within,
)
from decodestep.ops.mla_attention.caches import Cache, check_joined, joined_parts
from decodestep.ops.mla_prolog.cache_layouts import require_whole_fractals
from decodestep.ops.mla_prolog.size_limits import PAGED_MODES
from decodestep.weights.linear_panels import LinearPanels
from decodestep.weights.packed import PackedWeight

OP = "mla_attention"
_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)  # which compare in half the time of the types
STORED = (np.float32, np.float64, np.float16, BFLOAT16, np.int8)
INT8 = np.dtype(np.int8)
SCALED = (INT8, FLOAT8)  # with factors by which values were multiplied when stored; only latents are float8


class Call(NamedTuple):
    """The arguments of `mla_attention` by name, but for the backend; for `bind` the arrays may be outlines."""

    query: Array | None
    query_rope: Array
    kv_cache: Array
    kr_cache: Array | None
    block_table: IntegerTable
    lengths: Integers
    scale: float
    sequence: Integers | None
    groups: int
    cache_mode: str
    quant_scale_ckv: Array | None
    quant_scale_ckr: Array | None
    dequant_scale_q_nope: Array | None
    w_uv: PackedWeight | LinearPanels | None


class Problem(NamedTuple):
    """A checked call: views of the arrays, a row of block_table for each token, int64 indexes."""

    query: np.ndarray | None
    query_rope: np.ndarray
    kv_cache: Cache
    kr_cache: Cache
    block_table: np.ndarray
    sequence: np.ndarray
    lengths: np.ndarray
    scale: float
    groups: int
    w_uv: PackedWeight | LinearPanels | None
    query_scale: np.ndarray | None = None  # dequant_scale_q_nope
    joined: np.ndarray | None = None  # of whose rows both caches are parts

    @property
    def seen(self) -> np.ndarray:
        """Which tokens attend to anything."""
        return self.lengths > 0

    def part(self, tokens: np.ndarray) -> Problem:
        """The problem of some of the tokens, of one problem whose queries are floats."""
        assert self.query_scale is None
        query = None if self.query is None else self.query[tokens]
        indexes = {name: getattr(self, name)[tokens] for name in ("sequence", "lengths")}
        return self._replace(query=query, query_rope=self.query_rope[tokens], **indexes)

    @property
    def has_float64(self) -> bool:
        return _FLOAT64 in (self.query_rope.dtype, self.kv_cache.rows.dtype, self.kr_cache.rows.dtype)

    def in_floats(self) -> Problem:
        """The same with queries in float32, or in the float64 that they have, and without a scale of their own."""
        rope = self.query_rope
        if rope.dtype == _FLOAT32 and self.query_scale is None:
            return self
        rope = rope.astype(_FLOAT64 if rope.dtype == _FLOAT64 else _FLOAT32, copy=False)
        query = None if self.query is None else self.query.astype(rope.dtype, copy=False)
        if self.query_scale is not None:
            assert query is not None and self.kv_cache.scale is not None
            factor = self.query_scale.astype(rope.dtype, copy=False)
            with np.errstate(all="ignore"):  # the rope part of a head of zeros is infinite
                query, rope = query * factor, rope * factor / self.kv_cache.scale[:1].astype(rope.dtype)
        return self._replace(query=query, query_rope=rope, query_scale=None)


class Softmax(NamedTuple):
    """(T, N): the largest scores, and the sums of e^(score - largest)."""

    largest: np.ndarray
    sums: np.ndarray


def bind(call: Call, *, outlined: bool = False) -> Problem:
    """Checks every rule of the contract. outlined: the arrays are outlines, which do not lie where their tensors do."""
    query = arrays.optional_view(OP, "query", call.query)
    rope = arrays.view(OP, "query_rope", call.query_rope)
    require_choice(OP, "cache_mode", call.cache_mode, PAGED_MODES)
    nz = call.cache_mode == "PA_NZ"
    joined = _joined_rows(call, rope, outlined) if _is_joined(call.kr_cache, rope) else None
    if joined is None:
        kv = _cache("kv_cache", call.kv_cache, "quant_scale_ckv", call.quant_scale_ckv, nz)
        kr = _cache("kr_cache", call.kr_cache, "quant_scale_ckr", call.quant_scale_ckr, nz)
    else:
        kv, kr = joined_parts(joined, rope.shape[2], outlined)
    _check_shapes(query, rope, kv.rows, kr.rows, quantised=call.dequant_scale_q_nope is not None)
    if not is_finite(call.scale):
        refuse(OP, "scale", "a finite number", call.scale)
    _check_groups(call.groups, rope, kv.rows)
    blocks, block_size = kv.rows.shape[:2]
    indexes = _paging(call.block_table, call.sequence, call.lengths, len(rope), blocks, block_size)
    factor = None if call.dequant_scale_q_nope is None else _query_scale(call, rope)
    if call.w_uv is not None:
        _check_value_up(call.w_uv, rope.shape[1], kv.rows.shape[3] // call.groups)
    return Problem(query, rope, kv, kr, *indexes, float(call.scale), int(call.groups), call.w_uv, factor, joined)


def _check_shapes(query: np.ndarray | None, rope: np.ndarray, kv: np.ndarray, kr: np.ndarray, *, quantised: bool) -> None:
    require_dtype(OP, "query_rope", rope, (np.float32, np.float64, BFLOAT16))
    ok = rope.ndim == 3 and rope.shape[1] > 0 and rope.shape[2] % 2 == 0
    require(ok, OP, "query_rope", "of shape (T, N, Dr), N > 0, Dr even", rope)
    blocks, block_size, _, latent = kv.shape
    require(latent > 0, OP, "kv_cache", "of a width Hckv > 0", kv)
    require_shape(OP, "kr_cache", kr, (blocks, block_size, 1, rope.shape[2]))
    if query is not None:
        in_bytes = (FLOAT8 if kv.dtype == FLOAT8 else INT8,)
        require_dtype(OP, "query", query, in_bytes if quantised else (rope.dtype,))
        require_shape(OP, "query", query, (*rope.shape[:2], latent))


def _check_groups(groups: int, rope: np.ndarray, kv: np.ndarray) -> None:
    _, heads, width = rope.shape
    latent = kv.shape[3]
    ok = is_int(groups) and groups >= 1 and not (heads % groups or latent % groups or width % (2 * groups))
    require(ok, OP, "groups", f"a divisor of N {heads}, Hckv {latent} and Dr / 2 = {width // 2}", groups)


def _query_scale(call: Call, rope: np.ndarray) -> np.ndarray:
    """dequant_scale_q_nope, beside which other arguments have to be given."""
    factor = arrays.view(OP, "dequant_scale_q_nope", call.dequant_scale_q_nope)
    require_dtype(OP, "dequant_scale_q_nope", factor, (np.float32,))
    require_shape(OP, "dequant_scale_q_nope", factor, (*rope.shape[:2], 1))
    for name in ("query", "quant_scale_ckv"):
        if getattr(call, name) is None:
            refuse(OP, name, "given beside dequant_scale_q_nope", None)
    stored = arrays.view(OP, "quant_scale_ckv", call.quant_scale_ckv)
    require(stored.size == 1, OP, "quant_scale_ckv", "one number beside dequant_scale_q_nope", stored)
    return factor


def _is_joined(kr_cache: Array | None, rope: np.ndarray) -> bool:
    """Whether there is no kr_cache, or the empty one that the prolog has beside joined rows."""
    return kr_cache is None or (0 in tuple(kr_cache.shape)[-1:] and 0 not in rope.shape[-1:])


def _joined_rows(call: Call, rope: np.ndarray, outlined: bool) -> np.ndarray:
    """kv_cache beside which others may not be given."""
    require(rope.ndim == 3, OP, "query_rope", "of shape (T, N, Dr)", rope)
    rows = arrays.view(OP, "kv_cache", call.kv_cache)
    check_joined(OP, "kv_cache", rows, rope.shape[2], outlined)
    for name, given in (("groups", call.groups != 1), ("cache_mode", call.cache_mode != "PA_BSND")):
        require(not given, OP, name, "1" if name == "groups" else "PA_BSND", getattr(call, name))
    for name in ("quant_scale_ckv", "quant_scale_ckr", "dequant_scale_q_nope"):
        if getattr(call, name) is not None:
            refuse(OP, name, "None beside a cache quantised by tiles", getattr(call, name))
    return rows


def _cache(name: str, value: Array | None, scale_name: str, scale: Array | None, nz: bool) -> Cache:
    """The cache with its scale, which values of one byte have and nothing else."""
    rows = arrays.view(OP, name, value)
    require_dtype(OP, name, rows, (*STORED, FLOAT8) if name == "kv_cache" else STORED)
    require(rows.ndim == 4 and rows.shape[2] == 1, OP, name, "of shape (BlockNum, BlockSize, 1, width)", rows)
    if nz:
        require_whole_fractals(OP, name, rows)
    if rows.dtype not in SCALED:
        if scale is not None:
            refuse(OP, scale_name, f"None beside a {name} of dtype {rows.dtype}", scale)
        return Cache(rows, None, nz)
    if scale is None:
        refuse(OP, scale_name, f"given beside an {rows.dtype} {name}", None)
    factors = arrays.view(OP, scale_name, scale)
    require_dtype(OP, scale_name, factors, (np.float32,))
    width = rows.shape[3]
    require(factors.size in (1, width), OP, scale_name, f"one number or {width}", factors)
    return Cache(rows, np.ascontiguousarray(np.broadcast_to(factors.reshape(-1), width)), nz)


def _paging(
    block_table: IntegerTable, sequence: Integers | None, lengths: Integers, tokens: int, blocks: int, block_size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """block_table, sequence and lengths as int64; every block that they lead to exists."""
    table = arrays.integers(OP, "block_table", block_table, rank=2)
    rows = np.arange(tokens) if sequence is None else arrays.integers(OP, "sequence", sequence, rank=1)
    seen = arrays.integers(OP, "lengths", lengths, rank=1)
    require_shape(OP, "lengths", seen, (tokens,))
    require_shape(OP, "sequence", rows, (tokens,))
    if tokens == 0:
        return table, rows, seen
    room = table.shape[1] * block_size
    if seen.min() < 1:
        rows = np.where(seen == 0, 0, rows)  # what a token without entries names is not read
    if seen.max() > 0:
        require_within(OP, "sequence", rows, table.shape[0])
    if seen.min() < 0 or seen.max() > room:
        refuse(OP, "lengths", f"in [0, {room}]", describe_range(seen))
    if table.min(initial=0) < 0 or table.max(initial=-1) >= blocks:  # perhaps only after the sequences' lengths
        longest = np.zeros(table.shape[0], np.int64)
        np.maximum.at(longest, rows, seen)
        require_blocks(OP, "block_table", table, longest, blocks, block_size)
    return table, rows, seen


def _check_value_up(weight: PackedWeight | LinearPanels, heads: int, width: int) -> None:
    """A weight (width, heads * Dv)."""
    require(isinstance(weight, PackedWeight | LinearPanels), OP, "w_uv", "a PackedWeight, a LinearPanels or None", weight)
    inputs, outputs = weight.shape
    unit = 32 if isinstance(weight, LinearPanels) else 1
    rule = f"of shape ({width}, {heads} * Dv)" + (", Dv a multiple of 32" if unit > 1 else "")
    require(inputs == width and outputs > 0 and outputs % (heads * unit) == 0, OP, "w_uv", rule, Phrase(f"{inputs}x{outputs}"))
