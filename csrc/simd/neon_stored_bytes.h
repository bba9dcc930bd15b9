// Weights of dot_bytes in the form in which many tokens are multiplied by them: signed.
#pragma once

namespace decodestep::DECODESTEP_BUILD {

struct StoredBytes {
    u8x64 v;
};
constexpr size_t kStoredBytes = 64;
DECODESTEP_INLINE void store_weights(uint8_t* p, u8x64 w) { store_bits(p, words_of(without_offset(w))); }
DECODESTEP_INLINE StoredBytes load_weights(const uint8_t* p) { return {load_bytes(p)}; }
DECODESTEP_INLINE i32x16 dot_bytes(i32x16 sums, StoredBytes w, i8x4 x) { return dot_signed(sums, w.v, x); }

}  // namespace decodestep::DECODESTEP_BUILD
