#include "columns.h"

#include "parallel.h"
#include "simd.h"

namespace decodestep::DECODESTEP_ISA {
namespace {

struct Bf16 {
    uint16_t bits;
};

DECODESTEP_INLINE f32x16 widen(const float* p) { return load(p); }
DECODESTEP_INLINE f32x16 widen(const Bf16* p) { return from_bf16(p); }
DECODESTEP_INLINE f32x16 widen(const int8_t* p) { return from_i8(p); }

template <class W>
DECODESTEP_INLINE f32x16 widen_first(const W* p, size_t n) {
    W lanes[kLanes] = {};
    std::memcpy(lanes, p, n * sizeof(W));
    return widen(lanes);
}

// So many rows of W at a time: a strip of them stays in the innermost cache for all tokens, and so many products of
// int8 are exact in float32.
constexpr size_t kRows = 64;
constexpr size_t kTaskBytes = 512;  // of a row of W that a task takes at least: long enough a run for the memory
constexpr size_t kPrefetchRows = 24;
#if defined(__AVX512F__)
constexpr int kTokens = 6, kGroups = 4;
#else
constexpr int kTokens = 2, kGroups = 2;  // sixteen registers hold four accumulators of two registers, and two weights
#endif
constexpr size_t kStrip = kGroups * kLanes;

// Adds sums to y. For exact ones the bits of y are an int32 until `finish`.
template <bool exact>
DECODESTEP_INLINE void add(f32x16 sums, size_t n, bool first, float* y) {
    float lanes[kLanes];
    store(lanes, sums);
    for (size_t i = 0; i < n; ++i) {
        if constexpr (exact) {
            int32_t total = 0;
            if (!first) std::memcpy(&total, y + i, sizeof total);
            total += static_cast<int32_t>(lanes[i]);
            std::memcpy(y + i, &total, sizeof total);
        } else {
            y[i] = first ? lanes[i] : y[i] + lanes[i];
        }
    }
}

void finish(float* y, size_t n) {
    for (size_t i = 0; i < n; ++i) {
        int32_t total;
        std::memcpy(&total, y + i, sizeof total);
        y[i] = static_cast<float>(total);
    }
}

// Rows [k, end) of sixteen outputs in each of up to kGroups places.
template <class W>
struct Strip {
    const W* at[kGroups];  // where row k begins
    size_t row_stride, k, end;
};

// T tokens times G groups of sixteen outputs.
template <class W, bool exact, int T, int G>
DECODESTEP_INLINE void tile(const Columns& a, const Strip<W>& w, const float* x, float* y) {
    f32x16 total[T][G];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t)
#pragma GCC unroll 8
        for (int g = 0; g < G; ++g) total[t][g] = broadcast(0.0f);
    for (size_t k = w.k, row = 0; k < w.end; ++k, row += w.row_stride) {
        f32x16 weights[G];
#pragma GCC unroll 8
        for (int g = 0; g < G; ++g) {
            if (g * kLanes * sizeof(W) % 64 == 0) prefetch(w.at[g] + row + kPrefetchRows * w.row_stride);
            weights[g] = widen(w.at[g] + row);
        }
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            const f32x16 value = broadcast(x[t * a.x_token + k]);
#pragma GCC unroll 8
            for (int g = 0; g < G; ++g) total[t][g] = fma(value, weights[g], total[t][g]);
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t)
#pragma GCC unroll 8
        for (int g = 0; g < G; ++g) add<exact>(total[t][g], kLanes, w.k == 0, y + t * a.y_token + g * kLanes);
}

template <class W, bool exact, int T, int G>
DECODESTEP_INLINE void tile_of(int tokens, const Columns& a, const Strip<W>& w, const float* x, float* y) {
    if (tokens == T) return tile<W, exact, T, G>(a, w, x, y);
    if constexpr (T > 1) tile_of<W, exact, T - 1, G>(tokens, a, w, x, y);
}

template <class W, bool exact, int G>
void all_tokens(const Columns& a, const Strip<W>& w, const float* x, float* y) {
    // Tiles of as equal a height as can be: three of 6, 5 and 5 do better than 6, 6 and 4.
    const size_t tiles = (a.tokens + kTokens - 1) / kTokens;
    for (size_t i = 0, t = 0; i < tiles; ++i) {
        const size_t tokens = (a.tokens - t + tiles - i - 1) / (tiles - i);
        tile_of<W, exact, kTokens, G>(static_cast<int>(tokens), a, w, x + t * a.x_token, y + t * a.y_token);
        t += tokens;
    }
}

// For more tokens than one tile holds a strip is widened once.
template <class W, int G>
void strip(const Columns& a, const Strip<W>& w, const float* x, float* y) {
    constexpr bool exact = sizeof(W) == 1;
    if (a.tokens <= kTokens) return all_tokens<W, exact, G>(a, w, x, y);
    alignas(64) float wide[(kRows + kPrefetchRows) * kStrip];
    for (size_t k = w.k, row = 0; k < w.end; ++k, row += w.row_stride)
        for (int g = 0; g < G; ++g) {
            prefetch(w.at[g] + row + kPrefetchRows * w.row_stride);
            store(wide + (k - w.k) * kStrip + g * kLanes, widen(w.at[g] + row));
        }
    Strip<float> same{{}, kStrip, w.k, w.end};
    for (int g = 0; g < G; ++g) same.at[g] = wide + g * kLanes;
    all_tokens<float, exact, G>(a, same, x, y);
}

// The last outputs, fewer than sixteen.
template <class W>
void few(const Columns& a, const Strip<W>& w, size_t count, const float* x, float* y) {
    for (size_t t = 0; t < a.tokens; ++t) {
        f32x16 total = broadcast(0.0f);
        for (size_t k = w.k, row = 0; k < w.end; ++k, row += w.row_stride)
            total = fma(broadcast(x[t * a.x_token + k]), widen_first(w.at[0] + row, count), total);
        add<sizeof(W) == 1>(total, count, w.k == 0, y + t * a.y_token);
    }
}

template <class W>
void outputs(const Columns& a, size_t b, size_t first, size_t last) {
    const W* w = static_cast<const W*>(a.w) + b * a.w_batch;
    const float* x = a.x + b * a.x_batch;
    float* y = a.y + b * a.y_batch;
    for (size_t k = 0; k < a.in; k += kRows) {
        const size_t end = a.in - k < kRows ? a.in : k + kRows;
        const auto at = [&](size_t n) { return w + n / a.panel * a.panel_stride + k * a.row_stride + n % a.panel; };
        Strip<W> rows{{}, a.row_stride, k, end};
        size_t n = first;
        for (; n + kStrip <= last; n += kStrip) {
            for (int g = 0; g < kGroups; ++g) rows.at[g] = at(n + g * kLanes);
            strip<W, kGroups>(a, rows, x, y + n);
        }
        for (; n + kLanes <= last; n += kLanes) {
            rows.at[0] = at(n);
            strip<W, 1>(a, rows, x, y + n);
        }
        if (n < last) {
            rows.at[0] = at(n);
            few(a, rows, last - n, x, y + n);
        }
    }
    if (sizeof(W) == 1)
        for (size_t t = 0; t < a.tokens; ++t) finish(y + t * a.y_token + first, last - first);
}

template <class W>
void columns_as(const Columns& a) {
    // Two tasks a thread where rows of W are long, so that each reads long runs; NZ panels are one run anyway.
    size_t share = kTaskBytes / sizeof(W);
    if (a.panel >= a.out && a.out / (2 * a.threads) > share)
        share = (a.out / (2 * a.threads) + kStrip - 1) / kStrip * kStrip;
    const size_t tasks = (a.out + share - 1) / share;
    const bool small = a.batch * a.tokens * a.in * a.out < (size_t{1} << 17);
    parallel_for(a.batch * tasks, small ? 1 : a.threads, [&](size_t task) {
        const size_t first = task % tasks * share, last = first + share < a.out ? first + share : a.out;
        outputs<W>(a, task / tasks, first, last);
    });
}

}  // namespace

void columns(const Columns& a) {
    if (a.in == 0) {  // no block of rows writes
        for (size_t i = 0; i < a.batch * a.tokens; ++i)
            std::memset(a.y + i / a.tokens * a.y_batch + i % a.tokens * a.y_token, 0, a.out * sizeof(float));
        return;
    }
    switch (a.value) {
        case Value::f32:
            return columns_as<float>(a);
        case Value::bf16:
            return columns_as<Bf16>(a);
        case Value::i8:
            return columns_as<int8_t>(a);
    }
}

}  // namespace decodestep::DECODESTEP_ISA
