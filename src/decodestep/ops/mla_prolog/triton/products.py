"""Products of a few tokens by weights that are read once: sums over parts of the depth, which the next kernel adds.

A product of floating-point numbers is computed transposed, the weight's columns as its rows, of which the tensor cores of a
Hopper GPU take 64 at a time for any number of tokens. Every token thus gets the same instructions in the same order, and the
same bits, whatever other tokens the call has. Sums of int8 products are exact; they are computed as they stand, since those
instructions take no int8 weight whose columns lie side by side, and for at most 32 tokens at a time, which selects others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from decodestep._base.triton import LAUNCH, as_float32, round_bfloat16
from decodestep._base.triton_float8 import exponent_values, float8_values
from decodestep._base.triton_overlap import fetch_sectors, let_next_start, overlap, wait_for_last
from decodestep._base.triton_products import INTERPRETED, product
from decodestep.ops.mla_prolog.scenarios import BLOCK
from decodestep.weights.nz import fractal_width


@triton.jit
def multiply(
    x, first, second, x_scale, first_scale, second_scale, first_parts, second_parts, rows, depth, share, first_columns,
    second_columns, x_row, x_item, first_group, first_row, first_item, second_group, second_row, second_item,
    PARTS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    AHEAD: tl.constexpr, REMAINING: tl.constexpr, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """x (rows, depth) times two weights (depth, columns), the second of which may have no columns.

    A part of a product, (rows, columns), sums over a `share` of the depth; a program adds PARTS of them. A weight's columns lie
    in groups of GROUP, a sector's, as in NZ storage, where a group is a column of fractals. AHEAD: the steps whose weights are
    fetched while the kernel before, which makes x, still runs. REMAINING: the steps of a program when it lets the next kernel
    start, whose first loads shall come when memory is about to be idle, and not before those of this one. BLOCK: of eight-bit
    floats, which come as uint8, the inputs of a row of x and of a column of a weight that share a power of two, (rows, depth /
    BLOCK) and (columns, depth / BLOCK); 0: they have none.
    """
    tile, tiles = tl.program_id(1), tl.cdiv(first_columns, COLUMNS)
    w, parts, columns, w_group, w_row, w_item = first, first_parts, first_columns, first_group, first_row, first_item
    w_scale = first_scale
    if tile >= tiles:
        tile -= tiles
        w, parts, columns, w_group, w_row, w_item = second, second_parts, second_columns, second_group, second_row, second_item
        w_scale = second_scale
    t = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    n = tile.to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    is_row, is_column = t < rows, n < columns
    first_part = tl.program_id(2) * PARTS
    if OVERLAPS:
        fetch_weight(w, first_part * share, depth, tile, columns, w_group, w_row, GROUP, COLUMNS, DEPTH, AHEAD)
    wait_for_last(OVERLAPS)
    total = make_zeros(first, ROWS, COLUMNS)
    for part in range(PARTS):
        begin = (first_part + part) * share
        end = tl.minimum(begin + share, depth)
        k = begin.to(tl.int64) + tl.arange(0, DEPTH)
        x_at = x + t[:, None] * x_row + k[None, :] * x_item
        w_at = w + k[:, None] * w_row + (n // GROUP * w_group + n % GROUP * w_item)[None, :]
        part_total = make_zeros(first, ROWS, COLUMNS)
        for at in range(begin, end, DEPTH):
            is_input = at + tl.arange(0, DEPTH) < end
            if (part == PARTS - 1) & (end - at <= REMAINING * DEPTH):
                let_next_start(OVERLAPS)
            b = tl.load(w_at, mask=is_input[:, None] & is_column[None, :], other=0)
            a = tl.load(x_at, mask=is_row[:, None] & is_input[None, :], other=0)
            if first.dtype.element_ty == tl.int8:
                part_total = tl.dot(a, b, part_total, out_dtype=tl.int32)
            elif first.dtype.element_ty == tl.uint8:
                a, b = float8_values(a.to(tl.int32)), float8_values(b.to(tl.int32))
                if BLOCK:
                    block, blocks = (at + tl.arange(0, DEPTH)) // BLOCK, depth // BLOCK
                    a_at, b_at = (t * blocks)[:, None] + block[None, :], (n * blocks)[None, :] + block[:, None]
                    a *= exponents(x_scale + a_at, is_row[:, None] & is_input[None, :])
                    b *= exponents(w_scale + b_at, is_input[:, None] & is_column[None, :])
                part_total = add_product(part_total, narrow(a), narrow(b))
            else:
                part_total = add_product(part_total, a, b)
            w_at += DEPTH * w_row
            x_at += DEPTH * x_item
        total += part_total
    if first.dtype.element_ty == tl.int8:
        total = tl.trans(total)
    at = (tl.program_id(2).to(tl.int64) * rows + t)[None, :] * columns + n[:, None]
    store_rounded(parts + at, total, is_row[None, :] & is_column[:, None])


@triton.jit
def exponents(at, mask):
    return exponent_values(tl.load(at, mask=mask, other=127).to(tl.int32))


@triton.jit
def narrow(x):
    """float32 numbers that are bfloat16 ones; the interpreter multiplies them as they are."""
    if INTERPRETED:
        return x
    else:
        return x.to(tl.bfloat16)


@triton.jit
def fetch_weight(
    w, begin, depth, tile, columns, w_group, w_row, GROUP: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    AHEAD: tl.constexpr,
):  # fmt: skip
    """To the L2 cache: AHEAD steps of a tile of columns."""
    groups: tl.constexpr = COLUMNS // GROUP
    n = tile * groups + tl.arange(0, groups)
    for step in tl.static_range(AHEAD):
        k = begin + step * DEPTH + tl.arange(0, DEPTH)
        at = k[:, None].to(tl.int64) * w_row + n[None, :].to(tl.int64) * w_group
        fetch_sectors(w + tl.where((k < depth)[:, None] & (n * GROUP < columns)[None, :], at, 0))


@triton.jit
def make_zeros(w, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Of a sum of products by w, which int8 ones do not transpose."""
    if w.dtype.element_ty == tl.int8:
        return tl.zeros([ROWS, COLUMNS], tl.int32)
    else:
        return tl.zeros([COLUMNS, ROWS], tl.float32)


