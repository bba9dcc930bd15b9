// Tiles of integers (AMX): the products of sixteen tokens with 32 outputs by few instructions. The build avx512_amx
// alone has them.
#pragma once

#include <immintrin.h>

#include "simd/simd.h"

namespace decodestep::DECODESTEP_ISA {

// The tiles of this thread, as long as this lives. Not longer than a task: while a thread has tiles, its state takes
// longer to save, and the core counts as one that uses them.
class IntegerTiles {
  public:
    static constexpr size_t kTokens = 16;

    // For sums over so many inputs, a multiple of 4, at most 64.
    explicit IntegerTiles(size_t inputs) {
        Shapes shapes;
        for (const size_t i : {0, 1, 2}) shapes.rows[i] = kTokens;
        shapes.row_bytes[2] = static_cast<uint16_t>(inputs);
        for (const size_t i : {3, 4}) shapes.rows[i] = static_cast<uint8_t>(inputs / 4);
        write_memory();
        _tile_loadconfig(&shapes);
    }
    IntegerTiles(const IntegerTiles&) = delete;
    IntegerTiles& operator=(const IntegerTiles&) = delete;
    ~IntegerTiles() { _tile_release(); }

    // sums[v][t][n] = sum over k of token t's bytes, x[t * stride + k], times those of output 16v + n,
    // w[k / 4][16v + n][k % 4].
    DECODESTEP_INLINE void multiply(const int8_t* x, size_t stride, const int8_t* w, int32_t (*sums)[kTokens][kLanes]) {
        write_memory();
        _tile_loadd(2, x, stride);
        _tile_loadd(3, w, 128);
        _tile_loadd(4, w + 64, 128);
        _tile_zero(0);
        _tile_zero(1);
        _tile_dpbssd(0, 2, 3);
        _tile_dpbssd(1, 2, 4);
        _tile_stored(0, sums[0], 64);
        _tile_stored(1, sums[1], 64);
    }

  private:
    // What the compiler may keep in registers is written: gcc before 14 does not see that the instructions read it.
    static DECODESTEP_INLINE void write_memory() { asm volatile("" ::: "memory"); }

    // As the instruction reads it: tiles 0 and 1 are sums, 2 tokens, 3 and 4 weights.
    struct alignas(64) Shapes {
        uint8_t palette = 1, start_row = 0, reserved[14] = {};
        uint16_t row_bytes[16] = {64, 64, 64, 64, 64};
        uint8_t rows[16] = {};
    };
};

// Stores bytes less `offset`, which are signed then.
DECODESTEP_INLINE void store_signed(int8_t* p, u8x64 bytes, int offset) {
    _mm512_storeu_si512(p, _mm512_sub_epi8(bytes.v, _mm512_set1_epi8(static_cast<char>(offset))));
}

}  // namespace decodestep::DECODESTEP_ISA
