#include "../columns.h"

#include "bindings.h"

namespace decodestep {
namespace {

// The sums of int8 are exact because of this.
bool holds_int8(const Array<const float, 3>& x) {
    bool all = true;
    for (size_t b = 0; b < x.shape(0); ++b)
        for (size_t t = 0; t < x.shape(1); ++t) {
            const float* row =
                x.data() + static_cast<ptrdiff_t>(b) * x.stride(0) + static_cast<ptrdiff_t>(t) * x.stride(1);
            for (size_t k = 0; k < x.shape(2); ++k) all &= row[k] >= -128.0f && row[k] <= 127.0f;
        }
    return all;
}

// A weight (batch, inputs, outputs), or cut into panels as (outputs / c0, inputs, c0) of one batch row.
template <class W>
void bind(nb::module_& m, const char* name, Value value) {
    m.def(
        name,
        [value](Array<const float, 3> x, Array<const W, 3> w, bool panels, Array<float, 3> y, int threads) {
            require_aligned(x, w, y);
            const size_t batch = x.shape(0), tokens = x.shape(1), in = x.shape(2), out = y.shape(2);
            require(y.shape(0) == batch && y.shape(1) == tokens, "y has the wrong shape");
            require(value != Value::i8 || in < (size_t{1} << 17), "an exact sum of int8 needs fewer inputs");
            require(x.size() == 0 || in == 1 || x.stride(2) == 1, "the values of a token must be contiguous");
            require(value != Value::i8 || holds_int8(x), "a value of a token must be within int8");
            require(y.size() == 0 || out == 1 || y.stride(2) == 1, "the results of a token must be contiguous");
            require(w.size() == 0 || w.shape(2) == 1 || w.stride(2) == 1, "a row of the weight must be contiguous");
            require(w.size() == 0 || (w.stride(0) >= 0 && w.stride(1) >= 0), "a weight must ascend in memory");
            if (panels)
                require(batch == 1 && w.shape(1) >= in && w.shape(2) % 16 == 0 && w.shape(0) * w.shape(2) >= out,
                        "the panels have the wrong shape");
            else
                require(w.shape(0) == batch && w.shape(1) == in && w.shape(2) == out, "the weight has the wrong shape");
            const size_t stride = w.stride(0);
            const Columns args{.x = x.data(),
                               .x_batch = x.stride(0),
                               .x_token = x.stride(1),
                               .batch = batch,
                               .tokens = tokens,
                               .in = in,
                               .out = out,
                               .w = w.data(),
                               .value = value,
                               .panel = w.shape(2) ? w.shape(2) : 1,
                               .panel_stride = panels ? stride : 0,
                               .row_stride = static_cast<size_t>(w.stride(1)),
                               .w_batch = panels ? 0 : stride,
                               .y = y.data(),
                               .y_batch = y.stride(0),
                               .y_token = y.stride(1),
                               .threads = thread_count(threads)};
            nb::gil_scoped_release release;
            columns(args);
        },
        nb::arg("x").noconvert(), nb::arg("w").noconvert(), nb::arg("panels"), nb::arg("y").noconvert(),
        nb::arg("threads"));
}

}  // namespace

void bind_columns(nb::module_& m) {
    bind<float>(m, "columns_f32", Value::f32);
    bind<uint16_t>(m, "columns_bf16", Value::bf16);
    bind<int8_t>(m, "columns_i8", Value::i8);
}

}  // namespace decodestep
