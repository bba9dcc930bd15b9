"""The kernels of mla_attention: `attend` goes through a token's splits of keys, `merge` adds up what it leaves of them.

Operands that are bfloat16 throughout (NARROW) are multiplied as they are: products of such values are exact in float32. The
softmax's weights are then the sum of two bfloat16 pieces, 16 bits of their 24. That moves a weight by at most 2^-18 of itself,
as much as the rounding of a score of 64 to float32 does, and 2^-9 is lost when the result is rounded to bfloat16. All other
operands become float32 tiles.
"""

from __future__ import annotations

import triton
import triton.language as tl

from decodestep._base.triton import MINUS_INFINITY, as_float32, round_bfloat16
from decodestep._base.triton_float8 import float8_values
from decodestep._base.triton_products import product, split_bfloat16
from decodestep.ops.mla_prolog.triton.rows import place_in_nz

_LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def split_of(length, LEAST: tl.constexpr, MOST: tl.constexpr, KEYS: tl.constexpr):
    """The keys of each split of a token: a function of its own length alone, so that its bits do not depend on others."""
    return tl.maximum(LEAST, tl.cdiv(length, MOST * KEYS) * KEYS)


@triton.jit
def keys_of(lengths, t, longest):
    return tl.minimum(tl.load(lengths + t), longest).to(tl.int32)


