// Quantises values to blocks of 256; quantise_blocks.h says how.
#pragma once

#include <algorithm>

#include "linear/join_blocks.h"
#include "linear/k_quant_grids.h"
#include "simd/rounding.h"

namespace decodestep::DECODESTEP_BUILD {

constexpr size_t kKQuantValues = 256;  // of a block
constexpr float kLeastF16 = 0x1p-24f;  // above 0
constexpr float kMost = 0x1p30f;       // more than any block can hold

// Eight numbers >= 0 as multiples of six bits of a float16.
struct SixBits {
    float unit;  // above 0
    float multiples[8];

    explicit SixBits(const float* numbers) {
        float largest = 0;
        for (size_t j = 0; j < 8; ++j) largest = std::max(largest, numbers[j]);
        unit = std::max(rounded<F16>(largest / 63), kLeastF16);
        for (size_t j = 0; j < 8; ++j) multiples[j] = whole_within(numbers[j] / unit, 0, 63);
    }
};

// Whether a block may be able to hold the values.
inline bool can_hold(const float* x) { return largest_magnitude(x, kKQuantValues) <= kMost; }

// A block whose d is infinite.
template <Format F>
void put_infinite(uint8_t* out) {
    SplitBlock block{};
    put_f16(kInfinity, block.tail);
    join_block<F>(block, out);
}

// A block of Q4_K or Q5_K whose sub-blocks have these lines.
template <Format F>
void put_block_with_minima(const float* x, const float* w, const Line* lines, float largest, uint8_t* out) {
    if (!can_hold(x)) return put_infinite<F>(out);
    float scales[8], minima[8];
    for (size_t j = 0; j < 8; ++j) scales[j] = lines[j].scale;
    const SixBits scale(scales);
    for (size_t j = 0; j < 8; ++j) {
        minima[j] = lines[j].minimum;
        if (scale.multiples[j] > 0) continue;
        float sum_w = 0, sum_wx = 0;  // without a scale a sub-block is one value
        for (size_t i = 32 * j; i < 32 * j + 32; ++i) {
            sum_w += w[i];
            sum_wx += w[i] * x[i];
        }
        minima[j] = std::max(-(sum_wx / std::max(sum_w, std::numeric_limits<float>::min())), 0.0f);
    }
    const SixBits minimum(minima);
    float d = scale.unit, dmin = minimum.unit, q[kKQuantValues];
    const auto round_all = [&] {
        for (size_t j = 0; j < 8; ++j) {
            const float step = d * scale.multiples[j], shift = dmin * minimum.multiples[j];
            for (size_t i = 32 * j; i < 32 * j + 32; ++i)
                q[i] = whole_within((x[i] + shift) / (step > 0 ? step : 1), 0, largest);
        }
    };
    round_all();
    // x = d * up - dmin * down
    double uu = 0, dd = 0, ud = 0, ux = 0, dx = 0;
    for (size_t i = 0; i < kKQuantValues; ++i) {
        const double up = q[i] * scale.multiples[i / 32], down = minimum.multiples[i / 32], weight = w[i];
        uu += weight * up * up;
        dd += weight * down * down;
        ud += weight * up * down;
        ux += weight * up * x[i];
        dx += weight * down * x[i];
    }
    const double spread = uu * dd - ud * ud;
    if (dd == 0) {
        if (ux > 0) d = rounded<F16>(static_cast<float>(ux / uu));
    } else if (spread > 1e-12 * uu * dd) {
        const double new_d = (dd * ux - ud * dx) / spread, new_dmin = (ud * ux - uu * dx) / spread;
        if (new_d > 0 && new_dmin >= 0) {
            d = rounded<F16>(static_cast<float>(new_d));
            dmin = rounded<F16>(static_cast<float>(new_dmin));
        }
    }
    round_all();

    SplitBlock block;
    put_f16(d, block.tail);
    put_f16(dmin, block.tail + 2);
    for (size_t j = 0; j < 8; ++j) {
        uint8_t integers[32];
        for (size_t i = 0; i < 32; ++i) integers[i] = static_cast<uint8_t>(q[32 * j + i]);
        put_integers<F>(integers, block.pieces[j]);
        block.pieces[j].scales[0] = static_cast<uint8_t>(scale.multiples[j]);
        block.pieces[j].scales[1] = static_cast<uint8_t>(minimum.multiples[j]);
    }
    join_block<F>(block, out);
}

// The first `blocks` of two blocks, sixteen sub-blocks, of Q4_K or Q5_K.
template <Format F>
void put_two_blocks(const float* x, size_t blocks, uint8_t* out) {
    constexpr float largest = (1 << (traits(F).low_bits + traits(F).upper_bits)) - 1;
    float w[2 * kKQuantValues];
    for (size_t first = 0; first < 2 * kKQuantValues; first += 32) {
        float squares = 0;
        for (size_t i = first; i < first + 32; ++i) squares += x[i] * x[i];
        const float mean = __builtin_sqrtf(squares / 32);
        for (size_t i = first; i < first + 32; ++i) w[i] = mean + __builtin_fabsf(x[i]);
    }
    Line lines[kLanes];
    find_lines(SubBlocks<32>(x, w), largest, lines);
    for (size_t b = 0; b < blocks; ++b)
        put_block_with_minima<F>(x + kKQuantValues * b, w + kKQuantValues * b, lines + 8 * b, largest,
                                 out + kBlockBytes<F> * b);
}

inline void put_q6_k(const float* x, uint8_t* out) {
    if (!can_hold(x)) return put_infinite<Format::q6_k>(out);
    float w[kKQuantValues], best[kLanes], scales[kLanes], q[kKQuantValues];
    for (size_t i = 0; i < kKQuantValues; ++i) w[i] = x[i] * x[i];
    find_scales(SubBlocks<16>(x, w), best);
    float top = best[0];
    for (const float scale : best)
        if (__builtin_fabsf(scale) > __builtin_fabsf(top)) top = scale;
    float d = __builtin_copysignf(std::max(__builtin_fabsf(rounded<F16>(top / 128)), kLeastF16), -top);
    for (size_t j = 0; j < kLanes; ++j) scales[j] = whole_within(best[j] / d, -128, 127);
    const auto round_all = [&] {
        for (size_t j = 0; j < kLanes; ++j) {
            const float step = d * scales[j];
            for (size_t i = 16 * j; i < 16 * j + 16; ++i) q[i] = whole_within(x[i] / (step == 0 ? 1 : step), -32, 31);
        }
    };
    round_all();
    double uu = 0, ux = 0;  // x = d * up
    for (size_t i = 0; i < kKQuantValues; ++i) {
        const double up = q[i] * scales[i / 16], weight = w[i];
        uu += weight * up * up;
        ux += weight * up * x[i];
    }
    if (uu > 0) d = rounded<F16>(static_cast<float>(ux / uu));
    round_all();

    SplitBlock block;
    put_f16(d, block.tail);
    for (size_t j = 0; j < 8; ++j) {
        uint8_t integers[32];
        for (size_t i = 0; i < 32; ++i) integers[i] = static_cast<uint8_t>(q[32 * j + i] + 32);
        put_integers<Format::q6_k>(integers, block.pieces[j]);
        for (size_t i = 0; i < 2; ++i)
            block.pieces[j].scales[i] = static_cast<uint8_t>(static_cast<int8_t>(scales[2 * j + i]));
    }
    join_block<Format::q6_k>(block, out);
}

}  // namespace decodestep::DECODESTEP_BUILD
