#include "elementwise/swiglu.h"

#include "bindings/bindings.h"

namespace decodestep {

void bind_swiglu(nb::module_& m) {
    m.def(
        "swiglu",
        [](Array<const float, 2> gate, Array<const float, 2> up, Array<float, 2> y, int threads) {
            require_aligned(gate, up, y);
            require(up.shape(0) == gate.shape(0) && up.shape(1) == gate.shape(1), "up has the wrong shape");
            require(y.shape(0) == gate.shape(0) && y.shape(1) == gate.shape(1), "y has the wrong shape");
            const Swiglu args{.gate = gate.data(),
                              .up = up.data(),
                              .gate_stride = row_stride(gate),
                              .up_stride = row_stride(up),
                              .rows = gate.shape(0),
                              .width = gate.shape(1),
                              .y = y.data(),
                              .y_stride = row_stride(y),
                              .threads = thread_count(threads)};
            if (y.size() == 0) return;
            const ReleasedGil released;
            swiglu(args);
        },
        nb::arg("gate").noconvert(), nb::arg("up").noconvert(), nb::arg("y").noconvert(), nb::arg("threads"));
}

}  // namespace decodestep
