#include "tensor_scatter/tensor_scatter.h"

#include <array>
#include <limits>

#include "bindings/bindings.h"
#include "bindings/numpy_array.h"

namespace decodestep {
namespace {

// The items of an array as bytes of shape (batch, outer, rows, run).
struct Folded {
    uint8_t* data;
    size_t batch, outer, rows, run;
    ptrdiff_t batch_stride, outer_stride, row_stride;

    bool is_empty() const { return batch == 0 || outer == 0 || rows == 0 || run == 0; }
};

struct Axis {
    size_t length;
    ptrdiff_t stride;
};

// Axes but the run, the one of the shortest stride first.
std::array<Axis, 3> sorted_axes(const Folded& a) {
    std::array<Axis, 3> axes{Axis{a.batch, a.batch_stride}, {a.outer, a.outer_stride}, {a.rows, a.row_stride}};
    std::sort(axes.begin(), axes.end(), [](const Axis& x, const Axis& y) { return x.stride < y.stride; });
    return axes;
}

// Folds the axes between batch and sequence into one, and those after the sequence into a run of bytes; nothing where
// strides do not allow it.
std::optional<Folded> fold(const NumpyArray& array, size_t axis) {
    Folded folded{.data = static_cast<uint8_t*>(array.data()),
                  .batch = array.length(0),
                  .outer = 1,
                  .rows = array.length(axis),
                  .run = array.item_bytes(),
                  .batch_stride = array.stride(0),
                  .outer_stride = 0,
                  .row_stride = array.stride(axis)};
    for (size_t i = array.dimensions(); i-- > axis + 1;) {
        if (array.length(i) != 1 && array.stride(i) != static_cast<ptrdiff_t>(folded.run)) return std::nullopt;
        folded.run *= array.length(i);
    }
    for (size_t i = axis; i-- > 1;) {
        if (array.length(i) == 1) continue;
        if (folded.outer == 1)
            folded.outer_stride = array.stride(i);
        else if (array.stride(i) != static_cast<ptrdiff_t>(folded.outer) * folded.outer_stride)
            return std::nullopt;
        folded.outer *= array.length(i);
    }
    return folded;
}

TensorScatter call_of(const Folded& cache, const Folded& update, const std::vector<int64_t>& starts) {
    return {.cache = cache.data,
            .update = update.data,
            .start = starts.data(),
            .batch = cache.batch,
            .outer = cache.outer,
            .rows = cache.rows,
            .steps = update.rows,
            .row_bytes = cache.run,
            .cache_batch_stride = cache.batch_stride,
            .cache_outer_stride = cache.outer_stride,
            .cache_row_stride = cache.row_stride,
            .update_batch_stride = update.batch_stride,
            .update_outer_stride = update.outer_stride,
            .update_row_stride = update.row_stride};
}

// Whether an update has the shape of a cache but for a sequence axis that is no longer.
bool has_shape_of(const NumpyArray& cache, const NumpyArray& update, size_t axis) {
    if (update.dimensions() != cache.dimensions() || update.length(axis) > cache.length(axis)) return false;
    for (size_t i = 0; i < cache.dimensions(); ++i)
        if (i != axis && update.length(i) != cache.length(i)) return false;
    return true;
}

void call_tensor_scatter(nb::handle cache_object, nb::handle update_object, Ids start, size_t axis) {
    const NumpyArray cache(cache_object.ptr()), update(update_object.ptr());
    require(axis >= 1 && axis < cache.dimensions(), "there is no such sequence axis");
    require(has_shape_of(cache, update, axis) && update.item_bytes() == cache.item_bytes(),
            "update must have the shape of the cache, with at most as many rows");
    require(cache.kind() != 'O' && update.kind() != 'O', "objects cannot be copied as bytes");
    require(cache.is_writeable(), "the cache must be writeable");
    require_aligned(start);
    require(start.shape(0) == cache.length(0), "start must have one item for each batch row");
    const std::optional<Folded> to = fold(cache, axis), from = fold(update, axis);
    if (from && from->is_empty()) return;
    require(to && from, "the axes of cache and update must fold into (batch, outer, rows, run)");
    const std::vector<int64_t> first_rows = copy_of(start);
    const TensorScatter args = call_of(*to, *from, first_rows);
    const ReleasedGil released;
    tensor_scatter(args);
}

// Whether arrays are of one type that both ONNX and NumPy have, or of bfloat16, in the machine's order of bytes.
bool have_one_type(const NumpyArray& a, const NumpyArray& b) {
    const char kind = a.kind();
    const size_t bytes = a.item_bytes();
    if (!a.holds(kind, bytes) || !b.holds(kind, bytes)) return false;
    const bool is_float = kind == 'f' && (bytes == 2 || bytes == 4 || bytes == 8);
    const bool is_complex = kind == 'c' && (bytes == 8 || bytes == 16);
    if (kind == 'b' || kind == 'i' || kind == 'u' || is_float || is_complex) return true;
    return a.holds_bfloat16() && b.holds_bfloat16();
}

// The bytes from the first to the last of an array that is not empty, if no two of its items share any.
std::optional<size_t> extent_of_distinct_items(const Folded& a) {
    size_t extent = a.run;
    for (const Axis& axis : sorted_axes(a)) {
        if (axis.length == 1) continue;
        if (axis.stride < static_cast<ptrdiff_t>(extent)) return std::nullopt;
        extent += (axis.length - 1) * static_cast<size_t>(axis.stride);
    }
    return extent;
}

// Whether any byte between the first and the last of an array is in [begin, begin + size).
bool reaches_into(const Folded& a, const uint8_t* begin, size_t size) {
    const auto at = reinterpret_cast<uintptr_t>(a.data), first = reinterpret_cast<uintptr_t>(begin);
    uintptr_t low = at, high = at + a.run;
    for (const Axis& axis : sorted_axes(a)) {
        const auto distance = static_cast<ptrdiff_t>(axis.length - 1) * axis.stride;
        (distance < 0 ? low : high) += static_cast<uintptr_t>(distance);
    }
    return low < first + size && first < high;
}

// The first rows of a batch, of which None are zeros; nothing where they are another kind of object or out of bounds.
// least, most: where rows may begin.
std::optional<std::vector<int64_t>> first_rows_of(nb::handle starts, size_t batch, int64_t least, int64_t most) {
    std::vector<int64_t> rows(batch, 0);
    if (starts.is_none()) return rows;
    if (!NumpyArray::is(starts.ptr())) return std::nullopt;
    const NumpyArray given(starts.ptr());
    const bool wide = given.holds('i', 8);
    if (given.dimensions() != 1 || given.length(0) != batch || !(wide || given.holds('i', 4))) return std::nullopt;
    const char* at = static_cast<const char*>(given.data());
    for (size_t b = 0; b < batch; ++b, at += given.stride(0)) {
        rows[b] = wide ? *reinterpret_cast<const int64_t*>(at) : *reinterpret_cast<const int32_t*>(at);
        if (rows[b] < least || rows[b] > most) return std::nullopt;
    }
    return rows;
}

// The number of a sequence axis that is neither the batch nor beyond the rank; 0 for all else.
size_t sequence_axis(nb::handle axis, size_t rank) {
    if (!PyLong_CheckExact(axis.ptr())) return 0;
    const Py_ssize_t number = PyLong_AsSsize_t(axis.ptr()), count = static_cast<Py_ssize_t>(rank);
    if (number == -1 && PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    if (number < -count || number >= count) return 0;
    return static_cast<size_t>(number < 0 ? number + count : number);
}

bool equals(nb::handle text, const char* ascii) {
    return PyUnicode_CheckExact(text.ptr()) && PyUnicode_CompareWithASCIIString(text.ptr(), ascii) == 0;
}

// Updates a cache in place and returns True; NotImplemented, with nothing written, for arguments that break the rules
// of the operator or are rare.
//
// For this call, which a decoder makes for every layer of a step, checks in Python would take several times as long as
// the copy.
nb::object call_tensor_scatter_in_place(nb::handle cache_object, nb::handle update_object, nb::handle starts,
                                        nb::handle axis_object, nb::handle mode) {
    const nb::object declined = nb::borrow(Py_NotImplemented);
    const bool linear = equals(mode, "linear");
    if (!linear && !equals(mode, "circular")) return declined;
    if (!NumpyArray::is(cache_object.ptr()) || !NumpyArray::is(update_object.ptr())) return declined;
    const NumpyArray cache(cache_object.ptr()), update(update_object.ptr());
    const size_t axis = sequence_axis(axis_object, cache.dimensions());
    if (axis == 0 || !has_shape_of(cache, update, axis) || !have_one_type(cache, update)) return declined;
    const std::optional<Folded> to = fold(cache, axis), from = fold(update, axis);
    if (!to || !from || from->is_empty() || !cache.is_writeable()) return declined;
    const std::optional<size_t> extent = extent_of_distinct_items(*to);
    if (!extent || reaches_into(*from, to->data, *extent)) return declined;
    using Limits = std::numeric_limits<int64_t>;
    const int64_t least = linear ? 0 : Limits::min(), room = static_cast<int64_t>(to->rows - from->rows);
    const std::optional<std::vector<int64_t>> first_rows =
        first_rows_of(starts, to->batch, least, linear ? room : Limits::max());
    if (!first_rows) return declined;
    const TensorScatter args = call_of(*to, *from, *first_rows);
    const ReleasedGil released;
    tensor_scatter(args);
    return nb::bool_(true);
}

}  // namespace

void bind_tensor_scatter(nb::module_& m) {
    m.def("tensor_scatter", &call_tensor_scatter, nb::arg("cache"), nb::arg("update"), nb::arg("start").noconvert(),
          nb::arg("axis"));
    m.def("tensor_scatter_in_place", &call_tensor_scatter_in_place, nb::arg("cache").none(), nb::arg("update").none(),
          nb::arg("starts").none(), nb::arg("axis").none(), nb::arg("mode").none());
}

}  // namespace decodestep
