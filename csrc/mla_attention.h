// Absorbed attention over the paged latent cache, in float32.
#pragma once

#include <cstddef>
#include <cstdint>

#include "isa.h"

namespace decodestep {

// For token t and head n of group g:
//   score[j] = scale * (query[t, n] . kv[j] + query_rope[t, n] . kr[j])    for the lengths[t] first entries j of its
//   sequence out[t, n] = sum over j of softmax(score)[j] * kv[j], columns [g * latent / groups, (g + 1) * latent /
//   groups)
// With several groups a head's rope part is zero outside its group's block of pairs, which is not read.
struct MlaAttention {
    const float* query;       // [tokens, heads, latent]; null: all zeros
    const float* query_rope;  // [tokens, heads, rope]
    size_t tokens, heads, latent, rope, groups;
    const float *kv_cache, *kr_cache;
    ptrdiff_t kv_block_stride, kr_block_stride;
    size_t block_size;
    const int64_t* block_table;  // [sequences, blocks]
    size_t blocks;
    const int64_t* sequence;  // [tokens]: row of the block table
    const int64_t* lengths;   // [tokens], each at least 1
    float scale;
    float* out;  // [tokens, heads, latent / groups]
    int threads;
};

DECODESTEP_KERNEL(mla_attention, MlaAttention)

}  // namespace decodestep
