// Products of activations with panels of dense values, which have no scales: each output's sum stays in one lane.
//
// A Dot says what a panel holds and how it is multiplied. A group is kInputs inputs of the 32 outputs of a panel, an
// output's side by side; its products are added in kSteps steps. With few tokens a panel is multiplied as it lies in
// memory; with many, a slab of groups at a time, which is first converted if that takes instructions. The order of an
// output's sum is that of the groups and their steps either way, so its bits depend on nothing else.
#pragma once

#include <cstring>
#include <type_traits>

#include "core/pieces.h"
#include "linear/linear_panels.h"
#include "linear/panel_prefetcher.h"

namespace decodestep::DECODESTEP_BUILD {

template <class Dot>
struct ConvertedDot;

// Float32 activations times dense formats.
template <Format F>
struct FloatDot {
    using Value = float;  // of a token
    using Weights = f32x16;
    using Sums = f32x16;
    static constexpr size_t kInputs = dense_inputs(F), kBytes = kPanelOutputs * row_bytes(F, kInputs);  // of a group
    static constexpr int kSteps = kInputs;
    // Whether many tokens are multiplied by converted weights, and how.
    static constexpr bool kConverts = F != Format::f32;
    using Converted = ConvertedDot<FloatDot>;

    template <int step>
    static DECODESTEP_INLINE f32x16 token(const float* group) {
        return broadcast(group[step]);
    }
    // Vector v of a group's outputs.
    template <int step>
    static DECODESTEP_INLINE f32x16 weights(const uint8_t* group, size_t v) {
        const uint8_t* p = group + v * (kBytes / 2);
        if constexpr (F == Format::f32) return load(reinterpret_cast<const float*>(p));
        if constexpr (F == Format::f16) return from_f16(p);
        if constexpr (F == Format::bf16) return step == 0 ? low_bf16(load_bits(p)) : high_bf16(load_bits(p));
    }
    static DECODESTEP_INLINE f32x16 add(f32x16 sums, f32x16 x, f32x16 w) { return fma(w, x, sums); }
    static DECODESTEP_INLINE f32x16 load_sums(const float* p) { return load(p); }
    static DECODESTEP_INLINE void store_sums(float* p, f32x16 sums) { store(p, sums); }
};

// The same products with weights that are float32 in memory: the 32 outputs of a step, then those of the next one.
template <class Dot>
struct ConvertedDot : Dot {
    using Weights = f32x16;
    static constexpr size_t kBytes = Dot::kSteps * kPanelOutputs * sizeof(float);

    template <int step>
    static DECODESTEP_INLINE f32x16 weights(const uint8_t* group, size_t v) {
        return load(reinterpret_cast<const float*>(group) + step * kPanelOutputs + v * kLanes);
    }
    static DECODESTEP_INLINE void convert(const uint8_t* group, uint8_t* to) { convert(group, to, Steps{}); }

  private:
    using Steps = std::make_integer_sequence<int, Dot::kSteps>;

    template <int... steps>
    static DECODESTEP_INLINE void convert(const uint8_t* group, uint8_t* to, std::integer_sequence<int, steps...>) {
        for (size_t v = 0; v < 2; ++v)
            (store(reinterpret_cast<float*>(to) + steps * kPanelOutputs + v * kLanes,
                   Dot::template weights<steps>(group, v)),
             ...);
    }
};

// The activations of some tokens, in stretches as Activations have them: 1 KiB of each token.
template <class Value>
struct DenseRows {
    static constexpr size_t kStretchValues = 1024 / sizeof(Value), kStretchBlocks = kStretchValues / kBlockInputs;
    Value* values;
    size_t tokens;

