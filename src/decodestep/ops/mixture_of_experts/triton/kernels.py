"""The kernels of mixture_of_experts: the products of a tile of entries by their expert's weights, and the sum by token.

Weights in bfloat16 (NARROW) are multiplied as they are: the other operand is cut into three bfloat16 pieces, of which it is the
exact sum, and the pieces of an entry are rows of one product. All other weights become float32 tiles.
"""

from __future__ import annotations

import triton
import triton.language as tl

from decodestep._base.triton import MINUS_INFINITY, as_float32
from decodestep._base.triton_products import product, truncate_bfloat16

SQUARED_RELU, SILU, GELU = (tl.constexpr(kind) for kind in range(3))
_TWICE_ROOT = tl.constexpr(1.5957691216057308)  # 2 * sqrt(2 / pi), of the tanh form of GELU


@triton.jit
def gate_up(
    x, tokens, tiles, gate, up, out, depth, columns, x_row, x_item, gate_row, gate_item, up_row, up_item,
    KIND: tl.constexpr, NARROW: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, PIECES: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Program (tile, columns). tiles: expert, first entry, number of entries. PIECES rows belong to an entry."""
    first, count, entry, piece, n, output = load_tile(tiles, columns, ROWS, PIECES, COLUMNS)
    token = tl.load(tokens + first + entry, mask=entry < count, other=0)
    of_up = tl.zeros([ROWS, COLUMNS], tl.float32)
    of_gate = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, depth, DEPTH):
        k = start + tl.arange(0, DEPTH)
        a = load_entries(x, token * x_row, k, x_item, entry < count, k < depth, piece, NARROW)
        of_up = add_product(a, load_weights(up, output, k, k < depth, up_row, up_item, NARROW), of_up, NARROW, PRECISION)
        if KIND != SQUARED_RELU:
            b = load_weights(gate, output, k, k < depth, gate_row, gate_item, NARROW)
            of_gate = add_product(a, b, of_gate, NARROW, PRECISION)
    of_up = add_pieces(of_up, PIECES)
    of_gate = add_pieces(of_gate, PIECES)
    if KIND == SQUARED_RELU:
        positive = tl.where(of_up < 0.0, 0.0, of_up)
        result = positive * positive
    else:
        z = of_gate
        if KIND == GELU:
            z = _TWICE_ROOT * (of_gate + 0.044715 * of_gate * of_gate * of_gate)
            result = of_gate / (1.0 + tl.exp(-z)) * of_up
        else:
            result = tl.where(of_gate == MINUS_INFINITY, 0.0, of_gate / (1.0 + tl.exp(-z))) * of_up
    store_entries(out, first, count, result, n, columns, ROWS // PIECES)


@triton.jit
def down(
    between, tiles, weights, out, depth, columns, weight_row, weight_item,
    NARROW: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, PIECES: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Program (tile, columns), as in `gate_up`."""
    first, count, entry, piece, n, output = load_tile(tiles, columns, ROWS, PIECES, COLUMNS)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, depth, DEPTH):
        k = start + tl.arange(0, DEPTH)
        a = load_entries(between, (first + entry) * depth, k, 1, entry < count, k < depth, piece, NARROW)
        b = load_weights(weights, output, k, k < depth, weight_row, weight_item, NARROW)
        total = add_product(a, b, total, NARROW, PRECISION)
    store_entries(out, first, count, add_pieces(total, PIECES), n, columns, ROWS // PIECES)


@triton.jit
def load_tile(tiles, columns, ROWS: tl.constexpr, PIECES: tl.constexpr, COLUMNS: tl.constexpr):
    """(first entry, number of entries, entry and piece of each row, columns, rows of the weights or -1) of a program."""
    tiles += 3 * tl.program_id(0)
    expert, first, count = tl.load(tiles), tl.load(tiles + 1), tl.load(tiles + 2)
    row = tl.arange(0, ROWS)
    n = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    return first, count, row // PIECES, row % PIECES, n, tl.where(n < columns, expert * columns + n, -1)


@triton.jit
def load_entries(entries, row, k, by_item, is_entry, is_input, piece, NARROW: tl.constexpr):
    """Rows of float32, or in each row the piece of it that has this number; there are three, and rows without one are zero."""
    at = row[:, None] + (k.to(tl.int64) * by_item)[None, :]
    values = tl.load(entries + at, mask=is_entry[:, None] & is_input[None, :], other=0.0)
    if NARROW:
        high, rest = truncate_bfloat16(values)
        middle, low = truncate_bfloat16(rest)
        number = tl.broadcast_to(piece[:, None], values.shape)
        values = tl.where(number == 0, high, tl.where(number == 1, middle, tl.where(number == 2, low, 0.0)))
        values = values.to(tl.bfloat16)
    return values


@triton.jit
def load_weights(weights, output, k, is_input, by_row, by_item, NARROW: tl.constexpr):
    """(k, output); an output of -1 has none."""
    at = (output * by_row)[None, :] + (k.to(tl.int64) * by_item)[:, None]
    values = tl.load(weights + at, mask=is_input[:, None] & (output >= 0)[None, :], other=0.0)
    return values if NARROW else as_float32(values)


@triton.jit
def add_product(a, b, total, NARROW: tl.constexpr, PRECISION: tl.constexpr):
    if NARROW:
        # Tensor cores cut what they add, so that the error of a sum in them grows with its length: theirs ends with the tile.
        return tl.fma(product(a, b, tl.zeros_like(total)), tl.full(total.shape, 1.0, tl.float32), total)
    else:
        return tl.dot(a, b, total, input_precision=PRECISION)


@triton.jit
def add_pieces(total, PIECES: tl.constexpr):
    """The sums of each PIECES rows that follow each other."""
    return tl.sum(tl.reshape(total, [total.shape[0] // PIECES, PIECES, total.shape[1]]), axis=1)


@triton.jit
def store_entries(out, first, count, values, n, columns, ENTRIES: tl.constexpr):
    entry = tl.arange(0, ENTRIES)
    at = (first + entry)[:, None] * columns + n[None, :]
    tl.store(out + at, values, mask=(entry < count)[:, None] & (n < columns)[None, :])


@triton.jit
def add_outputs(
    outputs, of_shared, weights, places, columns, y, used, hidden, weight_row, weight_item,
    SHARED: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    t = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([COLUMNS], tl.float32)
    for j in range(used):
        at = tl.load(places + t * used + j)
        factor = tl.load(weights + t * weight_row + tl.load(columns + t * used + j) * weight_item)
        total += factor * tl.load(outputs + at * hidden + n, mask=n < hidden, other=0.0)
    if SHARED:
        total += tl.load(of_shared + t * hidden + n, mask=n < hidden, other=0.0)
    tl.store(y + t * hidden + n, total, mask=n < hidden)
