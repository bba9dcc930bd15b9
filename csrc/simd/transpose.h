// Rows of a cache turned into columns of float32, so that sixteen keys lie in the lanes of one register. Whole words of
// four bytes are transposed and only then taken apart, which halves the work for 16-bit values and quarters it for
// bytes.
#pragma once

#include <utility>

#include "attention/cache_type.h"
#include "simd/simd.h"

namespace decodestep::DECODESTEP_ISA {

// Words are kSide x kSide words in registers.
#if defined(__AVX512F__)

constexpr int kSide = 16;
using Words = __m512i;

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
    // Register i of a group of four holds words i, i + 4, i + 8, i + 12 of four rows: quarters of registers change
    // places.
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

// Value `part` of every word, counted from its lowest bits.
template <CacheType type>
DECODESTEP_INLINE void store_part(float* out, Words w, int part) {
    if constexpr (type == CacheType::f32)
        _mm512_storeu_ps(out, _mm512_castsi512_ps(w));
    else if constexpr (type == CacheType::bf16)
        _mm512_storeu_ps(out, _mm512_castsi512_ps(part ? _mm512_and_si512(w, _mm512_set1_epi32(~0xFFFF))
                                                       : _mm512_slli_epi32(w, 16)));
    else if constexpr (type == CacheType::f16)
        _mm512_storeu_ps(out, _mm512_cvtph_ps(_mm512_cvtepi32_epi16(part ? _mm512_srli_epi32(w, 16) : w)));
    else
        _mm512_storeu_ps(out, _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(w, 24 - 8 * part), 24)));
}

#elif defined(__AVX2__)

constexpr int kSide = 8;
using Words = __m256i;

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
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        const Words low = m[i], high = m[i + 4];
        m[i] = _mm256_permute2x128_si256(low, high, 0x20);
        m[i + 4] = _mm256_permute2x128_si256(low, high, 0x31);
    }
}

template <CacheType type>
DECODESTEP_INLINE void store_part(float* out, Words w, int part) {
    if constexpr (type == CacheType::f32) {
        _mm256_storeu_ps(out, _mm256_castsi256_ps(w));
    } else if constexpr (type == CacheType::bf16) {
        const Words bits = part ? _mm256_and_si256(w, _mm256_set1_epi32(~0xFFFF)) : _mm256_slli_epi32(w, 16);
        _mm256_storeu_ps(out, _mm256_castsi256_ps(bits));
    } else if constexpr (type == CacheType::f16) {
        const Words halves = part ? _mm256_srli_epi32(w, 16) : _mm256_and_si256(w, _mm256_set1_epi32(0xFFFF));
        const Words eight = _mm256_permute4x64_epi64(_mm256_packus_epi32(halves, halves), 0x88);
        _mm256_storeu_ps(out, _mm256_cvtph_ps(_mm256_castsi256_si128(eight)));
    } else {
        const Words byte = _mm256_srai_epi32(_mm256_sll_epi32(w, _mm_cvtsi32_si128(24 - 8 * part)), 24);
        _mm256_storeu_ps(out, _mm256_cvtepi32_ps(byte));
    }
}

#else

constexpr int kSide = 8;
struct Words {
    uint32_t v[kSide];
};

DECODESTEP_INLINE Words load_words(const uint8_t* p, size_t bytes) {
    Words w{};
    std::memcpy(w.v, p, bytes < sizeof w.v ? bytes : sizeof w.v);
    return w;
}

DECODESTEP_INLINE void transpose(Words (&m)[kSide]) {
    for (int i = 0; i < kSide; ++i)
        for (int j = 0; j < i; ++j) std::swap(m[i].v[j], m[j].v[i]);
}

template <CacheType type>
DECODESTEP_INLINE void store_part(float* out, Words w, int part) {
    for (int i = 0; i < kSide; ++i) {
        const uint32_t word = w.v[i];
        if constexpr (type == CacheType::f32)
            std::memcpy(out + i, &word, sizeof word);
        else if constexpr (type == CacheType::bf16)
            out[i] = bf16_to_float(static_cast<uint16_t>(word >> 16 * part));
        else if constexpr (type == CacheType::f16)
            out[i] = f16_to_float(static_cast<uint16_t>(word >> 16 * part));
        else
            out[i] = static_cast<float>(static_cast<int8_t>(word >> 8 * part));
    }
}

#endif

// out[c * stride + i] = value first + c of rows[i], for i in [0, n) and c in [0, columns). Lanes up to the next
// multiple of kSide repeat the last row, and rows of `out` up to the end of the last word may be written. The same
// columns of ahead[i] are asked for: those rows come next.
template <CacheType type>
void transpose_rows(const uint8_t* const* rows, const uint8_t* const* ahead, size_t n, size_t first, size_t columns,
                    float* out, size_t stride) {
    constexpr size_t bytes = value_bytes(type), parts = 4 / bytes, side = kSide * parts;
    for (size_t i = 0; i < n; i += kSide) {
        for (size_t c = 0; c < columns; c += side) {
            const size_t width = columns - c < side ? columns - c : side, at = (first + c) * bytes;
            Words m[kSide];
#pragma GCC unroll 16
            for (size_t r = 0; r < kSide; ++r) {
                m[r] = load_words(rows[i + r] + at, width * bytes);
                prefetch(ahead[i + r] + at);
            }
            transpose(m);
#pragma GCC unroll 16
            for (size_t w = 0; w < kSide; ++w) {
                if (w * parts >= width) break;
#pragma GCC unroll 4
                for (size_t part = 0; part < parts; ++part)
                    store_part<type>(out + (c + w * parts + part) * stride + i, m[w], static_cast<int>(part));
            }
        }
    }
}

}  // namespace decodestep::DECODESTEP_ISA
