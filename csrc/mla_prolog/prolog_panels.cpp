#include "mla_prolog/prolog_panels.h"

#include <algorithm>
#include <type_traits>

#include "core/parallel.h"
#include "simd/dot_products.h"
#include "simd/rounding.h"

namespace decodestep::DECODESTEP_ISA {
namespace {

// So many tokens times so many vectors of sixteen outputs have their sums in registers, beside one token's values and
// the weights, which take two registers each where they have to be widened.
template <class Dot>
constexpr bool kWidened = sizeof(typename Dot::Weights) > sizeof(f32x16);
template <class Dot>
constexpr int kTokens = kVectorRegisters >= 32  ? kWidened<Dot> ? 5 : 6
                        : kVectorRegisters >= 8 ? kWidened<Dot> ? 4 : 2
                                                : 1;
template <class Dot>
constexpr int kVectors = kVectorRegisters >= 32                    ? 4
                         : kVectorRegisters >= 8 && !kWidened<Dot> ? 2
                                                                   : 1;

// Groups of a panel that all tokens multiply before the next ones. For few tiles of tokens the memory sets the pace:
// the weights, 16 KiB, fit the innermost cache together with those that are asked for. For many the products do, which
// would rather have the sums leave their registers less often.
constexpr size_t kChunk = 64, kLongChunk = 384;
constexpr size_t kFewTiles = 4;
constexpr size_t kPanelAhead = 4096;  // bytes by which weights that are read once are asked for in advance
constexpr size_t kPackGroups = 32;    // of a weight that is not packed, at a time, for
constexpr size_t kPackPanels = 8;     // so many panels, or for one panel of NZ
constexpr size_t kPackAhead = 12288;  // bytes of rows, and
constexpr size_t kNzAhead = 4096;     // of a column of NZ
constexpr size_t kCacheLine = 64;
static_assert(kPackPanels * (kPackGroups + 1) * kPanelRow <= kProductScratch);

// Some groups of a panel.
struct Chunk {
    const uint8_t* w;
    size_t groups;
    const uint8_t* start;  // a row of int32 that the sums begin with, or null
    bool first;            // the sums are not in y yet
    const uint8_t* next;   // what to ask the memory for on the way, as many bytes as these groups have
    bool complete;         // no groups follow
};

// The sums end in y, or where `rounded` is not null, there. Asks the memory for so many lines a group from `ahead` on.
template <class Dot, int T>
DECODESTEP_INLINE void tile(const Chunk& c, size_t vector, const uint8_t* x, size_t x_stride, float* y, size_t y_stride,
                            Bf16* rounded, const uint8_t* ahead, int lines) {
    constexpr int Q = kVectors<Dot>;
    typename Dot::Sums sums[T][Q];
    if (c.first) {
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t)
#pragma GCC unroll 8
            for (int q = 0; q < Q; ++q) sums[t][q] = Dot::zero();
    } else {
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t)
#pragma GCC unroll 8
            for (int q = 0; q < Q; ++q) sums[t][q] = Dot::load_sums(y + t * y_stride + q * kLanes);
    }
    if constexpr (Dot::kOffset) {
        if (c.start)
#pragma GCC unroll 8
            for (int t = 0; t < T; ++t)
#pragma GCC unroll 8
                for (int q = 0; q < Q; ++q)
                    sums[t][q] = sums[t][q] + load_bits(c.start + (vector + q) * kLanes * kGroupBytes);
    }
    const uint8_t* w = c.w + vector * kLanes * kGroupBytes;
    for (size_t k = 0; k < c.groups; ++k, w += kPanelRow, x += kGroupBytes) {
        for (int i = 0; i < lines; ++i, ahead += 64) prefetch(ahead);
        typename Dot::Weights weights[Q];
#pragma GCC unroll 8
        for (int q = 0; q < Q; ++q) weights[q] = Dot::weights(w + q * kLanes * kGroupBytes);
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            const typename Dot::Token token = Dot::token(x + t * x_stride);
#pragma GCC unroll 8
            for (int q = 0; q < Q; ++q) sums[t][q] = Dot::add(sums[t][q], token, weights[q]);
        }
    }
    if constexpr (std::is_same_v<Dot, Bf16Dot>) {
        if (rounded) {
#pragma GCC unroll 8
            for (int t = 0; t < T; ++t)
#pragma GCC unroll 8
                for (int q = 0; q < Q; ++q) store_sums(rounded + t * y_stride + q * kLanes, sums[t][q]);
            return;
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t)
#pragma GCC unroll 8
        for (int q = 0; q < Q; ++q) Dot::store_sums(y + t * y_stride + q * kLanes, sums[t][q]);
}

