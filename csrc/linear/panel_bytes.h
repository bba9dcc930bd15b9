// The bytes of a panel's pieces as products read them: linear_panels.h has their order. A quad is four inputs of
// sixteen outputs as unsigned bytes; quads 0 to 3 are the first sixteen inputs of a piece.
#pragma once

#include <algorithm>

#include "linear/linear_panels.h"
#include "linear/small_blocks.h"
#include "simd/simd.h"

namespace decodestep::DECODESTEP_BUILD {

constexpr size_t kQuads = 8;                      // of a piece
constexpr size_t kQuadBytes = 4 * kPanelOutputs;  // of all outputs of a panel

// Whether quads are whole bytes, the values plus 128. Otherwise they are a few bits.
constexpr bool is_bytes(Format f) { return traits(f).offset == 128; }

// The sub-blocks of a piece.
constexpr size_t sub_blocks(Format f) { return kBlockInputs / traits(f).sub_block; }

// Whether products of integers are multiplied by the integer scales of their sub-blocks. Those with bytes are not: they
// would not be exact as float32.
constexpr bool has_integer_scales(Format f) { return panel_layout(f).pieces > 1 && !is_bytes(f); }

// The byte in a quad for each nibble.
struct NibbleTable {
    alignas(16) uint8_t bytes[16];
};
constexpr NibbleTable table_of(const int8_t (&values)[16], int offset) {
    NibbleTable table{};
    for (size_t i = 0; i < 16; ++i) table.bytes[i] = static_cast<uint8_t>(values[i] + offset);
    return table;
}
constexpr NibbleTable kIq4Bytes = table_of(kIq4Values, traits(Format::iq4_nl).offset),
                      kMxfp4Bytes = table_of(kMxfp4Values, traits(Format::mxfp4).offset);

// The largest of the quads' weights.
constexpr int largest_byte(Format f) {
    switch (traits(f).table) {
        case ValueTable::none:
            return (1 << (traits(f).low_bits + traits(f).upper_bits)) - 1;
        case ValueTable::iq4:
            return *std::max_element(kIq4Bytes.bytes, kIq4Bytes.bytes + 16);
        case ValueTable::mxfp4:
            return *std::max_element(kMxfp4Bytes.bytes, kMxfp4Bytes.bytes + 16);
    }
    __builtin_unreachable();
}

// The bits of each byte from bit `from` on, moved to bit `to`; mask: which of the moved ones count.
DECODESTEP_INLINE u8x64 moved_bits(u8x64 bytes, size_t from, size_t to, int mask) {
    i32x16 a = words_of(bytes);
    switch (static_cast<int>(to) - static_cast<int>(from)) {  // a constant where this is inlined
        case 4:
            a = shift_left<4>(a);
            break;
        case 3:
            a = shift_left<3>(a);
            break;
        case 2:
            a = shift_left<2>(a);
            break;
        case 1:
            a = shift_left<1>(a);
            break;
        case -1:
            a = shift_right<1>(a);
            break;
        case -2:
            a = shift_right<2>(a);
            break;
        case -3:
            a = shift_right<3>(a);
            break;
        case -4:
            a = shift_right<4>(a);
            break;
        case -5:
            a = shift_right<5>(a);
            break;
        case -6:
            a = shift_right<6>(a);
            break;
    }
    return bytes_of(a & broadcast_int(mask * 0x01010101));
}
DECODESTEP_INLINE u8x64 joined(u8x64 a, u8x64 b) { return bytes_of(words_of(a) | words_of(b)); }

// A piece as stored in a panel.
template <Format F>
struct PanelQuads {
    const uint8_t* piece;

    // Quad j of outputs 16v to 16v + 15.
    DECODESTEP_INLINE u8x64 quad(size_t j, size_t v) const {
        const u8x64 low = lower_bits(j, v);
        const uint8_t* upper = piece + panel_layout(F).low + 64 * v;
        constexpr size_t at = traits(F).low_bits;
        if constexpr (traits(F).upper_bits == 1) {
            return joined(low, moved_bits(load_bytes(upper), j, at, 1 << at));
        } else if constexpr (traits(F).upper_bits == 2) {
            return joined(low, moved_bits(load_bytes(upper + j / 4 * kQuadBytes), j % 4 * 2, at, 3 << at));
        } else {
            static_assert(traits(F).upper_bits == 0);
            if constexpr (traits(F).table == ValueTable::iq4)
                return look_up(low, kIq4Bytes.bytes);
            else if constexpr (traits(F).table == ValueTable::mxfp4)
                return look_up(low, kMxfp4Bytes.bytes);
            else
                return low;
        }
    }

  private:
    DECODESTEP_INLINE u8x64 lower_bits(size_t j, size_t v) const {
        const uint8_t* p = piece + 64 * v;
        if constexpr (traits(F).low_bits == 8) {
            return load_bytes(p + kQuadBytes * j);
        } else if constexpr (traits(F).low_bits == 4) {
            const u8x64 bytes = load_bytes(p + kQuadBytes * (j % 4));
            return j < 4 ? low_nibbles(bytes) : high_nibbles(bytes);
        } else {
            static_assert(traits(F).low_bits == 2);
            return moved_bits(load_bytes(p + kQuadBytes * (j / 4)), j % 4 * 2, 0, 3);
        }
    }
};

// Whether a piece holds its quads as products with many tokens read them, so that to store them would gain nothing.
template <Format F>
constexpr bool kReadsInPlace = traits(F).low_bits == 8 && kStoredBytes == 64;

// A piece unpacked to bytes, quad after quad.
template <Format F>
struct StoredQuads {
    const uint8_t* bytes;
    static constexpr size_t kVector = is_bytes(F) ? kStoredBytes : 64, kBytes = kQuads * 2 * kVector;

    DECODESTEP_INLINE auto quad(size_t j, size_t v) const {
        const uint8_t* p = bytes + (2 * j + v) * kVector;
        if constexpr (is_bytes(F))
            return load_weights(p);
        else
            return load_bytes(p);
    }

    static DECODESTEP_INLINE void store(const PanelQuads<F>& quads, uint8_t* to) {
#pragma GCC unroll kUnrolled
        for (size_t i = 0; i < kQuads; ++i) {
            const size_t j = i / 2 + i % 2 * 4;  // a byte's low nibble, then its high one
#pragma GCC unroll kUnrolled
            for (size_t v = 0; v < 2; ++v) {
                uint8_t* p = to + (2 * j + v) * kVector;
                if constexpr (is_bytes(F))
                    store_weights(p, quads.quad(j, v));
                else
                    store_bits(p, words_of(quads.quad(j, v)));
            }
        }
    }
};

}  // namespace decodestep::DECODESTEP_BUILD