@triton.jit
def add_product(total, x, w):
    """total (columns, rows) plus the transposed product of x (rows, depth) and w (depth, columns), in float32."""
    if INTERPRETED:  # where a row of a product is rounded by its place, unless it is one of the left matrix
        return total + tl.trans(product(x, w, tl.zeros([x.shape[0], w.shape[1]], tl.float32)))
    else:
        return product(tl.trans(w), tl.trans(x), total)


@triton.jit
def store_rounded(out, x, mask):
    """Stores float32 rounded to bfloat16 where out is that; anything else as it is."""
    if out.dtype.element_ty == tl.bfloat16:
        tl.store(out, as_bfloat16(x), mask=mask)
    else:
        tl.store(out, x, mask=mask)


@triton.jit
def as_bfloat16(x):
    return (round_bfloat16(x, True).to(tl.uint32, bitcast=True) >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)


@triton.jit
def add_parts(
    parts, row, item, size, x_scale, w_scale, t, n, is_row, is_column, PARTS: tl.constexpr, SCALED: tl.constexpr,
    BFLOAT16: tl.constexpr,
):  # fmt: skip
    """Elements (t, n) of a product as float32: its parts, `size` elements apart, added in their order, then scaled or rounded.

    x_scale, w_scale: the scales of its rows and columns, which a product of quantised numbers has (SCALED). is_row, is_column:
    which of t and of n to load, each of the shape of its own, so that scales are not loaded for every element.
    """
    mask = is_row & is_column
    parts += t * row + n * item
    total = tl.load(parts, mask=mask, other=0)
    for part in tl.static_range(1, PARTS):
        total += tl.load(parts + part * size, mask=mask, other=0)
    total = as_float32(total)
    if SCALED:
        total = total * tl.load(x_scale + t, mask=is_row, other=0.0)
        return total * tl.load(w_scale + n, mask=is_column, other=0.0)
    else:
        return round_bfloat16(total, BFLOAT16 and parts.dtype.element_ty != tl.bfloat16)


class Parts(NamedTuple):
    """How kernels read a product. The first six are `add_parts`' own."""

    values: torch.Tensor
    row: int
    item: int
    size: int
    x_scale: torch.Tensor
    w_scale: torch.Tensor
    number: int
    scaled: bool


@dataclass(frozen=True)
class Tiles:
    """What a program of a product holds of its weight, and the steps that it loads ahead."""

    columns: int = 64
    depth: int = 64
    stages: int = 4
    warps: int = 4
    programs: int = 264  # that fill the largest GPUs twice: the depth is divided where the columns alone are fewer
    most_rows: int = 64
    ahead: int = 5  # steps of a product that does not begin a chain: what memory delivers while the kernel before is idle
    remaining: int = 4  # steps, at the end of a product, that last as long as the start of the kernels after it

    def rows(self, tokens: int) -> int:
        return min(self.most_rows, max(_LEAST_ROWS, triton.next_power_of_2(tokens)))


