#include "linear/linear.h"

#include "core/parallel.h"
#include "linear/superblocks.h"
#include "simd/simd.h"

namespace decodestep::DECODESTEP_ISA {
namespace {

constexpr size_t kBlock = 32;  // values that a format's load() yields at a time

struct F32 {
    static constexpr size_t bytes = 128;
    static DECODESTEP_INLINE void load(const uint8_t* p, f32x16& a, f32x16& b) {
        const auto* values = reinterpret_cast<const float*>(p);
        a = DECODESTEP_ISA::load(values);
        b = DECODESTEP_ISA::load(values + 16);
    }
};

struct F16 {
    static constexpr size_t bytes = 64;
    static DECODESTEP_INLINE void load(const uint8_t* p, f32x16& a, f32x16& b) {
        a = from_f16(p);
        b = from_f16(p + 32);
    }
};

struct Bf16 {
    static constexpr size_t bytes = 64;
    static DECODESTEP_INLINE void load(const uint8_t* p, f32x16& a, f32x16& b) {
        a = from_bf16(p);
        b = from_bf16(p + 32);
    }
};

// <f16 scale> <16 bytes of nibbles>: scale * (q - 8)
struct Q4_0 {
    static constexpr size_t bytes = 18;
    static DECODESTEP_INLINE void load(const uint8_t* p, f32x16& a, f32x16& b) {
        const f32x16 scale = broadcast_f16(p), middle = broadcast(8.0f);
        const f32x32 q = from_nibbles(p + 2);
        a = (q.first - middle) * scale;
        b = (q.second - middle) * scale;
    }
};

// <f16 scale> <f16 minimum> <16 bytes of nibbles>: scale * q + minimum
struct Q4_1 {
    static constexpr size_t bytes = 20;
    static DECODESTEP_INLINE void load(const uint8_t* p, f32x16& a, f32x16& b) {
        const f32x16 scale = broadcast_f16(p), minimum = broadcast_f16(p + 2);
        const f32x32 q = from_nibbles(p + 4);
        a = fma(q.first, scale, minimum);
        b = fma(q.second, scale, minimum);
    }
};

// <f16 scale> <32 signed bytes>: scale * q
struct Q8_0 {
    static constexpr size_t bytes = 34;
    static DECODESTEP_INLINE void load(const uint8_t* p, f32x16& a, f32x16& b) {
        const f32x16 scale = broadcast_f16(p);
        a = from_i8(p + 2) * scale;
        b = from_i8(p + 18) * scale;
    }
};

template <class Format>
constexpr size_t pieces = 1;  // of 32 values in a block
template <class Format>
    requires requires { Format::pieces; }
constexpr size_t pieces<Format> = Format::pieces;

// Values [32 * i, 32 * i + 32) of a row.
template <class Format>
DECODESTEP_INLINE void load_piece(const uint8_t* row, size_t i, f32x16& a, f32x16& b) {
    if constexpr (pieces<Format> == 1)
        Format::load(row + i * Format::bytes, a, b);
    else
        Format::load(row + i / pieces<Format> * Format::bytes, i % pieces<Format>, a, b);
}

// A row that does not fill its last block continues in zeros; only the dense formats have such rows.
template <class Format>
DECODESTEP_INLINE void load_tail(const uint8_t* row, size_t i, size_t values, f32x16& a, f32x16& b) {
    uint8_t block[Format::bytes] = {};
    std::memcpy(block, row + i * Format::bytes, values * (Format::bytes / kBlock));
    load_piece<Format>(block, 0, a, b);
}

// How far ahead of the multiplication weights are asked for: rows are short, and the hardware loses its stride at each
// end.
constexpr size_t kPrefetchBytes = 4096;

// R outputs times T tokens, one accumulator each: every weight is widened once, every activation loaded once.
template <class Format, int R, int T>
DECODESTEP_INLINE void tile(const uint8_t* w, size_t w_stride, const float* x, ptrdiff_t x_stride, size_t in, float* y,
                            ptrdiff_t y_stride) {
    f32x16 total[R][T];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) total[r][t] = broadcast(0.0f);
    constexpr size_t bytes = Format::bytes / pieces<Format>;
    const size_t blocks = in / kBlock, rest = in % kBlock;
    for (size_t b = 0; b < blocks; ++b) {
        f32x16 w0[R], w1[R];
        prefetch(w + kPrefetchBytes + b * R * bytes, R * bytes);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) load_piece<Format>(w + r * w_stride, b, w0[r], w1[r]);
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            const float* block = x + t * x_stride + b * kBlock;
            const f32x16 x0 = load(block), x1 = load(block + 16);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) total[r][t] = fma(w1[r], x1, fma(w0[r], x0, total[r][t]));
        }
    }
    if (rest) {
        for (int t = 0; t < T; ++t) {
            float block[kBlock] = {};
            std::memcpy(block, x + t * x_stride + blocks * kBlock, rest * sizeof(float));
            for (int r = 0; r < R; ++r) {
                f32x16 w0, w1;
                load_tail<Format>(w + r * w_stride, blocks, rest, w0, w1);
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
constexpr size_t kTileTokens = kVectorRegisters >= 32 ? 4 : 2;
constexpr size_t kTileRows = 4 / (4 / kTileTokens);

template <class Format, int R>
DECODESTEP_INLINE void all_tokens(const Linear& a, const uint8_t* w, size_t w_stride, size_t n) {
    size_t t = 0;
    const float* x = a.x;
    float* y = a.y + n;
    for (; t + kTileTokens <= a.tokens; t += kTileTokens, x += kTileTokens * a.x_stride, y += kTileTokens * a.y_stride)
        tile<Format, R, kTileTokens>(w, w_stride, x, a.x_stride, a.in, y, a.y_stride);
    for (; t < a.tokens; ++t, x += a.x_stride, y += a.y_stride)
        tile<Format, R, 1>(w, w_stride, x, a.x_stride, a.in, y, a.y_stride);
}

template <class Format>
void widen(const uint8_t* w, size_t in, float* values) {
    f32x16 a, b;
    size_t k = 0;
    for (; k + kBlock <= in; k += kBlock) {
        load_piece<Format>(w, k / kBlock, a, b);
        store(values + k, a);
        store(values + k + 16, b);
    }
    if (const size_t rest = in - k; rest > 0) {
        load_tail<Format>(w, k / kBlock, rest, a, b);
        float block[kBlock];
        store(block, a);
        store(block + 16, b);
        std::memcpy(values + k, block, rest * sizeof(float));
    }
}

template <class Format>
void rows_of(const Linear& a, size_t first, size_t last) {
    size_t n = first;
    const bool widen_once = a.tokens > kTileTokens && Format::bytes != F32::bytes;
    float* scratch = widen_once ? thread_scratch(kTileRows * a.in) : nullptr;
    for (; n + kTileRows <= last; n += kTileRows) {
        const uint8_t* w = a.w + n * a.w_stride;
        if (widen_once) {
            for (size_t r = 0; r < kTileRows; ++r) widen<Format>(w + r * a.w_stride, a.in, scratch + r * a.in);
            all_tokens<F32, kTileRows>(a, reinterpret_cast<const uint8_t*>(scratch), a.in * sizeof(float), n);
        } else {
            all_tokens<Format, kTileRows>(a, w, a.w_stride, n);
        }
    }
    for (; n < last; ++n) all_tokens<Format, 1>(a, a.w + n * a.w_stride, a.w_stride, n);
}

template <class Format>
void linear_as(const Linear& a) {
    // A task is about 10 microseconds of work: small enough to share out evenly, large enough to be worth claiming.
    const size_t work = a.in * a.tokens + 1, share = (size_t{1} << 17) / work;
    const size_t rows = share < kTileRows ? kTileRows : share / kTileRows * kTileRows;
    parallel_for((a.out + rows - 1) / rows, a.threads, [&](size_t task) {
        const size_t first = task * rows, last = first + rows < a.out ? first + rows : a.out;
        rows_of<Format>(a, first, last);
    });
}

template <class Format>
void take_rows_as(const TakeRows& a) {
    for (size_t i = 0; i < a.count; ++i) widen<Format>(a.w + a.ids[i] * a.w_stride, a.in, a.values + i * a.in);
}

}  // namespace

void linear(const Linear& a) {
    switch (a.format) {
        case Format::f32:
            return linear_as<F32>(a);
        case Format::f16:
            return linear_as<F16>(a);
        case Format::bf16:
            return linear_as<Bf16>(a);
        case Format::q4_0:
            return linear_as<Q4_0>(a);
        case Format::q4_1:
            return linear_as<Q4_1>(a);
        case Format::q8_0:
            return linear_as<Q8_0>(a);
        case Format::q4_k:
            return linear_as<Q4_K>(a);
        case Format::q5_k:
            return linear_as<Q5_K>(a);
        case Format::q6_k:
            return linear_as<Q6_K>(a);
    }
}

void take_rows(const TakeRows& a) {
    switch (a.format) {
        case Format::f32:
            return take_rows_as<F32>(a);
        case Format::f16:
            return take_rows_as<F16>(a);
        case Format::bf16:
            return take_rows_as<Bf16>(a);
        case Format::q4_0:
            return take_rows_as<Q4_0>(a);
        case Format::q4_1:
            return take_rows_as<Q4_1>(a);
        case Format::q8_0:
            return take_rows_as<Q8_0>(a);
        case Format::q4_k:
            return take_rows_as<Q4_K>(a);
        case Format::q5_k:
            return take_rows_as<Q5_K>(a);
        case Format::q6_k:
            return take_rows_as<Q6_K>(a);
    }
}

}  // namespace decodestep::DECODESTEP_ISA
