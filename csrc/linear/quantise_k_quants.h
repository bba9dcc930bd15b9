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

// The scales or minima of N sub-blocks, >= 0, as multiples of a float16.
template <size_t N>
struct Multiples {
    float unit;  // above 0
    float multiples[N];

    Multiples(const float (&numbers)[N], float most) {
        float largest = 0;
        for (const float number : numbers) largest = std::max(largest, number);
        unit = std::max(rounded<F16>(largest / most), kLeastF16);
        for (size_t j = 0; j < N; ++j) multiples[j] = whole_within(numbers[j] / unit, 0, most);
    }
};

// The largest of a format's integers.
template <Format F>
constexpr float kLargest = (1 << (traits(F).low_bits + traits(F).upper_bits)) - 1;

// Whether a block may be able to hold the values.
inline bool can_hold(const float* x) { return largest_magnitude(x, kKQuantValues) <= kMost; }

// A block whose d is infinite.
template <Format F>
void put_infinite(uint8_t* out) {
    SplitBlock block{};
    put_f16(kInfinity, block.tail);
    join_block<F>(block, out);
}

// A block with minima whose sub-blocks have these lines.
template <Format F>
void put_block_with_minima(const float* x, const float* w, const Line* lines, uint8_t* out) {
    constexpr size_t size = traits(F).sub_block, count = kKQuantValues / size;
    constexpr float most = traits(F).scale == ScaleType::u4 ? 15 : 63;  // u8: of which files store six bits
    static_assert(traits(F).scale == ScaleType::u4 || traits(F).scale == ScaleType::u8);
    if (!can_hold(x)) return put_infinite<F>(out);
    float scales[count], minima[count];
    for (size_t j = 0; j < count; ++j) scales[j] = lines[j].scale;
    const Multiples<count> scale(scales, most);
    for (size_t j = 0; j < count; ++j) {
        minima[j] = lines[j].minimum;
        if (scale.multiples[j] > 0) continue;
        float sum_w = 0, sum_wx = 0;  // without a scale a sub-block is one value
        for (size_t i = size * j; i < size * (j + 1); ++i) {
            sum_w += w[i];
            sum_wx += w[i] * x[i];
        }
        minima[j] = std::max(-(sum_wx / std::max(sum_w, std::numeric_limits<float>::min())), 0.0f);
    }
    const Multiples<count> minimum(minima, most);
    float d = scale.unit, dmin = minimum.unit, q[kKQuantValues];
    const auto round_all = [&] {
        for (size_t j = 0; j < count; ++j) {
            const float step = d * scale.multiples[j], shift = dmin * minimum.multiples[j];
            for (size_t i = size * j; i < size * (j + 1); ++i)
                q[i] = whole_within((x[i] + shift) / (step > 0 ? step : 1), 0, kLargest<F>);
        }
    };
    round_all();
    // x = d * up - dmin * down
    double uu = 0, dd = 0, ud = 0, ux = 0, dx = 0;
    for (size_t i = 0; i < kKQuantValues; ++i) {
        const double up = q[i] * scale.multiples[i / size], down = minimum.multiples[i / size], weight = w[i];
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
        uint8_t* numbers = block.pieces[j].scales;
        if constexpr (traits(F).scale == ScaleType::u4) {
            for (size_t i = 0; i < 2; ++i) {
                const float low = scale.multiples[2 * j + i], high = minimum.multiples[2 * j + i];
                numbers[i] = static_cast<uint8_t>(static_cast<int>(low) | static_cast<int>(high) << 4);
            }
        } else {
            numbers[0] = static_cast<uint8_t>(scale.multiples[j]);
            numbers[1] = static_cast<uint8_t>(minimum.multiples[j]);
        }
    }
    join_block<F>(block, out);
}

// Weights of sixteen sub-blocks' values: the root of their mean square, and their magnitude.
template <size_t N>
void weigh(const float* x, float* w) {
    for (size_t first = 0; first < kLanes * N; first += N) {
        float squares = 0;
        for (size_t i = first; i < first + N; ++i) squares += x[i] * x[i];
        const float mean = __builtin_sqrtf(squares / N);
        for (size_t i = first; i < first + N; ++i) w[i] = mean + __builtin_fabsf(x[i]);
    }
}

// The blocks with minima whose sub-blocks fill the lanes of a vector together.
template <Format F>
constexpr size_t kBlocksAtOnce = kLanes * traits(F).sub_block / kKQuantValues;

// The first `blocks` of kBlocksAtOnce.
template <Format F>
void put_blocks_with_minima(const float* x, size_t blocks, uint8_t* out) {
    constexpr size_t size = traits(F).sub_block;
    float w[kLanes * size];
    weigh<size>(x, w);
    Line lines[kLanes];
    find_lines(SubBlocks<size>(x, w), kLargest<F>, lines);
    for (size_t b = 0; b < blocks; ++b)
        put_block_with_minima<F>(x + kKQuantValues * b, w + kKQuantValues * b, lines + kKQuantValues / size * b,
                                 out + kBlockBytes<F> * b);
}

// A block whose sub-blocks of 16 have signed scales, of at most `most` below zero and most - 1 above.
template <Format F, int most>
void put_block_around_zero(const float* x, uint8_t* out) {
    constexpr float middle = traits(F).offset;
    if (!can_hold(x)) return put_infinite<F>(out);
    float w[kKQuantValues], best[kLanes], scales[kLanes], q[kKQuantValues];
    if constexpr (F == Format::q6_k)
        for (size_t i = 0; i < kKQuantValues; ++i) w[i] = x[i] * x[i];
    else
        weigh<16>(x, w);
    find_scales(SubBlocks<16>(x, w), middle, best);
    float top = best[0];
    for (const float scale : best)
        if (__builtin_fabsf(scale) > __builtin_fabsf(top)) top = scale;
    float d = __builtin_copysignf(std::max(__builtin_fabsf(rounded<F16>(top / most)), kLeastF16), -top);
    for (size_t j = 0; j < kLanes; ++j) scales[j] = whole_within(best[j] / d, -most, most - 1);
    const auto round_all = [&] {
        for (size_t j = 0; j < kLanes; ++j) {
            const float step = d * scales[j];
            for (size_t i = 16 * j; i < 16 * j + 16; ++i)
                q[i] = whole_within(x[i] / (step == 0 ? 1 : step), -middle, middle - 1);
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
        for (size_t i = 0; i < 32; ++i) integers[i] = static_cast<uint8_t>(q[32 * j + i] + middle);
        put_integers<F>(integers, block.pieces[j]);
        for (size_t i = 0; i < 2; ++i)
            block.pieces[j].scales[i] = static_cast<uint8_t>(static_cast<int8_t>(scales[2 * j + i]));
    }
    join_block<F>(block, out);
}

}  // namespace decodestep::DECODESTEP_BUILD
