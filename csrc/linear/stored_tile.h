// Products of many tokens with a panel whose weights are turned into bytes once for all of them.
#pragma once

#include "linear/byte_tile.h"
#include "linear/panel_prefetcher.h"
#include "linear/panel_product.h"

namespace decodestep::DECODESTEP_ISA {

// Where registers hold the sums of few tokens, a panel is turned into quads of bytes first, 256 inputs at a time, which
// all tokens read, so many of them and sixteen outputs at once; fewer where the quads are bytes, which cost two
// registers. Q8_0 is not stored again.
template <Format F>
constexpr size_t kStoredTokens = is_bytes(F) ? 4 : 6;
constexpr size_t kStoredPieces = 8;

// What the products of a format read of the activations, beside bytes and scales.
constexpr bool reads_sum(Format f) { return is_bytes(f) || offset_of(f) != 0; }
constexpr bool reads_minus_half_sums(Format f) { return f == Format::q6_k; }

// So many blocks of the tokens of a tile, at distances that the compiler knows.
template <Format F>
class TileRows {
  public:
    // Copies so many of blocks at + t * x.blocks() and the following ones, in pieces of constant sizes: copying a few
    // bytes whose number is a variable would cost as much as the products.
    DECODESTEP_INLINE void copy(const Activations& x, size_t at, size_t tokens, size_t blocks) {
        for (size_t t = 0; t < tokens; ++t, at += x.blocks()) {
            const size_t to = t * kStoredPieces;
            if (blocks == kStoredPieces) {
                copy_blocks<kStoredPieces>(x, at, to);
                continue;
            }
            size_t done = 0;
            if (blocks & 4) done = copy_blocks<4>(x, at, to);
            if (blocks & 2) done += copy_blocks<2>(x, at + done, to + done);
            if (blocks & 1) copy_blocks<1>(x, at + done, to + done);
        }
    }
    DECODESTEP_INLINE static void prefetch_rows(const Activations& x, size_t at, size_t tokens) {
        for (size_t t = 0; t < tokens; ++t, at += x.blocks()) {
            prefetch(x.quantised.bytes + at * kBlockInputs, kStoredPieces * kBlockInputs);
            prefetch(x.quantised.scale + at);
            if constexpr (reads_sum(F)) prefetch(x.quantised.sum + at);
            if constexpr (reads_minus_half_sums(F)) prefetch(x.quantised.minus_half_sums + at);
            if constexpr (has_minima(F)) prefetch(x.block_sum + at);
        }
    }
    DECODESTEP_INLINE Activations rows() {
        return {.in = kStoredPieces * kBlockInputs,
                .quantised = {bytes_, scale_, sum_, minus_half_sums_},
                .block_sum = block_sum_};
    }

  private:
    template <size_t blocks>  // one, or an even number
    DECODESTEP_INLINE size_t copy_blocks(const Activations& x, size_t at, size_t to) {
        const auto* from = reinterpret_cast<const uint8_t*>(x.quantised.bytes) + at * kBlockInputs;
        auto* bytes = reinterpret_cast<uint8_t*>(bytes_) + to * kBlockInputs;
#pragma GCC unroll 4
        for (size_t i = 0; i + 2 <= blocks; i += 2)
            store_bits(bytes + i * kBlockInputs, words_of(load_bytes(from + i * kBlockInputs)));
        if constexpr (blocks % 2) std::memcpy(bytes, from, kBlockInputs);
        std::memcpy(scale_ + to, x.quantised.scale + at, blocks * sizeof(float));
        if constexpr (reads_sum(F)) std::memcpy(sum_ + to, x.quantised.sum + at, blocks * sizeof(int32_t));
        if constexpr (reads_minus_half_sums(F))
            std::memcpy(minus_half_sums_ + to, x.quantised.minus_half_sums + at, blocks * sizeof(int32_t));
        if constexpr (has_minima(F)) std::memcpy(block_sum_ + to, x.block_sum + at, blocks * sizeof(float));
        return blocks;
    }

