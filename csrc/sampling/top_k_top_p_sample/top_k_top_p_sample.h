// The samplers TopKTopPSample and TopKTopPSampleV2, and the filter ApplyTopKTopP:
// src/decodestep/ops/top_k_top_p_sample is the contract; reference.py beside it defines the result, bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/isa.h"
#include "sampling/row/logit_type.h"

namespace decodestep {

struct TopKTopPSample {
    const void* logits;  // [batch, vocab]
    LogitType dtype;
    ptrdiff_t row_bytes;  // from one row to the next
    size_t batch, vocab;  // 1 <= vocab <= 2^20
    const int32_t* k;     // [batch], as the following
    const float* p;
    const float* m;    // null for TopKTopPSample, which has no min-p
    size_t largest_k;  // a k above it keeps all tokens
    bool input_is_logits;
    bool kernel_exact;
    size_t guess;     // how many tokens top-p alone is expected to keep; 0 for no guess. It changes no result
    const float* q;   // [batch, vocab] or null; exponential noise, by the place among the survivors
    ptrdiff_t q_row;  // floats from one row to the next
    const uint64_t* seed;
    const uint32_t* position;  // [batch] with a seed, otherwise null
    float eps;
    int64_t* chosen;  // [batch] or null
    float* masked;    // [batch, vocab] or null, as the following: the survivors, -inf or 0 elsewhere
    int64_t* ids;     // the survivors in their order, and their values: both or neither
    float* values;
    int threads;
};

struct ApplyTopKTopP {
    const void* logits;
    LogitType dtype;
    ptrdiff_t row_bytes;
    size_t batch, vocab;
    const int32_t* k;  // [batch] or null
    const float* p;    // [batch] or null
    void* out;         // [batch, vocab], not overlapping the logits
    int threads;
};

DECODESTEP_KERNEL(vectors, top_k_top_p_sample, TopKTopPSample)
DECODESTEP_KERNEL(vectors, apply_top_k_top_p, ApplyTopKTopP)

}  // namespace decodestep
