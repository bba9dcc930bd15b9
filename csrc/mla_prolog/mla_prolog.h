// The MLA prolog: query, rope query, and the two cache rows of every token, in every scenario of the specification.
// Sums are float32, or exact for int8; elementwise work is float32; with bfloat16 tensors every specified rounding is
// made.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/isa.h"
#include "linear/linear.h"
#include "mla_prolog/prolog_panels.h"

namespace decodestep {

// A projection's weight in one of two forms; without data in either, it is not given.
struct Projection {
    Columns columns;
    RowWeight rows;
    const float* scale;  // of each output; null unless the weight is int8
};

// How a row of the latent cache is quantised: not at all, with a given factor for each channel or one for all, or with
// a scale for every tile of 128 that is kept in the row, behind the rope key.
enum class CacheScale { none, channel, tensor, tile };
constexpr size_t kCacheTile = 128;

// One of the two caches, of any strides. Its blocks hold rows of `width` values; value h of row r of a block is element
// h / run * run * block size + r * run + h % run of it: `run` is the width, or that of a fractal of NZ.
struct Cache {
    uint8_t* data;                                     // null: nothing is cached
    ptrdiff_t block_stride, row_stride, value_stride;  // bytes
    size_t width, value_bytes, run;
};

struct MlaProlog {
    const void* x;                                            // [tokens, hidden], contiguous rows
    const float* x_scale;                                     // [tokens] where x is int8, else null
    size_t tokens, hidden, width, heads, nope, rope, latent;  // width: of the compressed query
    size_t rope_groups;  // G: head n's rope part is block n / (heads / G) of G, the only one that w_uq_qr holds
    bool bf16;           // what is neither int8 nor a scale is bfloat16, else float
    Projection w_dq, w_uq_qr, w_dkv_kr;
    Columns w_uk;                       // (nope, latent) of the first head
    ptrdiff_t w_uk_stride;              // bytes from one head to the next
    const float *gamma_cq, *gamma_ckv;  // null: no norm
    float eps_cq, eps_ckv, alpha_cq, alpha_ckv;
    const float *sin, *cos;  // [tokens, rope]
    const float* smooth;     // [width], or null
    const int64_t* slots;    // [tokens]; negative: the token is not cached
    Cache kv, kr;
    size_t block_size;
    CacheScale cache_scale;
    const float *ckv_scale, *ckr_scale;  // [latent] or [1], [rope]; null where the scenario has none
    float clip;                          // of tiles
    void* query;                         // [tokens, heads, latent], or null; int8 beside query_scale
    float* query_scale;                  // [tokens, heads], or null
    bool half_away;
    void* query_rope;   // [tokens, heads, rope]
    void* query_norm;   // [tokens, width] as multiplied by w_uq_qr, or null
    float* norm_scale;  // [tokens], or null
    int threads;
};

DECODESTEP_KERNEL(mla_prolog, MlaProlog)

}  // namespace decodestep
