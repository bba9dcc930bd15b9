// Groups of four bytes, which are one float32, two bfloat16 or four int8: a token's group times the same group of
// sixteen outputs, added to sixteen sums.
//
// int8 sums are exact, so they have the same bits on every machine. A group of bfloat16 adds its second product, then
// its first, each product and each sum rounded once as by a fused multiply-add; the instruction for it takes subnormal
// inputs and results for zeros, the other builds do not, and one without fused multiply-add rounds a product that is
// subnormal twice.
#pragma once

#include "simd/integers.h"

namespace decodestep::DECODESTEP_ISA {

struct F32Sums {
    static constexpr bool kOffset = false;
    using Sums = f32x16;
    static DECODESTEP_INLINE Sums load_sums(const float* p) { return load(p); }
    static DECODESTEP_INLINE void store_sums(float* p, Sums sums) { store(p, sums); }
    static DECODESTEP_INLINE Sums zero() { return broadcast(0.0f); }
};

struct F32Dot : F32Sums {
    using Token = f32x16;
    using Weights = f32x16;
    static DECODESTEP_INLINE Token token(const void* p) {
        float value;
        std::memcpy(&value, p, sizeof value);
        return broadcast(value);
    }
    static DECODESTEP_INLINE Weights weights(const void* p) { return load(static_cast<const float*>(p)); }
    static DECODESTEP_INLINE Sums add(Sums sums, Token x, Weights w) { return fma(x, w, sums); }
};

DECODESTEP_INLINE int32_t four_bytes(const void* p) {
    int32_t bits;
    std::memcpy(&bits, p, sizeof bits);
    return bits;
}

#if defined(__AVX512F__)

DECODESTEP_INLINE i32x16 widen_bits(const uint16_t* p) {
    return {_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
DECODESTEP_INLINE i32x16 widen_bits(const int8_t* p) {
    return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
DECODESTEP_INLINE f32x16 first_bf16(i32x16 a) { return {_mm512_castsi512_ps(_mm512_slli_epi32(a.v, 16))}; }
DECODESTEP_INLINE f32x16 second_bf16(i32x16 a) {
    return {_mm512_castsi512_ps(_mm512_and_si512(a.v, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
}
// The first and third byte of each group as int16, and the second and fourth.
DECODESTEP_INLINE i32x16 odd_bytes(i32x16 a) { return {_mm512_srai_epi16(a.v, 8)}; }
DECODESTEP_INLINE i32x16 even_bytes(i32x16 a) { return {_mm512_srai_epi16(_mm512_slli_epi16(a.v, 8), 8)}; }
DECODESTEP_INLINE i32x16 multiply_pairs(i32x16 a, i32x16 b) { return {_mm512_madd_epi16(a.v, b.v)}; }

#elif defined(__AVX2__)

DECODESTEP_INLINE i32x16 widen_bits(const uint16_t* p) {
    const auto* halves = reinterpret_cast<const __m128i*>(p);
    return {_mm256_cvtepu16_epi32(_mm_loadu_si128(halves)), _mm256_cvtepu16_epi32(_mm_loadu_si128(halves + 1))};
}
DECODESTEP_INLINE i32x16 widen_bits(const int8_t* p) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))};
}
DECODESTEP_INLINE f32x16 first_bf16(i32x16 a) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(a.low, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(a.high, 16))};
}
DECODESTEP_INLINE f32x16 second_bf16(i32x16 a) {
    const __m256i mask = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
    return {_mm256_castsi256_ps(_mm256_and_si256(a.low, mask)), _mm256_castsi256_ps(_mm256_and_si256(a.high, mask))};
}
DECODESTEP_INLINE i32x16 odd_bytes(i32x16 a) { return {_mm256_srai_epi16(a.low, 8), _mm256_srai_epi16(a.high, 8)}; }
DECODESTEP_INLINE i32x16 even_bytes(i32x16 a) {
    return odd_bytes({_mm256_slli_epi16(a.low, 8), _mm256_slli_epi16(a.high, 8)});
}
DECODESTEP_INLINE i32x16 multiply_pairs(i32x16 a, i32x16 b) {
    return {_mm256_madd_epi16(a.low, b.low), _mm256_madd_epi16(a.high, b.high)};
}

#else

DECODESTEP_INLINE i32x16 widen_bits(const uint16_t* p) {
    return each_int([&](int i) { return uint32_t{p[i]}; });
}
DECODESTEP_INLINE i32x16 widen_bits(const int8_t* p) {
    return each_int([&](int i) { return uint32_t{static_cast<uint8_t>(p[i])}; });
}
DECODESTEP_INLINE f32x16 as_floats(i32x16 a) {
    f32x16 r;
    std::memcpy(r.v, a.v, sizeof r.v);
    return r;
}
DECODESTEP_INLINE f32x16 first_bf16(i32x16 a) {
    return as_floats(each_int([&](int i) { return a.v[i] << 16; }));
}
DECODESTEP_INLINE f32x16 second_bf16(i32x16 a) {
    return as_floats(each_int([&](int i) { return a.v[i] & 0xffff0000u; }));
}
// A group holds two int16.
DECODESTEP_INLINE int32_t low_half(uint32_t group) { return static_cast<int16_t>(group & 0xffff); }
DECODESTEP_INLINE int32_t high_half(uint32_t group) { return static_cast<int32_t>(group) >> 16; }
DECODESTEP_INLINE uint32_t halves(int32_t low, int32_t high) {
    return (static_cast<uint32_t>(low) & 0xffff) | static_cast<uint32_t>(high) << 16;
}
DECODESTEP_INLINE i32x16 odd_bytes(i32x16 a) {
    return each_int([&](int i) { return halves(low_half(a.v[i]) >> 8, high_half(a.v[i]) >> 8); });
}
DECODESTEP_INLINE i32x16 even_bytes(i32x16 a) {
    return odd_bytes(each_int([&](int i) { return (a.v[i] & 0x00ff00ffu) << 8; }));
}
DECODESTEP_INLINE i32x16 multiply_pairs(i32x16 a, i32x16 b) {
    return each_int([&](int i) {
        const int32_t first = low_half(a.v[i]) * low_half(b.v[i]), second = high_half(a.v[i]) * high_half(b.v[i]);
        return static_cast<uint32_t>(first) + static_cast<uint32_t>(second);
    });
}

#endif

// A group of inputs of sixteen outputs, from its rows.
DECODESTEP_INLINE i32x16 group_of(const float* const (&rows)[1], size_t at) { return load_bits(rows[0] + at); }
DECODESTEP_INLINE i32x16 group_of(const uint16_t* const (&rows)[2], size_t at) {
    return widen_bits(rows[0] + at) | shift_left<16>(widen_bits(rows[1] + at));
}
DECODESTEP_INLINE i32x16 group_of(const int8_t* const (&rows)[4], size_t at) {
    return (widen_bits(rows[0] + at) | shift_left<8>(widen_bits(rows[1] + at))) |
           (shift_left<16>(widen_bits(rows[2] + at)) | shift_left<24>(widen_bits(rows[3] + at)));
}

#if defined(__AVX512BF16__)

struct Bf16Dot : F32Sums {
    using Token = __m512bh;
    using Weights = __m512bh;
    static DECODESTEP_INLINE Token token(const void* p) {
        return reinterpret_cast<__m512bh>(broadcast_int(four_bytes(p)).v);
    }
    static DECODESTEP_INLINE Weights weights(const void* p) { return reinterpret_cast<__m512bh>(load_bits(p).v); }
    static DECODESTEP_INLINE Sums add(Sums sums, Token x, Weights w) { return {_mm512_dpbf16_ps(sums.v, x, w)}; }
};

#else

struct Bf16Pair {
    f32x16 first, second;
};

struct Bf16Dot : F32Sums {
    using Token = Bf16Pair;
    using Weights = Bf16Pair;
    static DECODESTEP_INLINE Bf16Pair pair(i32x16 bits) { return {first_bf16(bits), second_bf16(bits)}; }
    static DECODESTEP_INLINE Token token(const void* p) { return pair(broadcast_int(four_bytes(p))); }
    static DECODESTEP_INLINE Weights weights(const void* p) { return pair(load_bits(p)); }
    static DECODESTEP_INLINE Sums add(Sums sums, const Token& x, const Weights& w) {
        return fma(x.first, w.first, fma(x.second, w.second, sums));
    }
};

#endif

// The sums lie in memory as int32 in the place of floats. Where `kOffset` is true, 128 is added to a token's values for
// an instruction that takes them unsigned, and the sums have to begin at -128 times the sums of the weights.
struct I8Sums {
    using Sums = i32x16;
    static DECODESTEP_INLINE Sums load_sums(const float* p) { return load_bits(p); }
    static DECODESTEP_INLINE void store_sums(float* p, Sums sums) { store_bits(p, sums); }
    static DECODESTEP_INLINE Sums zero() { return broadcast_int(0); }
};

#if defined(__AVX512VNNI__)

struct I8Dot : I8Sums {
    static constexpr bool kOffset = true;
    using Token = i32x16;
    using Weights = i32x16;
    static DECODESTEP_INLINE Token token(const void* p) {
        return {_mm512_xor_si512(broadcast_int(four_bytes(p)).v, broadcast_int(static_cast<int32_t>(0x80808080u)).v)};
    }
    static DECODESTEP_INLINE Token ones() { return broadcast_int(0x01010101); }
    static DECODESTEP_INLINE Weights weights(const void* p) { return load_bits(p); }
    static DECODESTEP_INLINE Sums add(Sums sums, Token x, Weights w) { return {_mm512_dpbusd_epi32(sums.v, x.v, w.v)}; }
};

#else

struct I8Pairs {
    i32x16 even, odd;
};

struct I8Dot : I8Sums {
    static constexpr bool kOffset = false;
    using Token = I8Pairs;
    using Weights = I8Pairs;
    static DECODESTEP_INLINE I8Pairs pairs(i32x16 bits) { return {even_bytes(bits), odd_bytes(bits)}; }
    static DECODESTEP_INLINE Token token(const void* p) { return pairs(broadcast_int(four_bytes(p))); }
    static DECODESTEP_INLINE Token ones() { return pairs(broadcast_int(0x01010101)); }
    static DECODESTEP_INLINE Weights weights(const void* p) { return pairs(load_bits(p)); }
    static DECODESTEP_INLINE Sums add(Sums sums, const Token& x, const Weights& w) {
        return sums + (multiply_pairs(x.even, w.even) + multiply_pairs(x.odd, w.odd));
    }
};

#endif

}  // namespace decodestep::DECODESTEP_ISA