@triton.jit(do_not_specialize=["blocks", "sequences", "table_width", "longest", "splits"])
def attend(
    query, query_rope, kv_cache, kr_cache, kv_scale, kr_scale, kv_tiles, table, sequence, lengths, partial, states,
    exponent, heads, latent, width, blocks, block_size, sequences, table_width, longest, splits,
    kv_block, kv_row, kv_item, kr_block, kr_row, kr_item, tiles_block, tiles_row, out_width, heads_of_group,
    TILE: tl.constexpr, HAS_QUERY: tl.constexpr, KV_SCALED: tl.constexpr, KR_SCALED: tl.constexpr, NARROW: tl.constexpr,
    PRECISION: tl.constexpr, KV_NZ: tl.constexpr, KR_NZ: tl.constexpr, WHOLE: tl.constexpr, FAR: tl.constexpr,
    LEAST: tl.constexpr, MOST: tl.constexpr, KEYS: tl.constexpr, HEADS: tl.constexpr, LATENT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Program (t * head tiles + tile, split). exponent: the factor of the scores times log2(e). WHOLE: a tile of keys lies in a
    block of the cache. KV_NZ, KR_NZ: 0, or c0 of a cache whose blocks are in NZ order. FAR: places in a block of a cache need
    an int64, which takes registers. TILE: the columns of a latent that share a factor, or 0."""
    tiles = tl.cdiv(heads, HEADS)
    t = (tl.program_id(0) // tiles).to(tl.int64)
    split = tl.program_id(1)
    length = keys_of(lengths, t, longest)
    share = split_of(length, LEAST, MOST, KEYS)
    first = split * share
    if first < length:
        end = tl.minimum(length, first + share)
        place = tl.load(sequence + t).to(tl.int64)
        table += place * table_width
        end = tl.where((place >= 0) & (place < sequences), end, first)
        next_block = tl.load(table + first // block_size, mask=first < end, other=-1)
        head = tl.program_id(0) % tiles * HEADS + tl.arange(0, HEADS)
        column, turn = tl.arange(0, LATENT), tl.arange(0, WIDTH)
        if FAR:
            column, turn = column.to(tl.int64), turn.to(tl.int64)
        is_column, is_turn, is_head = column < latent, turn < width, head < heads
        row = t * heads + head
        rope = load_queries(query_rope, row, turn, is_head, is_turn, width, NARROW)
        if HAS_QUERY:
            q = load_queries(query, row, column, is_head, is_column, latent, NARROW)
        top = tl.full([HEADS], MINUS_INFINITY, tl.float32)
        weights = tl.zeros([HEADS], tl.float32)
        total = tl.zeros([HEADS, LATENT], tl.float32)
        for start in range(first, end, KEYS):
            j = start + tl.arange(0, KEYS)
            if WHOLE:
                block = next_block.to(tl.int64)  # read a turn ahead, because the addresses of the loads wait for it
                next_block = tl.load(table + (start + KEYS) // block_size, mask=start + KEYS < end, other=-1)
                line = start % block_size + tl.arange(0, KEYS)
                is_key = j < tl.where((block >= 0) & (block < blocks), end, first)
            else:
                block = tl.load(table + j // block_size, mask=j < end, other=-1).to(tl.int64)
                line = j % block_size
                is_key = (j < end) & (block >= 0) & (block < blocks)
            if FAR:
                line = line.to(tl.int64)
            at_kr = places(block * kr_block, line, turn, block_size, width, kr_row, kr_item, KR_NZ)
            at_kv = places(block * kv_block, line, column, block_size, latent, kv_row, kv_item, KV_NZ)
            kr = load_keys(kr_cache, kr_scale, at_kr, turn, is_key, is_turn, KR_SCALED, NARROW)
            kv = load_keys(kv_cache, kv_scale, at_kv, column, is_key, is_column, KV_SCALED, NARROW)
            if TILE > 0:
                if kv_cache.dtype.element_ty == tl.uint8:
                    kv = float8_values(kv.to(tl.int32))
                at_factor = (block * tiles_block + line * tiles_row)[:, None] + (column // TILE)[None, :]
                kv *= tl.load(kv_tiles + at_factor, mask=is_key[:, None] & is_column[None, :], other=0.0)
            score = scores(rope, kr, tl.zeros([HEADS, KEYS], tl.float32), NARROW, PRECISION)
            if HAS_QUERY:
                score = scores(q, kv, score, NARROW, PRECISION)
            score = tl.where(is_key[None, :], score * exponent, MINUS_INFINITY)
            higher = tl.maximum(top, tl.max(score, axis=1))
            base = tl.where(higher == MINUS_INFINITY, 0.0, higher)  # while all scores are -inf
            weight = tl.exp2(score - base[:, None])
            shrink = tl.exp2(top - base)
            weights = weights * shrink + tl.sum(weight, axis=1)
            total = add_values(weight, kv, total * shrink[:, None], start < end, NARROW, PRECISION)
            top = higher
        # Of the latent's blocks a head keeps its own.
        own = column[None, :] - (head // heads_of_group * out_width)[:, None]
        at = (t * splits + split) * heads + head
        is_own = is_head[:, None] & is_column[None, :] & (own >= 0) & (own < out_width)
        tl.store(partial + at[:, None] * out_width + own, total, mask=is_own)
        tl.store(states + 2 * at, top, mask=is_head)
        tl.store(states + 2 * at + 1, weights, mask=is_head)


@triton.jit
def load_queries(rows, row, column, is_row, is_column, width, NARROW: tl.constexpr):
    values = tl.load(rows + row[:, None] * width + column[None, :], mask=is_row[:, None] & is_column[None, :], other=0)
    return values if NARROW else as_float32(values)


@triton.jit
def places(block, line, column, block_size, width, by_row, by_item, NZ: tl.constexpr):
    """Where the columns of the lines of blocks, which begin at `block`, lie in a cache."""
    if NZ:
        inside = place_in_nz(line[:, None], column[None, :], block_size, NZ)
        return (block + line * 0)[:, None] + inside // width * by_row + inside % width * by_item
    else:
        return (block + line * by_row)[:, None] + (column * by_item)[None, :]


@triton.jit
def load_keys(cache, scale, at, column, is_key, is_column, SCALED: tl.constexpr, NARROW: tl.constexpr):
    keys = tl.load(cache + at, mask=is_key[:, None] & is_column[None, :], other=0)
    if not NARROW:
        keys = as_float32(keys)
    if SCALED:
        stored = tl.load(scale + column, mask=is_column, other=1.0)
        keys = tl.div_rn(keys, tl.broadcast_to(stored[None, :], keys.shape))
    return keys


@triton.jit
def scores(queries, keys, total, NARROW: tl.constexpr, PRECISION: tl.constexpr):
    if NARROW:
        return product(queries, tl.trans(keys), total)
    else:
        return tl.dot(queries, tl.trans(keys), total, input_precision=PRECISION)


@triton.jit
def add_values(weight, values, total, always, NARROW: tl.constexpr, PRECISION: tl.constexpr):
    """total + weight @ values. always: true, in a way that the compiler does not see: of two products one after the other it
    lays out the first for a chain of products, and moves the total from one layout to the other at each of them."""
    if NARROW:
        high, rest = split_bfloat16(weight)
        if always:
            total = product(high, values, total)
        return product(rest.to(tl.bfloat16), values, total)
    else:
        return tl.dot(weight, values, total, input_precision="ieee" if PRECISION == "ieee" else "tf32x3")


@triton.jit(do_not_specialize=["longest", "splits"])
def merge(
    partial, states, lengths, out, lse, longest, splits, heads, width,
    LEAST: tl.constexpr, MOST: tl.constexpr, KEYS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Program (t * heads + head, columns). A token has at most MOST splits, which are added at once."""
    row = tl.program_id(0).to(tl.int64)
    t = row // heads
    length = keys_of(lengths, t, longest)
    split = tl.arange(0, MOST)
    is_split = split * split_of(length, LEAST, MOST, KEYS) < length
    at = (t * splits + split) * heads + row % heads
    top = tl.load(states + 2 * at, mask=is_split, other=MINUS_INFINITY)
    weights = tl.load(states + 2 * at + 1, mask=is_split, other=0.0)
    highest = tl.max(top, axis=0)
    factor = tl.exp2(top - tl.where(highest == MINUS_INFINITY, 0.0, highest))
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_column = column < width
    parts = tl.load(partial + at[:, None] * width + column[None, :], mask=is_split[:, None] & is_column[None, :], other=0.0)
    # A token that attends to nothing has zeros, and the logarithm of nothing.
    total = tl.where(length > 0, tl.sum(factor * weights, axis=0), 1.0)
    result = tl.sum(factor[:, None] * parts, axis=0) / total
    if tl.program_id(1) == 0:
        tl.store(lse + row, (highest + tl.log2(tl.where(highest == MINUS_INFINITY, 1.0, total))) * _LN2)
    tl.store(out + row * width + column, round_bfloat16(result, out.dtype.element_ty == tl.bfloat16), mask=is_column)
