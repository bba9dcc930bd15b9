// Noise as a pure function of (seed, position, token): MurmurHash3_x86_32 of the 16-byte record of these, mapped to the
// distributions that src/decodestep/random defines.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "core/exact_math.h"

namespace decodestep {

DECODESTEP_INLINE uint32_t mixed(uint32_t h, uint32_t word) {
    h ^= std::rotl(word * 0xCC9E2D51u, 15) * 0x1B873593u;
    return std::rotl(h, 13) * 5u + 0xE6546B64u;
}

// The state of the hash after seed and position, the same for every token of a row.
DECODESTEP_INLINE uint32_t noise_state(uint64_t seed, uint32_t position) {
    return mixed(mixed(mixed(0, static_cast<uint32_t>(seed)), static_cast<uint32_t>(seed >> 32)), position);
}

DECODESTEP_INLINE uint32_t noise_bits(uint32_t state, uint32_t token) {
    uint32_t h = mixed(state, token) ^ 16u;  // the record's length in bytes
    h = (h ^ (h >> 16)) * 0x85EBCA6Bu;
    h = (h ^ (h >> 13)) * 0xC2B2AE35u;
    return h ^ (h >> 16);
}

DECODESTEP_INLINE float uniform(uint32_t bits) {
    return std::min((static_cast<float>(bits) + 0.5f) * 0x1p-32f, 1.0f - 0x1p-24f);
}

DECODESTEP_INLINE float exponential(uint32_t bits) { return static_cast<float>(-log1p_neg(uniform(bits))); }

DECODESTEP_INLINE float gumbel(uint32_t bits) { return static_cast<float>(-natural_log(exponential(bits))); }

// The columns of a table of records; a column of length 1 has the same value in every record.
struct Records {
    const uint64_t* seed;
    const uint32_t* position;
    const uint32_t* token;
    size_t seeds, positions, tokens;

    uint32_t bits(size_t i) const {
        return noise_bits(noise_state(seed[seeds == 1 ? 0 : i], position[positions == 1 ? 0 : i]),
                          token[tokens == 1 ? 0 : i]);
    }
};

void noise_bits(const Records& records, uint32_t* out, size_t n);
void uniform(const Records& records, float* out, size_t n);
void exponential(const Records& records, float* out, size_t n);
void gumbel(const Records& records, float* out, size_t n);

}  // namespace decodestep
