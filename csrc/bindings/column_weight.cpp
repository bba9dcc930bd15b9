#include "mla_prolog/column_weight.h"

#include "bindings/bindings.h"
#include "core/parallel.h"

namespace decodestep {
namespace {

// The core reads rows of contiguous values that ascend in memory; the caller copies other arrays first.
void require_rows(const Any& w, size_t row_axis) {
    if (w.size() == 0) return;
    require(w.shape(row_axis + 1) == 1 || w.stride(row_axis + 1) == 1, "a row of a weight must be contiguous");
    for (size_t i = 0; i <= row_axis; ++i)
        require(w.shape(i) == 1 || w.stride(i) >= 0, "a weight must ascend in memory");
}

}  // namespace

ColumnWeight column_weight_of(const Any& w, size_t in, size_t out, size_t count) {
    require(in <= kMaxAxis && out <= kMaxAxis && count <= kMaxAxis, "a weight is too large");
    require_aligned_any(w);
    const WeightType value = weight_type_of(w);
    ColumnWeight made{.data = w.data(),
                      .value = value,
                      .in = in,
                      .out = out,
                      .layout = ColumnLayout::rows,
                      .width = out ? out : 1,
                      .panel_stride = 0,
                      .row_stride = 0};
    if (w.ndim() == 1) {
        made.layout = ColumnLayout::packed;
        const size_t bytes = panel_count(out) * panel_bytes(value, in), batch = count ? count : 1;
        require(value != WeightType::f8 && contiguous(w) && bytes / value_bytes(value) * batch == w.shape(0) &&
                    bytes < (size_t{1} << 48),
                "a packed weight has the wrong length");
    } else if (count) {
        require(w.ndim() == 3 && w.shape(0) == count && w.shape(1) == in && w.shape(2) == out,
                "the weights have the wrong shape");
        require_rows(w, 1);
        made.row_stride = static_cast<size_t>(w.stride(1));
    } else if (w.ndim() == 2) {
        require(w.shape(0) == in && w.shape(1) == out, "the weight has the wrong shape");
        require_rows(w, 0);
        made.row_stride = static_cast<size_t>(w.stride(0));
    } else {
        require(w.ndim() == 3 && w.shape(1) >= in && w.shape(2) > 0 && w.shape(2) <= kMaxAxis &&
                    w.shape(0) <= kMaxAxis && w.shape(0) * w.shape(2) >= out,
                "the panels of a weight have the wrong shape");
        require_rows(w, 1);
        made.layout = ColumnLayout::nz;
        made.width = w.shape(2);
        made.panel_stride = static_cast<size_t>(w.stride(0));
        made.row_stride = static_cast<size_t>(w.stride(1));
    }
    return made;
}

void bind_column_weight(nb::module_& m) {
    m.def(
        "pack_columns",
        [](Any w, size_t in, size_t out, size_t count, Packed<uint8_t, 1> to, int threads) {
            ColumnWeight from = column_weight_of(w, in, out, count);
            require(!from.packed(), "the weight is packed");
            const size_t bytes = panel_count(out) * panel_bytes(from.value, in), batch = count ? count : 1;
            require(to.shape(0) == bytes * batch, "`to` has the wrong length");
            require(reinterpret_cast<uintptr_t>(to.data()) % sizeof(uint32_t) == 0, "`to` must be aligned to words");
            const ptrdiff_t stride = count ? w.stride(0) * static_cast<ptrdiff_t>(value_bytes(from.value)) : 0;
            thread_count(threads);
            const ReleasedGil released;
            const size_t stride_of_panels = panel_bytes(from.value, in), blocks = ceil_div(in, kBlockInputs),
                         panels = kColumnPanels * kPanelOutputs;
            for (size_t i = 0; i < batch; ++i) {
                parallel_for(ceil_div(out, panels), threads, [&](size_t span) {
                    pack_columns({from, span * panels, std::min(out, (span + 1) * panels), 0, blocks,
                                  to.data() + i * bytes + span * kColumnPanels * stride_of_panels, stride_of_panels});
                });
                from.data = static_cast<const uint8_t*>(from.data) + stride;
            }
        },
        nb::arg("w").noconvert(), nb::arg("inputs"), nb::arg("outputs"), nb::arg("count"), nb::arg("to").noconvert(),
        nb::arg("threads"));
}

}  // namespace decodestep
