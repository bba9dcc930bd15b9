// The MLA prolog: query, rope query, and the two cache rows of every token, in every scenario of the specification.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/isa.h"
#include "linear/linear.h"
#include "linear/linear_panels.h"
#include "mla_prolog/column_weight.h"

namespace decodestep {

enum class WeightForm { columns, rows, panels };

// A projection's weight. Only the member that `form` names is read; columns are float32, bfloat16, int8 or eight-bit
// floats, rows and panels are GGUF blocks.
struct Projection {
    WeightForm form;
    ColumnWeight columns;
    RowWeight rows;
    LinearPanelWeight panels;
    const float* scale;  // of each output of a quantised weight; null of another, and of one with exponents

    // Of the columns, if they are quantised.
    constexpr WeightType code() const { return form == WeightForm::columns ? columns.value : WeightType::f32; }
    constexpr bool quantised() const { return code() == WeightType::i8 || code() == WeightType::f8; }
    // GGUF blocks multiply float32 activations.
    constexpr bool reads_floats() const { return form == WeightForm::rows || form == WeightForm::panels; }
};

// How a row of the latent cache is quantised: not at all; with a given factor for each channel, or one for all; or with
// a scale for every kCacheTile values, stored in the row after the rope key.
enum class CacheScale { none, channel, tensor, tile };
constexpr size_t kCacheTile = 128;

// One of the two caches, of any strides. A block holds rows of `width` values. Value h of row r is element
// h / fractal * fractal * block size + r * fractal + h % fractal of its block: `fractal` is the width of a fractal of
// NZ, otherwise the whole width.
struct PrologCache {
    uint8_t* data;                                     // null: nothing is cached
    ptrdiff_t block_stride, row_stride, value_stride;  // bytes
    size_t width, value_bytes, fractal;
};

// Shapes: tokens T, hidden He, width Hcq (of the compressed query), heads N, nope D, rope Dr, latent Hckv.
// Reads: all arrays but the results. Writes: the caches' rows `slots`, then query, query_scale, query_rope, query_norm
// and norm_scale; of several tokens with one slot the last is kept.
// Sums are float32, or exact for int8; elementwise work is float32; with bfloat16 tensors every specified rounding is
// made. Eight-bit floats are multiplied as bfloat16. NaN: as IEEE; int8 0. Determinism: a token's bits depend neither
// on the other tokens nor on the thread count.
struct MlaProlog {
    const void* x;  // [tokens, hidden], contiguous rows
    // Of quantised tokens, those of w_dq's type: [tokens], or [tokens, hidden / 32] powers of two; else both null.
    const float* x_scale;
    const uint8_t* x_exponents;
    size_t tokens, hidden, width, heads, nope, rope, latent;
    bool bf16;    // the type of what is neither quantised nor a scale: bfloat16, else float32
    bool float8;  // the type of what is quantised: eight-bit floats, else int8
    Projection w_dq, w_uq_qr, w_dkv_kr;
    ColumnWeight w_uk;      // (nope, latent) of the first head
    ptrdiff_t w_uk_stride;  // bytes from one head to the next
    const float *gamma_cq, *gamma_ckv;
    float eps_cq, eps_ckv, alpha_cq, alpha_ckv;
    const float *sin, *cos;  // [tokens, rope]
    const float* smooth;     // [width], or null
    const int64_t* slots;    // [tokens]; negative: the token is not cached
    PrologCache kv, kr;
    size_t block_size;
    CacheScale cache_scale;
    const float *ckv_scale, *ckr_scale;  // [latent] or [1], [rope]; null if the scenario has none
    float clip;                          // of int8 tiles
    void* query;                         // [tokens, heads, latent]; quantised if query_scale is given
    float* query_scale;                  // [tokens, heads], or null
    bool half_away;                      // how an int8 query is rounded
    void* query_rope;                    // [tokens, heads, rope]
    void* query_norm;                    // [tokens, width] as multiplied by w_uq_qr, or null
    float* norm_scale;                   // [tokens], or null
    uint8_t* norm_exponents;             // [tokens, width / 32], or null
    int threads;
};

DECODESTEP_KERNEL(vectors, mla_prolog, MlaProlog)

}  // namespace decodestep
