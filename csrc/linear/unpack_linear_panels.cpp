#include "linear/unpack_linear_panels.h"

#include <algorithm>
#include <cstring>

#include "core/cache_line.h"
#include "core/parallel.h"
#include "linear/join_blocks.h"
#include "linear/row_blocks.h"
#include "linear/with_format.h"

namespace decodestep::DECODESTEP_BUILD {
namespace {

// Output r of items that a panel holds for 32 outputs side by side: `Count` items of `Size` bytes.
template <size_t Size, size_t Count>
DECODESTEP_INLINE void collect(const uint8_t* panel, size_t r, uint8_t* out) {
    for (size_t i = 0; i < Count; ++i) std::memcpy(out + Size * i, panel + Size * (kPanelOutputs * i + r), Size);
}

// A block of output r as a row has it, from the panel's block.
template <Format F>
DECODESTEP_INLINE void unpack_block(const uint8_t* panel, size_t r, uint8_t* out) {
    constexpr PanelLayout layout = panel_layout(F);
    if constexpr (!quantises_activations(F)) {
        collect<row_bytes(F, dense_inputs(F)), kBlockInputs / dense_inputs(F)>(panel, r, out);
    } else {
        SplitBlock split;
        for (size_t i = 0; i < layout.pieces; ++i, panel += layout.piece_bytes()) {
            SplitPiece& piece = split.pieces[i];
            constexpr size_t size = scale_bytes(F);
            collect<4, layout.low / kPanelOutputs / 4>(panel, r, piece.low);
            collect<4, layout.upper / kPanelOutputs / 4>(panel + layout.low, r, piece.upper);
            collect<size, layout.scales / kPanelOutputs / size>(panel + layout.low + layout.upper, r, piece.scales);
        }
        collect<2, layout.tail / kPanelOutputs / 2>(panel, r, split.tail);
        join_block<F>(split, out);
    }
}

// Calls use(block, k, values) for every block of output n: its bytes in a row, and which inputs it has.
template <Format F, class Use>
DECODESTEP_INLINE void each_block(const LinearPanelWeight& w, size_t n, Use&& use) {
    alignas(kCacheLine) uint8_t block[kBlockBytes<F>];
    const uint8_t* panel = w.panel(n / kPanelOutputs);
    for (size_t k = 0; k < w.in; k += kBlockValues<F>, panel += panel_block_bytes(F)) {
        unpack_block<F>(panel, n % kPanelOutputs, block);
        use(block, k, std::min(kBlockValues<F>, w.in - k));
    }
}

}  // namespace

void unpack_linear_panels(const UnpackLinearPanels& a) {
    with_format(a.w.format, [&]<Format F>() {
        parallel_rows(a.count, a.w.in, a.threads, [&](size_t i) {
            uint8_t* row = a.rows + i * row_bytes(F, a.w.in);
            each_block<F>(a.w, static_cast<size_t>(a.ids[i]), [&](const uint8_t* block, size_t k, size_t values) {
                std::memcpy(row + row_bytes(F, k), block, row_bytes(F, values));
            });
        });
    });
}

void gather_panels(const GatherPanels& a) {
    with_format(a.w.format, [&]<Format F>() {
        parallel_rows(a.count, a.w.in, a.threads, [&](size_t i) {
            float* row = a.values + i * a.w.in;
            each_block<F>(a.w, static_cast<size_t>(a.ids[i]),
                          [&](const uint8_t* block, size_t k, size_t values) { widen<F>(block, values, row + k); });
        });
    });
}

}  // namespace decodestep::DECODESTEP_BUILD