TILES = {
    torch.bfloat16: Tiles(),
    torch.int8: Tiles(columns=128, stages=6, most_rows=32),
    torch.uint8: Tiles(),
    torch.float32: Tiles(depth=16, stages=3),
}
_SUMS = {torch.int8: torch.int32, torch.uint8: torch.float32}  # of products whose scales come after them
_MOST_PARTS = 16
_LEAST_ROWS = 16


class Product:
    """x times one or two weights, arrays (K, N) or NZ storage, with memory for the result.

    real: the dtype of a product of numbers that have no scales, once it is complete. first: whether it begins a chain of
    launches. blocks: the powers of two of blocks of eight-bit floats, those of x and of each weight.
    """

    def __init__(
        self,
        x: torch.Tensor,
        weights: Sequence[tuple[torch.Tensor, int]],
        real: torch.dtype,
        tiles: Tiles,
        first: bool,
        blocks: Sequence[torch.Tensor] = (),
    ) -> None:
        (self.tokens, self.depth), self.x, self.tiles = x.shape, x, tiles
        self.ahead, self.overlap = 0 if first else tiles.ahead, overlap(x.device, first)
        self.column_tiles = sum(triton.cdiv(columns, tiles.columns) for _, columns in weights)
        steps = triton.cdiv(self.depth, tiles.depth)
        # The sums' parts depend on the weights alone, so that a token's bits depend on no other token. Who adds them does not
        # matter: where the tokens are many enough to fill the device, their own program.
        wanted = min(max(1, tiles.programs // self.column_tiles), _MOST_PARTS, steps)
        self.share = triton.cdiv(steps, wanted) * tiles.depth
        parts = triton.cdiv(self.depth, self.share)
        self.row_tiles = triton.cdiv(self.tokens, tiles.rows(self.tokens))
        self.added = parts if self.row_tiles * self.column_tiles >= tiles.programs else 1
        self.number = parts // self.added
        self.scaled, self.blocks = x.dtype in _SUMS, blocks
        dtype = _SUMS.get(x.dtype, real if self.number == 1 else torch.float32)
        # Products of blocks have been scaled: for `add_parts` their scales are 1.
        ones = max(self.tokens, *(columns for _, columns in weights)) if blocks else 0
        self.ones = torch.ones(ones, dtype=torch.float32, device=x.device)
        self.parts = [torch.empty(self.number, self.tokens, n, dtype=dtype, device=x.device) for _, n in weights]
        self.weights = [w.contiguous() if w.ndim == 4 else w for w, _ in weights]

    def launch(self) -> None:
        first, second, columns = self.weights[0], self.weights[-1], [part.shape[2] for part in self.parts]
        tiles, group = self.tiles, fractal_width(first.element_size())
        multiply[(self.row_tiles, self.column_tiles, self.number)](
            self.x, first, second, *((self.blocks[0], self.blocks[1], self.blocks[-1]) if self.blocks else (self.x,) * 3),
            self.parts[0], self.parts[-1], self.tokens, self.depth, self.share, columns[0], columns[-1],
            *self.x.stride(), *_strides(first, group), *_strides(second, group), PARTS=self.added, GROUP=group,
            ROWS=tiles.rows(self.tokens), COLUMNS=tiles.columns, DEPTH=tiles.depth, AHEAD=self.ahead,
            REMAINING=tiles.remaining, BLOCK=BLOCK if self.blocks else 0, num_warps=tiles.warps, num_stages=tiles.stages,
            **self.overlap, **LAUNCH,
        )  # fmt: skip

    def of(self, which: int, x_scale: torch.Tensor | None, w_scale: torch.Tensor | None) -> Parts:
        parts = self.parts[which]
        size, row, item = parts.stride()
        if self.blocks:
            x_scale = w_scale = self.ones
        x_scale, w_scale = (parts if scale is None else scale for scale in (x_scale, w_scale))
        return Parts(parts, row, item, size, x_scale, w_scale, self.number, self.scaled)


def _strides(w: torch.Tensor, group: int) -> tuple[int, int, int]:
    """The elements between groups of `group` columns, between rows, and between columns of a group."""
    if w.ndim == 4:
        return w.shape[1] * w.shape[2] * group, group, 1
    row, item = w.stride()
    return group * item, row, item
