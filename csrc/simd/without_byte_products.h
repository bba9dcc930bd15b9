// Products of groups of four int8 for targets that have no instruction for them, from their other primitives. Included
// at the end of such a target's file.
//
// A target multiplies sixteen groups by sixteen groups and adds the products to sixteen sums, which are exact.
#pragma once

namespace decodestep::DECODESTEP_BUILD {

struct I8Quads {
    i32x16 even, odd;
};
// Whether the bytes of the first factor are unsigned: they are then a token's values + 128.
constexpr bool kUnsignedTokens = false;
DECODESTEP_INLINE I8Quads i8_quads(i32x16 bits) { return {even_bytes(bits), odd_bytes(bits)}; }
DECODESTEP_INLINE i32x16 add_products(i32x16 sums, const I8Quads& x, const I8Quads& w) {
    return sums + (multiply_pairs(x.even, w.even) + multiply_pairs(x.odd, w.odd));
}

}  // namespace decodestep::DECODESTEP_BUILD
