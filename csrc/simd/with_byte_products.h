// Products of bytes of targets with an instruction for groups of four, from their dot_quads and dot_nibbles. Included
// at the end of such a target's file.
#pragma once

namespace decodestep::DECODESTEP_BUILD {

// Weights of dot_bytes are stored as q + 128; this much of the 128 is left in the products, for the caller to subtract.
constexpr int kByteOffset = 128;
DECODESTEP_INLINE i32x16 dot_bytes(i32x16 sums, u8x64 w, i8x4 x) { return dot_nibbles(sums, w, x); }

// Products of groups: see without_byte_products.h.
using I8Quads = i32x16;
constexpr bool kUnsignedTokens = true;
DECODESTEP_INLINE I8Quads i8_quads(i32x16 bits) { return bits; }
DECODESTEP_INLINE i32x16 add_products(i32x16 sums, I8Quads x, I8Quads w) { return dot_quads(sums, x, w); }

}  // namespace decodestep::DECODESTEP_BUILD
