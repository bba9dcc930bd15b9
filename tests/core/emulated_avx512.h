// The AVX-512 and AVX-VNNI that csrc/simd uses, in plain C++, so that a machine without them can run what their tiers
// compute: compiled with -include of this file for AVX2 (DECODESTEP_EMULATE_AVX512 in CMakeLists.txt).
//
// Each function is Intel's operation of that name, lane by lane, with the masks, ties and NaN of the Software
// Developer's Manual, volume 2. In the namespace of a tier these hide the compiler's own, which a target without
// AVX-512 refuses.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "core/compiler.h"

// What the flags of the tiers let the compiler define. Before <immintrin.h> it would take the instructions for given.
#ifdef DECODESTEP_EMULATE_AVX_VNNI
#define __AVXVNNI__ 1
#endif
#ifdef DECODESTEP_EMULATE_AVX512
#define __AVX512F__ 1
#endif
#ifdef DECODESTEP_EMULATE_VNNI
#define __AVX512VNNI__ 1
#endif
#ifdef DECODESTEP_EMULATE_BF16
#define __AVX512BF16__ 1
#define __AVX512VBMI2__ 1
#endif

// The compiler's are macros.
#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbssd
#ifdef DECODESTEP_EMULATE_AVX512
// The statements with a register of 512 bits keep a value in it, which only saves time.
#define asm(...)
#endif
#undef _mm512_setr_epi32

