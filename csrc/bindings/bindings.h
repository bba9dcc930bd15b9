// What the bindings share: array types, checks that keep kernels within bounds, and what protects a call from other
// threads. The public Python functions have
// checked the meaning of their arguments before, so a refusal here means a fault in this library's own code.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "linear/linear.h"
#include "linear/linear_panels.h"
#include "mla_prolog/column_weight.h"

namespace decodestep {

namespace nb = nanobind;

template <class T, size_t N>
using Array = nb::ndarray<T, nb::ndim<N>, nb::device::cpu>;
template <class T, size_t N>
using Packed = nb::ndarray<T, nb::ndim<N>, nb::device::cpu, nb::c_contig>;

constexpr size_t kMaxAxis = size_t{1} << 24;  // so that products of axes stay far from overflow

inline void require(bool ok, const char* what) {
    if (!ok) throw std::invalid_argument(std::string("_native: ") + what);
}

// An array without items is, as in NumPy, wherever it lies.
template <class A>
bool is_aligned(const A& array) {
    return array.size() == 0 || reinterpret_cast<uintptr_t>(array.data()) % alignof(typename A::Scalar) == 0;
}

template <class A>
bool is_aligned(const std::optional<A>& array) {
    return !array || is_aligned(*array);
}

template <class... A>
void require_aligned(const A&... arrays) {
    require((is_aligned(arrays) && ...), "an array must be aligned to its items");
}

// A copy of an array that decides where a kernel reads and writes, to be made before it is checked: the kernel runs
// without the GIL, so another thread may change the array meanwhile.
template <class T>
std::vector<T> copy_of(const Packed<const T, 1>& array) {
    return {array.data(), array.data() + array.size()};
}

// Whether all ids are in [0, end).
inline bool all_within(const std::vector<int64_t>& ids, size_t end) {
    return std::all_of(ids.begin(), ids.end(), [=](int64_t id) { return id >= 0 && static_cast<size_t>(id) < end; });
}

inline int thread_count(int threads) {
    require(threads >= 1 && threads <= 256, "the thread count must be in [1, 256]");
    return threads;
}

// The distance of rows that are contiguous, in items. Strides of empty arrays and of axes of length 1 are not checked:
// NumPy leaves them undefined.
template <class T>
ptrdiff_t row_stride(const Array<T, 2>& a) {
    require(a.size() == 0 || a.shape(1) == 1 || a.stride(1) == 1, "the rows of a matrix must be contiguous");
    return a.stride(0);
}

inline Format format_of(int number) {
    require(number >= 0 && static_cast<size_t>(number) < std::size(kFormats), "the weight format is unknown");
    return static_cast<Format>(number);
}

using Bytes = Array<const uint8_t, 2>;

inline RowWeight row_weight_of(const Bytes& w, int format_number, size_t in) {
    const Format format = format_of(format_number);
    const size_t bytes = row_bytes(format, in);
    require(w.shape(0) == 0 || in == 0 || (bytes > 0 && w.shape(1) == bytes), "a weight row has the wrong length");
    const ptrdiff_t stride = row_stride(w);
    require(w.shape(0) <= 1 || stride >= 0, "the rows of a weight must ascend in memory");
    return {w.data(), static_cast<size_t>(stride), in, w.shape(0), format};
}

template <class Byte>
LinearPanelWeight panel_weight_of(const Packed<Byte, 1>& bytes, int format_number, size_t in, size_t out) {
    const Format format = format_of(format_number);
    require(in < (size_t{1} << 31) && out < (size_t{1} << 31), "a weight is too large");
    require(!quantises_activations(format) || in % panel_block_inputs(format) == 0, "a row must hold whole blocks");
    const LinearPanelWeight panels{bytes.data(), in, out, format};
    size_t expected;
    require(!__builtin_mul_overflow(panels.count(), panels.panel_bytes(), &expected) && bytes.size() == expected,
            "panels have the wrong size");
    return panels;
}

// The distance of the blocks, in items, of a paged cache (blocks, block size, 1, width) whose blocks are contiguous.
template <class A>
ptrdiff_t block_stride(const A& cache) {
    const auto width = static_cast<int64_t>(cache.shape(3));
    require(cache.shape(2) == 1, "a cache has one head");
    if (cache.size() == 0) return 0;
    require(width == 1 || cache.stride(3) == 1, "a cache row must be contiguous");
    require(cache.shape(1) <= 1 || cache.stride(1) == width, "the rows of a cache block must follow each other");
    return cache.stride(0);
}

// An array of any type and shape, for arguments that may have one of several.
using Any = nb::ndarray<nb::ro, nb::device::cpu>;

// The type of a weight's values; bfloat16 is passed as uint16.
inline WeightType weight_type_of(const Any& w) {
    if (w.dtype() == nb::dtype<float>()) return WeightType::f32;
    if (w.dtype() == nb::dtype<uint16_t>()) return WeightType::bf16;
    if (w.dtype() == nb::dtype<uint8_t>()) return WeightType::f8;
    require(w.dtype() == nb::dtype<int8_t>(), "a weight is of float32, of the bits of bfloat16 or float8, or of int8");
    return WeightType::i8;
}

inline bool contiguous(const Any& a) {
    int64_t expected = 1;
    for (size_t i = a.ndim(); i-- > 0; expected *= static_cast<int64_t>(a.shape(i)))
        if (a.shape(i) > 1 && a.size() > 0 && a.stride(i) != expected) return false;
    return true;
}

inline void require_aligned_any(const Any& a) {
    require(a.size() == 0 || reinterpret_cast<uintptr_t>(a.data()) % (a.itemsize() ? a.itemsize() : 1) == 0,
            "an array must be aligned to its items");
}

// A weight (in, out), or the first of `count` unless that is 0. By its number of axes: 1, packed; 2, or 3 with `count`,
// a matrix; 3 without `count`, NZ as (panels, rows >= in, width).
ColumnWeight column_weight_of(const Any& w, size_t in, size_t out, size_t count = 0);

using Vector = Packed<const float, 1>;
using Matrix = Packed<const float, 2>;
using Ids = Packed<const int64_t, 1>;

void bind_causal_conv1d(nb::module_& m);
void bind_checked_bytes(nb::module_& m);
void bind_column_weight(nb::module_& m);
void bind_decode_step(nb::module_& m);
void bind_decoder(nb::module_& m);
void bind_float_environment(nb::module_& m);
void bind_gated_delta_rule(nb::module_& m);
void bind_history(nb::module_& m);
void bind_lightning_indexer(nb::module_& m);
void bind_linear(nb::module_& m);
void bind_mixture_of_experts(nb::module_& m);
void bind_mla_attention(nb::module_& m);
void bind_mla_prolog(nb::module_& m);
void bind_onnxruntime(nb::module_& m);
void bind_random(nb::module_& m);
void bind_rms_norm(nb::module_& m);
void bind_rows(nb::module_& m);
void bind_selective_state_update(nb::module_& m);
void bind_state_replay(nb::module_& m);
void bind_swiglu(nb::module_& m);
void bind_tensor_scatter(nb::module_& m);
void bind_top_k_top_p_sample(nb::module_& m);

// Releases the GIL while it lives.
//
// Why not nb::gil_scoped_release: when the interpreter ends, a daemon thread may still be in a kernel. Before Python
// 3.14, the request for the GIL then unwinds the thread's stack, which ends the process with an error at a destructor
// that may not throw. Here the thread stops for ever, as in Python 3.14, and keeps its references; the process exits
// without it.
class ReleasedGil {
  public:
    ReleasedGil() : thread_(PyEval_SaveThread()) {}
    ReleasedGil(const ReleasedGil&) = delete;
    ~ReleasedGil() {
        try {
            PyEval_RestoreThread(thread_);
        } catch (...) {
            nb::set_leak_warnings(false);
            for (;;) pause();
        }
    }

  private:
    PyThreadState* thread_;
};

// As deep as arguments are nested: a block's weights are a list of tuples within a tuple. A list may hold itself.
constexpr int kArgumentLevels = 3;

// The value, with tuples in place of lists. Converting an array may run Python code (__dlpack__), which could otherwise
// take away the items that are still to be converted.
inline nb::object frozen(nb::handle value, int levels = kArgumentLevels) {
    if (levels == 0 || !(PyList_CheckExact(value.ptr()) || PyTuple_CheckExact(value.ptr()))) return nb::borrow(value);
    nb::list items;
    for (const nb::handle item : nb::tuple(value)) items.append(frozen(item, levels - 1));
    return nb::tuple(items);
}

}  // namespace decodestep
