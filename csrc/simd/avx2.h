// AVX2 with fused multiply-add and float16 conversions (FMA, F16C). A vector is two registers.
#pragma once

#include "simd/x86.h"

namespace decodestep::DECODESTEP_BUILD {

// The constants of a target: see target.h.
constexpr int kVectorRegisters = 8;
constexpr bool kStoresBytes = true;
constexpr size_t kPrefetchBytes = 1152;
constexpr size_t kStreams = 4;
constexpr bool kSplitsBf16 = false;

// Float32.

struct f32x16 {
    __m256 low, high;
};
struct f32x32 {
    f32x16 first, second;
};

// One of the registers of a vector, for kernels that would hold too many whole vectors at a time.
using Register = __m256;
DECODESTEP_INLINE Register load_register(const float* p) { return _mm256_loadu_ps(p); }
DECODESTEP_INLINE void store_register(float* p, Register a) { _mm256_storeu_ps(p, a); }

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
// max and min return their second operand when one is NaN, on every target.
DECODESTEP_INLINE f32x16 max(f32x16 a, f32x16 b) {
    return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}
DECODESTEP_INLINE f32x16 min(f32x16 a, f32x16 b) {
    return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
}
DECODESTEP_INLINE Register fma(Register a, Register b, Register c) { return _mm256_fmadd_ps(a, b, c); }
DECODESTEP_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
    return {fma(a.low, b.low, c.low), fma(a.high, b.high, c.high)};
}
DECODESTEP_INLINE f32x16 magnitude(f32x16 a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, a.low), _mm256_andnot_ps(sign, a.high)};
}
DECODESTEP_INLINE f32x16 round_even(f32x16 a) {
    constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(a.low, mode), _mm256_round_ps(a.high, mode)};
}
// a * 2^n for integral n in [-126, 127].
DECODESTEP_INLINE f32x16 times_exp2(f32x16 a, f32x16 n) {
    const auto power = [](__m256 exponent) {
        const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(exponent), _mm256_set1_epi32(127));
        return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
    };
    return {_mm256_mul_ps(a.low, power(n.low)), _mm256_mul_ps(a.high, power(n.high))};
}
// Each even lane and the odd one after it, exchanged.
DECODESTEP_INLINE f32x16 swap_pairs(f32x16 a) {
    return {_mm256_permute_ps(a.low, 0xB1), _mm256_permute_ps(a.high, 0xB1)};
}
// a - b in the even lanes, a + b in the odd ones.
DECODESTEP_INLINE f32x16 subtract_add(f32x16 a, f32x16 b) {
    return {_mm256_addsub_ps(a.low, b.low), _mm256_addsub_ps(a.high, b.high)};
}
// Each of eight values twice.
DECODESTEP_INLINE f32x16 load_twice(const float* p) {
    const __m256 eight = _mm256_loadu_ps(p);
    const __m256i low = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3), high = _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7);
    return {_mm256_permutevar8x32_ps(eight, low), _mm256_permutevar8x32_ps(eight, high)};
}
// Both reductions fold the upper half onto the lower one: 8 + 8, 4 + 4, 2 + 2, 1 + 1, on every target.
DECODESTEP_INLINE float sum(f32x16 a) { return sum(_mm256_add_ps(a.low, a.high)); }
DECODESTEP_INLINE float largest(f32x16 a) { return largest(_mm256_max_ps(a.low, a.high)); }
// Keeps a loaded value in its register, where the compiler would load it again for every use.
DECODESTEP_INLINE void keep_in_register(Register& a) { asm("" : "+x"(a)); }
DECODESTEP_INLINE void keep_in_register(f32x16& a) { asm("" : "+x"(a.low), "+x"(a.high)); }

// Masks.

// A lane that holds NaN is never at least anything.
DECODESTEP_INLINE Mask at_least(f32x16 a, f32x16 b) {
    const int low = _mm256_movemask_ps(_mm256_cmp_ps(a.low, b.low, _CMP_GE_OQ));
    const int high = _mm256_movemask_ps(_mm256_cmp_ps(a.high, b.high, _CMP_GE_OQ));
    return static_cast<Mask>(low | high << 8);
}
// The lanes of the mask, 0 in the others.
DECODESTEP_INLINE f32x16 select(Mask mask, f32x16 a) {
    const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128), all = _mm256_set1_epi32(static_cast<int>(mask));
    const __m256i low = _mm256_cmpeq_epi32(_mm256_and_si256(all, bit), bit);
    const __m256i high = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_srli_epi32(all, 8), bit), bit);
    return {_mm256_and_ps(a.low, _mm256_castsi256_ps(low)), _mm256_and_ps(a.high, _mm256_castsi256_ps(high))};
}

// Int32, which wraps around.

struct i32x16 {
    __m256i low, high;
};

