#include "random/random.h"

#include "core/float_environment.h"

namespace decodestep {
namespace {

template <class T, class Map>
void fill(const Records& records, T* out, size_t n, Map map) {
    const DefaultFloats floats;
    // One row of the vocabulary: a loop that the compiler vectorises.
    if (records.seeds == 1 && records.positions == 1 && records.tokens == n) {
        const uint32_t state = noise_state(*records.seed, *records.position);
        for (size_t i = 0; i < n; ++i) out[i] = map(noise_bits(state, records.token[i]));
    } else {
        for (size_t i = 0; i < n; ++i) out[i] = map(records.bits(i));
    }
}

}  // namespace

void noise_bits(const Records& records, uint32_t* out, size_t n) {
    fill(records, out, n, [](uint32_t bits) { return bits; });
}

void uniform(const Records& records, float* out, size_t n) {
    fill(records, out, n, [](uint32_t bits) { return uniform(bits); });
}

void exponential(const Records& records, float* out, size_t n) {
    fill(records, out, n, [](uint32_t bits) { return exponential(bits); });
}

void gumbel(const Records& records, float* out, size_t n) {
    fill(records, out, n, [](uint32_t bits) { return gumbel(bits); });
}

}  // namespace decodestep
