// Products of weights with activations for NEON targets that multiply signed bytes alone, from their dot_signed.
// Included at the end of such a target's file.
#pragma once

namespace decodestep::DECODESTEP_BUILD {

DECODESTEP_INLINE i32x16 dot_signed(i32x16 sums, u8x64 w, i8x4 x) {
    return int_quarters(
        [&](int q) DECODESTEP_INLINE_LAMBDA { return dot_signed(sums.v[q], vreinterpretq_s8_u32(w.v[q]), x.v); });
}
// Their bytes have less than eight bits.
DECODESTEP_INLINE i32x16 dot_nibbles(i32x16 sums, u8x64 w, i8x4 x) { return dot_signed(sums, w, x); }
// Weights of dot_bytes are stored as q + 128; this much of the 128 is left in the products, for the caller to subtract.
constexpr int kByteOffset = 0;
DECODESTEP_INLINE u8x64 without_offset(u8x64 w) {
    return bytes_of(words_of(w) ^ broadcast_int(static_cast<int32_t>(0x80808080u)));
}
DECODESTEP_INLINE i32x16 dot_bytes(i32x16 sums, u8x64 w, i8x4 x) { return dot_signed(sums, without_offset(w), x); }

}  // namespace decodestep::DECODESTEP_BUILD