namespace decodestep::DECODESTEP_BUILD {

template <class T>
using EmulatedLanes [[gnu::vector_size(64)]] = T;
using U16 = EmulatedLanes<uint16_t>;
using I16 = EmulatedLanes<int16_t>;
using U32 = EmulatedLanes<uint32_t>;
using I32 = EmulatedLanes<int32_t>;

template <class T, class Vector>
DECODESTEP_INLINE T lane(const Vector& v, size_t i) {
    T result;
    std::memcpy(&result, reinterpret_cast<const char*>(&v) + i * sizeof(T), sizeof(T));
    return result;
}

// The vector whose lanes of type T are f(0), f(1), ...
template <class Vector, class T, class F>
DECODESTEP_INLINE Vector each(F f) {
    T lanes[sizeof(Vector) / sizeof(T)];
    for (size_t i = 0; i < sizeof(Vector) / sizeof(T); ++i) lanes[i] = static_cast<T>(f(i));
    return std::bit_cast<Vector>(lanes);
}
template <class T, class F>
DECODESTEP_INLINE __m512i integers(F f) {
    return each<__m512i, T>(f);
}
template <class F>
DECODESTEP_INLINE __m512 floats(F f) {
    return each<__m512, float>(f);
}

// The mask of the lanes i < n for which f(i) holds.
template <class F>
DECODESTEP_INLINE uint64_t mask_of(size_t n, F f) {
    uint64_t mask = 0;
    for (size_t i = 0; i < n; ++i) mask |= uint64_t{f(i)} << i;
    return mask;
}

// The lanes of a mask one after the other; zeros follow.
template <class Vector, class T>
DECODESTEP_INLINE Vector compressed(uint64_t mask, const Vector& v) {
    T lanes[sizeof(Vector) / sizeof(T)] = {};
    size_t count = 0;
    for (size_t i = 0; i < sizeof(Vector) / sizeof(T); ++i)
        if (mask >> i & 1) lanes[count++] = lane<T>(v, i);
    return std::bit_cast<Vector>(lanes);
}

template <class Vector>
DECODESTEP_INLINE Vector read(const void* p, size_t bytes = sizeof(Vector)) {
    unsigned char lanes[sizeof(Vector)] = {};
    std::memcpy(lanes, p, bytes);
    return std::bit_cast<Vector>(lanes);
}
template <class To, class From>
DECODESTEP_INLINE To lower_part(const From& v) {
    return read<To>(&v);
}
template <class To, class From>
DECODESTEP_INLINE To widened(const From& v) {  // the upper part is undefined: here zero
    return read<To>(&v, sizeof v);
}

DECODESTEP_INLINE float as_float(uint32_t bits) { return std::bit_cast<float>(bits); }
// As the products of bfloat16 see a number: subnormals are zeros of their sign.
DECODESTEP_INLINE float flushed(float x) {
    return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x;
}

// A function of many steps is a call: written out everywhere, they take minutes to compile.
#define EMULATED [[gnu::noinline]] inline

// --- memory, constants, masks

inline __m512 _mm512_loadu_ps(const void* p) { return read<__m512>(p); }
inline __m512i _mm512_loadu_si512(const void* p) { return read<__m512i>(p); }
inline __m512i _mm512_load_si512(const void* p) { return read<__m512i>(p); }
inline void _mm512_storeu_ps(void* p, __m512 a) { std::memcpy(p, &a, sizeof a); }
inline void _mm512_storeu_pd(void* p, __m512d a) { std::memcpy(p, &a, sizeof a); }
inline void _mm512_storeu_si512(void* p, __m512i a) { std::memcpy(p, &a, sizeof a); }
// The masks in use are of the first bytes.
inline __m512i _mm512_maskz_loadu_epi8(uint64_t m, const void* p) { return read<__m512i>(p, std::popcount(m)); }
inline __m512 _mm512_set1_ps(float x) { return x - __m512{}; }
inline __m512i _mm512_set1_epi8(char x) { return __m512i(int8_t(x) - EmulatedLanes<int8_t>{}); }
inline __m512i _mm512_set1_epi16(short x) { return __m512i(int16_t(x) - EmulatedLanes<int16_t>{}); }
inline __m512i _mm512_set1_epi32(int x) { return __m512i(int32_t(x) - EmulatedLanes<int32_t>{}); }
inline __m512i _mm512_setzero_si512() { return _mm512_set1_epi32(0); }
template <class... Int>
EMULATED __m512i _mm512_setr_epi32(Int... x) {
    const int32_t lanes[] = {x...};
    return read<__m512i>(lanes);
}
EMULATED __m512i _mm512_broadcast_i32x4(__m128i a) {
    return integers<int32_t>([&](size_t i) { return lane<int32_t>(a, i % 4); });
}
EMULATED __m512 _mm512_maskz_mov_ps(__mmask16 m, __m512 a) {
    return floats([&](size_t i) { return m >> i & 1 ? lane<float>(a, i) : 0; });
}
EMULATED __m512i _mm512_mask_mov_epi32(__m512i other, __mmask16 m, __m512i a) {
    return integers<int32_t>([&](size_t i) { return lane<int32_t>(m >> i & 1 ? a : other, i); });
}
EMULATED __mmask64 _mm512_movepi8_mask(__m512i a) {
    return mask_of(64, [&](size_t i) { return lane<int8_t>(a, i) < 0; });
}
EMULATED __mmask16 _mm512_test_epi32_mask(__m512i a, __m512i b) {
    return mask_of(16, [&](size_t i) { return (lane<int32_t>(a, i) & lane<int32_t>(b, i)) != 0; });
}
EMULATED __mmask32 _mm512_cmple_epu16_mask(__m512i a, __m512i b) {
    return mask_of(32, [&](size_t i) { return lane<uint16_t>(a, i) <= lane<uint16_t>(b, i); });
}
EMULATED __mmask32 _mm512_cmpge_epi16_mask(__m512i a, __m512i b) {
    return mask_of(32, [&](size_t i) { return lane<int16_t>(a, i) >= lane<int16_t>(b, i); });
}
EMULATED __mmask16 _mm512_cmp_ps_mask(__m512 a, __m512 b, int predicate) {
    return mask_of(16, [&](size_t i) {
        const float x = lane<float>(a, i), y = lane<float>(b, i);
        return predicate == _CMP_GE_OQ ? x >= y : x == x && y == y;  // else _CMP_ORD_Q
    });
}

// --- casts: parts and bits

inline __m512 _mm512_castps256_ps512(__m256 a) { return widened<__m512>(a); }
inline __m512i _mm512_castsi256_si512(__m256i a) { return widened<__m512i>(a); }
inline __m256 _mm512_castps512_ps256(__m512 a) { return lower_part<__m256>(a); }
inline __m256i _mm512_castsi512_si256(__m512i a) { return lower_part<__m256i>(a); }
inline __m128i _mm512_castsi512_si128(__m512i a) { return lower_part<__m128i>(a); }
inline __m512i _mm512_castps_si512(__m512 a) { return std::bit_cast<__m512i>(a); }
inline __m512 _mm512_castsi512_ps(__m512i a) { return std::bit_cast<__m512>(a); }
EMULATED __m256 _mm512_extractf32x8_ps(__m512 a, int half) {
    return each<__m256, float>([&](size_t i) { return lane<float>(a, i + 8 * half); });
}

// --- float32

inline __m512 _mm512_add_ps(__m512 a, __m512 b) { return a + b; }
inline __m512 _mm512_sub_ps(__m512 a, __m512 b) { return a - b; }
inline __m512 _mm512_mul_ps(__m512 a, __m512 b) { return a * b; }
inline __m512 _mm512_div_ps(__m512 a, __m512 b) { return a / b; }
inline __m512d _mm512_add_pd(__m512d a, __m512d b) { return a + b; }
EMULATED __m512 _mm512_mask_sub_ps(__m512 other, __mmask16 m, __m512 a, __m512 b) {
    return floats([&](size_t i) { return m >> i & 1 ? lane<float>(a, i) - lane<float>(b, i) : lane<float>(other, i); });
}
// The second operand where one is NaN, and of zeros.
EMULATED __m512 _mm512_max_ps(__m512 a, __m512 b) {
    return floats([&](size_t i) { return lane<float>(lane<float>(a, i) > lane<float>(b, i) ? a : b, i); });
}
EMULATED __m512 _mm512_min_ps(__m512 a, __m512 b) {
    return floats([&](size_t i) { return lane<float>(lane<float>(a, i) < lane<float>(b, i) ? a : b, i); });
}
EMULATED __m512 _mm512_fmadd_ps(__m512 a, __m512 b, __m512 c) {
    return floats([&](size_t i) { return __builtin_fmaf(lane<float>(a, i), lane<float>(b, i), lane<float>(c, i)); });
}
EMULATED __m512 _mm512_abs_ps(__m512 a) {
    return floats([&](size_t i) { return as_float(lane<uint32_t>(a, i) & 0x7fffffff); });
}
EMULATED __m512 _mm512_roundscale_ps(__m512 a, int) {  // to nearest, ties to even
    return floats([&](size_t i) { return std::nearbyint(lane<float>(a, i)); });
}
EMULATED __m512 _mm512_reduce_ps(__m512 a, int) {  // what the floor leaves; 0 of infinities
    return floats([&](size_t i) {
        const float x = lane<float>(a, i);
        return std::isinf(x) ? 0 : x - std::floor(x);
    });
}
EMULATED __m512 _mm512_scalef_ps(__m512 a, __m512 b) {
    return floats([&](size_t i) {
        const float x = lane<float>(a, i), y = std::floor(lane<float>(b, i));
        if (y != y) return y;
        return std::ldexp(x, static_cast<int>(y < -1000 ? -1000 : y > 1000 ? 1000 : y));
    });
}

// --- integers

inline __m512i _mm512_and_si512(__m512i a, __m512i b) { return a & b; }
inline __m512i _mm512_or_si512(__m512i a, __m512i b) { return a | b; }
inline __m512i _mm512_xor_si512(__m512i a, __m512i b) { return a ^ b; }
inline __m512i _mm512_add_epi16(__m512i a, __m512i b) { return __m512i(U16(a) + U16(b)); }
inline __m512i _mm512_add_epi32(__m512i a, __m512i b) { return __m512i(U32(a) + U32(b)); }
inline __m512i _mm512_sub_epi8(__m512i a, __m512i b) {
    return __m512i(EmulatedLanes<uint8_t>(a) - EmulatedLanes<uint8_t>(b));
}
inline __m512i _mm512_mullo_epi16(__m512i a, __m512i b) { return __m512i(U16(a) * U16(b)); }
inline __m512i _mm512_mullo_epi32(__m512i a, __m512i b) { return __m512i(U32(a) * U32(b)); }
EMULATED __m512i _mm512_max_epi32(__m512i a, __m512i b) {
    return integers<int32_t>([&](size_t i) { return std::max(lane<int32_t>(a, i), lane<int32_t>(b, i)); });
}
EMULATED __m512i _mm512_abs_epi8(__m512i a) {
    return integers<uint8_t>([&](size_t i) { return std::abs(int{lane<int8_t>(a, i)}); });
}
EMULATED __m512i _mm512_mask_sub_epi8(__m512i other, __mmask64 m, __m512i a, __m512i b) {
    return integers<uint8_t>(
        [&](size_t i) { return m >> i & 1 ? lane<uint8_t>(a, i) - lane<uint8_t>(b, i) : lane<uint8_t>(other, i); });
}
inline __m512i _mm512_slli_epi16(__m512i a, unsigned n) { return __m512i(U16(a) << n); }
inline __m512i _mm512_srai_epi16(__m512i a, unsigned n) { return __m512i(I16(a) >> n); }
inline __m512i _mm512_slli_epi32(__m512i a, unsigned n) { return __m512i(U32(a) << n); }
inline __m512i _mm512_srli_epi32(__m512i a, unsigned n) { return __m512i(U32(a) >> n); }
inline __m512i _mm512_srai_epi32(__m512i a, unsigned n) { return __m512i(I32(a) >> n); }
inline __m512i _mm512_rol_epi32(__m512i a, int n) { return __m512i(U32(a) << n | U32(a) >> (32 - n)); }
EMULATED int _mm512_reduce_add_epi32(__m512i a) {
    uint32_t sum = 0;
    for (size_t i = 0; i < 16; ++i) sum += lane<uint32_t>(a, i);
    return static_cast<int>(sum);
}
EMULATED int _mm512_reduce_max_epi32(__m512i a) {
    int32_t largest = lane<int32_t>(a, 0);
    for (size_t i = 1; i < 16; ++i) largest = std::max(largest, lane<int32_t>(a, i));
    return largest;
}

// --- products

EMULATED __m512i _mm512_madd_epi16(__m512i a, __m512i b) {
    return integers<uint32_t>([&](size_t i) {
        const auto product = [&](size_t j) { return uint32_t(lane<int16_t>(a, j) * lane<int16_t>(b, j)); };
        return product(2 * i) + product(2 * i + 1);
    });
}
EMULATED __m512i _mm512_maddubs_epi16(__m512i a, __m512i b) {  // saturates
    return integers<int16_t>([&](size_t i) {
        const auto product = [&](size_t j) { return lane<uint8_t>(a, j) * lane<int8_t>(b, j); };
        return std::min(std::max(product(2 * i) + product(2 * i + 1), -32768), 32767);
    });
}
template <class Vector>
EMULATED Vector dot_bytes(Vector sums, Vector a, Vector b) {
    return each<Vector, uint32_t>([&](size_t i) {
        auto sum = lane<uint32_t>(sums, i);
        for (size_t j = 4 * i; j < 4 * i + 4; ++j) sum += uint32_t(lane<uint8_t>(a, j) * lane<int8_t>(b, j));
        return sum;
    });
}
inline __m512i _mm512_dpbusd_epi32(__m512i sums, __m512i a, __m512i b) { return dot_bytes(sums, a, b); }
inline __m256i _mm256_dpbusd_avx_epi32(__m256i sums, __m256i a, __m256i b) { return dot_bytes(sums, a, b); }
template <class Vector>
EMULATED Vector dot_pairs(Vector sums, Vector a, Vector b) {
    return each<Vector, uint32_t>([&](size_t i) {
        const auto product = [&](size_t j) { return uint32_t(lane<int16_t>(a, j) * lane<int16_t>(b, j)); };
        return lane<uint32_t>(sums, i) + product(2 * i) + product(2 * i + 1);
    });
}
inline __m512i _mm512_dpwssd_epi32(__m512i sums, __m512i a, __m512i b) { return dot_pairs(sums, a, b); }
inline __m256i _mm256_dpwssd_avx_epi32(__m256i sums, __m256i a, __m256i b) { return dot_pairs(sums, a, b); }
// The second of a pair first; each step rounds once, and reads and writes subnormals as zeros.
EMULATED __m512 _mm512_dpbf16_ps(__m512 sums, __m512bh a, __m512bh b) {
    return floats([&](size_t i) {
        const auto number = [](__m512bh v, size_t j) {
            return flushed(as_float(uint32_t{lane<uint16_t>(v, j)} << 16));
        };
        float sum = flushed(lane<float>(sums, i));
        for (size_t j : {2 * i + 1, 2 * i}) sum = flushed(__builtin_fmaf(number(a, j), number(b, j), sum));
        return sum;
    });
}

// --- conversions

EMULATED __m512i _mm512_cvtepu8_epi32(__m128i a) {
    return integers<int32_t>([&](size_t i) { return lane<uint8_t>(a, i); });
}
EMULATED __m512i _mm512_cvtepi8_epi32(__m128i a) {
    return integers<int32_t>([&](size_t i) { return lane<int8_t>(a, i); });
}
EMULATED __m512i _mm512_cvtepi8_epi16(__m256i a) {
    return integers<int16_t>([&](size_t i) { return lane<int8_t>(a, i); });
}
EMULATED __m512i _mm512_cvtepu16_epi32(__m256i a) {
    return integers<int32_t>([&](size_t i) { return lane<uint16_t>(a, i); });
}
EMULATED __m256i _mm512_cvtepi32_epi16(__m512i a) {
    return each<__m256i, uint16_t>([&](size_t i) { return lane<uint32_t>(a, i); });
}
EMULATED __m128i _mm512_cvtsepi32_epi8(__m512i a) {
    return each<__m128i, int8_t>([&](size_t i) { return std::min(std::max(lane<int32_t>(a, i), -128), 127); });
}
EMULATED __m512 _mm512_cvtepi32_ps(__m512i a) {
    return floats([&](size_t i) { return lane<int32_t>(a, i); });
}
EMULATED __m512 _mm512_cvtepu32_ps(__m512i a) {
    return floats([&](size_t i) { return lane<uint32_t>(a, i); });
}
EMULATED __m512d _mm512_cvtps_pd(__m256 a) {
    return each<__m512d, double>([&](size_t i) { return lane<float>(a, i); });
}
EMULATED __m512i _mm512_maskz_cvtps_epi32(__mmask16 m, __m512 a) {
    return integers<int32_t>([&](size_t i) {
        const float x = std::nearbyint(lane<float>(a, i));
        return m >> i & 1 ? (std::fabs(x) < 0x1p31f ? static_cast<int32_t>(x) : INT32_MIN) : 0;
    });
}
EMULATED __m512 _mm512_cvtph_ps(__m256i a) {
    const __m256 low = _mm256_cvtph_ps(_mm256_castsi256_si128(a)),
                 high = _mm256_cvtph_ps(_mm256_extracti128_si256(a, 1));
    return floats([&](size_t i) { return i < 8 ? lane<float>(low, i) : lane<float>(high, i - 8); });
}
EMULATED __m256i _mm512_cvtps_ph(__m512 a, int) {  // to nearest, ties to even
    const __m128i low = _mm256_cvtps_ph(_mm512_extractf32x8_ps(a, 0), _MM_FROUND_TO_NEAREST_INT);
    return _mm256_set_m128i(_mm256_cvtps_ph(_mm512_extractf32x8_ps(a, 1), _MM_FROUND_TO_NEAREST_INT), low);
}
// To nearest, ties to even; subnormals become zeros of their sign, and NaN keeps its upper bits as a quiet one.
EMULATED __m256i _mm512_cvtneps_pbh(__m512 a) {
    return each<__m256i, uint16_t>([&](size_t i) {
        const float x = flushed(lane<float>(a, i));
        const auto bits = std::bit_cast<uint32_t>(x);
        return x != x ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    });
}

// --- places

inline __m512 _mm512_maskz_compress_ps(__mmask16 m, __m512 a) { return compressed<__m512, float>(m, a); }
inline __m512i _mm512_maskz_compress_epi32(__mmask16 m, __m512i a) { return compressed<__m512i, int32_t>(m, a); }
inline __m512i _mm512_maskz_compress_epi8(__mmask64 m, __m512i a) { return compressed<__m512i, int8_t>(m, a); }
EMULATED __m512 _mm512_permute_ps(__m512 a, int order) {
    return floats([&](size_t i) { return lane<float>(a, i / 4 * 4 + (order >> 2 * (i % 4) & 3)); });
}
EMULATED __m512 _mm512_permutexvar_ps(__m512i places, __m512 a) {
    return floats([&](size_t i) { return lane<float>(a, lane<uint32_t>(places, i) & 15); });
}
EMULATED __m512i _mm512_permutex2var_epi32(__m512i a, __m512i places, __m512i b) {
    return integers<int32_t>([&](size_t i) {
        const auto at = lane<uint32_t>(places, i);
        return lane<int32_t>(at & 16 ? b : a, at & 15);
    });
}
EMULATED __m512i _mm512_permutex2var_epi16(__m512i a, __m512i places, __m512i b) {
    return integers<int16_t>([&](size_t i) {
        const auto at = lane<uint16_t>(places, i);
        return lane<int16_t>(at & 32 ? b : a, at & 31);
    });
}
EMULATED __m512i _mm512_shuffle_epi8(__m512i a, __m512i places) {
    return integers<uint8_t>([&](size_t i) {
        const auto at = lane<uint8_t>(places, i);
        return at & 128 ? 0 : lane<uint8_t>(a, i / 16 * 16 + at % 16);
    });
}
// Two quarters of a, then two of b.
EMULATED __m512i _mm512_shuffle_i32x4(__m512i a, __m512i b, int order) {
    return integers<int32_t>(
        [&](size_t i) { return lane<int32_t>(i < 8 ? a : b, 4 * (order >> 2 * (i / 4) & 3) + i % 4); });
}
inline __m512i _mm512_shuffle_i64x2(__m512i a, __m512i b, int order) { return _mm512_shuffle_i32x4(a, b, order); }
// Words or pairs of words of every quarter, of a and b in turns.
EMULATED __m512i _mm512_unpacklo_epi32(__m512i a, __m512i b) {
    return integers<int32_t>([&](size_t i) { return lane<int32_t>(i % 2 ? b : a, i / 4 * 4 + i % 4 / 2); });
}
EMULATED __m512i _mm512_unpackhi_epi32(__m512i a, __m512i b) {
    return integers<int32_t>([&](size_t i) { return lane<int32_t>(i % 2 ? b : a, i / 4 * 4 + 2 + i % 4 / 2); });
}
EMULATED __m512i _mm512_unpacklo_epi64(__m512i a, __m512i b) {
    return integers<int64_t>([&](size_t i) { return lane<int64_t>(i % 2 ? b : a, i / 2 * 2); });
}
EMULATED __m512i _mm512_unpackhi_epi64(__m512i a, __m512i b) {
    return integers<int64_t>([&](size_t i) { return lane<int64_t>(i % 2 ? b : a, i / 2 * 2 + 1); });
}

// --- tiles

struct Tile {
    size_t rows, row_bytes;
    uint8_t bytes[16][64];
};
inline thread_local Tile tiles[8];

EMULATED void _tile_loadconfig(const void* p) {
    const auto* shapes = static_cast<const uint8_t*>(p);
    for (size_t i = 0; i < 8; ++i) {
        uint16_t row_bytes;
        std::memcpy(&row_bytes, shapes + 16 + 2 * i, sizeof row_bytes);
        tiles[i] = {shapes[48 + i], row_bytes, {}};
    }
}
EMULATED void _tile_storeconfig(void* p) { std::memset(p, 0, 64); }
inline void _tile_zero(int to) { std::memset(tiles[to].bytes, 0, sizeof tiles[to].bytes); }
EMULATED void _tile_loadd(int to, const void* p, size_t stride) {
    _tile_zero(to);
    for (size_t i = 0; i < tiles[to].rows; ++i)
        std::memcpy(tiles[to].bytes[i], static_cast<const uint8_t*>(p) + i * stride, tiles[to].row_bytes);
}
EMULATED void _tile_stored(int from, void* p, size_t stride) {
    for (size_t i = 0; i < tiles[from].rows; ++i)
        std::memcpy(static_cast<uint8_t*>(p) + i * stride, tiles[from].bytes[i], tiles[from].row_bytes);
}
EMULATED void _tile_dpbssd(int to, int a, int b) {
    for (size_t m = 0; m < tiles[to].rows; ++m)
        for (size_t n = 0; n < tiles[to].row_bytes / 4; ++n) {
            int32_t sum;
            std::memcpy(&sum, tiles[to].bytes[m] + 4 * n, sizeof sum);
            for (size_t k = 0; k < tiles[a].row_bytes; ++k)
                sum += int8_t(tiles[a].bytes[m][k]) * int8_t(tiles[b].bytes[k / 4][4 * n + k % 4]);
            std::memcpy(tiles[to].bytes[m] + 4 * n, &sum, sizeof sum);
        }
}

}  // namespace decodestep::DECODESTEP_BUILD
