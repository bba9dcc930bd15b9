// Activations as products with panels read them: bytes with a scale for each 32 values, or float32.
//
// An outlier costs the other values of its block their precision, and most of the error of a row comes from the few
// blocks that hold one. So what rounding leaves of a row's coarsest block is kept as bytes too.
#pragma once

#include <algorithm>
#include <cmath>

#include "simd/bytes.h"

namespace decodestep::DECODESTEP_ISA {

// Blocks of 32 bytes, and of each block the value of a unit and the sum of the bytes.
struct ByteBlocks {
    int8_t* bytes = nullptr;
    float* unit = nullptr;
    int32_t* sum = nullptr;
};

// Tokens of `in` values, a multiple of 32. Either form may be missing: it is then neither written nor read.
struct Activations {
    size_t in = 0;
    float* values = nullptr;
    ByteBlocks rounded{}, rest{};   // [tokens, blocks()] and [tokens]
    int32_t* rest_block = nullptr;  // [tokens]: whose rest it is
    float* total = nullptr;  // [tokens, blocks()]: the sum of what the bytes of a block and of its rest stand for

    size_t blocks() const { return in / 32; }

    static size_t floats(size_t tokens, size_t in, bool as_values, bool as_bytes) {
        const Activations x{.in = in};
        return tokens * ((as_values ? in : 0) + (as_bytes ? 11 * x.blocks() + 11 : 0));
    }
    // space: of floats(...) floats.
    static Activations in_space(float* space, size_t tokens, size_t in, bool as_values, bool as_bytes) {
        Activations x{.in = in};
        const auto take = [&](size_t floats) {
            float* taken = space;
            space += tokens * floats;
            return taken;
        };
        const auto take_blocks = [&](size_t count) {
            return ByteBlocks{reinterpret_cast<int8_t*>(take(8 * count)), take(count),
                              reinterpret_cast<int32_t*>(take(count))};
        };
        if (as_values) x.values = take(in);
        if (!as_bytes) return x;
        x.rounded = take_blocks(x.blocks());
        x.total = take(x.blocks());
        x.rest = take_blocks(1);
        x.rest_block = reinterpret_cast<int32_t*>(take(1));
        return x;
    }
};

struct Block {
    f32x16 first, second;
};

// Sixteen values in [-127, 127] to integers, and their sum. What is no number becomes zero; its unit says that it was
// none.
DECODESTEP_INLINE int32_t round_to_bytes(f32x16 x, int8_t* bytes) {
#if defined(__AVX512F__)
    const __m512i r = _mm512_maskz_cvtps_epi32(_mm512_cmp_ps_mask(x.v, x.v, _CMP_ORD_Q), x.v);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes), _mm512_cvtsepi32_epi8(r));
    return _mm512_reduce_add_epi32(r);
#else
    float rounded[kLanes];
    store(rounded, round_even(x));
    int32_t sum = 0;
    for (int i = 0; i < kLanes; ++i) {
        bytes[i] = rounded[i] == rounded[i] ? static_cast<int8_t>(rounded[i]) : int8_t{0};
        sum += bytes[i];
    }
    return sum;
#endif
}

// The largest magnitude; NaN if there is one.
DECODESTEP_INLINE float largest_magnitude(f32x16 a, f32x16 b) {
#if defined(__AVX512F__)
    // As integers, magnitudes are in order and NaN is above them all.
    const __m512i mask = _mm512_set1_epi32(0x7fffffff);
    const __m512i larger = _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(a.v), mask),
                                            _mm512_and_si512(_mm512_castps_si512(b.v), mask));
    const int32_t bits = _mm512_reduce_max_epi32(larger);
    float r;
    std::memcpy(&r, &bits, sizeof r);
    return r;
#else
    int32_t bits[2 * kLanes], most = 0;
    store(reinterpret_cast<float*>(bits), a);
    store(reinterpret_cast<float*>(bits + kLanes), b);
    for (const int32_t x : bits) most = (x & 0x7fffffff) > most ? x & 0x7fffffff : most;
    float r;
    std::memcpy(&r, &most, sizeof r);
    return r;
#endif
}

// Rounds 32 values to bytes, block `at`.
DECODESTEP_INLINE void round_block(const ByteBlocks& x, size_t at, const Block& values) {
    const float most = largest_magnitude(values.first, values.second);
    // A block below 1e-36 has no reciprocal in float32: it counts as zeros.
    const f32x16 inverse = broadcast(most < 1e-36f ? 0.0f : 127.0f / most);
    int8_t* bytes = x.bytes + 32 * at;
    x.sum[at] = round_to_bytes(values.first * inverse, bytes) + round_to_bytes(values.second * inverse, bytes + kLanes);
    x.unit[at] = most / 127.0f;
}

// Puts 32 values in place, block b of token t.
DECODESTEP_INLINE void put_block(const Activations& x, size_t t, size_t b, const Block& values) {
    if (x.values) {
        store(x.values + t * x.in + 32 * b, values.first);
        store(x.values + t * x.in + 32 * b + kLanes, values.second);
    }
    if (x.rounded.bytes) {
        const size_t at = t * x.blocks() + b;
        round_block(x.rounded, at, values);
        x.total[at] = x.rounded.unit[at] * static_cast<float>(x.rounded.sum[at]);
    }
}

// Puts what rounding has left of block b.
DECODESTEP_INLINE void put_rest(const Activations& x, size_t t, size_t b, const Block& values) {
    const size_t at = t * x.blocks() + b;
    const int8_t* bytes = x.rounded.bytes + 32 * at;
    const f32x16 unit = broadcast(x.rounded.unit[at]);
    round_block(x.rest, t, {values.first - unit * from_i8(bytes), values.second - unit * from_i8(bytes + kLanes)});
    x.rest_block[t] = static_cast<int32_t>(b);
    x.total[at] += x.rest.unit[t] * static_cast<float>(x.rest.sum[t]);
}

// Puts a row of blocks, block(b) each.
template <class MakeBlock>
DECODESTEP_INLINE void put_blocks(const Activations& x, size_t t, MakeBlock&& block) {
    for (size_t b = 0; b < x.blocks(); ++b) put_block(x, t, b, block(b));
    if (!x.rounded.bytes || x.blocks() == 0) return;
    const float* units = x.rounded.unit + t * x.blocks();
    const auto coarsest = static_cast<size_t>(std::max_element(units, units + x.blocks()) - units);
    put_rest(x, t, coarsest, block(coarsest));
}

// Puts a row of `width` values, at most x.in, and zeros behind them.
inline void put_row(const Activations& x, size_t t, const float* row, size_t width) {
    put_blocks(x, t, [&](size_t b) -> Block {
        const size_t left = width - 32 * b;
        if (left >= 32) return {load(row + 32 * b), load(row + 32 * b + kLanes)};
        float tail[32] = {};
        std::memcpy(tail, row + 32 * b, left * sizeof(float));
        return {load(tail), load(tail + kLanes)};
    });
}

}  // namespace decodestep::DECODESTEP_ISA
