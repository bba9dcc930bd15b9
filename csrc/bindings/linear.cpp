#include "linear/linear.h"

#include <algorithm>
#include <limits>

#include "bindings/bindings.h"
#include "linear/file_rows.h"
#include "linear/quantise_blocks.h"
#include "linear/unpack_linear_panels.h"

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
    if (y.size() == 0) return;
    const ReleasedGil released;
    linear(args);
}

void call_grouped_products(Array<const float, 2> x, Bytes w, int format, Ids groups, Packed<float, 2> y, int threads) {
    const RowWeight weight = row_weight_of(w, format, x.shape(1));
    const size_t tokens = x.shape(0), outputs = y.shape(1);
    require_aligned(x, groups, y);
    require(y.shape(0) == tokens && groups.shape(0) == tokens, "groups or y has the wrong shape");
    if (y.size() == 0) return;
    const std::vector<int64_t> of_tokens = copy_of(groups);
    require(std::is_sorted(of_tokens.begin(), of_tokens.end()), "groups must ascend");
    require(of_tokens.front() >= 0 && static_cast<size_t>(of_tokens.back()) < weight.out / outputs,
            "a group is out of range");
    const GroupedProducts args{.x = x.data(),
                               .x_stride = row_stride(x),
                               .tokens = tokens,
                               .w = weight,
                               .groups = of_tokens.data(),
                               .outputs = outputs,
                               .y = y.data(),
                               .threads = thread_count(threads)};
    const ReleasedGil released;
    grouped_products(args);
}

void call_head_products(Array<const float, 3> x, Bytes w, int format, size_t inputs, size_t first, size_t count,
                        bool transposed, Packed<float, 3> y, int threads) {
    const RowWeight weight = row_weight_of(w, format, inputs);
    const size_t tokens = x.shape(0), heads = x.shape(1);
    require_aligned(x, y);
    require(heads > 0 && weight.out % heads == 0, "the rows of a weight must be a multiple of the heads");
    require(first <= weight.out / heads && count <= weight.out / heads - first, "a head has fewer rows");
    require(x.shape(2) == (transposed ? count : inputs), "x has the wrong shape");
    require(y.shape(0) == tokens && y.shape(1) == heads && y.shape(2) == (transposed ? inputs : count),
            "y has the wrong shape");
    require(x.size() == 0 || x.shape(2) == 1 || x.stride(2) == 1, "the rows of x must be contiguous");
    if (y.size() == 0) return;
    const HeadProducts args{.x = x.data(),
                            .x_stride = x.stride(0),
                            .x_head_stride = x.stride(1),
                            .tokens = tokens,
                            .heads = heads,
                            .w = weight,
                            .first = first,
                            .count = count,
                            .transposed = transposed,
                            .y = y.data(),
                            .threads = thread_count(threads)};
    const ReleasedGil released;
    head_products(args);
}

// A copy of `ids`, all of them in [0, end).
std::vector<int64_t> ids_below(size_t end, const Ids& ids) {
    std::vector<int64_t> copied = copy_of(ids);
    require(all_within(copied, end), "a row id is out of range");
    return copied;
}

// Calls the kernel for rows `ids` of a weight: GatherRows or GatherPanels.
template <class Args, class Weight, class Kernel>
void gather(const Weight& weight, const Ids& ids, const Packed<float, 2>& values, int threads, Kernel&& kernel) {
    require_aligned(ids, values);
    require(values.shape(0) == ids.shape(0), "values has the wrong shape");
    const std::vector<int64_t> rows = ids_below(weight.out, ids);
    const Args args{.w = weight,
                    .ids = rows.data(),
                    .count = rows.size(),
                    .values = values.data(),
                    .threads = thread_count(threads)};
    const ReleasedGil released;
    kernel(args);
}

void call_gather_rows(Bytes w, int format, Ids ids, Packed<float, 2> values, int threads) {
    gather<GatherRows>(row_weight_of(w, format, values.shape(1)), ids, values, threads,
                       [](const GatherRows& args) { gather_rows(args); });
}

