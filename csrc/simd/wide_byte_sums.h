// ByteSums in 32 bits, for targets that have no use for narrower ones; the others define the same names.
#pragma once

namespace decodestep::DECODESTEP_BUILD {

// Sums of products of unsigned bytes with signed ones, of four inputs a step. They hold the steps whose largest
// unsigned bytes add up to this.
using ByteSums = i32x16;
constexpr int kByteSumsHold = 1 << 16;
constexpr bool kWideSums = true;
// Sums that begin at that of two int16, which lie side by side where the sums are two.
DECODESTEP_INLINE ByteSums starting_at(int32_t words) {
    return multiply_pairs(broadcast_int(words), broadcast_int(0x00010001));
}
DECODESTEP_INLINE ByteSums first_bytes(u8x64 w, i8x4 x) { return dot_nibbles(broadcast_int(0), w, x); }
DECODESTEP_INLINE void add_bytes(ByteSums& sums, u8x64 w, i8x4 x) { sums = dot_nibbles(sums, w, x); }
DECODESTEP_INLINE i32x16 total(ByteSums sums) { return sums; }

// Factors of ByteSums: sixteen unsigned bytes, or the first or second of sixteen pairs of int16. Sums times factors are
// less than 2^24, and so are exact as floats, which takes fewer instructions than products of integers.
using ByteProducts = f32x16;
DECODESTEP_INLINE f32x16 factors(const uint8_t* p) { return to_float(load_u8(p)); }
DECODESTEP_INLINE f32x16 first_factors(i32x16 pairs) { return to_float(multiply_pairs(pairs, broadcast_int(1))); }
DECODESTEP_INLINE f32x16 second_factors(i32x16 pairs) {
    return to_float(multiply_pairs(pairs, broadcast_int(1 << 16)));
}
DECODESTEP_INLINE ByteProducts total(ByteSums sums, f32x16 factors) { return to_float(sums) * factors; }
// products + the sums times the factors, less than 2^24 too.
DECODESTEP_INLINE ByteProducts add_total(ByteProducts products, ByteSums sums, f32x16 factors) {
    return fma(to_float(sums), factors, products);
}
DECODESTEP_INLINE f32x16 to_float(ByteProducts products) { return products; }

}  // namespace decodestep::DECODESTEP_BUILD
