// The formats of weights. Every fact about a format stands in its row of the table below; nothing takes a format that
// it does not know for another, so what is missing does not compile. For a new format:
//   - its row, and its name and blocks in src/decodestep/weights (packed.py, blocks.py);
//   - how a row's block is widened: RowBlock (row_block.h);
//   - where in a file's block the numbers of a panel lie: split_block and join_block (split_blocks.h, join_blocks.h);
//   - if values are rounded to it: put_blocks (quantise_blocks.cpp);
//   - if it has a new type of scale or a new table: what the compiler then names.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/compiler.h"

namespace decodestep {

// How a panel holds the scale of a sub-block.
enum class ScaleType : uint8_t {
    none,  // dense formats
    f16,
    e8m0,  // the power of two 2^(e - 127)
    // Blocks of 256: multiples of the block's float16 scale.
    u4,  // with the minimum in the upper half of the byte
    u8,
    i8,
};

// The values that integers stand for: themselves, or those of a table of small_blocks.h.
enum class ValueTable : uint8_t { none, iq4, mxfp4 };

struct FormatTraits {
    const char* name;
    size_t values, bytes;         // of a block of a row
    size_t low_bits, upper_bits;  // of an integer: its lower bits, and those that are stored apart from them
    ValueTable table;
    int offset;        // products read unsigned bytes, which are this much above the values
    size_t sub_block;  // values that share a scale
    ScaleType scale;
    bool minima;           // sub-blocks have a minimum too: of float16, added; an integer, subtracted
    size_t floats_at;      // the byte of a block where its float16 scale is, then its minimum; or its exponent
    bool is_quantised_to;  // values can be rounded to it: quantise_blocks.h

    constexpr DECODESTEP_INLINE bool is_dense() const { return scale == ScaleType::none; }
};

// The rows are numbered from 0 on, as in src/decodestep/weights/packed.py.
// clang-format off
#define DECODESTEP_FORMATS(ROW)                                                                               \
    /*  name    values bytes  low upper  table  offset  sub-block scale minima  floats at  quantised to */    \
    ROW(f32,    1,     4,     0,  0,     none,  0,      0,        none, false,  0,         false)             \
    ROW(f16,    1,     2,     0,  0,     none,  0,      0,        none, false,  0,         false)             \
    ROW(bf16,   1,     2,     0,  0,     none,  0,      0,        none, false,  0,         false)             \
    ROW(q4_0,   32,    18,    4,  0,     none,  8,      32,       f16,  false,  0,         true)              \
    ROW(q4_1,   32,    20,    4,  0,     none,  0,      32,       f16,  true,   0,         false)             \
    ROW(q8_0,   32,    34,    8,  0,     none,  128,    32,       f16,  false,  0,         true)              \
    ROW(q4_k,   256,   144,   4,  0,     none,  0,      32,       u8,   true,   0,         true)              \
    ROW(q5_k,   256,   176,   4,  1,     none,  0,      32,       u8,   true,   0,         true)              \
    ROW(q6_k,   256,   210,   4,  2,     none,  32,     16,       i8,   false,  208,       true)              \
    ROW(q5_0,   32,    22,    4,  1,     none,  16,     32,       f16,  false,  0,         true)              \
    ROW(q5_1,   32,    24,    4,  1,     none,  0,      32,       f16,  true,   0,         false)             \
    ROW(iq4_nl, 32,    18,    4,  0,     iq4,   128,    32,       f16,  false,  0,         false)             \
    ROW(iq4_xs, 256,   136,   4,  0,     iq4,   128,    32,       i8,   false,  0,         false)             \
    ROW(mxfp4,  32,    17,    4,  0,     mxfp4, 12,     32,       e8m0, false,  0,         false)             \
    ROW(q2_k,   256,   84,    2,  0,     none,  0,      16,       u4,   true,   80,        true)              \
    ROW(q3_k,   256,   110,   2,  1,     none,  4,      16,       i8,   false,  108,       true)
// clang-format on

#define DECODESTEP_FORMAT_NAME(name, ...) name,
enum class Format : int { DECODESTEP_FORMATS(DECODESTEP_FORMAT_NAME) };
#undef DECODESTEP_FORMAT_NAME

#define DECODESTEP_FORMAT_TRAITS(name, values, bytes, low, upper, table, offset, sub_block, scale, minima, at, rounds) \
    {#name, values, bytes, low, upper, ValueTable::table, offset, sub_block, ScaleType::scale, minima, at, rounds},
constexpr FormatTraits kFormats[] = {DECODESTEP_FORMATS(DECODESTEP_FORMAT_TRAITS)};
#undef DECODESTEP_FORMAT_TRAITS

constexpr DECODESTEP_INLINE const FormatTraits& traits(Format format) { return kFormats[static_cast<int>(format)]; }

// Bytes of a row of `values` weights; 0 if the format does not allow rows of that length.
constexpr DECODESTEP_INLINE size_t row_bytes(Format format, size_t values) {
    const FormatTraits& of = traits(format);
    return values % of.values ? 0 : values / of.values * of.bytes;
}

}  // namespace decodestep
