// An ndarray through NumPy's array interface (__array_struct__). That tells bfloat16 from other items of two bytes, and
// takes a sixth of the time of nanobind's conversion over DLPack, which matters for kernels of a few microseconds.
#pragma once

#include "bindings/bindings.h"

namespace decodestep {

class NumpyArray {
  public:
    // Whether an object can be one: a numpy.ndarray, no subclass.
    static bool is(PyObject* object);

    explicit NumpyArray(PyObject* object);

    size_t dimensions() const { return static_cast<size_t>(interface_->nd); }
    size_t length(size_t axis) const { return static_cast<size_t>(interface_->shape[axis]); }
    ptrdiff_t stride(size_t axis) const { return static_cast<ptrdiff_t>(interface_->strides[axis]); }  // in bytes
    void* data() const { return interface_->data; }
    char kind() const { return interface_->typekind; }
    size_t item_bytes() const { return static_cast<size_t>(interface_->itemsize); }
    bool is_writeable() const { return interface_->flags & 0x400; }

    // Whether the items are of that kind ('f', 'i' ...) and size, aligned, and in native byte order.
    bool holds(char kind, size_t bytes) const {
        constexpr int aligned = 0x100, native_order = 0x200;
        return interface_->typekind == kind && static_cast<size_t>(interface_->itemsize) == bytes &&
               (interface_->flags & (aligned | native_order)) == (aligned | native_order);
    }

    bool holds_bfloat16() const;

    // A vector without gaps between its items.
    bool packed_vector() const {
        return interface_->nd == 1 && (interface_->shape[0] <= 1 || interface_->strides[0] == interface_->itemsize);
    }

  private:
    struct Interface {  // PyArrayInterface, as NumPy documents it
        int two;
        int nd;
        char typekind;
        int itemsize;
        int flags;
        Py_ssize_t* shape;
        Py_ssize_t* strides;
        void* data;
        PyObject* description;
    };

    PyObject* object_;
    nb::object capsule_;
    const Interface* interface_;
};

// New arrays, not initialised.
nb::object new_int64(size_t count);
nb::object new_float32(size_t rows, size_t columns);

}  // namespace decodestep