template <class Dot, int T, class... Rest>
DECODESTEP_INLINE void tile_of(int tokens, const Chunk& c, Rest... rest) {
    if (tokens == T) return tile<Dot, T>(c, rest...);
    if constexpr (T > 1) tile_of<Dot, T - 1>(tokens, c, rest...);
}

template <class Dot>
void all_tokens(const Product& a, const Chunk& c, const uint8_t* x, float* y) {
    // Tiles of as equal a height as can be: three of 6, 5 and 5 do better than 6, 6 and 4. Together they ask for the
    // next chunk, at an even pace.
    const size_t tiles = (a.tokens + kTokens<Dot> - 1) / kTokens<Dot>, row = kPanelRow / 64;
    for (size_t vector = 0; vector < kPanel / kLanes; vector += kVectors<Dot>)
        for (size_t i = 0, t = 0; i < tiles; ++i) {
            const size_t tokens = (a.tokens - t + tiles - i - 1) / (tiles - i);
            const size_t before = vector ? row : i * row / tiles, after = vector ? row : (i + 1) * row / tiles;
            float* to = y + t * a.y_stride + vector * kLanes;
            Bf16* rounded = a.rounded && c.complete ? reinterpret_cast<Bf16*>(a.rounded) + (to - a.y) : nullptr;
            tile_of<Dot, kTokens<Dot>>(static_cast<int>(tokens), c, vector, x + t * a.x_stride, a.x_stride, to,
                                       a.y_stride, rounded, c.next + before * c.groups * 64,
                                       static_cast<int>(after - before));
            t += tokens;
        }
}

template <class Dot>
void multiply_packed(const Product& a) {
    const size_t groups = group_count(a.w.value, a.w.in), bytes = panel_bytes(a.w.value, a.w.in);
    const bool once = a.tokens <= kTokens<Dot> && kVectors<Dot> * kLanes == kPanel;
    const size_t most = once ? groups : a.tokens > kFewTiles * kTokens<Dot> ? kLongChunk : kChunk;
    float* y = a.y;
    for (size_t p = a.first / kPanel; p * kPanel < a.last; ++p, y += kPanel) {
        const uint8_t* panel = static_cast<const uint8_t*>(a.w.data) + p * bytes;
        const uint8_t* w = panel + bytes - groups * kPanelRow;
        for (size_t k = 0; k < groups; k += most, w += most * kPanelRow) {
            const bool last = k + most >= groups && (p + 1) * kPanel >= a.last && a.next;
            const auto* next = last ? static_cast<const uint8_t*>(a.next) : w + most * kPanelRow;
            const Chunk c{.w = w,
                          .groups = std::min(most, groups - k),
                          .start = k == 0 ? panel : nullptr,
                          .first = k == 0,
                          .next = once ? w + kPanelAhead : next,
                          .complete = k + most >= groups};
            all_tokens<Dot>(a, c, a.x + k * kGroupBytes, y);
        }
    }
}

// Outputs whose values of one input lie together, in the source and in a packed row.
template <class W>
struct Run {
    const W* from;
    size_t to, length;
};

