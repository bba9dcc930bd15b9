// The block formats of GGUF rows, widened to float32 in pieces of 32 values.
#pragma once

#include "linear/k_quant_blocks.h"
#include "linear/small_blocks.h"
#include "simd/simd.h"

namespace decodestep::DECODESTEP_BUILD {

constexpr size_t kLoadValues = 32;  // values that a format's load() yields at a time

struct F32Block {
    static constexpr size_t bytes = 128;
    static DECODESTEP_INLINE void load(const uint8_t* p, f32x16& a, f32x16& b) {
        const auto* values = reinterpret_cast<const float*>(p);
        a = DECODESTEP_BUILD::load(values);
        b = DECODESTEP_BUILD::load(values + 16);
    }
};

struct F16Block {
    static constexpr size_t bytes = 64;
    static DECODESTEP_INLINE void load(const uint8_t* p, f32x16& a, f32x16& b) {
        a = from_f16(p);
        b = from_f16(p + 32);
    }
};

struct Bf16Block {
    static constexpr size_t bytes = 64;
    static DECODESTEP_INLINE void load(const uint8_t* p, f32x16& a, f32x16& b) {
        a = from_bf16(p);
        b = from_bf16(p + 32);
    }
};

// <f16 scale> <16 bytes of nibbles>: scale * (q - 8)
struct Q4_0Block {
    static constexpr size_t bytes = 18;
    static DECODESTEP_INLINE void load(const uint8_t* p, f32x16& a, f32x16& b) {
        const f32x16 scale = broadcast_f16(p), middle = broadcast(8.0f);
        const f32x32 q = from_nibbles(p + 2);
        a = (q.first - middle) * scale;
        b = (q.second - middle) * scale;
    }
};

// <f16 scale> <f16 minimum> <16 bytes of nibbles>: scale * q + minimum
struct Q4_1Block {
    static constexpr size_t bytes = 20;
    static DECODESTEP_INLINE void load(const uint8_t* p, f32x16& a, f32x16& b) {
        const f32x16 scale = broadcast_f16(p), minimum = broadcast_f16(p + 2);
        const f32x32 q = from_nibbles(p + 4);
        a = fma(q.first, scale, minimum);
        b = fma(q.second, scale, minimum);
    }
};

// <f16 scale> <32 signed bytes>: scale * q
struct Q8_0Block {
    static constexpr size_t bytes = 34;
    static DECODESTEP_INLINE void load(const uint8_t* p, f32x16& a, f32x16& b) {
        const f32x16 scale = broadcast_f16(p);
        a = from_i8(p + 2) * scale;
        b = from_i8(p + 18) * scale;
    }
};

template <class BlockFormat>
constexpr size_t pieces = 1;  // of 32 values in a block
template <class BlockFormat>
    requires requires { BlockFormat::pieces; }
constexpr size_t pieces<BlockFormat> = BlockFormat::pieces;

// Values [32 * i, 32 * i + 32) of a row.
template <class BlockFormat>
DECODESTEP_INLINE void load_piece(const uint8_t* row, size_t i, f32x16& a, f32x16& b) {
    if constexpr (pieces<BlockFormat> == 1)
        BlockFormat::load(row + i * BlockFormat::bytes, a, b);
    else
        BlockFormat::load(row + i / pieces<BlockFormat> * BlockFormat::bytes, i % pieces<BlockFormat>, a, b);
}

// The last values of a row that does not fill its last block, padded with zeros. Only rows of a dense format do that.
template <class BlockFormat>
DECODESTEP_INLINE void load_tail(const uint8_t* row, size_t i, size_t values, f32x16& a, f32x16& b) {
    uint8_t block[BlockFormat::bytes] = {};
    std::memcpy(block, row + i * BlockFormat::bytes, values * (BlockFormat::bytes / kLoadValues));
    load_piece<BlockFormat>(block, 0, a, b);
}

// A row to float32.
template <class BlockFormat>
void widen(const uint8_t* w, size_t in, float* values) {
    f32x16 a, b;
    size_t k = 0;
    for (; k + kLoadValues <= in; k += kLoadValues) {
        load_piece<BlockFormat>(w, k / kLoadValues, a, b);
        store(values + k, a);
        store(values + k + 16, b);
    }
    if (const size_t rest = in - k; rest > 0) {
        load_tail<BlockFormat>(w, k / kLoadValues, rest, a, b);
        float block[kLoadValues];
        store(block, a);
        store(block + 16, b);
        std::memcpy(values + k, block, rest * sizeof(float));
    }
}

}  // namespace decodestep::DECODESTEP_BUILD
