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

// So many rows of W at a time: they stay in the cache for all tokens, and so many products of int8 stay exact in
// float32.
constexpr size_t kRows = 128;
constexpr size_t kTaskBytes = 512;  // of a row of W that a task takes: long enough a run for the memory
constexpr size_t kPrefetchRows = 12;
#if defined(__AVX512F__)
constexpr int kTokens = 4, kGroups = 4;
#else
constexpr int kTokens = 2, kGroups = 2;  // sixteen registers hold four accumulators of two registers, and two weights
#endif

// Adds sixteen sums to y. For int8 the bits of y are an int32 until `finish`.
template <class W>
DECODESTEP_INLINE void add(f32x16 sums, size_t n, bool first, float* y) {
    float lanes[kLanes];
    store(lanes, sums);
    for (size_t i = 0; i < n; ++i) {
        if constexpr (sizeof(W) == 1) {
            int32_t total = 0;
            if (!first) std::memcpy(&total, y + i, sizeof total);
            total += static_cast<int32_t>(lanes[i]);
            std::memcpy(y + i, &total, sizeof total);
        } else {
            y[i] = first ? lanes[i] : y[i] + lanes[i];
        }
    }
}

template <class W>
void finish(float* y, size_t n) {
    if constexpr (sizeof(W) == 1) {
        for (size_t i = 0; i < n; ++i) {
            int32_t total;
            std::memcpy(&total, y + i, sizeof total);
            y[i] = static_cast<float>(total);
        }
    }
}

// T tokens times G groups of sixteen outputs over the rows [k, end).
template <class W, int T, int G>
DECODESTEP_INLINE void tile(const Columns& a, const W* const (&w)[kGroups], const float* x, size_t k, size_t end,
                            float* y) {
    f32x16 total[T][G];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t)
#pragma GCC unroll 8
        for (int g = 0; g < G; ++g) total[t][g] = broadcast(0.0f);
    const bool first = k == 0;
    for (; k < end; ++k) {
        f32x16 weights[G];
#pragma GCC unroll 8
        for (int g = 0; g < G; ++g) {
            if (g * kLanes * sizeof(W) % 64 == 0) prefetch(w[g] + (k + kPrefetchRows) * a.row_stride);
            weights[g] = widen(w[g] + k * a.row_stride);
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
        for (int g = 0; g < G; ++g) add<W>(total[t][g], kLanes, first, y + t * a.y_token + g * kLanes);
}

template <class W, int G>
DECODESTEP_INLINE void all_tokens(const Columns& a, const W* const (&w)[kGroups], const float* x, size_t k, size_t end,
                                  float* y) {
    size_t t = 0;
    for (; t + kTokens <= a.tokens; t += kTokens)
        tile<W, kTokens, G>(a, w, x + t * a.x_token, k, end, y + t * a.y_token);
    for (; t < a.tokens; ++t) tile<W, 1, G>(a, w, x + t * a.x_token, k, end, y + t * a.y_token);
}

// The last outputs, fewer than sixteen.
template <class W>
void few(const Columns& a, const W* w, size_t count, const float* x, size_t k, size_t end, float* y) {
    for (size_t t = 0; t < a.tokens; ++t) {
        f32x16 total = broadcast(0.0f);
        for (size_t i = k; i < end; ++i)
            total = fma(broadcast(x[t * a.x_token + i]), widen_first(w + i * a.row_stride, count), total);
        add<W>(total, count, k == 0, y + t * a.y_token);
    }
}

template <class W>
void outputs(const Columns& a, size_t b, size_t first, size_t last) {
    const W* w = static_cast<const W*>(a.w) + b * a.w_batch;
    const float* x = a.x + b * a.x_batch;
    float* y = a.y + b * a.y_batch;
    const auto at = [&](size_t n) { return w + n / a.panel * a.panel_stride + n % a.panel; };
    for (size_t k = 0; k < a.in; k += kRows) {
        const size_t end = a.in - k < kRows ? a.in : k + kRows;
        size_t n = first;
        for (; n + kGroups * kLanes <= last; n += kGroups * kLanes) {
            const W* groups[kGroups];
            for (int g = 0; g < kGroups; ++g) groups[g] = at(n + g * kLanes);
            all_tokens<W, kGroups>(a, groups, x, k, end, y + n);
        }
        for (; n + kLanes <= last; n += kLanes) {
            const W* groups[kGroups] = {at(n)};
            all_tokens<W, 1>(a, groups, x, k, end, y + n);
        }
        if (n < last) few(a, at(n), last - n, x, k, end, y + n);
    }
    for (size_t t = 0; t < a.tokens; ++t) finish<W>(y + t * a.y_token + first, last - first);
}

template <class W>
void columns_as(const Columns& a) {
    constexpr size_t share = kTaskBytes / sizeof(W);
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