// One group of a run, which may end amid it.
template <class W>
DECODESTEP_INLINE void pack_group(const Columns& from, const Run<W>& run, size_t group, uint8_t* to) {
    constexpr size_t G = kGroupBytes / sizeof(W);
    constexpr W zeros[kPanel] = {};
    W* out = reinterpret_cast<W*>(to + run.to);
    const W* rows[G];
    for (size_t g = 0; g < G; ++g) {
        const size_t row = group * G + g;
        rows[g] = row < from.in ? run.from + row * from.row_stride : zeros;
    }
    size_t l = 0;
    for (; l + kLanes <= run.length; l += kLanes) store_bits(out + l * G, group_of(rows, l));
    for (; l < run.length; ++l)
        for (size_t g = 0; g < G; ++g) out[l * G + g] = rows[g][l];
}

// The same for groups [k, k + groups), one after the other: sixteen outputs at a time, all inputs there.
template <class W>
void pack_run(const Columns& from, const Run<W>& run, size_t k, size_t groups, uint8_t* to) {
    constexpr size_t G = kGroupBytes / sizeof(W);
    const size_t stride = from.row_stride;
    for (size_t l = 0; l < run.length; l += kLanes) {
        const W* first = run.from + k * G * stride + l;
        uint8_t* out = to + run.to + l * kGroupBytes;
        for (size_t i = 0; i < groups; ++i, first += G * stride, out += kPanelRow) {
            prefetch(first + kNzAhead / sizeof(W));
            const W* rows[G];
#pragma GCC unroll 4
            for (size_t g = 0; g < G; ++g) rows[g] = first + g * stride;
            store_bits(out, group_of(rows, 0));
        }
    }
}

// Groups [k, k + groups) of outputs [first, last): panels that lie `stride` bytes apart. Reads in the order of the
// memory, which is row by row, but in NZ run by run, and asks for later rows as far ahead as the memory needs.
template <class W>
void pack_groups(const Columns& from, size_t first, size_t last, size_t k, size_t groups, uint8_t* to, size_t stride) {
    constexpr size_t G = kGroupBytes / sizeof(W);
    Run<W> runs[kPackPanels * kPanel];
    size_t count = 0;
    for (size_t n = first; n < last; n += runs[count++].length) {
        const size_t in_panel = (n - first) % kPanel, in_source = n % from.width;
        runs[count] = {static_cast<const W*>(from.data) + n / from.width * from.panel_stride + in_source,
                       (n - first) / kPanel * stride + in_panel * kGroupBytes,
                       std::min({kPanel - in_panel, from.width - in_source, last - n})};
    }
    if (from.width < kPanel) {
        const size_t whole = std::min(groups, from.in / G - std::min(from.in / G, k));
        for (size_t r = 0; r < count; ++r) {
            const size_t quick = runs[r].length % kLanes ? 0 : whole;
            pack_run(from, runs[r], k, quick, to);
            for (size_t i = quick; i < groups; ++i) pack_group(from, runs[r], k + i, to + i * kPanelRow);
        }
    } else {
        const size_t ahead = std::max(2 * G, kPackAhead / ((last - first) * sizeof(W))) * from.row_stride;
        for (size_t i = 0; i < groups; ++i)
            for (size_t r = 0; r < count; ++r) {
                for (size_t g = 0; g < G; ++g)
                    for (size_t l = 0; l < runs[r].length; l += kCacheLine / sizeof(W))
                        prefetch(runs[r].from + ((k + i) * G + g) * from.row_stride + ahead + l);
                pack_group(from, runs[r], k + i, to + i * kPanelRow);
            }
    }
    const size_t rest = (kPanel - (last - first) % kPanel) % kPanel * kGroupBytes;
    uint8_t* end = to + (last - first - 1) / kPanel * stride + kPanelRow - rest;
    for (size_t i = 0; i < groups; ++i) std::memset(end + i * kPanelRow, 0, rest);
}

