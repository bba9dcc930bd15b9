// The decoder's grouped-query attention (group_attention.h) with a bfloat16 cache, over one split of the keys: apart
// from the decoder, of which only this and what it shares with the prolog profit from dot products of bfloat16.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/isa.h"

namespace decodestep {

struct Bf16Attention {
    size_t count;                  // of queries: at most kMaxQueries
    const float* const* query;     // [count], each [width], rounded to bfloat16
    const size_t *first, *length;  // [count]: see Queries
    const uint8_t *keys, *values;  // see HeadPages, as the three below
    const int64_t* table;
    size_t width, room;
    float scale, cap;  // see ScoreRule
    size_t split;
    float* partials;  // [count], each a PartialSoftmax
    float* memory;    // [count, width], used by the call
};

DECODESTEP_KERNEL(pairs, attend_bf16, Bf16Attention)

}  // namespace decodestep