DECODESTEP_INLINE i32x16 broadcast_int(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
DECODESTEP_INLINE i32x16 load_bits(const void* p) {
    const auto* halves = static_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(halves), _mm256_loadu_si256(halves + 1)};
}
DECODESTEP_INLINE void store_bits(void* p, i32x16 a) {
    auto* halves = static_cast<__m256i*>(p);
    _mm256_storeu_si256(halves, a.low);
    _mm256_storeu_si256(halves + 1, a.high);
}
DECODESTEP_INLINE i32x16 operator+(i32x16 a, i32x16 b) {
    return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
}
DECODESTEP_INLINE i32x16 operator*(i32x16 a, i32x16 b) {
    return {_mm256_mullo_epi32(a.low, b.low), _mm256_mullo_epi32(a.high, b.high)};
}
DECODESTEP_INLINE i32x16 operator&(i32x16 a, i32x16 b) {
    return {_mm256_and_si256(a.low, b.low), _mm256_and_si256(a.high, b.high)};
}
DECODESTEP_INLINE i32x16 operator|(i32x16 a, i32x16 b) {
    return {_mm256_or_si256(a.low, b.low), _mm256_or_si256(a.high, b.high)};
}
DECODESTEP_INLINE i32x16 operator^(i32x16 a, i32x16 b) {
    return {_mm256_xor_si256(a.low, b.low), _mm256_xor_si256(a.high, b.high)};
}
template <int bits>
DECODESTEP_INLINE i32x16 shift_left(i32x16 a) {
    return {_mm256_slli_epi32(a.low, bits), _mm256_slli_epi32(a.high, bits)};
}
template <int bits>
DECODESTEP_INLINE i32x16 shift_right(i32x16 a) {
    return {_mm256_srli_epi32(a.low, bits), _mm256_srli_epi32(a.high, bits)};
}
DECODESTEP_INLINE i32x16 max(i32x16 a, i32x16 b) {
    return {_mm256_max_epi32(a.low, b.low), _mm256_max_epi32(a.high, b.high)};
}
DECODESTEP_INLINE int32_t sum(i32x16 a) {
    const __m256i eight = _mm256_add_epi32(a.low, a.high);
    const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xB1)));
}
DECODESTEP_INLINE int32_t largest(i32x16 a) {
    const __m256i eight = _mm256_max_epi32(a.low, a.high);
    const __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    const __m128i two = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4E));
    return _mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32(two, 0xB1)));
}
DECODESTEP_INLINE i32x16 bits_of(f32x16 a) { return {_mm256_castps_si256(a.low), _mm256_castps_si256(a.high)}; }
DECODESTEP_INLINE f32x16 as_float(i32x16 a) { return {_mm256_castsi256_ps(a.low), _mm256_castsi256_ps(a.high)}; }
DECODESTEP_INLINE f32x16 to_float(i32x16 a) { return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)}; }
DECODESTEP_INLINE f32x16 unsigned_to_float(i32x16 a) {  // rounds once: both products are exact
    return to_float(shift_right<16>(a)) * broadcast(65536.0f) + to_float(a & broadcast_int(0xFFFF));
}
// To nearest, ties to even; 0 for NaN. Magnitudes are below 2^31.
DECODESTEP_INLINE i32x16 round_to_int(f32x16 a) {
    const auto whole = [](__m256 v) { return _mm256_cvtps_epi32(_mm256_and_ps(v, _mm256_cmp_ps(v, v, _CMP_ORD_Q))); };
    return {whole(a.low), whole(a.high)};
}

// Narrower types in memory.

