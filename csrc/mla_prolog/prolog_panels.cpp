#include "mla_prolog/prolog_panels.h"

#include <algorithm>
#include <type_traits>

#include "core/cache_line.h"
#include "core/parallel.h"
#include "core/pieces.h"
#include "simd/dot_products.h"
#include "simd/rounding.h"

namespace decodestep::DECODESTEP_BUILD {
namespace {

// A tile is the product of some tokens with some vectors of sixteen outputs whose sums stay in registers, beside one
// token's group and the weights. Weights that have to be widened before they are multiplied need two registers each.
template <class Dot>
constexpr bool kWidened = sizeof(typename Dot::Weights) > sizeof(f32x16);
template <class Dot>
constexpr int kTokensPerTile = kManyRegisters          ? kWidened<Dot> ? 5 : 6
                               : kVectorRegisters >= 8 ? kWidened<Dot> ? 4 : 2
                                                       : 1;
template <class Dot>
constexpr int kVectorsPerTile = kManyRegisters                            ? 4
                                : kVectorRegisters >= 8 && !kWidened<Dot> ? 2
                                                                          : 1;

// All tokens multiply a chunk, some groups of a panel, before the next one. With at most kFewTiles tiles of tokens the
// memory sets the pace: a chunk of kChunkGroups, 16 KiB, and the prefetched next one fit the first cache. With more
// tiles the arithmetic does: longer chunks load and store the sums less often.
constexpr size_t kChunkGroups = 64, kLongChunkGroups = 384;
constexpr size_t kFewTiles = 4;

// A weight that is not packed is packed on the way, kPackGroups groups of kPackPanels panels (of NZ: of one) at a time.
constexpr size_t kPackGroups = 32, kPackPanels = 8;
static_assert(kPackPanels * (kPackGroups + 1) * kPanelRow <= kProductScratch);

// Prefetch distances in bytes: of packed weights read once, of the rows of a matrix, and of a column of NZ fractals.
constexpr size_t kStreamAhead = 4096, kRowsAhead = 12288, kNzAhead = 4096;
constexpr size_t kRowLines = kPanelRow / kCacheLine;

// Prefetches `lines` cache lines a step.
struct LinePrefetcher {
    const uint8_t* at;
    int lines;

    DECODESTEP_INLINE void step() {
        for (int i = 0; i < lines; ++i, at += kCacheLine) prefetch(at);
    }
};

struct Chunk {
    const uint8_t* w;
    size_t groups;
    const uint8_t* start;  // a row of int32 at which the sums begin, or null
    bool first;            // y holds no sums yet
    const uint8_t* next;   // memory to prefetch while this chunk is multiplied, as many bytes as it has
    bool complete;         // no groups follow