void call_gather_panels(Packed<const uint8_t, 1> panels, int format, size_t outputs, Ids ids, Packed<float, 2> values,
                        int threads) {
    gather<GatherPanels>(panel_weight_of(panels, format, values.shape(1), outputs), ids, values, threads,
                         [](const GatherPanels& args) { gather_panels(args); });
}

void require_packable(Format rows, Format panels) {
    require(panels == rows || panels == Format::bf16 || traits(panels).is_quantised_to,
            "panels must be in the format of the rows, or in one that values can be rounded to");
}

void call_pack_linear_panels(Bytes w, int format, size_t inputs, Packed<uint8_t, 1> panels, int panel_format,
                             int threads) {
    const RowWeight rows = row_weight_of(w, format, inputs);
    const LinearPanelWeight packed = panel_weight_of(panels, panel_format, inputs, rows.out);
    require_packable(rows.format, packed.format);
    const PackLinearPanels args{
        .rows = rows, .format = packed.format, .panels = panels.data(), .threads = thread_count(threads)};
    const ReleasedGil released;
    pack_linear_panels(args);
}

void call_unpack_linear_panels(Packed<const uint8_t, 1> panels, int format, size_t inputs, size_t outputs, Ids ids,
                               Packed<uint8_t, 2> rows, int threads) {
    const LinearPanelWeight weight = panel_weight_of(panels, format, inputs, outputs);
    require_aligned(ids);
    require(rows.shape(0) == ids.shape(0) && rows.shape(1) == row_bytes(weight.format, inputs),
            "rows has the wrong shape");
    const std::vector<int64_t> chosen = ids_below(outputs, ids);
    const UnpackLinearPanels args{.w = weight,
                                  .ids = chosen.data(),
                                  .count = chosen.size(),
                                  .rows = rows.data(),
                                  .threads = thread_count(threads)};
    const ReleasedGil released;
    unpack_linear_panels(args);
}

void call_quantise_blocks(Packed<const float, 2> values, int format, Packed<uint8_t, 2> blocks, int threads) {
    require_aligned(values);
    const Format kind = format_of(format);
    require(traits(kind).is_quantised_to, "no values can be rounded to that format");
    const size_t width = values.shape(1), bytes = row_bytes(kind, width);
    require(bytes > 0, "a row must hold whole blocks");
    require(blocks.shape(0) == values.shape(0) && blocks.shape(1) == bytes, "blocks has the wrong shape");
    const QuantiseBlocks args{.values = values.data(),
                              .blocks = values.shape(0) * (width / traits(kind).values),
                              .format = kind,
                              .out = blocks.data(),
                              .threads = thread_count(threads)};
    const ReleasedGil released;
    quantise_blocks(args);
}

// Of each format by its number: its name; the values of a block and its bytes in a row; the bytes of a block of 32
// outputs in panels; the bytes of a block where its float16 numbers are; whether values can be rounded to it.
nb::list call_formats() {
    nb::list formats;
    for (size_t i = 0; i < std::size(kFormats); ++i) {
        const FormatTraits& of = kFormats[i];
        nb::list halves;
        if (!of.is_dense() && of.scale != ScaleType::e8m0)
            for (size_t n = 0; n < (of.minima ? 2 : 1); ++n) halves.append(of.floats_at + 2 * n);
        formats.append(nb::make_tuple(of.name, of.values, of.bytes, panel_block_bytes(static_cast<Format>(i)),
                                      nb::tuple(halves), of.is_quantised_to));
    }
    return formats;
}

