// Sixteen float32 lanes on AVX-512, AVX2 and any other machine. Included by kernels that are compiled once for each
// instruction set: everything lives in that build's namespace, so the linker can never mix them up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "core/exact_math.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace decodestep::DECODESTEP_ISA {

constexpr int kLanes = 16;

#if defined(__AVX512F__)

// max and min return their second operand when one is NaN, on every machine.
struct f32x16 {
    __m512 v;
};

DECODESTEP_INLINE f32x16 broadcast(float x) { return {_mm512_set1_ps(x)}; }
DECODESTEP_INLINE f32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
DECODESTEP_INLINE void store(float* p, f32x16 a) { _mm512_storeu_ps(p, a.v); }
DECODESTEP_INLINE f32x16 operator+(f32x16 a, f32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
DECODESTEP_INLINE f32x16 operator-(f32x16 a, f32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
DECODESTEP_INLINE f32x16 operator*(f32x16 a, f32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
DECODESTEP_INLINE f32x16 operator/(f32x16 a, f32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
DECODESTEP_INLINE f32x16 max(f32x16 a, f32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
DECODESTEP_INLINE f32x16 min(f32x16 a, f32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
DECODESTEP_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
DECODESTEP_INLINE f32x16 round_even(f32x16 a) {
    return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// a * 2^n for integral n in [-126, 127].
DECODESTEP_INLINE f32x16 times_exp2(f32x16 a, f32x16 n) { return {_mm512_scalef_ps(a.v, n.v)}; }
// Each even lane and the odd one behind it in the other's place.
DECODESTEP_INLINE f32x16 swap_pairs(f32x16 a) { return {_mm512_permute_ps(a.v, 0xB1)}; }
// a - b in the even lanes, a + b in the odd ones.
DECODESTEP_INLINE f32x16 subtract_add(f32x16 a, f32x16 b) {
    return {_mm512_mask_sub_ps(_mm512_add_ps(a.v, b.v), 0x5555, a.v, b.v)};
}
// Each of eight values twice.
DECODESTEP_INLINE f32x16 load_twice(const float* p) {
    const __m512i lanes = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    return {_mm512_permutexvar_ps(lanes, _mm512_castps256_ps512(_mm256_loadu_ps(p)))};
}
DECODESTEP_INLINE f32x16 from_u8(__m128i bytes) { return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes))}; }
DECODESTEP_INLINE f32x16 from_i8(const void* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))))};
}
DECODESTEP_INLINE f32x16 from_bf16(const void* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
DECODESTEP_INLINE f32x16 from_f16(const void* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}

#elif defined(__AVX2__)

struct f32x16 {
    __m256 low, high;
};

DECODESTEP_INLINE f32x16 broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
DECODESTEP_INLINE f32x16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
DECODESTEP_INLINE void store(float* p, f32x16 a) {
    _mm256_storeu_ps(p, a.low);
    _mm256_storeu_ps(p + 8, a.high);
}
DECODESTEP_INLINE f32x16 operator+(f32x16 a, f32x16 b) {
    return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
DECODESTEP_INLINE f32x16 operator-(f32x16 a, f32x16 b) {
    return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
DECODESTEP_INLINE f32x16 operator*(f32x16 a, f32x16 b) {
    return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
DECODESTEP_INLINE f32x16 operator/(f32x16 a, f32x16 b) {
    return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
DECODESTEP_INLINE f32x16 max(f32x16 a, f32x16 b) {
    return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}
DECODESTEP_INLINE f32x16 min(f32x16 a, f32x16 b) {
    return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
}
DECODESTEP_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
DECODESTEP_INLINE f32x16 round_even(f32x16 a) {
    constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(a.low, mode), _mm256_round_ps(a.high, mode)};
}
DECODESTEP_INLINE __m256 exp2i(__m256 n) {
    const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
}
DECODESTEP_INLINE f32x16 times_exp2(f32x16 a, f32x16 n) {
    return {_mm256_mul_ps(a.low, exp2i(n.low)), _mm256_mul_ps(a.high, exp2i(n.high))};
}
DECODESTEP_INLINE f32x16 swap_pairs(f32x16 a) {
    return {_mm256_permute_ps(a.low, 0xB1), _mm256_permute_ps(a.high, 0xB1)};
}
DECODESTEP_INLINE f32x16 subtract_add(f32x16 a, f32x16 b) {
    return {_mm256_addsub_ps(a.low, b.low), _mm256_addsub_ps(a.high, b.high)};
}
DECODESTEP_INLINE f32x16 load_twice(const float* p) {
    const __m256 eight = _mm256_loadu_ps(p);
    const __m256i low = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3), high = _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7);
    return {_mm256_permutevar8x32_ps(eight, low), _mm256_permutevar8x32_ps(eight, high)};
}
DECODESTEP_INLINE f32x16 from_u8(__m128i bytes) {
    return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)),
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)))};
}
DECODESTEP_INLINE f32x16 from_i8(const void* p) {
    const __m128i bytes = _mm_loadu_si128(static_cast<const __m128i*>(p));
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
}
DECODESTEP_INLINE __m256 from_bf16(__m128i halves) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
DECODESTEP_INLINE f32x16 from_bf16(const void* p) {
    const auto* halves = static_cast<const __m128i*>(p);
    return {from_bf16(_mm_loadu_si128(halves)), from_bf16(_mm_loadu_si128(halves + 1))};
}
DECODESTEP_INLINE f32x16 from_f16(const void* p) {
    const auto* halves = static_cast<const __m128i*>(p);
    return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
}

