#include "elementwise/swiglu.h"

#include "core/parallel.h"
#include "elementwise/silu.h"

namespace decodestep::DECODESTEP_BUILD {

void swiglu(const Swiglu& a) {
    parallel_rows(a.rows, a.width, a.threads, [&](size_t row) {
        const float *gate = a.gate + row * a.gate_stride, *up = a.up + row * a.up_stride;
        float* y = a.y + row * a.y_stride;
        size_t i = 0;
        for (; i + kLanes <= a.width; i += kLanes) store(y + i, gated(load(gate + i), load(up + i)));
        if (const size_t rest = a.width - i; rest > 0)
            store_partial(y + i, gated(load_partial(gate + i, rest), load_partial(up + i, rest)), rest);
    });
}

}  // namespace decodestep::DECODESTEP_BUILD