void pack_groups(const Columns& from, size_t first, size_t last, size_t k, size_t groups, uint8_t* to, size_t stride) {
    switch (from.value) {
        case WeightType::f32:
            return pack_groups<float>(from, first, last, k, groups, to, stride);
        case WeightType::bf16:
            return pack_groups<uint16_t>(from, first, last, k, groups, to, stride);
        case WeightType::i8:
            return pack_groups<int8_t>(from, first, last, k, groups, to, stride);
    }
}

// -128 times the sum of each output's weights in these groups.
void sum_groups(const uint8_t* w, size_t groups, uint8_t* start) {
    const I8Dot::Token ones = I8Dot::ones();
    for (size_t vector = 0; vector < kPanelRow; vector += 64) {
        I8Dot::Sums sums = I8Dot::zero();
        for (size_t k = 0; k < groups; ++k) sums = I8Dot::add(sums, ones, I8Dot::weights(w + k * kPanelRow + vector));
        uint32_t lanes[kLanes];
        store_bits(lanes, sums);
        for (auto& lane : lanes) lane *= -128u;
        std::memcpy(start + vector, lanes, sizeof lanes);
    }
}

template <class Dot>
void multiply_plain(const Product& a) {
    const size_t all = group_count(a.w.value, a.w.in);
    // Of a matrix long rows at a time, of NZ long panels.
    const bool nz = a.w.width < kPanel;
    const size_t panels = nz ? 1 : kPackPanels, most = kPackGroups;
    for (size_t span = a.first; span < a.last; span += panels * kPanel) {
        const size_t end = std::min(a.last, span + panels * kPanel);
        for (size_t k = 0; k < all; k += most) {
            const size_t groups = std::min(most, all - k), stride = (most + 1) * kPanelRow;
            pack_groups(a.w, span, end, k, groups, a.scratch + kPanelRow, stride);
            uint8_t* start = a.scratch;
            for (size_t n = span; n < end; n += kPanel, start += stride) {
                const uint8_t* w = start + kPanelRow;
                if (Dot::kOffset) sum_groups(w, groups, start);
                const Chunk c{
                    .w = w, .groups = groups, .start = start, .first = k == 0, .next = w, .complete = k + most >= all};
                all_tokens<Dot>(a, c, a.x + k * kGroupBytes, a.y + n - a.first);
            }
        }
    }
}

template <class Dot>
void multiply_as(const Product& a) {
    a.w.packed ? multiply_packed<Dot>(a) : multiply_plain<Dot>(a);
}

}  // namespace

void multiply(const Product& a) {
    if (a.w.in == 0) {  // no group of inputs writes
        const size_t width = sums_width(a.w, a.first, a.last);
        for (size_t t = 0; t < a.tokens; ++t)
            if (a.rounded)
                std::memset(a.rounded + t * a.y_stride, 0, width * sizeof(*a.rounded));
            else
                std::memset(a.y + t * a.y_stride, 0, width * sizeof(*a.y));
    }
    switch (a.w.value) {
        case WeightType::f32:
            return multiply_as<F32Dot>(a);
        case WeightType::bf16:
            return multiply_as<Bf16Dot>(a);
        case WeightType::i8:
            return multiply_as<I8Dot>(a);
    }
}

void pack_panels(const PackPanels& a) {
    const size_t groups = group_count(a.from.value, a.from.in), bytes = panel_bytes(a.from.value, a.from.in);
    parallel_for(panel_count(a.from.out), a.threads, [&](size_t p) {
        uint8_t* panel = a.to + p * bytes;
        uint8_t* w = panel + bytes - groups * kPanelRow;
        pack_groups(a.from, p * kPanel, std::min((p + 1) * kPanel, a.from.out), 0, groups, w, 0);
        if (a.from.value == WeightType::i8) sum_groups(w, groups, panel);
    });
}

}  // namespace decodestep::DECODESTEP_ISA
