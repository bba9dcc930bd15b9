#include "elementwise/rms_norm.h"

#include "bindings/bindings.h"

namespace decodestep {

void bind_rms_norm(nb::module_& m) {
    m.def(
        "rms_norm",
        [](Array<const float, 2> x, std::optional<Packed<const float, 1>> gamma, float eps, float alpha,
           Array<float, 2> y) {
            require_aligned(x, gamma, y);
            require(y.shape(0) == x.shape(0) && y.shape(1) == x.shape(1), "y has the wrong shape");
            require(!gamma || gamma->shape(0) == x.shape(1), "gamma has the wrong shape");
            rms_norm({x.data(), row_stride(x), x.shape(0), x.shape(1), gamma ? gamma->data() : nullptr, eps, alpha,
                      y.data(), row_stride(y)});
        },
        nb::arg("x").noconvert(), nb::arg("gamma").none().noconvert(), nb::arg("eps"), nb::arg("alpha"),
        nb::arg("y").noconvert());
}

}  // namespace decodestep
