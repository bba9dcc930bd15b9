#include "elementwise/rms_norm.h"

#include "bindings/bindings.h"

namespace decodestep {

void bind_rms_norm(nb::module_& m) {
    m.def(
        "rms_norm",
        [](Array<const float, 2> x, Packed<const float, 1> gamma, float eps, float alpha, Array<float, 2> y,
           int threads) {
            require_aligned(x, gamma, y);
            require(y.shape(0) == x.shape(0) && y.shape(1) == x.shape(1), "y has the wrong shape");
            require(gamma.shape(0) == x.shape(1), "gamma has the wrong shape");
            const RmsNorm args{.x = x.data(),
                               .x_stride = row_stride(x),
                               .rows = x.shape(0),
                               .width = x.shape(1),
                               .gamma = gamma.data(),
                               .eps = eps,
                               .alpha = alpha,
                               .y = y.data(),
                               .y_stride = row_stride(y),
                               .threads = thread_count(threads)};
            if (y.size() == 0) return;
            const ReleasedGil released;
            rms_norm(args);
        },
        nb::arg("x").noconvert(), nb::arg("gamma").noconvert(), nb::arg("eps"), nb::arg("alpha"),
        nb::arg("y").noconvert(), nb::arg("threads"));
}

}  // namespace decodestep
