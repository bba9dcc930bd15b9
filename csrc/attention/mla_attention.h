// Absorbed attention over the paged latent cache.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/cache_type.h"
#include "core/isa.h"

namespace decodestep {

// A paged cache: rows of `width` values that follow each other inside a block.
struct PagedRows {
    const void* data;
    CacheType type;
    size_t width;
    ptrdiff_t block_stride;  // values from one block to the next
    const float* scale;      // [width]: what the stored values were multiplied by; null: nothing
};

// For token t and head n of group g, where kv and kr are the rows of its sequence, in order:
//   score[j] = scale * (query[t, n] . kv[j] + query_rope[t, n] . kr[j])    for the lengths[t] first rows
//   out[t, n] = sum over j of softmax(score)[j] * kv[j], columns [g * width, (g + 1) * width), width = latent / groups
// With several groups a head's rope part is zero outside its group's block of pairs, which is not read.
//
// The order of the sums is fixed by the key alone: see csrc/attention/attention_tile.h.
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
    float* out;  // [tokens, heads, kv.width / groups]
    int threads;
};

DECODESTEP_KERNEL(mla_attention, MlaAttention)

}  // namespace decodestep
