// Products of many tokens with the rows of a weight, in blocks that stay in the first-level cache:
//
//     for every twelve rows, which are widened unless they are float32
//         for every eight tokens, or twelve
//             for every 384 inputs
//                 for tiles of a few rows and a few tokens
//                     add their products to their sums, one vector each, in registers
//
// A sum ascends in the inputs, as in the tile of few tokens in linear.cpp, and so has the same bits.
#pragma once

#include <algorithm>
#include <cstring>

#include "core/pieces.h"
#include "core/thread_scratch.h"
#include "linear/blocked_tokens.h"
#include "linear/linear.h"
#include "linear/row_blocks.h"
#include "linear/with_format.h"

namespace decodestep::DECODESTEP_BUILD {

constexpr size_t kRegister = sizeof(Register) / sizeof(float), kParts = kLanes / kRegister;  // of a vector
constexpr bool kManySums = kVectorRegisters * kParts >= 32;
constexpr size_t kGroupRows = 12, kTokenBlock = kManySums ? 12 : 8;

// Prefetches the rows that are read next, evenly while the current ones are read.
class NextRows {
  public:
    // passes: how often the current rows, as many as those at `rows`, are read.
    NextRows(const uint8_t* rows, size_t stride, size_t row_bytes, size_t passes)
        : row_(rows), stride_(stride), row_bytes_(row_bytes), bytes_a_line_(kCacheLine * passes) {}

    // Call when this many bytes of the current rows are read.
    void advance(size_t bytes) {
        for (due_ += bytes; due_ >= bytes_a_line_; due_ -= bytes_a_line_) {
            prefetch_to_second_level(row_ + at_);
            at_ += kCacheLine;
            if (at_ < row_bytes_) continue;
            at_ = 0;
            row_ += stride_;
        }
    }

  private:
    const uint8_t* row_;
    size_t stride_, row_bytes_, bytes_a_line_, at_ = 0, due_ = 0;
};

// A tile's sums stay in registers, beside a register for each row and one for a token. So that there are many rows and
// tokens, the registers of a vector are summed one after the other, when its lines are in the first-level cache. With
// few tokens, more rows: there must be enough sums to hide the latency of an addition.
constexpr int kTokensATile = 4;
constexpr int tile_rows(size_t tokens) { return kManySums ? 4 : tokens < kTokensATile ? 3 : 2; }

// sums += R rows times T tokens, `inputs` values each. weights: rows `weight_stride` floats apart; x: tokens `inputs`
// floats apart; sums: [tokens][kGroupRows] vectors.
template <int R, int T>
void add_products(const float* weights, size_t weight_stride, const float* x, size_t inputs, float* sums) {
    for (size_t part = 0; part < kParts; ++part) {
        Register total[T][R];
        const auto each_total = [&](auto&& body) DECODESTEP_INLINE_LAMBDA {
#pragma GCC unroll 8
            for (int t = 0; t < T; ++t)
#pragma GCC unroll 8
                for (int r = 0; r < R; ++r) body(total[t][r], sums + (t * kGroupRows + r) * kLanes + part * kRegister);
        };
        each_total([](Register& in_register, const float* sum)
                       DECODESTEP_INLINE_LAMBDA { in_register = load_register(sum); });
        for (size_t k = part * kRegister; k < inputs; k += kLanes) {
            Register w[R];
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) w[r] = load_register(weights + r * weight_stride + k);
#pragma GCC unroll 8
            for (int t = 0; t < T; ++t) {
                Register value = load_register(x + t * inputs + k);
                if constexpr (R > 1) keep_in_register(value);
#pragma GCC unroll 8
                for (int r = 0; r < R; ++r) total[t][r] = fma(w[r], value, total[t][r]);
            }
        }
        each_total([](Register in_register, float* sum) DECODESTEP_INLINE_LAMBDA { store_register(sum, in_register); });
    }
}

// Some rows as float32: in place where that is possible, otherwise widened to `memory`, padded with zeros.
struct RowGroup {
    const float* values;
    size_t stride;  // in floats

    // In `memory`, an odd number of cache lines.
    static size_t widened_stride(size_t padded) { return (padded + kLanes) / kLanes / 2 * 2 * kLanes + kLanes; }

    static RowGroup of(const RowWeight& w, size_t first, size_t rows, size_t padded, float* memory) {
        if (!memory) return {reinterpret_cast<const float*>(w.row(first)), w.stride / sizeof(float)};
        const size_t stride = widened_stride(padded);
        for (size_t r = 0; r < rows; ++r) {
            float* const row = memory + r * stride;
            with_format(w.format, [&]<Format F>() { widen<F>(w.row(first + r), w.in, row); });
            std::fill(row + w.in, row + padded, 0.0f);
        }
        return {memory, stride};
    }
};

// Outputs [first, last) of the tokens, to y: rows `y_stride` floats apart.
inline void multiply_blocked_rows(const RowWeight& w, size_t first, size_t last, const BlockedTokens& x, float* y,
                                  ptrdiff_t y_stride) {
    constexpr size_t kSums = kTokenBlock * kGroupRows * kLanes;
    const size_t padded = x.padded(), bytes = row_bytes(w.format, w.in);
    size_t token_tiles = 0;
    each_piece<kTokenBlock>(x.count, [&](size_t, size_t count) { token_tiles += ceil_div(count, kTokensATile); });
    const bool in_place = w.format == Format::f32 && padded == w.in && w.stride % sizeof(float) == 0;
    const ThreadScratch scratch(kSums + (in_place ? 0 : kGroupRows * RowGroup::widened_stride(padded)));
    float* const sums = scratch.data();
    for (size_t n = first; n < last; n += kGroupRows) {
        const size_t rows = std::min(kGroupRows, last - n);
        const auto group = RowGroup::of(w, n, rows, padded, in_place ? nullptr : sums + kSums);
        NextRows next(w.row(n + rows), w.stride, bytes, token_tiles);
        each_piece<kTokenBlock>(x.count, [&](size_t from, size_t count) {
            size_t tiles = 0, sizes[kTokenBlock];
            each_piece<kTokensATile>(count, [&](size_t, size_t size) { sizes[tiles++] = size; });
            std::memset(sums, 0, count * kGroupRows * kLanes * sizeof(float));
            for (size_t block = 0; block < x.blocks(); ++block) {
                const size_t inputs = x.inputs(block);
                const auto multiply = [&]<int R>(size_t r) {
                    const float* weights = group.values + r * group.stride + block * kInputBlock;
                    const float* tokens = x.token(block, from);
                    float* to = sums + r * kLanes;
                    for (size_t i = 0; i < tiles; ++i) {
                        next.advance(R * bytes * inputs / padded);
                        with_constant<kTokensATile>(
                            sizes[i], [&]<int T>() { add_products<R, T>(weights, group.stride, tokens, inputs, to); });
                        tokens += sizes[i] * inputs;
                        to += sizes[i] * kGroupRows * kLanes;
                    }
                };
                if (sizes[0] < kTokensATile)
                    each_constant_piece<tile_rows(1)>(rows, multiply);
                else
                    each_constant_piece<tile_rows(kTokensATile)>(rows, multiply);
            }
            for (size_t t = 0; t < count; ++t)
                for (size_t r = 0; r < rows; ++r)
                    y[static_cast<ptrdiff_t>(from + t) * y_stride + static_cast<ptrdiff_t>(n + r)] =
                        sum(load(sums + (t * kGroupRows + r) * kLanes));
        });
    }
}

}  // namespace decodestep::DECODESTEP_BUILD
