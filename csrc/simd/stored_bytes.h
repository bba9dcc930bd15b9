// Weights of dot_bytes in the form in which many tokens are multiplied by them: as they are.
#pragma once

namespace decodestep::DECODESTEP_BUILD {

using StoredBytes = u8x64;
constexpr size_t kStoredBytes = 64;
DECODESTEP_INLINE void store_weights(uint8_t* p, u8x64 w) { store_bits(p, words_of(w)); }
DECODESTEP_INLINE StoredBytes load_weights(const uint8_t* p) { return load_bytes(p); }

}  // namespace decodestep::DECODESTEP_BUILD
