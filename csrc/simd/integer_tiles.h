// Integer tiles (AMX): the products of sixteen tokens with 32 outputs in a few instructions. Only in the build
// avx512_amx.
#pragma once

#include <immintrin.h>

#include "simd/simd.h"

namespace decodestep::DECODESTEP_BUILD {

// The tile registers of this thread, for the lifetime of the object: not longer than a task, because while a thread has
// tiles, its state takes longer to save and the core counts as using them. Afterwards the tiles have their previous
// shapes, none in most threads: another library in the process (llama.cpp) configures its threads' tiles once and for
// all.
class IntegerTiles {
  public:
    static constexpr size_t kTokens = 16;

    // For sums over so many inputs, a multiple of 4, at most 64.
    explicit IntegerTiles(size_t inputs) {
        Shapes shapes;
        for (const size_t i : {0, 1, 2, 3, 4}) shapes.rows[i] = kTokens;
        shapes.row_bytes[4] = static_cast<uint16_t>(inputs);
        for (const size_t i : {5, 6}) shapes.rows[i] = static_cast<uint8_t>(inputs / 4);
        _tile_storeconfig(&before_);
        write_memory();
        _tile_loadconfig(&shapes);
    }
    IntegerTiles(const IntegerTiles&) = delete;
    IntegerTiles& operator=(const IntegerTiles&) = delete;
    ~IntegerTiles() {
        write_memory();
        _tile_loadconfig(&before_);
    }

    // sums[v][t][n] = sum over k of token t's bytes, x[t * stride + k], times those of output 16v + n,
    // w[k / 4][16v + n][k % 4].
    struct Product {
        const int8_t *x, *w;
        int32_t (*sums)[kTokens][kLanes];
    };

    // Computes product(i) for i in [0, count), count at least 1. A tile of sums is stored after the next three have
    // started: its last sums arrive so late that storing it at once would stall the following instructions.
    template <class MakeProduct>
    DECODESTEP_INLINE void multiply(size_t count, size_t stride, MakeProduct&& product) {
        for (size_t i = 0; i < count; i += 2) {
            const Product even = product(i);
            load_tokens(even, stride);
            _tile_loadd(5, even.w, kRowBytes);
            _tile_zero(0);
            _tile_dpbssd(0, 4, 5);
            if (i > 0) _tile_stored(1, product(i - 2).sums[1], kTileRow);
            _tile_loadd(6, even.w + kTileRow, kRowBytes);
            _tile_zero(1);
            _tile_dpbssd(1, 4, 6);
            if (i > 0) _tile_stored(2, product(i - 1).sums[0], kTileRow);
            if (i + 1 == count) break;
            const Product odd = product(i + 1);
            load_tokens(odd, stride);
            _tile_loadd(5, odd.w, kRowBytes);
            _tile_zero(2);
            _tile_dpbssd(2, 4, 5);
            if (i > 0) _tile_stored(3, product(i - 1).sums[1], kTileRow);
            _tile_loadd(6, odd.w + kTileRow, kRowBytes);
            _tile_zero(3);
            _tile_dpbssd(3, 4, 6);
            _tile_stored(0, even.sums[0], kTileRow);
        }
        const auto last = product(count - 1).sums;
        if (count % 2 == 0) {
            _tile_stored(1, product(count - 2).sums[1], kTileRow);
            _tile_stored(2, last[0], kTileRow);
            _tile_stored(3, last[1], kTileRow);
        } else {
            if (count > 1) _tile_stored(3, product(count - 2).sums[1], kTileRow);
            _tile_stored(0, last[0], kTileRow);
            _tile_stored(1, last[1], kTileRow);
        }
    }

  private:
    static constexpr size_t kTileRow = 64;             // bytes of a row of a tile: of sixteen outputs
    static constexpr size_t kRowBytes = 2 * kTileRow;  // of four inputs of all outputs

    // Stores what the compiler may keep in registers: gcc before 14 does not see that the tile instructions read it.
    static DECODESTEP_INLINE void write_memory() { asm volatile("" ::: "memory"); }

    static DECODESTEP_INLINE void load_tokens(const Product& p, size_t stride) {
        write_memory();
        _tile_loadd(4, p.x, stride);
    }

    // As the instruction reads it: tiles 0 to 3 are sums, 4 tokens, 5 and 6 weights.
    struct alignas(64) Shapes {
        uint8_t palette = 1, start_row = 0, reserved[14] = {};
        uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64};
        uint8_t rows[16] = {};
    };

    Shapes before_;
};

// Stores bytes less `offset`, which are signed then.
DECODESTEP_INLINE void store_signed(int8_t* p, u8x64 bytes, int offset) {
    _mm512_storeu_si512(p, _mm512_sub_epi8(bytes.v, _mm512_set1_epi8(static_cast<char>(offset))));
}

}  // namespace decodestep::DECODESTEP_BUILD
