// The samplers TopKTopPSample and TopKTopPSampleV2, and the filter ApplyTopKTopP:
// src/decodestep/ops/top_k_top_p_sample is the contract, reference.py beside it the truth, bit for bit.
#pragma once

#include "core/isa.h"
#include "sampling/decode_step/decode_step.h"

namespace decodestep {

struct TopKTopPSample {
    const void* logits;  // [batch, vocab]
    Real dtype;
    ptrdiff_t row_bytes;  // from one row to the next
    size_t batch, vocab;  // 1 <= vocab <= 2^20
    const int32_t* k;     // [batch], as the following
    const float* p;
    const float* m;  // null for TopKTopPSample, which has no min-p
    size_t largest_k;
    bool input_is_logits;
    bool kernel_exact;
    size_t guess;
    const float* q;   // [batch, vocab] or null; noise by the place among the survivors
    ptrdiff_t q_row;  // floats from one row to the next
    const uint64_t* seed;
    const uint32_t* position;  // [batch] where there is a seed; null without seeded noise
    float eps;
    int64_t* chosen;  // [batch] or null
    float* masked;    // [batch, vocab] or null, as the following
    int64_t* ids;     // both or neither
    float* values;
    int threads;
};

struct ApplyTopKTopP {
    const void* logits;
    Real dtype;
    ptrdiff_t row_bytes;
    size_t batch, vocab;
    const int32_t* k;  // [batch] or null
    const float* p;    // [batch] or null
    void* out;         // [batch, vocab], no part of logits
    int threads;
};

DECODESTEP_KERNEL(top_k_top_p_sample, TopKTopPSample)
DECODESTEP_KERNEL(apply_top_k_top_p, ApplyTopKTopP)

}  // namespace decodestep
