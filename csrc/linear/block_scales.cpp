#include "linear/block_scales.h"

#include <cstring>

namespace decodestep {
namespace {

// Checks `count` float16 from byte `at` of each of a row's blocks. The exponent of one that is not finite is all ones:
// adding one carries into bit 15.
template <size_t count>
bool has_finite_halves(const uint8_t* row, size_t blocks, size_t bytes, size_t at) {
    uint32_t carried = 0;
    for (size_t b = 0; b < blocks; ++b)
        for (size_t i = 0; i < count; ++i) {
            uint16_t half;
            std::memcpy(&half, row + b * bytes + at + 2 * i, sizeof half);
            carried |= (half & 0x7c00u) + 0x400u;
        }
    return !(carried & 0x8000u);
}

// The exponents of MXFP4, the first byte of a block: 255 is NaN.
bool has_finite_exponents(const uint8_t* row, size_t blocks, size_t bytes) {
    for (size_t b = 0; b < blocks; ++b)
        if (row[b * bytes] == 255) return false;
    return true;
}

bool has_finite_scales(Format format, const uint8_t* row, size_t blocks, size_t bytes) {
    switch (format) {
        case Format::q4_1:
        case Format::q5_1:
        case Format::q4_k:
        case Format::q5_k:
            return has_finite_halves<2>(row, blocks, bytes, 0);
        case Format::q6_k:
            return has_finite_halves<1>(row, blocks, bytes, bytes - 2);
        case Format::mxfp4:
            return has_finite_exponents(row, blocks, bytes);
        default:
            return has_finite_halves<1>(row, blocks, bytes, 0);
    }
}

}  // namespace

size_t first_row_without_finite_scales(const RowWeight& w) {
    const BlockSize block = kBlockSizes[static_cast<int>(w.format)];
    if (block.values == 1) return w.out;
    for (size_t r = 0; r < w.out; ++r)
        if (!has_finite_scales(w.format, w.row(r), w.in / block.values, block.bytes)) return r;
    return w.out;
}

}  // namespace decodestep