    // What tile i of `tiles` of tokens prefetches: an equal share of `next`, a few lines for each group. Only the first
    // pass over the tokens does, where a panel takes more than one.
    LinePrefetcher prefetcher(size_t i, size_t tiles, bool first_pass) const {
        const size_t begin = first_pass ? i * kRowLines / tiles : kRowLines;
        const size_t end = first_pass ? (i + 1) * kRowLines / tiles : kRowLines;
        return {next + begin * groups * kCacheLine, static_cast<int>(end - begin)};
    }
};

// Adds a chunk to the sums of T tokens. They stay in y, or, if `rounded` is given, leave for it.
template <class Dot, int T>
DECODESTEP_INLINE void tile(const Chunk& c, size_t vector, const uint8_t* x, size_t x_stride, float* y, size_t y_stride,
                            Bf16* rounded, LinePrefetcher prefetcher) {
    constexpr int Q = kVectorsPerTile<Dot>;
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
        prefetcher.step();
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

// All tokens times a chunk. Tiles of nearly equal height are fastest: 6 + 5 + 5 tokens beat 6 + 6 + 4.
template <class Dot>
void multiply_chunk(const ColumnProduct& a, const Chunk& c, const uint8_t* x, float* y) {
    const size_t tiles = ceil_div(a.tokens, kTokensPerTile<Dot>);
    for (size_t vector = 0; vector < kPanel / kLanes; vector += kVectorsPerTile<Dot>) {
        size_t i = 0;
        each_constant_piece<kTokensPerTile<Dot>>(a.tokens, [&]<int T>(size_t t) {
            float* to = y + t * a.y_stride + vector * kLanes;
            Bf16* rounded = a.rounded && c.complete ? reinterpret_cast<Bf16*>(a.rounded) + (to - a.y) : nullptr;
            tile<Dot, T>(c, vector, x + t * a.x_stride, a.x_stride, to, a.y_stride, rounded,
                         c.prefetcher(i++, tiles, vector == 0));
        });
    }
}

template <class Dot>
void multiply_packed(const ColumnProduct& a) {
    const size_t groups = group_count(a.w.value, a.w.in), bytes = panel_bytes(a.w.value, a.w.in);
    const bool one_tile = a.tokens <= kTokensPerTile<Dot> && kVectorsPerTile<Dot> * kLanes == kPanel;
    const bool few_tiles = a.tokens <= kFewTiles * kTokensPerTile<Dot>;
    const size_t chunk_groups = one_tile ? groups : few_tiles ? kChunkGroups : kLongChunkGroups;
    float* y = a.y;
    for (size_t p = a.first / kPanel; p * kPanel < a.last; ++p, y += kPanel) {
        const uint8_t* panel = static_cast<const uint8_t*>(a.w.data) + p * bytes;
        const uint8_t* w = panel + bytes - groups * kPanelRow;
        for (size_t k = 0; k < groups; k += chunk_groups, w += chunk_groups * kPanelRow) {
            const bool complete = k + chunk_groups >= groups, last = complete && (p + 1) * kPanel >= a.last && a.next;
            const auto* next = last ? static_cast<const uint8_t*>(a.next) : w + chunk_groups * kPanelRow;
            const Chunk c{.w = w,
                          .groups = std::min(chunk_groups, groups - k),
                          .start = k == 0 ? panel : nullptr,
                          .first = k == 0,
                          .next = one_tile ? w + kStreamAhead : next,
                          .complete = complete};
            multiply_chunk<Dot>(a, c, a.x + k * kGroupBytes, y);
        }
    }
}

// Consecutive outputs whose values of one input are contiguous both in the source and in a packed row.
template <class W>
struct PackRun {
    const W* from;      // the first output's value of input 0
    size_t to, length;  // bytes into the packed memory; outputs
};

// Packs one group of a run; inputs after the weight's last are zeros.
template <class W>
DECODESTEP_INLINE void pack_group(const ColumnWeight& from, const PackRun<W>& run, size_t group, uint8_t* to) {
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

// Packs groups [k, k + groups) of a run, sixteen outputs at a time. The run's length is a multiple of sixteen, and the
// weight has all inputs of the groups.
template <class W>
void pack_run(const ColumnWeight& from, const PackRun<W>& run, size_t k, size_t groups, uint8_t* to) {
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

// The runs of outputs [first, last), which are packed into panels `stride` bytes apart; returns how many there are.
template <class W>
size_t find_runs(const ColumnWeight& from, size_t first, size_t last, size_t stride, PackRun<W>* runs) {
    size_t count = 0;
    for (size_t n = first; n < last; n += runs[count++].length) {
        const size_t in_panel = (n - first) % kPanel, in_source = n % from.width;
        runs[count] = {static_cast<const W*>(from.data) + n / from.width * from.panel_stride + in_source,
                       (n - first) / kPanel * stride + in_panel * kGroupBytes,
                       std::min({kPanel - in_panel, from.width - in_source, last - n})};
    }
    return count;
}

// Packs groups [k, k + groups) of outputs [first, last) into panels `stride` bytes apart. Reads in the order of the
// source's memory: a matrix row by row, NZ run by run.
template <class W>
void pack_groups(const ColumnWeight& from, size_t first, size_t last, size_t k, size_t groups, uint8_t* to,
                 size_t stride) {
    constexpr size_t G = kGroupBytes / sizeof(W);
    PackRun<W> runs[kPackPanels * kPanel];
    const size_t count = find_runs(from, first, last, stride, runs);
    if (from.layout == ColumnLayout::nz) {
        const size_t whole = std::min(groups, from.in / G - std::min(from.in / G, k));
        for (size_t r = 0; r < count; ++r) {
            const size_t quick = runs[r].length % kLanes ? 0 : whole;
            pack_run(from, runs[r], k, quick, to);
            for (size_t i = quick; i < groups; ++i) pack_group(from, runs[r], k + i, to + i * kPanelRow);
        }
    } else {
        const size_t ahead = std::max(2 * G, kRowsAhead / ((last - first) * sizeof(W))) * from.row_stride;
        for (size_t i = 0; i < groups; ++i)
            for (size_t r = 0; r < count; ++r) {
                for (size_t g = 0; g < G; ++g)
                    for (size_t l = 0; l < runs[r].length; l += kCacheLine / sizeof(W))
                        prefetch(runs[r].from + ((k + i) * G + g) * from.row_stride + ahead + l);
                pack_group(from, runs[r], k + i, to + i * kPanelRow);
            }
    }
    // The outputs that the last panel lacks.
    const size_t rest = (kPanel - (last - first) % kPanel) % kPanel * kGroupBytes;
    uint8_t* end = to + (last - first - 1) / kPanel * stride + kPanelRow - rest;
    for (size_t i = 0; i < groups; ++i) std::memset(end + i * kPanelRow, 0, rest);
}

void pack_groups(const ColumnWeight& from, size_t first, size_t last, size_t k, size_t groups, uint8_t* to,
                 size_t stride) {
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

// Packs a part of the weight into the scratch memory, multiplies it by all tokens, and goes on with the next part.
template <class Dot>
void multiply_unpacked(const ColumnProduct& a) {
    const size_t all = group_count(a.w.value, a.w.in);
    const size_t panels = a.w.layout == ColumnLayout::nz ? 1 : kPackPanels;
    for (size_t span = a.first; span < a.last; span += panels * kPanel) {
        const size_t end = std::min(a.last, span + panels * kPanel);
        for (size_t k = 0; k < all; k += kPackGroups) {
            const size_t groups = std::min(kPackGroups, all - k), stride = (kPackGroups + 1) * kPanelRow;
            pack_groups(a.w, span, end, k, groups, a.scratch + kPanelRow, stride);
            uint8_t* start = a.scratch;
            for (size_t n = span; n < end; n += kPanel, start += stride) {
                const uint8_t* w = start + kPanelRow;
                if (Dot::kOffset) sum_groups(w, groups, start);
                const Chunk c{.w = w,
                              .groups = groups,
                              .start = start,
                              .first = k == 0,
                              .next = w,
                              .complete = k + kPackGroups >= all};
                multiply_chunk<Dot>(a, c, a.x + k * kGroupBytes, a.y + n - a.first);
            }
        }
    }
}

template <class Dot>
void multiply_as(const ColumnProduct& a) {
    a.w.packed() ? multiply_packed<Dot>(a) : multiply_unpacked<Dot>(a);
}

// Without inputs there is no group that would write the sums.
void write_zeros(const ColumnProduct& a) {
    const size_t width = sums_width(a.w, a.first, a.last);
    for (size_t t = 0; t < a.tokens; ++t)
        if (a.rounded)
            std::memset(a.rounded + t * a.y_stride, 0, width * sizeof(*a.rounded));
        else
            std::memset(a.y + t * a.y_stride, 0, width * sizeof(*a.y));
}

}  // namespace

void multiply_columns(const ColumnProduct& a) {
    if (a.w.in == 0) return write_zeros(a);
    switch (a.w.value) {
        case WeightType::f32:
            return multiply_as<F32Dot>(a);
        case WeightType::bf16:
            return decodestep::multiply_bf16_columns(a);
        case WeightType::i8:
            return multiply_as<I8Dot>(a);
    }
}

void multiply_bf16_columns(const ColumnProduct& a) { multiply_as<Bf16Dot>(a); }

void pack_panels(const PackPanels& a) {
    const size_t groups = group_count(a.from.value, a.from.in), bytes = panel_bytes(a.from.value, a.from.in);
    parallel_for(panel_count(a.from.out), a.threads, [&](size_t p) {
        uint8_t* panel = a.to + p * bytes;
        uint8_t* w = panel + bytes - groups * kPanelRow;
        pack_groups(a.from, p * kPanel, std::min((p + 1) * kPanel, a.from.out), 0, groups, w, 0);
        if (a.from.value == WeightType::i8) sum_groups(w, groups, panel);
    });
}

}  // namespace decodestep::DECODESTEP_BUILD
