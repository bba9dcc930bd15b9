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

// Checks the exponent in byte `at` of each block: 255 is NaN.
bool has_finite_exponents(const uint8_t* row, size_t blocks, size_t bytes, size_t at) {
    for (size_t b = 0; b < blocks; ++b)
        if (row[b * bytes + at] == 255) return false;
    return true;
}

bool has_finite_scales(const FormatTraits& of, const uint8_t* row, size_t blocks) {
    switch (of.scale) {
        case ScaleType::none:
            return true;
        case ScaleType::f16:
        case ScaleType::u4:
        case ScaleType::u8:
        case ScaleType::i8:
            return of.minima ? has_finite_halves<2>(row, blocks, of.bytes, of.floats_at)
                             : has_finite_halves<1>(row, blocks, of.bytes, of.floats_at);
        case ScaleType::e8m0:
            return has_finite_exponents(row, blocks, of.bytes, of.floats_at);
    }
    __builtin_unreachable();
}

}  // namespace

size_t first_row_without_finite_scales(const RowWeight& w) {
    const FormatTraits& of = traits(w.format);
    if (of.is_dense()) return w.out;
    for (size_t r = 0; r < w.out; ++r)
        if (!has_finite_scales(of, w.row(r), w.in / of.values)) return r;
    return w.out;
}

}  // namespace decodestep
