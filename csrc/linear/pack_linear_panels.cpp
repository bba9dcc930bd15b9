// Packs the rows of a weight into panels, once, when a model is loaded.
#include <algorithm>
#include <vector>

#include "core/cache_line.h"
#include "core/parallel.h"
#include "linear/linear_panels.h"
#include "linear/quantise_blocks.h"
#include "linear/row_blocks.h"
#include "linear/split_blocks.h"
#include "linear/with_format.h"
#include "simd/rounding.h"

namespace decodestep::DECODESTEP_BUILD {
namespace {

// The rows of a panel's 32 outputs; null beyond the last output of the weight.
struct PanelRows {
    const uint8_t* row[kPanelOutputs];
};

size_t bytes_of_block(Format format) { return row_bytes(format, panel_block_inputs(format)); }

// A block's bytes in the panel's order: for each quad (4 bytes), the quads of all outputs side by side. They start at
// `offset` in the block that starts at byte `at` of each row. Each byte is xored with `flip`: 0x80 turns q into q +
// 128.
void interleave_quads(const PanelRows& rows, size_t at, size_t offset, size_t quads, uint8_t flip, uint8_t* out) {
    for (size_t r = 0; r < kPanelOutputs; ++r) {
        uint8_t values[kBlockInputs] = {};
        if (rows.row[r]) std::memcpy(values, rows.row[r] + at + offset, 4 * quads);
        for (size_t j = 0; j < quads; ++j) {
            uint32_t quad;
            std::memcpy(&quad, values + 4 * j, sizeof quad);
            quad ^= flip * 0x01010101u;
            std::memcpy(out + 4 * kPanelOutputs * j + 4 * r, &quad, sizeof quad);
        }
    }
}

// The float16 at byte `at` of every row: scales or minima.
void gather_f16(const PanelRows& rows, size_t at, uint8_t* out) {
    std::memset(out, 0, 2 * kPanelOutputs);
    for (size_t r = 0; r < kPanelOutputs; ++r)
        if (rows.row[r]) std::memcpy(out + 2 * r, rows.row[r] + at, 2);
}

// A panel of Q4_0, Q4_1 or Q8_0, from rows in that format: quads are only reordered.
void pack_whole_blocks(Format format, const PanelRows& rows, size_t blocks, uint8_t* out) {
    const size_t bytes = bytes_of_block(format);
    for (size_t b = 0; b < blocks; ++b, out += panel_block_bytes(format)) {
        const size_t at = b * bytes;
        if (format == Format::q8_0) {
            interleave_quads(rows, at, 2, 8, 0x80, out);
            gather_f16(rows, at, out + 1024);
            continue;
        }
        const bool has_minimum = format == Format::q4_1;
        interleave_quads(rows, at, has_minimum ? 4 : 2, 4, 0, out);
        gather_f16(rows, at, out + 512);
        if (has_minimum) gather_f16(rows, at + 2, out + 576);
    }
}

// A panel of a format whose blocks must be split, from rows in that format.
template <Format F>
void pack_split_blocks(const PanelRows& rows, size_t blocks, uint8_t* out) {
    constexpr PanelLayout layout = panel_layout(F);
    const size_t bytes = bytes_of_block(F);
    for (size_t b = 0; b < blocks / layout.pieces; ++b, out += layout.block_bytes()) {
        for (size_t r = 0; r < kPanelOutputs; ++r) {
            SplitBlock split;
            if (rows.row[r])
                split_block<F>(rows.row[r] + b * bytes, split);
            else
                split = {};
            for (size_t i = 0; i < layout.pieces; ++i) {
                const SplitPiece& piece = split.pieces[i];
                uint8_t* to = out + i * layout.piece_bytes();
                for (size_t j = 0; j < 4; ++j) std::memcpy(to + 4 * kPanelOutputs * j + 4 * r, piece.low + 4 * j, 4);
                to += layout.low;
                for (size_t at = 0; 32 * at < layout.upper; at += 4)
                    std::memcpy(to + kPanelOutputs * at + 4 * r, piece.upper + at, 4);
                to += layout.upper;
                constexpr size_t size = scale_bytes(F);
                for (size_t at = 0; kPanelOutputs * at < layout.scales; at += size)
                    std::memcpy(to + kPanelOutputs * at + size * r, piece.scales + at, size);
            }
            uint8_t* tail = out + layout.pieces * layout.piece_bytes();
            for (size_t at = 0; kPanelOutputs * at < layout.tail; at += 2)
                std::memcpy(tail + kPanelOutputs * at + 2 * r, split.tail + at, 2);
        }
    }
}

// A panel of a quantised format, from rows in that format.
void pack_blocks(Format format, const PanelRows& rows, size_t blocks, uint8_t* out) {
    switch (format) {
        case Format::q4_k:
            return pack_split_blocks<Format::q4_k>(rows, blocks, out);
        case Format::q5_k:
            return pack_split_blocks<Format::q5_k>(rows, blocks, out);
        case Format::q6_k:
            return pack_split_blocks<Format::q6_k>(rows, blocks, out);
        case Format::q5_0:
            return pack_split_blocks<Format::q5_0>(rows, blocks, out);
        case Format::q5_1:
            return pack_split_blocks<Format::q5_1>(rows, blocks, out);
        case Format::iq4_nl:
            return pack_split_blocks<Format::iq4_nl>(rows, blocks, out);
        case Format::iq4_xs:
            return pack_split_blocks<Format::iq4_xs>(rows, blocks, out);
        case Format::mxfp4:
            return pack_split_blocks<Format::mxfp4>(rows, blocks, out);
        default:
            return pack_whole_blocks(format, rows, blocks, out);
    }
}

// A dense panel of items of `Size` bytes; fill(r, k, values, items) gives `values` items of output r from input k on.
template <size_t Size, size_t Block, class Fill>
void transpose_items(size_t in, size_t count, Fill&& fill, uint8_t* out) {
    constexpr size_t side = sizeof(uint64_t) / Size;
    for (size_t k = 0; k < in; k += Block) {
        alignas(kCacheLine) uint8_t items[kPanelOutputs][Size * Block] = {};
        const size_t values = std::min(Block, in - k);
        for (size_t r = 0; r < count; ++r) fill(r, k, values, items[r]);
        for (size_t i = 0; i < ceil_div(values, kBlockInputs) * kBlockInputs; i += side)
            for (size_t r = 0; r < kPanelOutputs; r += side)
                transpose_fields<side, 8 * Size, uint64_t>(
                    [&](size_t j) { return items[r + j] + Size * i; },
                    [&](size_t j) { return out + Size * (kPanelOutputs * (k + i + j) + r); });
    }
}

// A dense panel from rows in its own format, or one of BF16 from rows of another format.
void pack_dense_panel(const PackLinearPanels& a, const PanelRows& rows, size_t count, uint8_t* out) {
    const auto copy = [&](size_t r, size_t k, size_t values, uint8_t* items) {
        std::memcpy(items, rows.row[r] + row_bytes(a.format, k), row_bytes(a.format, values));
    };
    if (a.format == Format::f32) return transpose_items<4, kBlockInputs>(a.rows.in, count, copy, out);
    if (a.format == a.rows.format) return transpose_items<2, kBlockInputs>(a.rows.in, count, copy, out);
    with_format(a.rows.format, [&]<Format F>() {
        const auto round = [&](size_t r, size_t k, size_t values, uint8_t* items) {
            float wide[kBlockValues<F>];
            widen<F>(rows.row[r] + row_bytes(F, k), values, wide);
            put_all(wide, values, reinterpret_cast<Bf16*>(items));
        };
        transpose_items<2, kBlockValues<F>>(a.rows.in, count, round, out);
    });
}

// Row r of the weight as float32.
void widen_row(const RowWeight& w, size_t r, float* values) {
    const auto id = static_cast<int64_t>(r);
    gather_rows({w, &id, 1, values, 1});
}

// A panel of a quantised format, from rows of another one.
void pack_quantised_panel(const PackLinearPanels& a, size_t first, size_t count, size_t blocks, uint8_t* out) {
    const size_t in = a.rows.in, bytes = row_bytes(a.format, in);
    std::vector<uint8_t> quantised(count * bytes);
    std::vector<float> values(in);
    PanelRows rows{};
    for (size_t r = 0; r < count; ++r) {
        widen_row(a.rows, first + r, values.data());
        uint8_t* row = quantised.data() + r * bytes;
        quantise_blocks({values.data(), in / panel_block_inputs(a.format), a.format, row, 1});
        rows.row[r] = row;
    }
    pack_blocks(a.format, rows, blocks, out);
}

}  // namespace

void pack_linear_panels(const PackLinearPanels& a) {
    const LinearPanelWeight w{a.panels, a.rows.in, a.rows.out, a.format};
    parallel_for(w.count(), a.threads, [&](size_t p) {
        uint8_t* out = a.panels + p * w.panel_bytes();
        const size_t first = p * kPanelOutputs, left = a.rows.out - first;
        const size_t count = left < kPanelOutputs ? left : kPanelOutputs;
        PanelRows rows{};
        for (size_t r = 0; r < count; ++r) rows.row[r] = a.rows.row(first + r);
        if (!quantises_activations(a.format)) return pack_dense_panel(a, rows, count, out);
        if (a.rows.format == a.format) return pack_blocks(a.format, rows, w.blocks(), out);
        pack_quantised_panel(a, first, count, w.blocks(), out);
    });
}

}  // namespace decodestep::DECODESTEP_BUILD
