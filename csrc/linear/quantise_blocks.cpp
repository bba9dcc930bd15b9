#include "linear/quantise_blocks.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/half.h"
#include "core/parallel.h"
#include "linear/join_blocks.h"
#include "linear/with_format.h"
#include "simd/rounding.h"

namespace decodestep::DECODESTEP_BUILD {
namespace {

constexpr size_t kBlock = 256;              // values of a K-quant's
constexpr size_t kChunk = size_t{1} << 14;  // values that a thread takes at a time
constexpr float kLeastF16 = 0x1p-24f;       // above 0
constexpr float kMost = 0x1p30f;            // more than any block can hold
constexpr float kInfinity = std::numeric_limits<float>::infinity();

float as_f16(float value) { return to_float(to_f16(value)); }

// To nearest, ties to even, within [least, most]; `least` for NaN.
float whole_within(float value, float least, float most) {
    const float whole = __builtin_rintf(value);
    return whole > least ? (whole < most ? whole : most) : least;
}

// Sixteen sub-blocks of N values: their values i are the lanes of vector i.
template <size_t N>
struct Columns {
    float values[N][kLanes], weights[N][kLanes];

    Columns(const float* x, const float* w) {
        for (size_t lane = 0; lane < kLanes; ++lane)
            for (size_t i = 0; i < N; ++i) {
                values[i][lane] = x[N * lane + i];
                weights[i][lane] = w[N * lane + i];
            }
    }
};

// A number for each of sixteen sub-blocks.
struct Row {
    float lanes[kLanes];

    Row() = default;
    explicit Row(f32x16 v) { store(lanes, v); }
    float& operator[](size_t lane) { return lanes[lane]; }
    f32x16 vector() const { return load(lanes); }
};

// value = scale * q - minimum
struct Line {
    float scale, minimum;
};

// The line of least squares through weighted (q, x), with a minimum >= 0.
Line fit_line(float total, float sum_x, float sum_q, float sum_qq, float sum_qx) {
    const float spread = total * sum_qq - sum_q * sum_q;
    if (spread > 1e-5f * total * sum_qq) {  // below, where the integers are almost all the same, it is a rounding error
        const float minimum = (sum_q * sum_qx - sum_qq * sum_x) / spread;
        if (!(minimum < 0)) return {(total * sum_qx - sum_q * sum_x) / spread, minimum};
    }
    return {sum_qx / (sum_qq > 0 ? sum_qq : 1), 0};
}

// The lines of sixteen sub-blocks, for q in [0, largest].
void find_lines(const Columns<32>& of, float largest, Line* best) {
    f32x16 low = broadcast(0.0f), high = load(of.values[0]), sum_w = broadcast(0.0f), sum_wx = broadcast(0.0f);
    for (size_t i = 0; i < 32; ++i) {
        const f32x16 x = load(of.values[i]), w = load(of.weights[i]);
        low = min(low, x);
        high = max(high, x);
        sum_w = sum_w + w;
        sum_wx = sum_wx + w * x;
    }
    Row total(sum_w), sum_x(sum_wx), lows(low), highs(high), spans, least_error;
    for (size_t lane = 0; lane < kLanes; ++lane) {
        spans[lane] = highs[lane] > lows[lane] ? highs[lane] - lows[lane] : 1;
        best[lane] = {(highs[lane] - lows[lane]) / largest, -lows[lane]};
        least_error[lane] = kInfinity;
    }
    const f32x16 most = broadcast(largest);
    for (int step = -10; step <= 10; ++step) {
        const f32x16 factor = broadcast(largest + 0.1f * static_cast<float>(step)) / spans.vector();
        f32x16 q[32], wq = broadcast(0.0f), wqq = broadcast(0.0f), wqx = broadcast(0.0f);
        for (size_t i = 0; i < 32; ++i) {
            const f32x16 x = load(of.values[i]);
            q[i] = min(most, max(broadcast(0.0f), round_even((x - low) * factor)));
            const f32x16 weighted = load(of.weights[i]) * q[i];
            wq = wq + weighted;
            wqq = wqq + weighted * q[i];
            wqx = wqx + weighted * x;
        }
        Row sum_q(wq), sum_qq(wqq), sum_qx(wqx), scales, minima;
        for (size_t lane = 0; lane < kLanes; ++lane) {
            const Line line = fit_line(total[lane], sum_x[lane], sum_q[lane], sum_qq[lane], sum_qx[lane]);
            scales[lane] = line.scale;
            minima[lane] = line.minimum;
        }
        f32x16 sum = broadcast(0.0f);
        for (size_t i = 0; i < 32; ++i) {
            const f32x16 apart = scales.vector() * q[i] - minima.vector() - load(of.values[i]);
            sum = sum + load(of.weights[i]) * (apart * apart);
        }
        Row error(sum);
        for (size_t lane = 0; lane < kLanes; ++lane)
            if (scales[lane] > 0 && error[lane] < least_error[lane]) {
                least_error[lane] = error[lane];
                best[lane] = {scales[lane], minima[lane]};
            }
    }
}

// The scales of sixteen sub-blocks, for q in [-32, 31].
void find_scales(const Columns<16>& of, float* best) {
    Row extremes, most_gain;
    for (size_t lane = 0; lane < kLanes; ++lane) {
        float extreme = of.values[0][lane];
        for (size_t i = 1; i < 16; ++i)
            if (__builtin_fabsf(of.values[i][lane]) > __builtin_fabsf(extreme)) extreme = of.values[i][lane];
        best[lane] = extreme / -32;
        extremes[lane] = extreme == 0 ? 1 : extreme;
        most_gain[lane] = -kInfinity;
    }
    const f32x16 least = broadcast(-32.0f), most = broadcast(31.0f);
    for (int step = -9; step <= 9; ++step) {
        const f32x16 factor = broadcast(-(32 + 0.1f * static_cast<float>(step))) / extremes.vector();
        f32x16 wqx = broadcast(0.0f), wqq = broadcast(0.0f);
        for (size_t i = 0; i < 16; ++i) {
            const f32x16 x = load(of.values[i]), q = min(most, max(least, round_even(x * factor)));
            const f32x16 weighted = load(of.weights[i]) * q;
            wqx = wqx + weighted * x;
            wqq = wqq + weighted * q;
        }
        Row sum_qx(wqx), sum_qq(wqq);
        for (size_t lane = 0; lane < kLanes; ++lane) {
            const float gain = sum_qx[lane] * sum_qx[lane] / sum_qq[lane];  // NaN where every q is 0
            if (gain > most_gain[lane]) {
                most_gain[lane] = gain;
                best[lane] = sum_qx[lane] / sum_qq[lane];
            }
        }
    }
}

// Eight numbers >= 0 as multiples of six bits of a float16.
struct SixBits {
    float unit;  // above 0
    float multiples[8];