    // Block b of token t. The next token's is kStretchValues further on.
    DECODESTEP_INLINE Value* at(size_t t, size_t b) const {
        return values + ((b / kStretchBlocks * tokens + t) * kStretchBlocks + b % kStretchBlocks) * kBlockInputs;
    }
};

template <class Dot, int T, int V>
using DenseSums = typename Dot::Sums[T][V];

// y += groups of a panel times those of T tokens. ahead: memory that is prefetched, as many bytes as are read; or null.
template <class Dot, int T, int V>
DECODESTEP_INLINE void add_groups(const uint8_t* w, size_t groups, const typename Dot::Value* x, size_t v,
                                  DenseSums<Dot, T, V>& y, const uint8_t* ahead = nullptr) {
    constexpr size_t stride = DenseRows<typename Dot::Value>::kStretchValues;
    const auto add_step = [&]<int step>() DECODESTEP_INLINE_LAMBDA {
        typename Dot::Weights weights[V];
#pragma GCC unroll 2
        for (int i = 0; i < V; ++i) weights[i] = Dot::template weights<step>(w, v + i);
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            const auto token = Dot::template token<step>(x + t * stride);
#pragma GCC unroll 2
            for (int i = 0; i < V; ++i) y[t][i] = Dot::add(y[t][i], token, weights[i]);
        }
    };
    for (size_t g = 0; g < groups; ++g, w += Dot::kBytes, x += Dot::kInputs) {
        if (ahead) prefetch(ahead + g * Dot::kBytes, Dot::kBytes);
        add_step.template operator()<0>();
        if constexpr (Dot::kSteps == 2) add_step.template operator()<1>();
    }
}

// Tokens [first, first + tokens) times a panel, or times some of its blocks. next_panel: see PanelTile.
template <class Dot>
struct DenseTile {
    const uint8_t *panel, *next_panel;
    size_t blocks;
    DenseRows<typename Dot::Value> x;
    size_t first, tokens;
    float (*outputs)[kPanelOutputs];
    size_t first_block = 0;  // of x, which is multiplied by the first one of the panel
    bool adds = false;       // to sums that outputs hold
};

template <class Dot>
constexpr size_t kDenseBlockBytes = kBlockInputs / Dot::kInputs * Dot::kBytes;

// The tokens and the vectors of outputs of a tile, whose sums stay in registers. Weights may take two registers each.
struct TileShape {
    int tokens, vectors;
};
template <class Dot>
constexpr bool kWideWeights = sizeof(typename Dot::Weights) > sizeof(f32x16);
// Few tokens: beside the weights of the whole panel, which are converted on the way.
template <class Dot>
constexpr TileShape kFewShape = kManyRegisters      ? TileShape{6, 2}
                                : kWideWeights<Dot> ? TileShape{4, 1}
                                                    : TileShape{2, 2};
// Many tokens: enough independent sums to hide the latency of an addition.
template <class Dot>
constexpr TileShape kManyShape = kManyRegisters      ? TileShape{8, 2}
                                 : kWideWeights<Dot> ? TileShape{4, 1}
                                                     : TileShape{6, 1};
// The largest number of tokens of which one tile has all sums of a panel, which it then reads from end to end.
template <class Dot>
constexpr int kOneTile = kFewShape<Dot>.vectors == 2 ? kFewShape<Dot>.tokens : 1;

// The smallest number of tokens for which converting first is faster.
constexpr size_t kConvertedFrom = kManyRegisters ? 16 : 7;

// The groups' steps of a slab, whose weights as float32 take half of a first-level cache of 32 KiB.
constexpr size_t kSlabSteps = 128;

// How far ahead weights are prefetched where they are first read.
constexpr size_t kDenseAhead = 4096;
// The smallest number of tokens whose products take longer than reading the weights: the next slab is then prefetched
// while all of them are multiplied.
constexpr size_t kSpreadFrom = 32;

