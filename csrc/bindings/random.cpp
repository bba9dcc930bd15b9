#include "random/random.h"

#include "bindings/bindings.h"

namespace decodestep {
namespace {

template <class T>
void bind(nb::module_& m, const char* name, void (*fill)(const Records&, T*, size_t)) {
    m.def(
        name,
        [fill](Packed<const uint64_t, 1> seed, Packed<const uint32_t, 1> position, Packed<const uint32_t, 1> token,
               Packed<T, 1> out) {
            require_aligned(seed, position, token, out);
            const size_t n = out.shape(0);
            for (const size_t length : {seed.shape(0), position.shape(0), token.shape(0)})
                require(length == n || length == 1, "a column must have one item, or as many as out");
            const Records records{seed.data(),   position.data(),   token.data(),
                                  seed.shape(0), position.shape(0), token.shape(0)};
            const ReleasedGil released;
            fill(records, out.data(), n);
        },
        nb::arg("seed").noconvert(), nb::arg("position").noconvert(), nb::arg("token").noconvert(),
        nb::arg("out").noconvert());
}

}  // namespace

void bind_random(nb::module_& m) {
    bind<uint32_t>(m, "noise_bits", noise_bits);
    bind<float>(m, "uniform", uniform);
    bind<float>(m, "exponential", exponential);
    bind<float>(m, "gumbel", gumbel);
}

}  // namespace decodestep
