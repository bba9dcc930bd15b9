// Packs columns into panels: once for a weight, or on the way to a product.
#include <algorithm>
#include <cstring>

#include "core/cache_line.h"
#include "core/float8.h"
#include "mla_prolog/column_weight.h"
#include "simd/simd.h"

namespace decodestep::DECODESTEP_BUILD {
namespace {

// A group: four bytes of an output's inputs, one float32, two bfloat16 or four int8. A panel's row is the groups of the
// same inputs of all its outputs. Values are moved as bits.
constexpr size_t kGroupBytes = 4, kRowBytes = kPanelOutputs * kGroupBytes;
template <class W>
constexpr uint8_t kOffset = sizeof(W) == 1 ? 128 : 0;  // what is added to each byte

// Prefetch distances in bytes: of the rows of a matrix, and of a column of NZ fractals.
constexpr size_t kRowsAhead = 12288, kNzAhead = 4096;

// A group of inputs of sixteen outputs, gathered from its rows.
DECODESTEP_INLINE i32x16 group_of(const uint32_t* const (&rows)[1], size_t at) { return load_bits(rows[0] + at); }
DECODESTEP_INLINE i32x16 group_of(const uint16_t* const (&rows)[2], size_t at) {
    return load_u16(rows[0] + at) | shift_left<16>(load_u16(rows[1] + at));
}
DECODESTEP_INLINE i32x16 group_of(const uint8_t* const (&rows)[4], size_t at) {
    const i32x16 values = (load_u8(rows[0] + at) | shift_left<8>(load_u8(rows[1] + at))) |
                          (shift_left<16>(load_u8(rows[2] + at)) | shift_left<24>(load_u8(rows[3] + at)));
    return values ^ broadcast_int(static_cast<int32_t>(0x80808080u));
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
    constexpr W zeros[kPanelOutputs] = {};
    W* out = reinterpret_cast<W*>(to + run.to);
    const W* rows[G];
    for (size_t g = 0; g < G; ++g) {
        const size_t row = group * G + g;
        rows[g] = row < from.in ? run.from + row * from.row_stride : zeros;
    }
    size_t l = 0;
    for (; l + kLanes <= run.length; l += kLanes) store_bits(out + l * G, group_of(rows, l));
    for (; l < run.length; ++l)
        for (size_t g = 0; g < G; ++g) out[l * G + g] = static_cast<W>(rows[g][l] ^ kOffset<W>);
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
        for (size_t i = 0; i < groups; ++i, first += G * stride, out += kRowBytes) {
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
        const size_t in_panel = (n - first) % kPanelOutputs, in_source = n % from.width;
        runs[count] = {static_cast<const W*>(from.data) + n / from.width * from.panel_stride + in_source,
                       (n - first) / kPanelOutputs * stride + in_panel * kGroupBytes,
                       std::min({kPanelOutputs - in_panel, from.width - in_source, last - n})};
    }
    return count;
}

// Fills the outputs that the last of the panels of `outputs` lacks.
void fill_rest(size_t outputs, size_t groups, uint8_t* to, size_t stride, uint8_t byte) {
    const size_t rest = (kPanelOutputs - outputs % kPanelOutputs) % kPanelOutputs * kGroupBytes;
    uint8_t* end = to + (outputs - 1) / kPanelOutputs * stride + kRowBytes - rest;
    for (size_t i = 0; i < groups; ++i) std::memset(end + i * kRowBytes, byte, rest);
}

// Packs groups [k, k + groups) of outputs [first, last) into panels `stride` bytes apart. Reads in the order of the
// source's memory: a matrix row by row, NZ run by run.
template <class W>
void pack_groups(const ColumnWeight& from, size_t first, size_t last, size_t k, size_t groups, uint8_t* to,
                 size_t stride) {
    constexpr size_t G = kGroupBytes / sizeof(W);
    PackRun<W> runs[kColumnPanels * kPanelOutputs];
    const size_t count = find_runs(from, first, last, stride, runs);
    if (from.layout == ColumnLayout::nz) {
        const size_t whole = std::min(groups, from.in / G - std::min(from.in / G, k));
        for (size_t r = 0; r < count; ++r) {
            const size_t quick = runs[r].length % kLanes ? 0 : whole;
            pack_run(from, runs[r], k, quick, to);
            for (size_t i = quick; i < groups; ++i) pack_group(from, runs[r], k + i, to + i * kRowBytes);
        }
    } else {
        const size_t ahead = std::max(2 * G, kRowsAhead / ((last - first) * sizeof(W))) * from.row_stride;
        for (size_t i = 0; i < groups; ++i)
            for (size_t r = 0; r < count; ++r) {
                for (size_t g = 0; g < G; ++g)
                    for (size_t l = 0; l < runs[r].length; l += kCacheLine / sizeof(W))
                        prefetch(runs[r].from + ((k + i) * G + g) * from.row_stride + ahead + l);
                pack_group(from, runs[r], k + i, to + i * kRowBytes);
            }
    }
    fill_rest(last - first, groups, to, stride, kOffset<W>);
}

// One group of two inputs of a run, as bfloat16 times its outputs' scales.
DECODESTEP_INLINE void pack_float8_group(const ColumnWeight& from, const PackRun<uint8_t>& run, size_t group,
                                         const float* scales, uint8_t* to) {
    constexpr uint8_t zeros[kPanelOutputs] = {};
    const uint8_t* rows[2];
    for (size_t g = 0; g < 2; ++g) {
        const size_t row = 2 * group + g;
        rows[g] = row < from.in ? run.from + row * from.row_stride : zeros;
    }
    for (size_t l = 0; l < run.length; ++l) {
        const auto value = [&](size_t g) { return uint32_t{to_bf16(to_float(F8{rows[g][l]}) * scales[l]).bits}; };
        const uint32_t pair = value(0) | value(1) << 16;
        std::memcpy(to + run.to + l * kGroupBytes, &pair, sizeof pair);
    }
}

// Eight-bit floats as panels of bfloat16.
void pack_float8(const PackColumns& a) {
    constexpr size_t groups = kBlockInputs / 2;  // of a block
    PackRun<uint8_t> runs[kColumnPanels * kPanelOutputs];
    const size_t count = find_runs(a.from, a.first, a.last, a.stride, runs), blocks = ceil_div(a.from.in, kBlockInputs);
    float scales[kColumnPanels * kPanelOutputs];
    std::fill(std::begin(scales), std::end(scales), 1.0f);
    for (size_t b = 0; b < a.blocks; ++b) {
        const size_t block = a.first_block + b;
        if (a.from.exponents)
            for (size_t n = a.first; n < a.last; ++n)
                scales[n - a.first] = exponent_value(a.from.exponents[n * blocks + block]);
        for (size_t g = 0; g < groups; ++g) {
            const float* scale = scales;
            for (size_t r = 0; r < count; scale += runs[r++].length)
                pack_float8_group(a.from, runs[r], block * groups + g, scale, a.to + (b * groups + g) * kRowBytes);
        }
    }
    fill_rest(a.last - a.first, a.blocks * groups, a.to, a.stride, 0);
}

}  // namespace

void pack_columns(const PackColumns& a) {
    const auto pack = [&]<class W>() {
        constexpr size_t groups = kBlockInputs * sizeof(W) / kGroupBytes;  // of a block
        pack_groups<W>(a.from, a.first, a.last, a.first_block * groups, a.blocks * groups, a.to, a.stride);
    };
    switch (a.from.value) {
        case WeightType::f32:
            return pack.template operator()<uint32_t>();
        case WeightType::bf16:
            return pack.template operator()<uint16_t>();
        case WeightType::i8:
            return pack.template operator()<uint8_t>();
        case WeightType::f8:
            return pack_float8(a);
    }
}

}  // namespace decodestep::DECODESTEP_BUILD
