// The MLA prolog without quantisation: query, rope query, and the two cache rows of every token. Sums and elementwise
// work are float32; with bfloat16 tensors every specified rounding is made.
#pragma once

#include <cstddef>
#include <cstdint>

#include "isa.h"
#include "linear.h"

namespace decodestep {

struct MlaProlog {
    const float* x;  // [tokens, w_dkv_kr.in]
    size_t tokens, heads, nope, rope, latent;
    size_t rope_groups;  // G: head n's rope part is block n / (heads / G) of G, the only one that w_uq_qr holds
    Rows w_dq, w_uq_qr, w_dkv_kr;
    bool bf16;                          // what `void` points to is bfloat16, else float
    const void* w_uk;                   // [heads, nope, latent]
    const float *gamma_cq, *gamma_ckv;  // null: no norm
    float eps_cq, eps_ckv, alpha_cq, alpha_ckv;
    const float *sin, *cos;  // [tokens, rope]
    const int64_t* slots;    // [tokens]; negative: the token is not cached
    void *kv_cache, *kr_cache;
    ptrdiff_t kv_block_stride, kr_block_stride;  // values from one block of the cache to the next
    size_t block_size;
    void* query;             // [tokens, heads, latent]; null: not wanted (or nope is 0 and the caller has zeros)
    void* query_rope;        // [tokens, heads, rope]
    float *cq, *q, *ckv_kr;  // work space: [tokens, w_uq_qr.in], [tokens, w_uq_qr.out], [tokens, latent + rope]
    int threads;
};

DECODESTEP_KERNEL(mla_prolog, MlaProlog)

}  // namespace decodestep
