#include "linear/linear.h"

#include "bindings/bindings.h"

namespace decodestep {
namespace {

void call_linear(Array<const float, 2> x, Bytes w, int format, Array<float, 2> y, int threads) {
    require_aligned(x, y);
    require(y.shape(0) == x.shape(0) && y.shape(1) == w.shape(0), "y has the wrong shape");
    const Linear args{.x = x.data(),
                      .x_stride = row_stride(x),
                      .tokens = x.shape(0),
                      .w = row_weight_of(w, format, x.shape(1)),
                      .y = y.data(),
                      .y_stride = row_stride(y),
                      .threads = thread_count(threads)};
    nb::gil_scoped_release release;
    linear(args);
}

void call_gather_rows(Bytes w, int format, Ids ids, Packed<float, 2> values, int threads) {
    const RowWeight weight = row_weight_of(w, format, values.shape(1));
    require_aligned(ids, values);
    require(values.shape(0) == ids.shape(0), "values has the wrong shape");
    const std::vector<int64_t> rows = copy_of(ids);
    for (const int64_t row : rows)
        require(row >= 0 && row < static_cast<int64_t>(weight.out), "a row id is out of range");
    const GatherRows args{.w = weight,
                          .ids = rows.data(),
                          .count = rows.size(),
                          .values = values.data(),
                          .threads = thread_count(threads)};
    nb::gil_scoped_release release;
    gather_rows(args);
}

void call_pack_linear_panels(Bytes w, int format, size_t inputs, Packed<uint8_t, 1> panels, int panel_format,
                             int threads) {
    const RowWeight rows = row_weight_of(w, format, inputs);
    const LinearPanelWeight packed = panel_weight_of(panels, panel_format, inputs, rows.out);
    require(packed.format == rows.format || packed.format == Format::q8_0 || packed.format == Format::bf16,
            "panels must be in the format of the rows, in q8_0 or in bf16");
    const PackLinearPanels args{
        .rows = rows, .format = packed.format, .panels = panels.data(), .threads = thread_count(threads)};
    nb::gil_scoped_release release;
    pack_linear_panels(args);
}

void call_linear_panels(Array<const float, 2> x, Packed<const uint8_t, 1> panels, int format, Array<float, 2> y,
                        int threads) {
    require_aligned(x, y);
    require(y.shape(0) == x.shape(0), "y has the wrong shape");
    const LinearPanels args{.x = x.data(),
                            .x_stride = row_stride(x),
                            .tokens = x.shape(0),
                            .w = panel_weight_of(panels, format, x.shape(1), y.shape(1)),
                            .y = y.data(),
                            .y_stride = row_stride(y),
                            .threads = thread_count(threads)};
    nb::gil_scoped_release release;
    linear_panels(args);
}

}  // namespace

void bind_linear(nb::module_& m) {
    m.def("linear", &call_linear, nb::arg("x").noconvert(), nb::arg("w").noconvert(), nb::arg("format"),
          nb::arg("y").noconvert(), nb::arg("threads"));
    m.def("gather_rows", &call_gather_rows, nb::arg("w").noconvert(), nb::arg("format"), nb::arg("ids").noconvert(),
          nb::arg("values").noconvert(), nb::arg("threads"));
    m.def("pack_linear_panels", &call_pack_linear_panels, nb::arg("w").noconvert(), nb::arg("format"),
          nb::arg("inputs"), nb::arg("panels").noconvert(), nb::arg("panel_format"), nb::arg("threads"));
    m.def("linear_panels", &call_linear_panels, nb::arg("x").noconvert(), nb::arg("panels").noconvert(),
          nb::arg("format"), nb::arg("y").noconvert(), nb::arg("threads"));
}

}  // namespace decodestep