#else

struct f32x16 {
    float v[kLanes];
};

template <class F>
DECODESTEP_INLINE f32x16 each(F&& f) {
    f32x16 r;
    for (int i = 0; i < kLanes; ++i) r.v[i] = f(i);
    return r;
}

DECODESTEP_INLINE f32x16 broadcast(float x) {
    return each([=](int) { return x; });
}
DECODESTEP_INLINE f32x16 load(const float* p) {
    f32x16 r;
    std::memcpy(r.v, p, sizeof r.v);
    return r;
}
DECODESTEP_INLINE void store(float* p, f32x16 a) { std::memcpy(p, a.v, sizeof a.v); }
DECODESTEP_INLINE f32x16 operator+(f32x16 a, f32x16 b) {
    return each([&](int i) { return a.v[i] + b.v[i]; });
}
DECODESTEP_INLINE f32x16 operator-(f32x16 a, f32x16 b) {
    return each([&](int i) { return a.v[i] - b.v[i]; });
}
DECODESTEP_INLINE f32x16 operator*(f32x16 a, f32x16 b) {
    return each([&](int i) { return a.v[i] * b.v[i]; });
}
DECODESTEP_INLINE f32x16 operator/(f32x16 a, f32x16 b) {
    return each([&](int i) { return a.v[i] / b.v[i]; });
}
DECODESTEP_INLINE f32x16 max(f32x16 a, f32x16 b) {
    return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
DECODESTEP_INLINE f32x16 min(f32x16 a, f32x16 b) {
    return each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
// Two roundings where the machine has no fused multiply-add: it would be a call of a library function for each lane.
DECODESTEP_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
#if defined(__FP_FAST_FMAF)
    return each([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
#else
    return a * b + c;
#endif
}
DECODESTEP_INLINE f32x16 round_even(f32x16 a) {
    return each([&](int i) { return __builtin_rintf(a.v[i]); });
}
DECODESTEP_INLINE f32x16 times_exp2(f32x16 a, f32x16 n) {
    return each([&](int i) {
        const uint32_t bits = n.v[i] == n.v[i] ? static_cast<uint32_t>(static_cast<int>(n.v[i]) + 127) << 23 : 0;
        float factor;
        std::memcpy(&factor, &bits, sizeof factor);
        return a.v[i] * factor;
    });
}
DECODESTEP_INLINE f32x16 swap_pairs(f32x16 a) {
    return each([&](int i) { return a.v[i ^ 1]; });
}
DECODESTEP_INLINE f32x16 subtract_add(f32x16 a, f32x16 b) {
    return each([&](int i) { return i % 2 ? a.v[i] + b.v[i] : a.v[i] - b.v[i]; });
}
DECODESTEP_INLINE f32x16 load_twice(const float* p) {
    return each([=](int i) { return p[i / 2]; });
}
DECODESTEP_INLINE f32x16 from_i8(const void* p) {
    const auto* bytes = static_cast<const int8_t*>(p);
    return each([=](int i) { return static_cast<float>(bytes[i]); });
}
DECODESTEP_INLINE float bf16_to_float(uint16_t half) {
    const uint32_t bits = static_cast<uint32_t>(half) << 16;
    float r;
    std::memcpy(&r, &bits, sizeof r);
    return r;
}
DECODESTEP_INLINE float f16_to_float(uint16_t half) {
    const uint32_t magnitude = half & 0x7FFFu, sign = static_cast<uint32_t>(half & 0x8000u) << 16;
    // Rebias the exponent by a multiplication, which also normalises the subnormals.
    uint32_t bits = magnitude << 13;
    float r;
    std::memcpy(&r, &bits, sizeof r);
    r *= 0x1p112f;
    std::memcpy(&bits, &r, sizeof r);
    if (magnitude >= 0x7C00u) bits |= 0x7F800000u;
    bits |= sign;
    std::memcpy(&r, &bits, sizeof r);
    return r;
}
template <float (*Convert)(uint16_t)>
DECODESTEP_INLINE f32x16 from_halves(const void* p) {
    uint16_t halves[kLanes];
    std::memcpy(halves, p, sizeof halves);
    return each([&](int i) { return Convert(halves[i]); });
}
DECODESTEP_INLINE f32x16 from_bf16(const void* p) { return from_halves<bf16_to_float>(p); }
DECODESTEP_INLINE f32x16 from_f16(const void* p) { return from_halves<f16_to_float>(p); }

#endif

// Sixteen bytes hold 32 values of four bits: the low halves come first, then the high halves.
struct Nibbles {
    f32x16 low, high;
};

DECODESTEP_INLINE Nibbles from_nibbles(const void* p) {
#if defined(__AVX2__)
    const __m128i bytes = _mm_loadu_si128(static_cast<const __m128i*>(p)), mask = _mm_set1_epi8(15);
    return {from_u8(_mm_and_si128(bytes, mask)), from_u8(_mm_and_si128(_mm_srli_epi16(bytes, 4), mask))};
#else
    const auto* bytes = static_cast<const uint8_t*>(p);
    return {each([=](int i) { return static_cast<float>(bytes[i] & 15); }),
            each([=](int i) { return static_cast<float>(bytes[i] >> 4); })};
#endif
}

// One float16 as float32 in every lane.
DECODESTEP_INLINE f32x16 broadcast_f16(const void* p) {
    uint16_t half;
    std::memcpy(&half, p, sizeof half);
#if defined(__AVX512F__)
    return {_mm512_cvtph_ps(_mm256_set1_epi16(static_cast<short>(half)))};
#elif defined(__AVX2__)
    const __m256 wide = _mm256_cvtph_ps(_mm_set1_epi16(static_cast<short>(half)));
    return {wide, wide};
#else
    return broadcast(f16_to_float(half));
#endif
}

// Keeps a loaded value in its register, where the compiler would load it once more for every use.
DECODESTEP_INLINE void keep([[maybe_unused]] f32x16& a) {
#if defined(__AVX512F__)
    asm("" : "+v"(a.v));
#elif defined(__AVX2__)
    asm("" : "+x"(a.low), "+x"(a.high));
#endif
}

// Keeps an integer in a general register, and the stores before from being gathered in a vector.
DECODESTEP_INLINE void stay_scalar([[maybe_unused]] uint64_t& a) {
#if defined(__AVX2__)
    asm volatile("" : "+r"(a) : : "memory");
#endif
}

DECODESTEP_INLINE void prefetch(const void* p) { __builtin_prefetch(p, 0, 3); }

// Asks for every line of memory that is read soon; `bytes` is known where this is compiled.
DECODESTEP_INLINE void prefetch(const void* memory, size_t bytes) {
#pragma GCC unroll 32
    for (size_t at = 0; at < bytes; at += 64) prefetch(static_cast<const uint8_t*>(memory) + at);
}

// Asks for memory that is written soon: results that lie too far apart to be foreseen.
DECODESTEP_INLINE void ask_to_write(const void* memory, size_t bytes) {
    for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch(static_cast<const uint8_t*>(memory) + at, 1, 3);
}

// The first n lanes (0 < n < 16) from memory, zeros behind them.
DECODESTEP_INLINE f32x16 load_first(const float* p, size_t n) {
    float lanes[kLanes] = {};
    std::memcpy(lanes, p, n * sizeof(float));
    return load(lanes);
}

DECODESTEP_INLINE void store_first(float* p, f32x16 a, size_t n) {
    float lanes[kLanes];
    store(lanes, a);
    std::memcpy(p, lanes, n * sizeof(float));
}

// Both reductions fold the upper half onto the lower: 8 + 8, 4 + 4, 2 + 2, 1 + 1, the same on every machine.
DECODESTEP_INLINE float sum(f32x16 a) {
#if defined(__AVX512F__) || defined(__AVX2__)
#if defined(__AVX512F__)
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
#else
    const __m256 eight = _mm256_add_ps(a.low, a.high);
#endif
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
#else
    for (int width = kLanes / 2; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) a.v[i] += a.v[i + width];
    return a.v[0];
#endif
}

DECODESTEP_INLINE float largest(f32x16 a) {
#if defined(__AVX512F__) || defined(__AVX2__)
#if defined(__AVX512F__)
    const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
#else
    const __m256 eight = _mm256_max_ps(a.low, a.high);
#endif
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
#else
    float r = a.v[0];
    for (int i = 1; i < kLanes; ++i) r = a.v[i] > r ? a.v[i] : r;
    return r;
#endif
}

// e^x to about one unit in the last place, x first brought into [-87, 88]: about 1e-38 and 1e38 at the ends. NaN stays
// NaN.
DECODESTEP_INLINE f32x16 exp(f32x16 x) {
    x = min(broadcast(88.0f), max(broadcast(-87.0f), x));
    const f32x16 n = round_even(x * broadcast(1.44269504f));
    f32x16 r = fma(n, broadcast(-0.693359375f), x);  // ln 2 in two parts, the first short enough for exact products
    r = fma(n, broadcast(2.12194440e-4f), r);
    f32x16 y = broadcast(1.9875691500e-4f);
    for (const float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
        y = fma(y, r, broadcast(c));
    return times_exp2(fma(y, r * r, r) + broadcast(1.0f), n);
}

}  // namespace decodestep::DECODESTEP_ISA