template <class Dot, int T, int V>
DECODESTEP_INLINE void clear(DenseSums<Dot, T, V>& y) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t)
#pragma GCC unroll 2
        for (int i = 0; i < V; ++i) y[t][i] = typename Dot::Sums{};
}
template <class Dot, int T, int V>
DECODESTEP_INLINE void load_tile(const float (*outputs)[kPanelOutputs], size_t v, DenseSums<Dot, T, V>& y) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t)
#pragma GCC unroll 2
        for (int i = 0; i < V; ++i) y[t][i] = Dot::load_sums(outputs[t] + kLanes * (v + i));
}
template <class Dot, int T, int V>
DECODESTEP_INLINE void store_tile(const DenseSums<Dot, T, V>& y, size_t v, float (*outputs)[kPanelOutputs]) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t)
#pragma GCC unroll 2
        for (int i = 0; i < V; ++i) Dot::store_sums(outputs[t] + kLanes * (v + i), y[t][i]);
}

// Whether a tile prefetches the values of the next one. With few registers products take longer than the memory, and
// nothing is gained.
constexpr bool kPrefetchesValues = kManyRegisters;

// outputs += tokens times `groups` groups, tile by tile. Prefetched meanwhile, unless null: `near`, as many bytes as
// the groups have, by the first tile, unless w is converted; `far`, `bytes` of it, by all tiles. tokens: at least
// `least`.
template <class Dot, TileShape shape, size_t least>
void add_slab(const uint8_t* w, size_t groups, const typename Dot::Value* x, size_t tokens,
              float (*outputs)[kPanelOutputs], const uint8_t* near, const uint8_t* far, size_t bytes) {
    constexpr size_t stride = DenseRows<typename Dot::Value>::kStretchValues;
    constexpr size_t line_groups = kCacheLine / sizeof(typename Dot::Value) / Dot::kInputs;
    const size_t piece = kPrefetchesValues ? line_groups : groups;
    constexpr bool is_converted = std::is_same_v<Dot, typename Dot::Converted>;
    constexpr int V = shape.vectors;
    each_constant_piece<shape.tokens, least>(tokens, [&]<int N>(size_t t) {
        if (far) prefetch_share(far, bytes, t, N, tokens);
        for (size_t v = 0; v < kPanelOutputs / kLanes; v += V) {
            DenseSums<Dot, N, V> y;
            float (*to)[kPanelOutputs] = outputs + t;
            load_tile<Dot, N, V>(to, v, y);
            forget(to);
            for (size_t g = 0; g < groups; g += piece) {
                const typename Dot::Value* values = x + t * stride + g * Dot::kInputs;
                if (kPrefetchesValues && v == 0 && t + N < tokens)
#pragma GCC unroll 8
                    for (int i = 0; i < N; ++i) prefetch(values + (N + i) * stride);
                const auto add = [&](const uint8_t* ahead) DECODESTEP_INLINE_LAMBDA {
                    add_groups<Dot, N, V>(w + g * Dot::kBytes, std::min(piece, groups - g), values, v, y, ahead);
                };
                // Two loops: one that asked in every step would take longer.
                if (!is_converted && near && t + v == 0)
                    add(near + g * Dot::kBytes);
                else
                    add(nullptr);
            }
            store_tile<Dot, N, V>(y, v, to);
        }
    });
}

