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

// Output r's part of items that a panel holds for 32 outputs side by side: `Count` items of `Size` bytes.
template <size_t Size, size_t Count>
DECODESTEP_INLINE void spread(const uint8_t* items, size_t r, uint8_t* panel) {
    for (size_t i = 0; i < Count; ++i) std::memcpy(panel + Size * (kPanelOutputs * i + r), items + Size * i, Size);
}

// A panel of a quantised format, from rows in that format.
template <Format F>
void pack_blocks(const PanelRows& rows, size_t blocks, uint8_t* out) {
    constexpr PanelLayout layout = panel_layout(F);
    constexpr size_t scale = scale_bytes(F);
    for (size_t b = 0; b < blocks / layout.pieces; ++b)
        for (size_t r = 0; r < kPanelOutputs; ++r) {
            SplitBlock split;
            if (rows.row[r])
                split_block<F>(rows.row[r] + b * kBlockBytes<F>, split);
            else
                split = {};
            uint8_t* to = out + b * layout.block_bytes();
            for (size_t i = 0; i < layout.pieces; ++i, to += layout.piece_bytes()) {
                const SplitPiece& piece = split.pieces[i];
                spread<4, layout.low / kPanelOutputs / 4>(piece.low, r, to);
                spread<4, layout.upper / kPanelOutputs / 4>(piece.upper, r, to + layout.low);
                spread<scale, layout.scales / kPanelOutputs / scale>(piece.scales, r, to + layout.low + layout.upper);
            }
            spread<2, layout.tail / kPanelOutputs / 2>(split.tail, r, to);
        }
}

void pack_blocks_of(Format format, const PanelRows& rows, size_t blocks, uint8_t* out) {
    with_format(format, [&]<Format F>() {
        if constexpr (quantises_activations(F)) pack_blocks<F>(rows, blocks, out);
    });
}

// A dense panel; fill(r, k, values, row) gives `values` values of output r from input k on, k a multiple of Block.
template <Format F, size_t Block, class Fill>
void pack_dense(size_t in, size_t count, Fill&& fill, uint8_t* out) {
    constexpr size_t item = row_bytes(F, dense_inputs(F)), side = sizeof(uint64_t) / item;  // an item: an output's part
    for (size_t k = 0; k < in; k += Block) {
        alignas(kCacheLine) uint8_t rows[kPanelOutputs][row_bytes(F, Block)] = {};
        const size_t values = std::min(Block, in - k);
        for (size_t r = 0; r < count; ++r) fill(r, k, values, rows[r]);
        const size_t items = round_up(values, kBlockInputs) / dense_inputs(F);
        for (size_t i = 0; i < items; i += side)
            for (size_t r = 0; r < kPanelOutputs; r += side)
                transpose_fields<side, 8 * item, uint64_t>(
                    [&](size_t j) { return rows[r + j] + item * i; },
                    [&](size_t j) { return out + item * (kPanelOutputs * (i + j) + r); });
        out += item * kPanelOutputs * items;
    }
}

// A dense panel from rows in its own format, or one of BF16 from rows of another format.
void pack_dense_panel(const PackLinearPanels& a, const PanelRows& rows, size_t count, uint8_t* out) {
    if (a.format == a.rows.format)
        return with_format(a.format, [&]<Format F>() {
            const auto copy = [&](size_t r, size_t k, size_t values, uint8_t* row) {
                std::memcpy(row, rows.row[r] + row_bytes(F, k), row_bytes(F, values));
            };
            if constexpr (!quantises_activations(F)) pack_dense<F, kBlockInputs>(a.rows.in, count, copy, out);
        });
    with_format(a.rows.format, [&]<Format F>() {
        const auto round = [&](size_t r, size_t k, size_t values, uint8_t* row) {
            float wide[kBlockValues<F>];
            widen<F>(rows.row[r] + row_bytes(F, k), values, wide);
            convert(wide, values, reinterpret_cast<Bf16*>(row));
        };
        pack_dense<Format::bf16, kBlockValues<F>>(a.rows.in, count, round, out);
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
    pack_blocks_of(a.format, rows, blocks, out);
}

}  // namespace

void pack_linear_panels(const PackLinearPanels& a) {
    const LinearPanelWeight w{a.panels, a.rows.in, a.rows.out, a.format};
    const auto pack = [&](size_t p) {
        uint8_t* out = a.panels + p * w.panel_bytes();
        const size_t first = p * kPanelOutputs, left = a.rows.out - first;
        const size_t count = left < kPanelOutputs ? left : kPanelOutputs;
        PanelRows rows{};
        for (size_t r = 0; r < count; ++r) rows.row[r] = a.rows.row(first + r);
        if (!quantises_activations(a.format)) return pack_dense_panel(a, rows, count, out);
        if (a.rows.format == a.format) return pack_blocks_of(a.format, rows, w.blocks(), out);
        pack_quantised_panel(a, first, count, w.blocks(), out);
    };
    // By the seats of a step's threads: a page of memory lies near the CPU that writes it first, and a thread then
    // packs the panels that it reads later.
    parallel_stages(1, a.threads, [&](size_t, const StageShare& share) { share.each(w.count(), pack); });
}

}  // namespace decodestep::DECODESTEP_BUILD
