// The grids of sixteen sub-blocks of K-quants at a time, one in each lane: scales and minima with the least error.
#pragma once

#include "linear/block_numbers.h"
#include "simd/simd.h"

namespace decodestep::DECODESTEP_BUILD {

// Sixteen sub-blocks of N values: their values i are the lanes of vector i.
template <size_t N>
struct SubBlocks {
    float values[N][kLanes], weights[N][kLanes];

    SubBlocks(const float* x, const float* w) {
        for (size_t lane = 0; lane < kLanes; ++lane)
            for (size_t i = 0; i < N; ++i) {
                values[i][lane] = x[N * lane + i];
                weights[i][lane] = w[N * lane + i];
            }
    }
};

// A number for each of sixteen sub-blocks.
struct Lanes {
    float lanes[kLanes];

    Lanes() = default;
    explicit Lanes(f32x16 v) { store(lanes, v); }
    float& operator[](size_t lane) { return lanes[lane]; }
    f32x16 vector() const { return load(lanes); }
};

// value = scale * q - minimum
struct Line {
    float scale, minimum;
};

// The line of least squares through weighted (q, x), with a minimum >= 0.
DECODESTEP_INLINE Line fit_line(float total, float sum_x, float sum_q, float sum_qq, float sum_qx) {
    const float spread = total * sum_qq - sum_q * sum_q;
    if (spread > 1e-5f * total * sum_qq) {  // below, where the integers are almost all the same, it is a rounding error
        const float minimum = (sum_q * sum_qx - sum_qq * sum_x) / spread;
        if (!(minimum < 0)) return {(total * sum_qx - sum_q * sum_x) / spread, minimum};
    }
    return {sum_qx / (sum_qq > 0 ? sum_qq : 1), 0};
}

// The lines of sixteen sub-blocks, for q in [0, largest].
template <size_t N>
void find_lines(const SubBlocks<N>& of, float largest, Line* best) {
    f32x16 low = broadcast(0.0f), high = load(of.values[0]), sum_w = broadcast(0.0f), sum_wx = broadcast(0.0f);
    for (size_t i = 0; i < N; ++i) {
        const f32x16 x = load(of.values[i]), w = load(of.weights[i]);
        low = min(low, x);
        high = max(high, x);
        sum_w = sum_w + w;
        sum_wx = sum_wx + w * x;
    }
    Lanes total(sum_w), sum_x(sum_wx), lows(low), highs(high), spans, least_error;
    for (size_t lane = 0; lane < kLanes; ++lane) {
        spans[lane] = highs[lane] > lows[lane] ? highs[lane] - lows[lane] : 1;
        best[lane] = {(highs[lane] - lows[lane]) / largest, -lows[lane]};
        least_error[lane] = kInfinity;
    }
    const f32x16 most = broadcast(largest);
    for (int step = -10; step <= 10; ++step) {
        const f32x16 factor = broadcast(largest + 0.1f * static_cast<float>(step)) / spans.vector();
        f32x16 q[N], wq = broadcast(0.0f), wqq = broadcast(0.0f), wqx = broadcast(0.0f);
        for (size_t i = 0; i < N; ++i) {
            const f32x16 x = load(of.values[i]);
            q[i] = min(most, max(broadcast(0.0f), round_even((x - low) * factor)));
            const f32x16 weighted = load(of.weights[i]) * q[i];
            wq = wq + weighted;
            wqq = wqq + weighted * q[i];
            wqx = wqx + weighted * x;
        }
        Lanes sum_q(wq), sum_qq(wqq), sum_qx(wqx), scales, minima;
        for (size_t lane = 0; lane < kLanes; ++lane) {
            const Line line = fit_line(total[lane], sum_x[lane], sum_q[lane], sum_qq[lane], sum_qx[lane]);
            scales[lane] = line.scale;
            minima[lane] = line.minimum;
        }
        f32x16 sum = broadcast(0.0f);
        for (size_t i = 0; i < N; ++i) {
            const f32x16 apart = scales.vector() * q[i] - minima.vector() - load(of.values[i]);
            sum = sum + load(of.weights[i]) * (apart * apart);
        }
        Lanes error(sum);
        for (size_t lane = 0; lane < kLanes; ++lane)
            if (scales[lane] > 0 && error[lane] < least_error[lane]) {
                least_error[lane] = error[lane];
                best[lane] = {scales[lane], minima[lane]};
            }
    }
}

// The scales of sixteen sub-blocks, for q in [-middle, middle - 1].
inline void find_scales(const SubBlocks<16>& of, float middle, float* best) {
    Lanes extremes, most_gain;
    for (size_t lane = 0; lane < kLanes; ++lane) {
        float extreme = of.values[0][lane];
        for (size_t i = 1; i < 16; ++i)
            if (__builtin_fabsf(of.values[i][lane]) > __builtin_fabsf(extreme)) extreme = of.values[i][lane];
        best[lane] = extreme / -middle;
        extremes[lane] = extreme == 0 ? 1 : extreme;
        most_gain[lane] = -kInfinity;
    }
    const f32x16 least = broadcast(-middle), most = broadcast(middle - 1);
    for (int step = -9; step <= 9; ++step) {
        const f32x16 factor = broadcast(-(middle + 0.1f * static_cast<float>(step))) / extremes.vector();
        f32x16 wqx = broadcast(0.0f), wqq = broadcast(0.0f);
        for (size_t i = 0; i < 16; ++i) {
            const f32x16 x = load(of.values[i]), q = min(most, max(least, round_even(x * factor)));
            const f32x16 weighted = load(of.weights[i]) * q;
            wqx = wqx + weighted * x;
            wqq = wqq + weighted * q;
        }
        Lanes sum_qx(wqx), sum_qq(wqq);
        for (size_t lane = 0; lane < kLanes; ++lane) {
            const float gain = sum_qx[lane] * sum_qx[lane] / sum_qq[lane];  // NaN where every q is 0
            if (gain > most_gain[lane]) {
                most_gain[lane] = gain;
                best[lane] = sum_qx[lane] / sum_qq[lane];
            }
        }
    }
}

}  // namespace decodestep::DECODESTEP_BUILD
