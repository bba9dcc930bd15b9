// Splits the blocks of a GGUF file into the pieces of a panel, for packing; linear_panels.h defines the order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "linear/k_quant_blocks.h"
#include "linear/linear_panels.h"
#include "linear/small_blocks.h"
#include "linear/transpose_fields.h"

namespace decodestep::DECODESTEP_BUILD {

// One output's part of a piece: the lower bits of its integers (bytes; nibbles, where byte i holds inputs i and 16 + i;
// or two bits), the bits above them, and its scales.
struct SplitPiece {
    uint8_t low[32];
    uint8_t upper[8];
    uint8_t scales[4];  // with the minimum
};

struct SplitBlock {
    SplitPiece pieces[8];
    uint8_t tail[4];  // scale and minimum as float16
};

// Two pieces whose 32 values are the low and the high nibbles of 32 bytes.
DECODESTEP_INLINE void split_nibbles(const uint8_t* q, uint8_t* low, uint8_t* high) {
    for (size_t i = 0; i < 16; i += 8)
        transpose_fields<2, 4, uint64_t>([&](size_t j) { return q + 16 * j + i; },
                                         [&](size_t j) { return (j == 0 ? low : high) + i; });
}

// Eight pieces that have two bits each of 64 bytes, as two_bits reads them; to(j): the eight bytes of piece j.
template <class To>
DECODESTEP_INLINE void split_two_bits(const uint8_t* p, To&& to) {
    for (size_t i = 0; i < 4; ++i)  // of sixteen bytes; two of them make up the half of a block
        transpose_fields<4, 2, uint32_t>([&](size_t j) { return p + 16 * i + 4 * j; },
                                         [&](size_t j) { return to(i / 2 * 4 + j) + i % 2 * 4; });
}

// Eight pieces that have one bit each of 32 bytes: piece j bit j.
DECODESTEP_INLINE void split_upper_bits(const uint8_t* p, SplitBlock& block) {
    transpose_fields<8, 1, uint32_t>([&](size_t j) { return p + 4 * j; },
                                     [&](size_t j) { return block.pieces[j].upper; });
}

// Four bytes; bit j of byte e is bit 4j + e of the four bytes at `fifth`.
DECODESTEP_INLINE void transpose_bits(const uint8_t* fifth, uint8_t* out) {
    uint32_t from, bits = 0;
    std::memcpy(&from, fifth, sizeof from);
    for (size_t j = 0; j < 8; ++j)  // the multiplication spreads four neighbouring bits over four bytes
        bits |= ((from >> 4 * j & 15) * 0x00204081u & 0x01010101u) << j;
    std::memcpy(out, &bits, sizeof bits);
}

// p: a block of Q4_K or Q5_K; q: its nibbles.
DECODESTEP_INLINE void split_scales_and_nibbles(const uint8_t* p, const uint8_t* q, SplitBlock& block) {
    std::memcpy(block.tail, p, sizeof block.tail);
    for (size_t j = 0; j < 8; ++j) {
        const ScaleMin piece = scale_min(p + 4, j);
        block.pieces[j].scales[0] = static_cast<uint8_t>(piece.scale);
        block.pieces[j].scales[1] = static_cast<uint8_t>(piece.minimum);
    }
    for (size_t j = 0; j < 8; j += 2) split_nibbles(q + 16 * j, block.pieces[j].low, block.pieces[j + 1].low);
}

// Whether a block is <scale, minimum> <fifth bits> <nibbles>.
template <Format F>
constexpr bool kIsPlain = F == Format::q4_0 || F == Format::q4_1 || F == Format::q5_0 || F == Format::q5_1 ||
                          F == Format::iq4_nl || F == Format::mxfp4;

template <Format F>
DECODESTEP_INLINE void split_block(const uint8_t* p, SplitBlock& block) {
    if constexpr (F == Format::q4_k) {
        split_scales_and_nibbles(p, p + 16, block);
    } else if constexpr (F == Format::q5_k) {
        split_scales_and_nibbles(p, p + 48, block);
        split_upper_bits(p + 16, block);
    } else if constexpr (F == Format::q6_k) {
        split_two_bits(p + 128, [&](size_t j) { return block.pieces[j].upper; });
        for (size_t j = 0; j < 8; ++j) std::memcpy(block.pieces[j].scales, p + 192 + 2 * j, 2);
        for (size_t j = 0; j < 8; j += j % 2 ? 3 : 1)  // pieces 0, 1, 4, 5, each with the one two after it
            split_nibbles(p + j / 4 * 64 + j % 2 * 32, block.pieces[j].low, block.pieces[j + 2].low);
        std::memcpy(block.tail, p + 208, 2);
    } else if constexpr (F == Format::iq4_xs) {
        std::memcpy(block.tail, p, 2);
        for (size_t j = 0; j < 8; ++j) {
            std::memcpy(block.pieces[j].low, p + 8 + 16 * j, 16);
            block.pieces[j].scales[0] = static_cast<uint8_t>(iq4_xs_scale(p, j));
        }
    } else if constexpr (F == Format::q2_k) {
        split_two_bits(p + 16, [&](size_t j) { return block.pieces[j].low; });
        for (size_t j = 0; j < 8; ++j) std::memcpy(block.pieces[j].scales, p + 2 * j, 2);
        std::memcpy(block.tail, p + 80, 4);
    } else if constexpr (F == Format::q3_k) {
        split_upper_bits(p, block);
        split_two_bits(p + 32, [&](size_t j) { return block.pieces[j].low; });
        for (size_t i = 0; i < 16; ++i) block.pieces[i / 2].scales[i % 2] = static_cast<uint8_t>(q3_k_scale(p + 96, i));
        std::memcpy(block.tail, p + 108, 2);
    } else if constexpr (F == Format::q8_0) {
        std::memcpy(block.pieces[0].scales, p, 2);
        for (size_t i = 0; i < 32; ++i) block.pieces[0].low[i] = p[2 + i] ^ 0x80;  // q + 128
    } else {
        static_assert(kIsPlain<F>);
        constexpr size_t scales = panel_layout(F).scales / kPanelOutputs, fifth = panel_layout(F).upper ? 4 : 0;
        std::memcpy(block.pieces[0].scales, p, scales);
        if (fifth) transpose_bits(p + scales, block.pieces[0].upper);
        std::memcpy(block.pieces[0].low, p + scales + fifth, 16);
    }
}

}  // namespace decodestep::DECODESTEP_BUILD
