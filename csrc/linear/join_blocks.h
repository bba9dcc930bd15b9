// Joins the pieces of a panel to the blocks of a GGUF file: the inverse of split_blocks.h.
#pragma once

#include <cstring>

#include "linear/split_blocks.h"

namespace decodestep::DECODESTEP_BUILD {

// 32 bytes whose low and high nibbles are the 32 values of two pieces.
DECODESTEP_INLINE void join_nibbles(const uint8_t* low, const uint8_t* high, uint8_t* q) {
    for (size_t i = 0; i < 16; i += 8)
        transpose_fields<2, 4, uint64_t>([&](size_t j) { return (j == 0 ? low : high) + i; },
                                         [&](size_t j) { return q + 16 * j + i; });
}

// 64 bytes that hold two bits of each of eight pieces; from(j): those of piece j.
template <class From>
DECODESTEP_INLINE void join_two_bits(From&& from, uint8_t* p) {
    for (size_t i = 0; i < 4; ++i)
        transpose_fields<4, 2, uint32_t>([&](size_t j) { return from(i / 2 * 4 + j) + i % 2 * 4; },
                                         [&](size_t j) { return p + 16 * i + 4 * j; });
}

// 32 bytes whose bit j is that of piece j.
DECODESTEP_INLINE void join_upper_bits(const SplitBlock& block, uint8_t* p) {
    transpose_fields<8, 1, uint32_t>([&](size_t j) { return block.pieces[j].upper; },
                                     [&](size_t j) { return p + 4 * j; });
}

// Four bytes whose bit 4j + e is bit j of byte e of the four bytes at `bits`.
DECODESTEP_INLINE void transpose_bits_back(const uint8_t* bits, uint8_t* fifth) {
    uint32_t from, made = 0;
    std::memcpy(&from, bits, sizeof from);
    for (size_t j = 0; j < 8; ++j)  // the multiplication brings one bit of each of four bytes together, at the top
        made |= ((from >> j & 0x01010101u) * 0x10204080u >> 28) << 4 * j;
    std::memcpy(fifth, &made, sizeof made);
}

// p: a block of Q4_K or Q5_K; q: its nibbles.
DECODESTEP_INLINE void join_scales_and_nibbles(const SplitBlock& block, uint8_t* p, uint8_t* q) {
    std::memcpy(p, block.tail, sizeof block.tail);
    for (size_t j = 0; j < 4; ++j) {  // as scale_min reads them
        const uint8_t *first = block.pieces[j].scales, *second = block.pieces[4 + j].scales;
        p[4 + j] = static_cast<uint8_t>(first[0] | second[0] >> 4 << 6);
        p[8 + j] = static_cast<uint8_t>(first[1] | second[1] >> 4 << 6);
        p[12 + j] = static_cast<uint8_t>((second[0] & 15) | second[1] << 4);
    }
    for (size_t j = 0; j < 8; j += 2) join_nibbles(block.pieces[j].low, block.pieces[j + 1].low, q + 16 * j);
}

template <Format F>
DECODESTEP_INLINE void join_block(const SplitBlock& block, uint8_t* p) {
    if constexpr (F == Format::q4_k) {
        join_scales_and_nibbles(block, p, p + 16);
    } else if constexpr (F == Format::q5_k) {
        join_scales_and_nibbles(block, p, p + 48);
        join_upper_bits(block, p + 16);
    } else if constexpr (F == Format::q6_k) {
        join_two_bits([&](size_t j) { return block.pieces[j].upper; }, p + 128);
        for (size_t j = 0; j < 8; ++j) std::memcpy(p + 192 + 2 * j, block.pieces[j].scales, 2);
        for (size_t j = 0; j < 8; j += j % 2 ? 3 : 1)  // pieces 0, 1, 4, 5, each with the one two after it
            join_nibbles(block.pieces[j].low, block.pieces[j + 2].low, p + j / 4 * 64 + j % 2 * 32);
        std::memcpy(p + 208, block.tail, 2);
    } else if constexpr (F == Format::iq4_xs) {
        std::memcpy(p, block.tail, 2);
        std::memset(p + 2, 0, 6);
        for (size_t j = 0; j < 8; ++j) {
            std::memcpy(p + 8 + 16 * j, block.pieces[j].low, 16);
            const int stored = static_cast<int8_t>(block.pieces[j].scales[0]) + 32;  // as iq4_xs_scale reads it
            p[2 + j / 4] |= static_cast<uint8_t>(stored >> 4 << j % 4 * 2);
            p[4 + j / 2] |= static_cast<uint8_t>((stored & 15) << j % 2 * 4);
        }
    } else if constexpr (F == Format::q2_k) {
        join_two_bits([&](size_t j) { return block.pieces[j].low; }, p + 16);
        for (size_t j = 0; j < 8; ++j) std::memcpy(p + 2 * j, block.pieces[j].scales, 2);
        std::memcpy(p + 80, block.tail, 4);
    } else if constexpr (F == Format::q3_k) {
        join_upper_bits(block, p);
        join_two_bits([&](size_t j) { return block.pieces[j].low; }, p + 32);
        std::memset(p + 96, 0, 12);
        for (size_t i = 0; i < 16; ++i) {
            const int stored = static_cast<int8_t>(block.pieces[i / 2].scales[i % 2]) + 32;  // as q3_k_scale reads it
            p[96 + i % 8] |= static_cast<uint8_t>((stored & 15) << i / 8 * 4);
            p[104 + i % 4] |= static_cast<uint8_t>(stored >> 4 << i / 4 * 2);
        }
        std::memcpy(p + 108, block.tail, 2);
    } else if constexpr (F == Format::q8_0) {
        std::memcpy(p, block.pieces[0].scales, 2);
        for (size_t i = 0; i < 32; ++i) p[2 + i] = block.pieces[0].low[i] ^ 0x80;
    } else {
        static_assert(kIsPlain<F>);
        constexpr size_t scales = panel_layout(F).scales / kPanelOutputs, fifth = panel_layout(F).upper ? 4 : 0;
        std::memcpy(p, block.pieces[0].scales, scales);
        if (fifth) transpose_bits_back(block.pieces[0].upper, p + scales);
        std::memcpy(p + scales + fifth, block.pieces[0].low, 16);
    }
}

}  // namespace decodestep::DECODESTEP_BUILD
