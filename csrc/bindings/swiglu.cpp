#include "elementwise/swiglu.h"

#include "bindings/bindings.h"

namespace decodestep {

void bind_swiglu(nb::module_& m) {
    m.def(
        "swiglu",
        [](Array<const float, 2> gate, Array<const float, 2> up, Array<float, 2> y) {
            require_aligned(gate, up, y);
            require(up.shape(0) == gate.shape(0) && up.shape(1) == gate.shape(1), "up has the wrong shape");
            require(y.shape(0) == gate.shape(0) && y.shape(1) == gate.shape(1), "y has the wrong shape");
            swiglu({gate.data(), up.data(), row_stride(gate), row_stride(up), gate.shape(0), gate.shape(1), y.data(),
                    row_stride(y)});
        },
        nb::arg("gate").noconvert(), nb::arg("up").noconvert(), nb::arg("y").noconvert());
}

}  // namespace decodestep