    static constexpr size_t kBlocks = 6 * kStoredPieces;
    alignas(64) int8_t bytes_[kBlocks * kBlockInputs];
    float scale_[kBlocks], block_sum_[kBlocks];
    int32_t sum_[kBlocks], minus_half_sums_[kBlocks];
};

// T tokens times `pieces` pieces and sixteen outputs.
template <Format F, int T>
void stored_tile(size_t pieces, const uint8_t* block, const uint8_t* stored, size_t v, TileRows<F>& rows,
                 float (*outputs)[kPanelOutputs]) {
    constexpr PanelLayout layout = panel_layout(F);
    const Activations x = rows.rows();
    FloatSums<T, 1> y;
    load_outputs<T, 1>(outputs, v, y);
    for (size_t b = 0; b < pieces; b += layout.pieces, block += layout.block_bytes()) {
        const auto quads = [&](size_t i) DECODESTEP_INLINE_LAMBDA {
            if constexpr (F == Format::q8_0)
                return PanelQuads<F>{block};
            else
                return StoredQuads{stored + (b + i) * StoredQuads::kBytes};
        };
        add_block<F, T, 1>(quads, v, block, x, b, y);
    }
    store_outputs<T, 1>(y, v, outputs);
}

template <Format F, int T = 1>
void stored_tile_of(size_t tokens, size_t pieces, const uint8_t* block, const uint8_t* stored, TileRows<F>& rows,
                    float (*outputs)[kPanelOutputs]) {
    if constexpr (T < kStoredTokens<F>) {
        if (tokens > T) return stored_tile_of<F, T + 1>(tokens, pieces, block, stored, rows, outputs);
    }
    for (size_t v = 0; v < kPanelOutputs / kLanes; ++v) stored_tile<F, T>(pieces, block, stored, v, rows, outputs);
}

template <Format F>
void stored_tiles(size_t blocks, const uint8_t* panel, const uint8_t* next_panel, const Activations& x, size_t first,
                  size_t tokens, float (*outputs)[kPanelOutputs]) {
    constexpr PanelLayout layout = panel_layout(F);
    TileRows<F> rows;
    alignas(64) uint8_t stored[F == Format::q8_0 ? 1 : kStoredPieces * StoredQuads::kBytes];
    const PanelPrefetcher<F> prefetcher(panel, next_panel, blocks);
    std::memset(outputs, 0, tokens * sizeof *outputs);
    const uint8_t* block = panel;
    for (size_t b = 0; b < blocks; b += kStoredPieces, block += kStoredPieces / layout.pieces * layout.block_bytes()) {
        const size_t pieces = std::min(kStoredPieces, blocks - b);
        for (size_t i = 0; i < pieces; ++i) {
            prefetcher.advance(b + i);
            if constexpr (F != Format::q8_0) {
                const uint8_t* piece =
                    block + i / layout.pieces * layout.block_bytes() + i % layout.pieces * layout.piece_bytes();
                store_quads(PanelQuads<F>{piece}, stored + i * StoredQuads::kBytes);
            }
        }
        each_tile<kStoredTokens<F>>(tokens, [&](size_t t, size_t count) {
            rows.copy(x, (first + t) * x.blocks() + b, count, pieces);
            if (const size_t next = t + count; next < tokens)
                TileRows<F>::prefetch_rows(x, (first + next) * x.blocks() + b, std::min(count, tokens - next));
            else if (b + kStoredPieces < blocks)
                TileRows<F>::prefetch_rows(x, first * x.blocks() + b + kStoredPieces, std::min(count, tokens));
            stored_tile_of<F>(count, pieces, block, F == Format::q8_0 ? block : stored, rows, outputs + t);
        });
    }
    each_tile<2>(tokens, [&](size_t t, size_t count) {
        count == 2 ? add_residuals<F, 2>(panel, x, first + t, outputs + t)
                   : add_residuals<F, 1>(panel, x, first + t, outputs + t);
    });
}

}  // namespace decodestep::DECODESTEP_ISA
