// Absorbed attention over the paged latent cache: the operator after `mla_prolog`. Its caches are those of the Ascend
// operator, in float32, float16, bfloat16 or int8 and pages of any size; the decoder of grouped-query models has its
// own cache and attention (attention/group_attention.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/cache_type.h"
#include "core/isa.h"

namespace decodestep {

// A paged cache: blocks of rows of `width` values, contiguous within a block. In NZ order a block holds 32 bytes of
// each of its rows, then the next 32 bytes of each; such a piece of a row is a fractal row.
struct PagedRows {
    const void* data;
    CacheType type;
    size_t width;
    ptrdiff_t block_stride;   // values from one block to the next
    const float* scale;       // [width]: the factors by which values were multiplied when stored; null: 1
    bool own_scales = false;  // only int8 with one group: a row ends with a float32 by which its values are multiplied
    size_t fractal_stride = 0;  // in NZ order: values from one piece of a row to the next; else 0
    size_t behind = 0;          // values between a row and the next one
    // Of int8 with one group, or of eight-bit floats instead, that have a scale for each kLatentTile: the bytes from a
    // row to those scales, float32; else 0.
    size_t tile_scales = 0;
    bool float8 = false;  // the values of type i8 are eight-bit floats, which only latents are

    bool nz() const { return fractal_stride > 0; }
    size_t fractal() const { return 32 / value_bytes(type); }  // values of a fractal row
    // Values from one row to the next.
    size_t pitch() const { return nz() ? fractal() : width + behind + (own_scales ? sizeof(float) : 0); }
    // Values from the beginning of a row to one of its columns.
    size_t place(size_t column) const {
        return nz() ? column / fractal() * fractal_stride + column % fractal() : column;
    }
    const uint8_t* row(int64_t block, size_t row, size_t column) const {
        const auto value =
            static_cast<ptrdiff_t>(block) * block_stride + static_cast<ptrdiff_t>(row * pitch() + place(column));
        return static_cast<const uint8_t*>(data) + value * static_cast<ptrdiff_t>(value_bytes(type));
    }
};

// For token t and head n of group g, with kv and kr the rows of its sequence in order:
//   score[j] = scale * (query[t, n] . kv[j] + query_rope[t, n] . kr[j])    for the lengths[t] first rows
//   out[t, n] = sum over j of softmax(score)[j] * kv[j], columns [g * width, (g + 1) * width), width = latent / groups
// With several groups a head's rope part is zero outside its own group's block of pairs; the zeros are not read.
//
// NaN: affects only its own token and head; keys that a token does not see and entries of the block table past its
// length are not read. Determinism: attention_tile.h defines the order of the sums, which depends neither on the other
// tokens of the call nor on the thread count.
struct MlaAttention {
    const float* query;       // [tokens, heads, kv.width]; null: all zeros
    const float* query_rope;  // [tokens, heads, kr.width]
    size_t tokens, heads, groups;
    PagedRows kv, kr;
    size_t block_size;
    const int64_t* block_table;  // [sequences, blocks]
    size_t blocks;
    const int64_t* sequence;  // [tokens]: row of the block table
    const int64_t* lengths;   // [tokens], each at least 1
    float scale;
    const float* sinks = nullptr;  // [heads]: a score without a value, which takes a part of the weights; or null
    float* out;                    // [tokens, heads, kv.width / groups]
    // [tokens, heads], or null: the logarithms of the sums of e^score; the largest scores; the sums of
    // e^(score - largest).
    float *lse = nullptr, *largest = nullptr, *sums = nullptr;
    int threads;
    bool shares_blocks = true;  // adjacent tokens whose sequences begin with the same blocks read them together
};

DECODESTEP_KERNEL(vectors, mla_attention, MlaAttention)

}  // namespace decodestep
