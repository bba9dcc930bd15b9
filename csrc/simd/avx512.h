// AVX-512 (F, BW, DQ, VL), also with compression of bytes (VBMI2). A vector is one register.
#pragma once

#include <array>

#include "simd/x86.h"

namespace decodestep::DECODESTEP_BUILD {

// The constants of a target: see target.h.
constexpr int kVectorRegisters = 32;
constexpr bool kStoresBytes = true;
constexpr size_t kPrefetchBytes = 1152;
constexpr size_t kStreams = 4;
constexpr bool kSplitsBf16 = true;

// Float32.

struct f32x16 {
    __m512 v;
};
struct f32x32 {
    f32x16 first, second;
};

// One of the registers of a vector, for kernels that would hold too many whole vectors at a time.
using Register = __m512;
DECODESTEP_INLINE Register load_register(const float* p) { return _mm512_loadu_ps(p); }
DECODESTEP_INLINE void store_register(float* p, Register a) { _mm512_storeu_ps(p, a); }

DECODESTEP_INLINE f32x16 broadcast(float x) { return {_mm512_set1_ps(x)}; }
DECODESTEP_INLINE f32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
DECODESTEP_INLINE void store(float* p, f32x16 a) { _mm512_storeu_ps(p, a.v); }
DECODESTEP_INLINE f32x16 operator+(f32x16 a, f32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
DECODESTEP_INLINE f32x16 operator-(f32x16 a, f32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
DECODESTEP_INLINE f32x16 operator*(f32x16 a, f32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
DECODESTEP_INLINE f32x16 operator/(f32x16 a, f32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
// max and min return their second operand when one is NaN, on every target.
DECODESTEP_INLINE f32x16 max(f32x16 a, f32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
DECODESTEP_INLINE f32x16 min(f32x16 a, f32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
DECODESTEP_INLINE Register fma(Register a, Register b, Register c) { return _mm512_fmadd_ps(a, b, c); }
DECODESTEP_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { return {fma(a.v, b.v, c.v)}; }
DECODESTEP_INLINE f32x16 magnitude(f32x16 a) { return {_mm512_abs_ps(a.v)}; }
DECODESTEP_INLINE f32x16 round_even(f32x16 a) {
    return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// a * 2^n for integral n in [-126, 127].
DECODESTEP_INLINE f32x16 times_exp2(f32x16 a, f32x16 n) { return {_mm512_scalef_ps(a.v, n.v)}; }
#define DECODESTEP_HAS_SPLIT_EXPONENT
// An exponent as a fraction in [0, 1] and a power for times_exp2. Here scalef takes the floor of any exponent itself.
struct Exponent {
    f32x16 fraction, whole;
};
DECODESTEP_INLINE Exponent split_exponent(f32x16 x) {
    return {{_mm512_reduce_ps(x.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)}, x};  // fraction 0 for -inf
}
// Each even lane and the odd one after it, exchanged.
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
// Both reductions fold the upper half onto the lower one: 8 + 8, 4 + 4, 2 + 2, 1 + 1, on every target.
DECODESTEP_INLINE float sum(f32x16 a) {
    return sum(_mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1)));
}
DECODESTEP_INLINE float largest(f32x16 a) {
    return largest(_mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1)));
}
// Keeps a loaded value in its register, where the compiler would load it again for every use.
DECODESTEP_INLINE void keep_in_register(Register& a) { asm("" : "+v"(a)); }
DECODESTEP_INLINE void keep_in_register(f32x16& a) { keep_in_register(a.v); }

// Masks.

// A lane that holds NaN is never at least anything.
DECODESTEP_INLINE Mask at_least(f32x16 a, f32x16 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ); }
// The lanes of the mask, 0 in the others.
DECODESTEP_INLINE f32x16 select(Mask mask, f32x16 a) {
    return {_mm512_maskz_mov_ps(static_cast<__mmask16>(mask), a.v)};
}
#define DECODESTEP_HAS_COMPACT
// Writes the lanes of the mask one after the other, and the ids first + lane; there must be room for sixteen of each.
// Returns their number.
DECODESTEP_INLINE size_t compact(Mask mask, f32x16 values, int32_t first, float* scores, int32_t* ids) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const auto m = static_cast<__mmask16>(mask);
    _mm512_storeu_ps(scores, _mm512_maskz_compress_ps(m, values.v));
    _mm512_storeu_si512(ids, _mm512_maskz_compress_epi32(m, _mm512_add_epi32(lane, _mm512_set1_epi32(first))));
    return static_cast<size_t>(std::popcount(mask));
}

// Int32, which wraps around.

struct i32x16 {
    __m512i v;
};

DECODESTEP_INLINE i32x16 broadcast_int(int32_t x) { return {_mm512_set1_epi32(x)}; }
DECODESTEP_INLINE i32x16 load_bits(const void* p) { return {_mm512_loadu_si512(p)}; }
DECODESTEP_INLINE void store_bits(void* p, i32x16 a) { _mm512_storeu_si512(p, a.v); }
DECODESTEP_INLINE i32x16 operator+(i32x16 a, i32x16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
DECODESTEP_INLINE i32x16 operator*(i32x16 a, i32x16 b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
DECODESTEP_INLINE i32x16 operator&(i32x16 a, i32x16 b) { return {_mm512_and_si512(a.v, b.v)}; }
DECODESTEP_INLINE i32x16 operator|(i32x16 a, i32x16 b) { return {_mm512_or_si512(a.v, b.v)}; }
DECODESTEP_INLINE i32x16 operator^(i32x16 a, i32x16 b) { return {_mm512_xor_si512(a.v, b.v)}; }
template <int bits>
DECODESTEP_INLINE i32x16 shift_left(i32x16 a) {
    return {_mm512_slli_epi32(a.v, bits)};
}
template <int bits>
DECODESTEP_INLINE i32x16 shift_right(i32x16 a) {
    return {_mm512_srli_epi32(a.v, bits)};
}
#define DECODESTEP_HAS_ROTATE_LEFT
template <int bits>
DECODESTEP_INLINE i32x16 rotate_left(i32x16 a) {
    return {_mm512_rol_epi32(a.v, bits)};
}
DECODESTEP_INLINE i32x16 max(i32x16 a, i32x16 b) { return {_mm512_max_epi32(a.v, b.v)}; }
DECODESTEP_INLINE int32_t sum(i32x16 a) { return _mm512_reduce_add_epi32(a.v); }
DECODESTEP_INLINE int32_t largest(i32x16 a) { return _mm512_reduce_max_epi32(a.v); }
DECODESTEP_INLINE i32x16 bits_of(f32x16 a) { return {_mm512_castps_si512(a.v)}; }
DECODESTEP_INLINE f32x16 as_float(i32x16 a) { return {_mm512_castsi512_ps(a.v)}; }
DECODESTEP_INLINE f32x16 to_float(i32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
DECODESTEP_INLINE f32x16 unsigned_to_float(i32x16 a) { return {_mm512_cvtepu32_ps(a.v)}; }
// To nearest, ties to even; 0 for NaN. Magnitudes are below 2^31.
DECODESTEP_INLINE i32x16 round_to_int(f32x16 a) {
    return {_mm512_maskz_cvtps_epi32(_mm512_cmp_ps_mask(a.v, a.v, _CMP_ORD_Q), a.v)};
}

// Narrower types in memory.

DECODESTEP_INLINE i32x16 load_u8(const void* p) {
    return {_mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)))};
}
DECODESTEP_INLINE i32x16 load_u16(const void* p) {
    return {_mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}
DECODESTEP_INLINE f32x16 from_u8(__m128i bytes) { return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes))}; }
DECODESTEP_INLINE f32x16 from_i8(const void* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))))};
}
DECODESTEP_INLINE f32x16 from_f16(const void* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}
// One float16 in every lane.
DECODESTEP_INLINE f32x16 broadcast_f16(const void* p) {
    uint16_t half;
    std::memcpy(&half, p, sizeof half);
    return {_mm512_cvtph_ps(_mm256_set1_epi16(static_cast<short>(half)))};
}
// The lower and the upper of the two bfloat16 that each lane holds.
DECODESTEP_INLINE f32x16 low_bf16(i32x16 a) { return {_mm512_castsi512_ps(_mm512_slli_epi32(a.v, 16))}; }
DECODESTEP_INLINE f32x16 high_bf16(i32x16 a) {
    return {_mm512_castsi512_ps(_mm512_and_si512(a.v, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
}
DECODESTEP_INLINE f32x16 from_bf16(const void* p) { return low_bf16(load_u16(p)); }
#define DECODESTEP_HAS_AT_LEAST_BF16
// Bit i: whether bfloat16 i of 32 is at least the threshold, whose lower 16 bits are zero. NaN may be marked.
DECODESTEP_INLINE uint32_t at_least_bf16(const Bf16* p, float threshold) {
    // Floats are ordered as integers, those of either sign in their own direction; 0 is compared as -0, which equals
    // it.
    const auto bits = std::bit_cast<uint32_t>(threshold == 0 ? -0.0f : threshold) >> 16;
    const __m512i x = _mm512_loadu_si512(p), least = _mm512_set1_epi16(static_cast<short>(bits));
    return bits & 0x8000 ? _mm512_cmple_epu16_mask(x, least) : _mm512_cmpge_epi16_mask(x, least);
}
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
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(a.v));
}
// To nearest, ties to even.
DECODESTEP_INLINE void store_f16(uint16_t* p, f32x16 a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}

// Sixteen sums in float64.

struct f64x16 {
    __m512d low, high;
};

DECODESTEP_INLINE f64x16 operator+(f64x16 a, f32x16 b) {
    return {_mm512_add_pd(a.low, _mm512_cvtps_pd(_mm512_castps512_ps256(b.v))),
            _mm512_add_pd(a.high, _mm512_cvtps_pd(_mm512_extractf32x8_ps(b.v, 1)))};
}
DECODESTEP_INLINE void store(double* p, f64x16 a) {
    _mm512_storeu_pd(p, a.low);
    _mm512_storeu_pd(p + 8, a.high);
}

// Squares of kSide x kSide words of four bytes.

constexpr int kSide = 16;
using Words = __m512i;

// The first `bytes` bytes at p; zeros follow.
DECODESTEP_INLINE Words load_words(const uint8_t* p, size_t bytes) {
    return _mm512_maskz_loadu_epi8(bytes < 64 ? (uint64_t{1} << bytes) - 1 : ~uint64_t{0}, p);
}

DECODESTEP_INLINE void transpose(Words (&m)[kSide]) {
    Words t[kSide];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(m[i], m[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(m[i], m[i + 1]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 4) {
        m[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        m[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        m[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        m[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    // Register i of four now holds words i, i + 4, i + 8, i + 12 of four rows: exchange quarters of registers.
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        t[i] = _mm512_shuffle_i32x4(m[i], m[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(m[i], m[i + 4], 0xDD);
        t[i + 8] = _mm512_shuffle_i32x4(m[i + 8], m[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(m[i + 8], m[i + 12], 0xDD);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        m[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        m[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        m[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xDD);
        m[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xDD);
    }
}

// Stores value `part` of every word as float32; parts count from a word's lowest bits. T: float, Bf16, F16 or int8_t.
template <class T>
DECODESTEP_INLINE void store_part(float* out, Words w, int part) {
    if constexpr (std::is_same_v<T, float>)
        _mm512_storeu_ps(out, _mm512_castsi512_ps(w));
    else if constexpr (std::is_same_v<T, Bf16>)
        store(out, part ? high_bf16({w}) : low_bf16({w}));
    else if constexpr (std::is_same_v<T, F16>)
        _mm512_storeu_ps(out, _mm512_cvtph_ps(_mm512_cvtepi32_epi16(part ? _mm512_srli_epi32(w, 16) : w)));
    else
        _mm512_storeu_ps(out, _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(w, 24 - 8 * part), 24)));
}

#ifdef __AVX512VBMI2__

// The marked items of 64.

alignas(64) constexpr auto kPlaces = [] {
    std::array<uint8_t, 64> places{};
    for (size_t i = 0; i < places.size(); ++i) places[i] = static_cast<uint8_t>(i);
    return places;
}();

// Items p[places[i]] for sixteen places below 64.
DECODESTEP_INLINE f32x16 pick(const float* p, __m128i places) {
    const auto from = [&](size_t i) { return _mm512_loadu_si512(p + i); };
    const __m512i at = _mm512_cvtepu8_epi32(places);
    const __m512i low = _mm512_permutex2var_epi32(from(0), at, from(16));
    const __m512i high = _mm512_permutex2var_epi32(from(32), at, from(48));
    return {_mm512_castsi512_ps(_mm512_mask_mov_epi32(low, _mm512_test_epi32_mask(at, _mm512_set1_epi32(32)), high))};
}
DECODESTEP_INLINE __m256i pick_halves(const void* p, __m128i places) {
    const auto* halves = static_cast<const uint16_t*>(p);
    const __m512i at = _mm512_castsi256_si512(_mm256_cvtepu8_epi16(places));
    return _mm512_castsi512_si256(
        _mm512_permutex2var_epi16(_mm512_loadu_si512(halves), at, _mm512_loadu_si512(halves + 32)));
}
DECODESTEP_INLINE f32x16 pick(const Bf16* p, __m128i places) {
    return low_bf16({_mm512_cvtepu16_epi32(pick_halves(p, places))});
}
DECODESTEP_INLINE f32x16 pick(const F16* p, __m128i places) { return {_mm512_cvtph_ps(pick_halves(p, places))}; }

#define DECODESTEP_HAS_LIST_WORD
constexpr bool kListsWords = true;
// Writes the ids first + i and the items p[i] (NaN as -inf) for each bit i of a word, ascending; there must be room for
// sixteen more of each. Returns their number.
template <class Item>
DECODESTEP_INLINE size_t list_word(uint64_t word, const Item* p, int32_t first, int32_t* ids, float* scores) {
    const auto count = static_cast<size_t>(std::popcount(word));
    __m512i places = _mm512_maskz_compress_epi8(word, _mm512_load_si512(kPlaces.data()));
    const auto write = [&](size_t i) {
        const __m128i sixteen = _mm512_castsi512_si128(places);
        _mm512_storeu_si512(ids + i, _mm512_add_epi32(_mm512_cvtepu8_epi32(sixteen), _mm512_set1_epi32(first)));
        store(scores + i, max(pick(p, sixteen), broadcast(-__builtin_inff())));
    };
    write(0);
    if (count > kLanes) [[unlikely]]
        for (size_t i = kLanes; i < count; i += kLanes) {
            places = _mm512_shuffle_i64x2(places, places, 0x39);
            write(i);
        }
    return count;
}

#endif  // __AVX512VBMI2__

}  // namespace decodestep::DECODESTEP_BUILD
