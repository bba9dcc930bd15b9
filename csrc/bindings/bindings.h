// What the bindings share: checks that no argument can lead a kernel out of bounds. The public functions check the
// meaning of arguments before; what is refused here is a fault of this library's own code.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <optional>
#include <stdexcept>
#include <string>

#include "../linear.h"
#include "../linear_panels.h"

namespace decodestep {

namespace nb = nanobind;

template <class T, size_t N>
using Array = nb::ndarray<T, nb::ndim<N>, nb::device::cpu>;
template <class T, size_t N>
using Packed = nb::ndarray<T, nb::ndim<N>, nb::device::cpu, nb::c_contig>;

inline void require(bool ok, const char* what) {
    if (!ok) throw std::invalid_argument(std::string("_native: ") + what);
}

template <class A>
bool is_aligned(const A& array) {
    return reinterpret_cast<uintptr_t>(array.data()) % alignof(typename A::Scalar) == 0;
}

template <class A>
bool is_aligned(const std::optional<A>& array) {
    return !array || is_aligned(*array);
}

template <class... A>
void require_aligned(const A&... arrays) {
    require((is_aligned(arrays) && ...), "an array must be aligned to its items");
}

inline int thread_count(int threads) {
    require(threads >= 1 && threads <= 256, "the thread count must be in [1, 256]");
    return threads;
}

// Rows may lie apart, each is contiguous. NumPy leaves every stride of an empty array undefined, and that of an axis of
// length 1.
template <class T>
ptrdiff_t row_stride(const Array<T, 2>& a) {
    require(a.size() == 0 || a.shape(1) == 1 || a.stride(1) == 1, "the rows of a matrix must be contiguous");
    return a.stride(0);
}

inline Format format_of(int number) {
    require(number >= 0 && number <= static_cast<int>(Format::q8_0), "the weight format is unknown");
    return static_cast<Format>(number);
}

using Bytes = Array<const uint8_t, 2>;

inline Rows rows_of(const Bytes& w, int format_number, size_t in) {
    const Format format = format_of(format_number);
    const size_t bytes = row_bytes(format, in);
    require(w.shape(0) == 0 || in == 0 || (bytes > 0 && w.shape(1) == bytes), "a weight row has the wrong length");
    const ptrdiff_t stride = row_stride(w);
    require(w.shape(0) <= 1 || stride >= 0, "the rows of a weight must ascend in memory");
    return {w.data(), static_cast<size_t>(stride), in, w.shape(0), format};
}

template <class Byte>
Panels panels_of(const Packed<Byte, 1>& bytes, int format_number, size_t in, size_t out) {
    const Format format = format_of(format_number);
    require(in < (size_t{1} << 31) && out < (size_t{1} << 31), "a weight is too large");
    require(!reads_bytes(format) || in % kBlockInputs == 0, "a weight of blocks holds whole blocks");
    const Panels panels{bytes.data(), in, out, format};
    require(bytes.size() == panels.count() * panels.panel_bytes(), "panels have the wrong size");
    return panels;
}

// A paged cache (blocks, block size, 1, width): the rows of a block follow each other, blocks may lie apart.
template <class T>
ptrdiff_t block_stride(const Array<T, 4>& cache) {
    const auto width = static_cast<int64_t>(cache.shape(3));
    require(cache.shape(2) == 1, "a cache has one head");
    if (cache.size() == 0) return 0;
    require(width == 1 || cache.stride(3) == 1, "a cache row must be contiguous");
    require(cache.shape(1) <= 1 || cache.stride(1) == width, "the rows of a cache block must follow each other");
    return cache.stride(0);
}

using Vector = Packed<const float, 1>;
using Matrix = Packed<const float, 2>;
using Ids = Packed<const int64_t, 1>;

void bind_columns(nb::module_& m);
void bind_decode_step(nb::module_& m);
void bind_decoder(nb::module_& m);
void bind_linear(nb::module_& m);
void bind_mla_attention(nb::module_& m);
void bind_mla_prolog(nb::module_& m);
void bind_random(nb::module_& m);
void bind_rms_norm(nb::module_& m);
void bind_swiglu(nb::module_& m);
void bind_tensor_scatter(nb::module_& m);

}  // namespace decodestep