// More tokens than one tile has: slab by slab.
template <class Dot>
void dense_slabs(const DenseTile<Dot>& a) {
    constexpr size_t kSlab = kSlabSteps / Dot::kSteps * Dot::kInputs / kBlockInputs;  // blocks
    static_assert(DenseRows<typename Dot::Value>::kStretchBlocks % kSlab == 0);
    const bool many = kStoresBytes && a.tokens >= kConvertedFrom, spreads = a.tokens >= kSpreadFrom;
    const BlockPrefetcher<kDenseBlockBytes<Dot>> prefetcher(a.panel, a.next_panel, a.blocks);
    if (!a.adds) std::memset(a.outputs, 0, a.tokens * sizeof *a.outputs);
    for (size_t b = 0; b < a.blocks; b += kSlab) {
        const size_t blocks = std::min(kSlab, a.blocks - b), groups = blocks * kBlockInputs / Dot::kInputs;
        const uint8_t* w = a.panel + b * kDenseBlockBytes<Dot>;
        const uint8_t* near = a.next_panel && !spreads ? prefetcher.ahead(b, kDenseAhead) : nullptr;
        const uint8_t* far = a.next_panel && spreads ? prefetcher.ahead(b + blocks, 0) : nullptr;
        const typename Dot::Value* x = a.x.at(a.first, a.first_block + b);
        constexpr size_t bytes = kSlab * kDenseBlockBytes<Dot>;
        if (!many) {
            add_slab<Dot, kFewShape<Dot>, kOneTile<Dot> + 1>(w, groups, x, a.tokens, a.outputs, near, far, bytes);
        } else if constexpr (Dot::kConverts) {
            using Converted = typename Dot::Converted;
            alignas(64) uint8_t converted[kSlab * kDenseBlockBytes<Converted>];
            for (size_t g = 0; g < groups; ++g) {
                if (near) prefetch(near + g * Dot::kBytes, Dot::kBytes);
                Converted::convert(w + g * Dot::kBytes, converted + g * Converted::kBytes);
            }
            add_slab<Converted, kManyShape<Dot>, kConvertedFrom>(converted, groups, x, a.tokens, a.outputs, nullptr,
                                                                 far, bytes);
        } else {
            add_slab<Dot, kManyShape<Dot>, kConvertedFrom>(w, groups, x, a.tokens, a.outputs, near, far, bytes);
        }
    }
}

// outputs[i][n] = token first + i times output n of the panel.
template <class Dot>
void dense_tiles(const DenseTile<Dot>& a) {
    if (a.tokens > size_t{kOneTile<Dot>}) return dense_slabs(a);
    const BlockPrefetcher<kDenseBlockBytes<Dot>> prefetcher(a.panel, a.next_panel, a.blocks);
    with_constant<kOneTile<Dot>>(a.tokens, [&]<int T>() {
        DenseSums<Dot, T, 2> y;
        if (a.adds)
            load_tile<Dot, T, 2>(a.outputs, 0, y);
        else
            clear<Dot, T, 2>(y);
        for (size_t b = 0; b < a.blocks; ++b)
            add_groups<Dot, T, 2>(a.panel + b * kDenseBlockBytes<Dot>, kBlockInputs / Dot::kInputs,
                                  a.x.at(a.first, a.first_block + b), 0, y,
                                  a.next_panel ? prefetcher.ahead(b, kDenseAhead) : nullptr);
        store_tile<Dot, T, 2>(y, 0, a.outputs);
    });
}

// One token times kStreams panels at once: see panel_streams.h.
template <class Dot>
void dense_streams(const uint8_t* const* panels, const uint8_t* const* next, size_t blocks,
                   const DenseRows<typename Dot::Value>& x, size_t token, float (*outputs)[kPanelOutputs]) {
    constexpr size_t ahead = 768;
    DenseSums<Dot, 1, 2> y[kStreams];
    for (auto& sums : y) clear<Dot, 1, 2>(sums);
    for (size_t b = 0; b < blocks; ++b)
        for (size_t s = 0; s < kStreams; ++s) {
            const BlockPrefetcher<kDenseBlockBytes<Dot>> prefetcher(panels[s], next[s], blocks);
            DenseSums<Dot, 1, 2> sums;  // of its own: GCC would store y[s] with every prefetch
            std::memcpy(sums, y[s], sizeof sums);
            add_groups<Dot, 1, 2>(panels[s] + b * kDenseBlockBytes<Dot>, kBlockInputs / Dot::kInputs, x.at(token, b), 0,
                                  sums, prefetcher.ahead(b, ahead));
            std::memcpy(y[s], sums, sizeof sums);
        }
    for (size_t s = 0; s < kStreams; ++s) store_tile<Dot, 1, 2>(y[s], 0, outputs + s);
}

}  // namespace decodestep::DECODESTEP_BUILD
