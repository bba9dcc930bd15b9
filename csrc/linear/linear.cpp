#include "linear/linear.h"

#include "core/parallel.h"
#include "linear/k_quant_blocks.h"
#include "linear/small_blocks.h"
#include "simd/simd.h"

namespace decodestep::DECODESTEP_ISA {
namespace {

constexpr size_t kLoadValues = 32;  // values that a format's load() yields at a time

struct F32Block {
    static constexpr size_t bytes = 128;
    static DECODESTEP_INLINE void load(const uint8_t* p, f32x16& a, f32x16& b) {
        const auto* values = reinterpret_cast<const float*>(p);
        a = DECODESTEP_ISA::load(values);
        b = DECODESTEP_ISA::load(values + 16);
    }
};

struct F16Block {
    static constexpr size_t bytes = 64;
    static DECODESTEP_INLINE void load(const uint8_t* p, f32x16& a, f32x16& b) {
        a = from_f16(p);
        b = from_f16(p + 32);
    }
};

struct Bf16Block {
    static constexpr size_t bytes = 64;
    static DECODESTEP_INLINE void load(const uint8_t* p, f32x16& a, f32x16& b) {
        a = from_bf16(p);
        b = from_bf16(p + 32);
    }
};

// <f16 scale> <16 bytes of nibbles>: scale * (q - 8)
struct Q4_0Block {
    static constexpr size_t bytes = 18;
    static DECODESTEP_INLINE void load(const uint8_t* p, f32x16& a, f32x16& b) {
        const f32x16 scale = broadcast_f16(p), middle = broadcast(8.0f);
        const f32x32 q = from_nibbles(p + 2);
        a = (q.first - middle) * scale;
        b = (q.second - middle) * scale;
    }
};

// <f16 scale> <f16 minimum> <16 bytes of nibbles>: scale * q + minimum
struct Q4_1Block {
    static constexpr size_t bytes = 20;
    static DECODESTEP_INLINE void load(const uint8_t* p, f32x16& a, f32x16& b) {
        const f32x16 scale = broadcast_f16(p), minimum = broadcast_f16(p + 2);
        const f32x32 q = from_nibbles(p + 4);
        a = fma(q.first, scale, minimum);
        b = fma(q.second, scale, minimum);
    }
};

// <f16 scale> <32 signed bytes>: scale * q
struct Q8_0Block {
    static constexpr size_t bytes = 34;
    static DECODESTEP_INLINE void load(const uint8_t* p, f32x16& a, f32x16& b) {
        const f32x16 scale = broadcast_f16(p);
        a = from_i8(p + 2) * scale;
        b = from_i8(p + 18) * scale;
    }
};

template <class BlockFormat>
constexpr size_t pieces = 1;  // of 32 values in a block
template <class BlockFormat>
    requires requires { BlockFormat::pieces; }
constexpr size_t pieces<BlockFormat> = BlockFormat::pieces;

// Values [32 * i, 32 * i + 32) of a row.
template <class BlockFormat>
DECODESTEP_INLINE void load_piece(const uint8_t* row, size_t i, f32x16& a, f32x16& b) {
    if constexpr (pieces<BlockFormat> == 1)
        BlockFormat::load(row + i * BlockFormat::bytes, a, b);
    else
        BlockFormat::load(row + i / pieces<BlockFormat> * BlockFormat::bytes, i % pieces<BlockFormat>, a, b);
}

// The last values of a row that does not fill its last block, padded with zeros. Only rows of a dense format do that.
template <class BlockFormat>
DECODESTEP_INLINE void load_tail(const uint8_t* row, size_t i, size_t values, f32x16& a, f32x16& b) {
    uint8_t block[BlockFormat::bytes] = {};
    std::memcpy(block, row + i * BlockFormat::bytes, values * (BlockFormat::bytes / kLoadValues));
    load_piece<BlockFormat>(block, 0, a, b);
}

// Whether the pieces of a row are whole cache lines of plain values: reading those is all that a product costs.
template <class BlockFormat>
constexpr bool is_dense = pieces<BlockFormat> == 1 && BlockFormat::bytes % 64 == 0;

// What R rows from w on make worth prefetching at their piece b: rows are short, and the hardware prefetcher starts
// anew at the end of each. Dense rows: the same place of the next R rows.
template <class BlockFormat, int R>
DECODESTEP_INLINE void prefetch_rows(const uint8_t* w, size_t w_stride, size_t b) {
    constexpr size_t bytes = BlockFormat::bytes / pieces<BlockFormat>, ahead = 4096;
    if constexpr (is_dense<BlockFormat>)
        for (int r = 0; r < R; ++r) prefetch(w + (R + r) * w_stride + b * bytes, bytes);
    else
        prefetch(w + ahead + b * R * bytes, R * bytes);
}

// R outputs times T tokens, one accumulator each: every weight is widened once, every activation loaded once.
template <class BlockFormat, int R, int T>
DECODESTEP_INLINE void tile(const uint8_t* w, size_t w_stride, const float* x, ptrdiff_t x_stride, size_t in, float* y,
                            ptrdiff_t y_stride) {
    f32x16 total[R][T];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) total[r][t] = broadcast(0.0f);
    const size_t blocks = in / kLoadValues, rest = in % kLoadValues;
    for (size_t b = 0; b < blocks; ++b) {
        f32x16 w0[R], w1[R];
        prefetch_rows<BlockFormat, R>(w, w_stride, b);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) load_piece<BlockFormat>(w + r * w_stride, b, w0[r], w1[r]);
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            const float* block = x + t * x_stride + b * kLoadValues;
            const f32x16 x0 = load(block), x1 = load(block + 16);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) total[r][t] = fma(w1[r], x1, fma(w0[r], x0, total[r][t]));
        }
    }
    if (rest) {
        for (int t = 0; t < T; ++t) {
            float block[kLoadValues] = {};
            std::memcpy(block, x + t * x_stride + blocks * kLoadValues, rest * sizeof(float));
            for (int r = 0; r < R; ++r) {
                f32x16 w0, w1;
                load_tail<BlockFormat>(w + r * w_stride, blocks, rest, w0, w1);
                total[r][t] = fma(w1, load(block + 16), fma(w0, load(block), total[r][t]));
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) y[t * y_stride + r] = sum(total[r][t]);
}

// Eight vectors hold four accumulators beside the weights and activations.
constexpr size_t kRowTileTokens = kVectorRegisters >= 32 ? 4 : 2;
constexpr size_t kRowTileOutputs = 4 / (4 / kRowTileTokens);
// Of one token with dense rows: a core reads memory faster in four streams than in two.
constexpr size_t kOneTokenOutputs = 4;

// Outputs [n, n + R) of all tokens; w is the row of output n.
template <class BlockFormat, int R>
DECODESTEP_INLINE void all_tokens(const Linear& a, const uint8_t* w, size_t w_stride, size_t n) {
    size_t t = 0;
    const float* x = a.x;
    float* y = a.y + n;
    for (; t + kRowTileTokens <= a.tokens;
         t += kRowTileTokens, x += kRowTileTokens * a.x_stride, y += kRowTileTokens * a.y_stride)
        tile<BlockFormat, R, kRowTileTokens>(w, w_stride, x, a.x_stride, a.w.in, y, a.y_stride);
    for (; t < a.tokens; ++t, x += a.x_stride, y += a.y_stride)
        tile<BlockFormat, R, 1>(w, w_stride, x, a.x_stride, a.w.in, y, a.y_stride);
}

// A row to float32.
template <class BlockFormat>
void widen(const uint8_t* w, size_t in, float* values) {
    f32x16 a, b;
    size_t k = 0;
    for (; k + kLoadValues <= in; k += kLoadValues) {
        load_piece<BlockFormat>(w, k / kLoadValues, a, b);
        store(values + k, a);
        store(values + k + 16, b);
    }
    if (const size_t rest = in - k; rest > 0) {
        load_tail<BlockFormat>(w, k / kLoadValues, rest, a, b);
        float block[kLoadValues];
        store(block, a);
        store(block + 16, b);
        std::memcpy(values + k, block, rest * sizeof(float));
    }
}

// Outputs [first, last). With several tiles of tokens a row is widened once for all of them.
template <class BlockFormat>
void multiply_rows(const Linear& a, size_t first, size_t last) {
    const size_t in = a.w.in;
    size_t n = first;
    const bool widen_once = a.tokens > kRowTileTokens && BlockFormat::bytes != F32Block::bytes;
    float* widened = widen_once ? thread_scratch(kRowTileOutputs * in) : nullptr;
    if constexpr (is_dense<BlockFormat>)
        for (; a.tokens == 1 && n + kOneTokenOutputs <= last; n += kOneTokenOutputs)
            tile<BlockFormat, kOneTokenOutputs, 1>(a.w.row(n), a.w.stride, a.x, a.x_stride, in, a.y + n, a.y_stride);
    for (; n + kRowTileOutputs <= last; n += kRowTileOutputs) {
        if (widen_once) {
            for (size_t r = 0; r < kRowTileOutputs; ++r) widen<BlockFormat>(a.w.row(n + r), in, widened + r * in);
            all_tokens<F32Block, kRowTileOutputs>(a, reinterpret_cast<const uint8_t*>(widened), in * sizeof(float), n);
        } else {
            all_tokens<BlockFormat, kRowTileOutputs>(a, a.w.row(n), a.w.stride, n);
        }
    }
    for (; n < last; ++n) all_tokens<BlockFormat, 1>(a, a.w.row(n), a.w.stride, n);
}

// Calls body<BlockFormat>().
template <class Body>
void with_format(Format format, Body&& body) {
    switch (format) {
        case Format::f32:
            return body.template operator()<F32Block>();
        case Format::f16:
            return body.template operator()<F16Block>();
        case Format::bf16:
            return body.template operator()<Bf16Block>();
        case Format::q4_0:
            return body.template operator()<Q4_0Block>();
        case Format::q4_1:
            return body.template operator()<Q4_1Block>();
        case Format::q8_0:
            return body.template operator()<Q8_0Block>();
        case Format::q4_k:
            return body.template operator()<Q4_KBlock>();
        case Format::q5_k:
            return body.template operator()<Q5_KBlock>();
        case Format::q6_k:
            return body.template operator()<Q6_KBlock>();
        case Format::q5_0:
            return body.template operator()<Q5_0Block>();
        case Format::q5_1:
            return body.template operator()<Q5_1Block>();
        case Format::iq4_nl:
            return body.template operator()<Iq4_NlBlock>();
        case Format::iq4_xs:
            return body.template operator()<Iq4_XsBlock>();
        case Format::mxfp4:
            return body.template operator()<Mxfp4Block>();
    }
}

}  // namespace

void linear(const Linear& a) {
    // A task is about 10 microseconds of work: small enough to balance the threads, large enough to be worth claiming.
    const size_t work = a.w.in * a.tokens + 1, most = (size_t{1} << 17) / work;
    const size_t rows = most < kRowTileOutputs ? kRowTileOutputs : most / kRowTileOutputs * kRowTileOutputs;
    with_format(a.w.format, [&]<class BlockFormat>() {
        parallel_for((a.w.out + rows - 1) / rows, a.threads, [&](size_t task) {
            const size_t first = task * rows, last = first + rows < a.w.out ? first + rows : a.w.out;
            multiply_rows<BlockFormat>(a, first, last);
        });
    });
}

void gather_rows(const GatherRows& a) {
    with_format(a.w.format, [&]<class BlockFormat>() {
        parallel_rows(a.count, a.w.in, a.threads, [&](size_t i) {
            widen<BlockFormat>(a.w.row(static_cast<size_t>(a.ids[i])), a.w.in, a.values + i * a.w.in);
        });
    });
}

}  // namespace decodestep::DECODESTEP_ISA
