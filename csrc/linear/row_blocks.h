// The block formats of GGUF rows, widened to float32 in pieces of 32 values.
#pragma once

#include "linear/k_quant_blocks.h"
#include "linear/small_blocks.h"

namespace decodestep::DECODESTEP_BUILD {

template <>
struct RowBlock<Format::f32> {
    static DECODESTEP_INLINE void load(const uint8_t* p, f32x16& a, f32x16& b) {
        const auto* values = reinterpret_cast<const float*>(p);
        a = DECODESTEP_BUILD::load(values);
        b = DECODESTEP_BUILD::load(values + 16);
    }
};

template <>
struct RowBlock<Format::f16> {
    static DECODESTEP_INLINE void load(const uint8_t* p, f32x16& a, f32x16& b) {
        a = from_f16(p);
        b = from_f16(p + 32);
    }
};

template <>
struct RowBlock<Format::bf16> {
    static DECODESTEP_INLINE void load(const uint8_t* p, f32x16& a, f32x16& b) {
        a = from_bf16(p);
        b = from_bf16(p + 32);
    }
};

// <f16 scale> <16 bytes of nibbles>: scale * (q - 8)
template <>
struct RowBlock<Format::q4_0> {
    static DECODESTEP_INLINE void load(const uint8_t* p, f32x16& a, f32x16& b) {
        const f32x16 scale = broadcast_f16(p), middle = broadcast(8.0f);
        const f32x32 q = from_nibbles(p + 2);
        a = (q.first - middle) * scale;
        b = (q.second - middle) * scale;
    }
};

// <f16 scale> <f16 minimum> <16 bytes of nibbles>: scale * q + minimum
template <>
struct RowBlock<Format::q4_1> {
    static DECODESTEP_INLINE void load(const uint8_t* p, f32x16& a, f32x16& b) {
        const f32x16 scale = broadcast_f16(p), minimum = broadcast_f16(p + 2);
        const f32x32 q = from_nibbles(p + 4);
        a = fma(q.first, scale, minimum);
        b = fma(q.second, scale, minimum);
    }
};

// <f16 scale> <32 signed bytes>: scale * q
template <>
struct RowBlock<Format::q8_0> {
    static DECODESTEP_INLINE void load(const uint8_t* p, f32x16& a, f32x16& b) {
        const f32x16 scale = broadcast_f16(p);
        a = from_i8(p + 2) * scale;
        b = from_i8(p + 18) * scale;
    }
};

// Values [32 * i, 32 * i + 32) of a row.
template <Format F>
DECODESTEP_INLINE void load_piece(const uint8_t* row, size_t i, f32x16& a, f32x16& b) {
    if constexpr (kPieces<F> == 1)
        RowBlock<F>::load(row + i * kBlockBytes<F>, a, b);
    else
        RowBlock<F>::load(row + i / kPieces<F> * kBlockBytes<F>, i % kPieces<F>, a, b);
}

// The last values of a row that does not fill its last block, padded with zeros. Only rows of a dense format do that.
template <Format F>
DECODESTEP_INLINE void load_tail(const uint8_t* row, size_t i, size_t values, f32x16& a, f32x16& b) {
    uint8_t block[kBlockBytes<F>] = {};
    std::memcpy(block, row + i * kBlockBytes<F>, row_bytes(F, values));
    load_piece<F>(block, 0, a, b);
}

// The same of the first `values` values alone, which are all of them but at the end of a row.
template <Format F>
DECODESTEP_INLINE void load_values(const uint8_t* row, size_t i, size_t values, f32x16& a, f32x16& b) {
    if constexpr (traits(F).is_dense())
        if (values < kLoadValues) return load_tail<F>(row, i, values, a, b);
    load_piece<F>(row, i, a, b);
}

// A row to float32.
template <Format F>
void widen(const uint8_t* w, size_t in, float* values) {
    f32x16 a, b;
    size_t k = 0;
    for (; k + kLoadValues <= in; k += kLoadValues) {
        load_piece<F>(w, k / kLoadValues, a, b);
        store(values + k, a);
        store(values + k + 16, b);
    }
    if constexpr (traits(F).is_dense())
        if (const size_t rest = in - k; rest > 0) {
            load_tail<F>(w, k / kLoadValues, rest, a, b);
            float block[kLoadValues];
            store(block, a);
            store(block + 16, b);
            std::memcpy(values + k, block, rest * sizeof(float));
        }
}

}  // namespace decodestep::DECODESTEP_BUILD
