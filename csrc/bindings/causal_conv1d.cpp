#include "recurrent/causal_conv1d.h"

#include "bindings/bindings.h"
#include "bindings/state_rows.h"

namespace decodestep {

void bind_causal_conv1d(nb::module_& m) {
    m.def(
        "causal_conv1d",
        [](Array<const float, 2> x, Array<const float, 2> taps, const std::optional<Vector>& bias, bool silu,
           Array<float, 3> state, Ids starts, Ids read, Ids written, Array<float, 2> y, int threads) {
            const size_t tokens = x.shape(0), channels = x.shape(1);
            require_aligned(x, taps, bias, state, y);
            require(taps.shape(0) > 0 && taps.shape(1) == channels, "taps has the wrong shape");
            require(!bias || bias->shape(0) == channels, "bias has the wrong shape");
            require(state.shape(1) == taps.shape(0) - 1 && state.shape(2) == channels, "state has the wrong shape");
            require(last_axis_is_packed(state), "the inputs of a state must be contiguous");
            require(y.shape(0) == tokens && y.shape(1) == channels, "y has the wrong shape");
            const StateRowsArgument rows(starts, read, written, tokens, state.shape(0));
            const CausalConv1d args{.x = x.data(),
                                    .x_stride = row_stride(x),
                                    .weight = taps.data(),
                                    .weight_stride = row_stride(taps),
                                    .bias = bias ? bias->data() : nullptr,
                                    .silu = silu,
                                    .tokens = tokens,
                                    .channels = channels,
                                    .taps = taps.shape(0),
                                    .state = state.data(),
                                    .state_stride = state.stride(0),
                                    .input_stride = state.stride(1),
                                    .rows = rows.rows(),
                                    .y = y.data(),
                                    .y_stride = row_stride(y),
                                    .threads = thread_count(threads)};
            if (channels == 0) return;
            const ReleasedGil released;
            causal_conv1d(args);
        },
        nb::arg("x").noconvert(), nb::arg("taps").noconvert(), nb::arg("bias").none().noconvert(), nb::arg("silu"),
        nb::arg("state").noconvert(), nb::arg("starts").noconvert(), nb::arg("read").noconvert(),
        nb::arg("written").noconvert(), nb::arg("y").noconvert(), nb::arg("threads"));
}

}  // namespace decodestep