// The part, the row (-1: not a scale's fault) and the error (0: the file has become shorter) of a problem; else
// nothing.
nb::object call_read_file_rows(Packed<const int64_t, 2> parts, int format, size_t inputs,
                               std::optional<Packed<uint8_t, 2>> memory, std::optional<Packed<uint8_t, 1>> panels,
                               int panel_format, int threads) {
    require_aligned(parts);
    require(parts.shape(1) == 3, "a part of a file must have a file, a place and a number of rows");
    require(memory.has_value() != panels.has_value(), "rows must be either kept or packed");
    ReadFileRows args{.format = format_of(format), .in = inputs, .threads = thread_count(threads)};
    const size_t bytes = row_bytes(args.format, inputs);
    require(bytes > 0 && inputs < (size_t{1} << 31), "a row must hold whole blocks");
    std::vector<FilePart> copied;
    for (size_t p = 0; p < parts.shape(0); ++p) {
        const int64_t *part = parts.data() + 3 * p, file = part[0], at = part[1], rows = part[2];
        require(file >= 0 && file <= std::numeric_limits<int>::max() && at >= 0 && rows >= 0 &&
                    rows < int64_t{1} << 31 && static_cast<uint64_t>(rows) < (uint64_t{1} << 62) / bytes &&
                    at < int64_t{1} << 62,
                "a part of a file is out of range");
        copied.push_back({static_cast<int>(file), at, static_cast<size_t>(rows)});
        args.out += copied.back().rows;
    }
    args.parts = copied.data();
    if (memory) {
        require(memory->shape(0) == args.out && memory->shape(1) == bytes, "the memory of rows has the wrong size");
        args.memory = memory->data();
    } else {
        args.panel_format = panel_weight_of(*panels, panel_format, inputs, args.out).format;
        require_packable(args.format, args.panel_format);
        args.panels = panels->data();
    }
    std::optional<FileRowsProblem> problem;
    {
        const ReleasedGil released;
        problem = read_file_rows(args);
    }
    if (!problem) return nb::none();
    return nb::make_tuple(problem->part, problem->row ? static_cast<int64_t>(*problem->row) : -1, problem->error);
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
    if (y.size() == 0) return;
    const ReleasedGil released;
    linear_panels(args);
}

}  // namespace

void bind_linear(nb::module_& m) {
    m.def("formats", &call_formats);
    m.def("linear", &call_linear, nb::arg("x").noconvert(), nb::arg("w").noconvert(), nb::arg("format"),
          nb::arg("y").noconvert(), nb::arg("threads"));
    m.def("grouped_products", &call_grouped_products, nb::arg("x").noconvert(), nb::arg("w").noconvert(),
          nb::arg("format"), nb::arg("groups").noconvert(), nb::arg("y").noconvert(), nb::arg("threads"));
    m.def("head_products", &call_head_products, nb::arg("x").noconvert(), nb::arg("w").noconvert(), nb::arg("format"),
          nb::arg("inputs"), nb::arg("first"), nb::arg("count"), nb::arg("transposed"), nb::arg("y").noconvert(),
          nb::arg("threads"));
    m.def("gather_rows", &call_gather_rows, nb::arg("w").noconvert(), nb::arg("format"), nb::arg("ids").noconvert(),
          nb::arg("values").noconvert(), nb::arg("threads"));
    m.def("gather_panels", &call_gather_panels, nb::arg("panels").noconvert(), nb::arg("format"), nb::arg("outputs"),
          nb::arg("ids").noconvert(), nb::arg("values").noconvert(), nb::arg("threads"));
    m.def("pack_linear_panels", &call_pack_linear_panels, nb::arg("w").noconvert(), nb::arg("format"),
          nb::arg("inputs"), nb::arg("panels").noconvert(), nb::arg("panel_format"), nb::arg("threads"));
    m.def("unpack_linear_panels", &call_unpack_linear_panels, nb::arg("panels").noconvert(), nb::arg("format"),
          nb::arg("inputs"), nb::arg("outputs"), nb::arg("ids").noconvert(), nb::arg("rows").noconvert(),
          nb::arg("threads"));
    m.def("quantise_blocks", &call_quantise_blocks, nb::arg("values").noconvert(), nb::arg("format"),
          nb::arg("blocks").noconvert(), nb::arg("threads"));
    m.def("read_file_rows", &call_read_file_rows, nb::arg("parts").noconvert(), nb::arg("format"), nb::arg("inputs"),
          nb::arg("memory").noconvert().none(), nb::arg("panels").noconvert().none(), nb::arg("panel_format"),
          nb::arg("threads"));
    m.def("linear_panels", &call_linear_panels, nb::arg("x").noconvert(), nb::arg("panels").noconvert(),
          nb::arg("format"), nb::arg("y").noconvert(), nb::arg("threads"));
}

}  // namespace decodestep
