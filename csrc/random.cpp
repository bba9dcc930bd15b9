#include "random.h"

namespace decodestep {

void noise_bits(const Records& records, uint32_t* out, size_t n) {
    for (size_t i = 0; i < n; ++i) out[i] = records.bits(i);
}

void uniform(const Records& records, float* out, size_t n) {
    for (size_t i = 0; i < n; ++i) out[i] = uniform(records.bits(i));
}

void exponential(const Records& records, float* out, size_t n) {
    for (size_t i = 0; i < n; ++i) out[i] = exponential(records.bits(i));
}

void gumbel(const Records& records, float* out, size_t n) {
    for (size_t i = 0; i < n; ++i) out[i] = gumbel(records.bits(i));
}

}  // namespace decodestep
