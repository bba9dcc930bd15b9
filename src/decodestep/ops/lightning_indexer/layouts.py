"""The layouts of tokens and keys of `lightning_indexer` and `sparse_mla_attention`, as rows of ragged sequences in pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from decodestep._base import arrays
from decodestep._base.arrays import BFLOAT16, Integers, IntegerTable
from decodestep._base.checks import describe_range, is_int, refuse, require, require_blocks, require_choice, require_shape

TOKEN_LAYOUTS = ("BSND", "TND")
KEY_LAYOUTS = ("BSND", "TND", "PA_BSND")
CAUSAL = 3  # a sparse mode: right-down causal
SPARSE_MODES = (0, CAUSAL)
ALL_TOKENS = 2**63 - 1  # the only pre_tokens and next_tokens
FLOATS = (np.float32, np.float64, np.float16, BFLOAT16)  # the dtypes of both operators
ROUNDINGS = (None, "device")


@dataclass(frozen=True)
class Layout:
    """What a call says of its layouts. op: the operator, for errors; keys: what it calls its keys."""

    op: str
    keys: str
    of_tokens: str
    of_keys: str
    sparse_mode: int
    pre_tokens: int
    next_tokens: int

    def check(self) -> None:
        require_choice(self.op, "layout_query", self.of_tokens, TOKEN_LAYOUTS)
        require_choice(self.op, f"layout_{self.keys}", self.of_keys, KEY_LAYOUTS)
        require(is_int(self.sparse_mode), self.op, "sparse_mode", "0 or 3", self.sparse_mode)
        require_choice(self.op, "sparse_mode", self.sparse_mode, SPARSE_MODES)
        for name in ("pre_tokens", "next_tokens"):
            value = getattr(self, name)
            require(is_int(value) and value == ALL_TOKENS, self.op, name, "2^63 - 1", value)

    def require_tokens(self, name: str, array: Any, *, has_width: bool = True) -> None:
        rank = len(self.of_tokens) - (not has_width)
        require(array.ndim == rank, self.op, name, f"of rank {rank} in the layout {self.of_tokens}", array)

    def rows(self, name: str, array: Any, *, has_width: bool = True) -> Any:
        """An array of tokens as (T, heads, width), or (T, heads)."""
        self.require_tokens(name, array, has_width=has_width)
        return array.reshape(array.shape[0] * array.shape[1], *array.shape[2:]) if self.of_tokens == "BSND" else array

    def require_keys(self, name: str, array: Any) -> None:
        rank = 3 if self.of_keys == "TND" else 4
        ok = array.ndim == rank and array.shape[rank - 2] == 1
        require(ok, self.op, name, f"of rank {rank} with one head in the layout {self.of_keys}", array)

    def in_blocks(self, name: str, array: Any) -> Any:
        """An array of keys as (blocks, block size, 1, width)."""
        self.require_keys(name, array)
        return array[:, None] if self.of_keys == "TND" else array


class Tokens(NamedTuple):
    """Rows of tokens. sequence: (T,), in [0, B). place: (T,), in its sequence; counts: (B,), the tokens of each."""

    sequence: np.ndarray
    place: np.ndarray
    counts: np.ndarray

    @property
    def is_real(self) -> np.ndarray:
        """(T,), whether a row is a token and no padding."""
        real: np.ndarray = self.place < self.counts[self.sequence]
        return real


class Keys(NamedTuple):
    """Where the sequences' keys are. table: (B, M) blocks of each sequence in order. counts: (B,) keys of each."""

    table: np.ndarray
    counts: np.ndarray


def find_tokens(layout: Layout, shape: tuple[int, ...], lengths: Integers | None) -> Tokens:
    """shape: of the query. lengths: actual_seq_lengths_query."""
    op, name = layout.op, "actual_seq_lengths_query"
    given = None if lengths is None else arrays.integers(op, name, lengths, rank=1)
    if layout.of_tokens == "TND":
        ends = _ends(op, name, given, shape[0])
        counts = np.diff(ends, prepend=0)
        sequence = np.repeat(np.arange(len(counts)), counts)
        place = np.arange(len(sequence)) - (ends - counts)[sequence]
        padding = shape[0] - len(sequence)  # rows after the last sequence belong to it
        sequence = np.append(sequence, np.full(padding, len(counts) - 1))
        return Tokens(sequence, np.append(place, counts[-1] + np.arange(padding) if padding else place[:0]), counts)
    batch, rows = shape[:2]
    counts = np.full(batch, rows) if given is None else given
    require_shape(op, name, counts, (batch,))
    _require_lengths(op, name, counts, rows)
    return Tokens(np.repeat(np.arange(batch), rows), np.tile(np.arange(rows), batch), counts)


def find_keys(
    layout: Layout, shape: tuple[int, ...], lengths: Integers | None, block_table: IntegerTable | None, batch: int
) -> Keys:
    """shape: of the keys as they are given. lengths: their actual_seq_lengths. batch: of the tokens."""
    op, name = layout.op, f"actual_seq_lengths_{layout.keys}"
    given = None if lengths is None else arrays.integers(op, name, lengths, rank=1)
    if (block_table is not None) != (layout.of_keys == "PA_BSND"):
        refuse(op, "block_table", "given in the layout PA_BSND, and only there", block_table)
    if layout.of_keys == "TND":
        ends = _ends(op, name, given, shape[0])
        require_shape(op, name, ends, (batch,))
        counts = np.diff(ends, prepend=0)
        column = np.arange(counts.max(initial=0))
        return Keys(np.where(column < counts[:, None], (ends - counts)[:, None] + column, 0), counts)
    if layout.of_keys == "BSND":
        require(shape[0] == batch, op, layout.keys, f"of {batch} sequences", shape[0])
        counts = np.full(batch, shape[1]) if given is None else given
        require_shape(op, name, counts, (batch,))
        _require_lengths(op, name, counts, shape[1])
        return Keys(np.arange(batch)[:, None], counts)
    table = arrays.integers(op, "block_table", block_table, rank=2)
    if given is None:
        refuse(op, name, "given in the layout PA_BSND", None)
    require_shape(op, name, given, (batch,))
    require(len(table) == batch, op, "block_table", f"of {batch} rows", table)
    blocks, block_size = shape[:2]
    _require_lengths(op, name, given, table.shape[1] * block_size)
    require_blocks(op, "block_table", table, given, blocks, block_size)
    return Keys(table, given)


def visible(layout: Layout, tokens: Tokens, keys: Keys) -> np.ndarray:
    """(T,), the number of first keys of its sequence that each row sees; 0 for padding."""
    lengths = keys.counts[tokens.sequence]
    if layout.sparse_mode == CAUSAL:
        lengths = np.clip(lengths - tokens.counts[tokens.sequence] + tokens.place + 1, 0, lengths)
    return np.where(tokens.is_real, lengths, 0)


def _ends(op: str, name: str, ends: np.ndarray | None, rows: int) -> np.ndarray:
    """Prefix sums of the lengths of sequences whose rows follow each other."""
    if ends is None:
        refuse(op, name, "given in the layout TND", None)
    ok = len(ends) > 0 and (np.diff(ends, prepend=0) >= 0).all() and ends[-1] <= rows
    require(bool(ok), op, name, f"prefix sums of lengths, at most {rows}", ends.tolist())
    return ends


def _require_lengths(op: str, name: str, lengths: np.ndarray, most: int) -> None:
    if lengths.size and (lengths.min() < 0 or lengths.max() > most):
        refuse(op, name, f"in [0, {most}]", describe_range(lengths))
