#include "linear/linear.h"

#include "bindings/bindings.h"

namespace decodestep {

void bind_linear(nb::module_& m) {
    m.def(
        "linear",
        [](Array<const float, 2> x, Bytes w, int format, Array<float, 2> y, int threads) {
            const Rows rows = rows_of(w, format, x.shape(1));
            require_aligned(x, y);
            require(y.shape(0) == x.shape(0) && y.shape(1) == w.shape(0), "y has the wrong shape");
            const Linear args{x.data(),    row_stride(x), x.shape(0), x.shape(1),    w.shape(0),           rows.data,
                              rows.stride, rows.format,   y.data(),   row_stride(y), thread_count(threads)};
            nb::gil_scoped_release release;
            linear(args);
        },
        nb::arg("x").noconvert(), nb::arg("w").noconvert(), nb::arg("format"), nb::arg("y").noconvert(),
        nb::arg("threads"));
    m.def(
        "take_rows",
        [](Bytes w, int format, Packed<const int64_t, 1> ids, Packed<float, 2> values) {
            const Rows rows = rows_of(w, format, values.shape(1));
            require_aligned(ids, values);
            require(values.shape(0) == ids.shape(0), "values has the wrong shape");
            for (size_t i = 0; i < ids.shape(0); ++i)
                require(ids.data()[i] >= 0 && ids.data()[i] < static_cast<int64_t>(w.shape(0)),
                        "a row id is out of range");
            take_rows({rows.data, rows.stride, rows.in, rows.format, ids.data(), ids.shape(0), values.data()});
        },
        nb::arg("w").noconvert(), nb::arg("format"), nb::arg("ids").noconvert(), nb::arg("values").noconvert());
    m.def(
        "pack_linear_panels",
        [](Bytes w, int format, size_t in, Packed<uint8_t, 1> panels, int panel_format, int threads) {
            const Rows rows = rows_of(w, format, in);
            const Panels made = panels_of(panels, panel_format, in, rows.out);
            require(made.format == rows.format || made.format == Format::q8_0 || made.format == Format::bf16,
                    "panels are in the format of the rows, in q8_0 or in bf16");
            const PackLinearPanels args{rows, made.format, panels.data(), thread_count(threads)};
            nb::gil_scoped_release release;
            pack_linear_panels(args);
        },
        nb::arg("w").noconvert(), nb::arg("format"), nb::arg("inputs"), nb::arg("panels").noconvert(),
        nb::arg("panel_format"), nb::arg("threads"));
    m.def(
        "linear_panels",
        [](Array<const float, 2> x, Packed<const uint8_t, 1> panels, int format, Array<float, 2> y, int threads) {
            require_aligned(x, y);
            require(y.shape(0) == x.shape(0), "y has the wrong shape");
            const LinearPanels args{
                x.data(), row_stride(x), x.shape(0),           panels_of(panels, format, x.shape(1), y.shape(1)),
                y.data(), row_stride(y), thread_count(threads)};
            nb::gil_scoped_release release;
            linear_panels(args);
        },
        nb::arg("x").noconvert(), nb::arg("panels").noconvert(), nb::arg("format"), nb::arg("y").noconvert(),
        nb::arg("threads"));
}

}  // namespace decodestep