    explicit SixBits(const float* numbers) {
        float largest = 0;
        for (size_t j = 0; j < 8; ++j) largest = std::max(largest, numbers[j]);
        unit = std::max(as_f16(largest / 63), kLeastF16);
        for (size_t j = 0; j < 8; ++j) multiples[j] = whole_within(numbers[j] / unit, 0, 63);
    }
};

// Writes the integers of a piece, of up to eight bits.
template <Format F>
void put_integers(const uint8_t* q, SplitPiece& piece) {
    for (size_t i = 0; i < 16; ++i) piece.low[i] = static_cast<uint8_t>((q[i] & 15) | q[16 + i] << 4);
    std::memset(piece.upper, 0, sizeof piece.upper);
    for (size_t i = 0; i < 32; ++i) {
        if constexpr (F == Format::q5_0 || F == Format::q5_k)
            piece.upper[i % 4] |= static_cast<uint8_t>(q[i] >> 4 << i / 4);
        if constexpr (F == Format::q6_k)
            piece.upper[i / 16 * 4 + i % 4] |= static_cast<uint8_t>(q[i] >> 4 << i % 16 / 4 * 2);
    }
}

void put_f16(float value, uint8_t* out) {
    const F16 half = to_f16(value);
    std::memcpy(out, &half, sizeof half);
}

void put_q8_0(const float* x, uint8_t* out) {
    const f32x16 first = load(x), second = load(x + kLanes);
    const float scale = largest_magnitude(first, second) / 127, unit = as_f16(scale);
    const f32x16 inverse = broadcast(unit > 0 ? 1 / unit : 0), most = broadcast(127.0f);
    const auto bounded = [&](f32x16 v) { return max(broadcast(-127.0f), min(most, v * inverse)); };
    put_f16(scale, out);
    round_to_bytes(bounded(first), bounded(second), reinterpret_cast<int8_t*>(out + 2));
}

// A block of Q4_0 or Q5_0.
template <Format F>
void put_around_middle(const float* x, uint8_t* out) {
    constexpr float middle = F == Format::q4_0 ? 8 : 16;
    float extreme = x[0];
    for (size_t i = 1; i < 32; ++i)
        if (__builtin_fabsf(x[i]) > __builtin_fabsf(extreme)) extreme = x[i];
    const float scale = largest_magnitude(x, 32) < kInfinity ? extreme / -middle : kInfinity;
    const float inverse = scale == 0 ? 0 : 1 / scale;
    uint8_t q[32];
    for (size_t i = 0; i < 32; ++i) {
        const float shifted = x[i] * inverse + (middle + 0.5f);
        q[i] = static_cast<uint8_t>(shifted > 0 ? std::min(shifted, 2 * middle - 1) : 0);
    }
    SplitBlock block;
    put_f16(scale, block.pieces[0].scales);
    put_integers<F>(q, block.pieces[0]);
    join_block<F>(block, out);
}

// Whether a block can hold the values; if not, writes one whose d is infinite.
template <Format F>
bool can_hold(const float* x, uint8_t* out) {
    if (largest_magnitude(x, kBlock) <= kMost) return true;
    SplitBlock block{};
    put_f16(kInfinity, block.tail);
    join_block<F>(block, out);
    return false;
}

// A block of Q4_K or Q5_K whose sub-blocks have these lines.
template <Format F>
void put_block_with_minima(const float* x, const float* w, const Line* lines, float largest, uint8_t* out) {
    if (!can_hold<F>(x, out)) return;
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
    float d = scale.unit, dmin = minimum.unit, q[kBlock];
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
    for (size_t i = 0; i < kBlock; ++i) {
        const double up = q[i] * scale.multiples[i / 32], down = minimum.multiples[i / 32], weight = w[i];
        uu += weight * up * up;
        dd += weight * down * down;
        ud += weight * up * down;
        ux += weight * up * x[i];
        dx += weight * down * x[i];
    }
    const double spread = uu * dd - ud * ud;
    if (dd == 0) {
        if (ux > 0) d = as_f16(static_cast<float>(ux / uu));
    } else if (spread > 1e-12 * uu * dd) {
        const double new_d = (dd * ux - ud * dx) / spread, new_dmin = (ud * ux - uu * dx) / spread;
        if (new_d > 0 && new_dmin >= 0) {
            d = as_f16(static_cast<float>(new_d));
            dmin = as_f16(static_cast<float>(new_dmin));
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

// Two blocks, sixteen sub-blocks, of Q4_K or Q5_K.
template <Format F>
void put_two_blocks(const float* x, size_t blocks, uint8_t* out) {
    constexpr float largest = F == Format::q4_k ? 15 : 31;
    float w[2 * kBlock];
    for (size_t first = 0; first < 2 * kBlock; first += 32) {
        float squares = 0;
        for (size_t i = first; i < first + 32; ++i) squares += x[i] * x[i];
        const float mean = __builtin_sqrtf(squares / 32);
        for (size_t i = first; i < first + 32; ++i) w[i] = mean + __builtin_fabsf(x[i]);
    }
    Line lines[kLanes];
    find_lines(Columns<32>(x, w), largest, lines);
    for (size_t b = 0; b < blocks; ++b)
        put_block_with_minima<F>(x + kBlock * b, w + kBlock * b, lines + 8 * b, largest, out + kBlockBytes<F> * b);
}

void put_q6_k(const float* x, uint8_t* out) {
    if (!can_hold<Format::q6_k>(x, out)) return;
    float w[kBlock], best[kLanes], scales[kLanes], q[kBlock];
    for (size_t i = 0; i < kBlock; ++i) w[i] = x[i] * x[i];
    find_scales(Columns<16>(x, w), best);
    float top = best[0];
    for (const float scale : best)
        if (__builtin_fabsf(scale) > __builtin_fabsf(top)) top = scale;
    float d = __builtin_copysignf(std::max(__builtin_fabsf(as_f16(top / 128)), kLeastF16), -top);
    for (size_t j = 0; j < kLanes; ++j) scales[j] = whole_within(best[j] / d, -128, 127);
    const auto round_all = [&] {
        for (size_t j = 0; j < kLanes; ++j) {
            const float step = d * scales[j];
            for (size_t i = 16 * j; i < 16 * j + 16; ++i) q[i] = whole_within(x[i] / (step == 0 ? 1 : step), -32, 31);
        }
    };
    round_all();
    double uu = 0, ux = 0;  // x = d * up
    for (size_t i = 0; i < kBlock; ++i) {
        const double up = q[i] * scales[i / 16], weight = w[i];
        uu += weight * up * up;
        ux += weight * up * x[i];
    }
    if (uu > 0) d = as_f16(static_cast<float>(ux / uu));
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

// All blocks of 32 values, or two blocks of 256 at a time where their sub-blocks fill the lanes of a vector together.
template <Format F>
void put_blocks(const float* x, size_t blocks, uint8_t* out) {
    size_t b = 0;
    if constexpr (F == Format::q4_k || F == Format::q5_k) {
        for (; b + 2 <= blocks; b += 2) put_two_blocks<F>(x + kBlock * b, 2, out + kBlockBytes<F> * b);
        if (b == blocks) return;
        float padded[2 * kBlock] = {};
        std::memcpy(padded, x + kBlock * b, kBlock * sizeof(float));
        put_two_blocks<F>(padded, 1, out + kBlockBytes<F> * b);
    } else {
        for (; b < blocks; ++b, x += kBlockValues<F>, out += kBlockBytes<F>) {
            if constexpr (F == Format::q6_k)
                put_q6_k(x, out);
            else if constexpr (F == Format::q8_0)
                put_q8_0(x, out);
            else
                put_around_middle<F>(x, out);
        }
    }
}

template <Format F>
void quantise(const QuantiseBlocks& a) {
    constexpr size_t in_chunk = kChunk / kBlockValues<F>;
    parallel_for(ceil_div(a.blocks, in_chunk), a.threads, [&](size_t chunk) {
        const size_t first = in_chunk * chunk;
        put_blocks<F>(a.values + kBlockValues<F> * first, std::min(in_chunk, a.blocks - first),
                      a.out + kBlockBytes<F> * first);
    });
}

}  // namespace

void quantise_blocks(const QuantiseBlocks& a) {
    with_format(a.format, [&]<Format F>() {
        if constexpr (is_quantised_to(F)) quantise<F>(a);
    });
}

}  // namespace decodestep::DECODESTEP_BUILD