DECODESTEP_INLINE i32x16 load_u8(const void* p) {
    const __m128i bytes = _mm_loadu_si128(static_cast<const __m128i*>(p));
    return {_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))};
}
DECODESTEP_INLINE i32x16 load_u16(const void* p) {
    const auto* halves = static_cast<const __m128i*>(p);
    return {_mm256_cvtepu16_epi32(_mm_loadu_si128(halves)), _mm256_cvtepu16_epi32(_mm_loadu_si128(halves + 1))};
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
DECODESTEP_INLINE f32x16 from_f16(const void* p) {
    const auto* halves = static_cast<const __m128i*>(p);
    return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
}
// One float16 in every lane.
DECODESTEP_INLINE f32x16 broadcast_f16(const void* p) {
    uint16_t half;
    std::memcpy(&half, p, sizeof half);
    const __m256 wide = _mm256_cvtph_ps(_mm_set1_epi16(static_cast<short>(half)));
    return {wide, wide};
}
// The lower and the upper of the two bfloat16 that each lane holds.
DECODESTEP_INLINE __m256 low_bf16(__m256i a) { return _mm256_castsi256_ps(_mm256_slli_epi32(a, 16)); }
DECODESTEP_INLINE __m256 high_bf16(__m256i a) {
    return _mm256_castsi256_ps(_mm256_and_si256(a, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}
DECODESTEP_INLINE f32x16 low_bf16(i32x16 a) { return {low_bf16(a.low), low_bf16(a.high)}; }
DECODESTEP_INLINE f32x16 high_bf16(i32x16 a) { return {high_bf16(a.low), high_bf16(a.high)}; }
DECODESTEP_INLINE f32x16 from_bf16(const void* p) { return low_bf16(load_u16(p)); }
// Sixteen bytes hold 32 values of four bits: the lower halves come first, then the upper halves.
DECODESTEP_INLINE f32x32 from_nibbles(const void* p) {
    const __m128i bytes = _mm_loadu_si128(static_cast<const __m128i*>(p));
    return {from_u8(low_nibbles(bytes)), from_u8(high_nibbles(bytes))};
}
DECODESTEP_INLINE f32x32 from_u8(u8x32 a) {
    return {from_u8(_mm256_castsi256_si128(a.v)), from_u8(_mm256_extracti128_si256(a.v, 1))};
}
// Of values in [-128, 127].
DECODESTEP_INLINE void store_i8(int8_t* p, i32x16 a) {
    const auto words = [](__m256i v) {
        return _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    };
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words(a.low), words(a.high)));
}
// To nearest, ties to even.
DECODESTEP_INLINE void store_f16(uint16_t* p, f32x16 a) {
    auto* halves = reinterpret_cast<__m128i*>(p);
    _mm_storeu_si128(halves, _mm256_cvtps_ph(a.low, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(halves + 1, _mm256_cvtps_ph(a.high, _MM_FROUND_TO_NEAREST_INT));
}

// Sixteen sums in float64.

struct f64x16 {
    __m256d first, second, third, fourth;
};

DECODESTEP_INLINE f64x16 operator+(f64x16 a, f32x16 b) {
    return {_mm256_add_pd(a.first, _mm256_cvtps_pd(_mm256_castps256_ps128(b.low))),
            _mm256_add_pd(a.second, _mm256_cvtps_pd(_mm256_extractf128_ps(b.low, 1))),
            _mm256_add_pd(a.third, _mm256_cvtps_pd(_mm256_castps256_ps128(b.high))),
            _mm256_add_pd(a.fourth, _mm256_cvtps_pd(_mm256_extractf128_ps(b.high, 1)))};
}
DECODESTEP_INLINE void store(double* p, f64x16 a) {
    _mm256_storeu_pd(p, a.first);
    _mm256_storeu_pd(p + 4, a.second);
    _mm256_storeu_pd(p + 8, a.third);
    _mm256_storeu_pd(p + 12, a.fourth);
}

// Squares of kSide x kSide words of four bytes.

constexpr int kSide = 8;
using Words = __m256i;

// The first `bytes` bytes at p; zeros follow.
DECODESTEP_INLINE Words load_words(const uint8_t* p, size_t bytes) {
    if (bytes >= 32) return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    uint8_t words[32] = {};
    std::memcpy(words, p, bytes);
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words));
}

DECODESTEP_INLINE void transpose(Words (&m)[kSide]) {
    Words t[kSide];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_epi32(m[i], m[i + 1]);
        t[i + 1] = _mm256_unpackhi_epi32(m[i], m[i + 1]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i += 4) {
        m[i] = _mm256_unpacklo_epi64(t[i], t[i + 2]);
        m[i + 1] = _mm256_unpackhi_epi64(t[i], t[i + 2]);
        m[i + 2] = _mm256_unpacklo_epi64(t[i + 1], t[i + 3]);
        m[i + 3] = _mm256_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    // Register i of four now holds words i and i + 4 of four rows: exchange halves of registers.
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        const Words low = m[i], high = m[i + 4];
        m[i] = _mm256_permute2x128_si256(low, high, 0x20);
        m[i + 4] = _mm256_permute2x128_si256(low, high, 0x31);
    }
}

// Stores value `part` of every word as float32; parts count from a word's lowest bits. T: float, Bf16, F16 or int8_t.
template <class T>
DECODESTEP_INLINE void store_part(float* out, Words w, int part) {
    if constexpr (std::is_same_v<T, float>) {
        _mm256_storeu_ps(out, _mm256_castsi256_ps(w));
    } else if constexpr (std::is_same_v<T, Bf16>) {
        _mm256_storeu_ps(out, part ? high_bf16(w) : low_bf16(w));
    } else if constexpr (std::is_same_v<T, F16>) {
        const Words halves = part ? _mm256_srli_epi32(w, 16) : _mm256_and_si256(w, _mm256_set1_epi32(0xFFFF));
        const Words eight = _mm256_permute4x64_epi64(_mm256_packus_epi32(halves, halves), 0x88);
        _mm256_storeu_ps(out, _mm256_cvtph_ps(_mm256_castsi256_si128(eight)));
    } else {
        const Words byte = _mm256_srai_epi32(_mm256_sll_epi32(w, _mm_cvtsi32_si128(24 - 8 * part)), 24);
        _mm256_storeu_ps(out, _mm256_cvtepi32_ps(byte));
    }
}

}  // namespace decodestep::DECODESTEP_BUILD
