#include "bindings/numpy_array.h"

namespace decodestep {
namespace {

// The modules stay loaded, so these stay good.
struct Names {
    PyObject *array_type, *empty, *int64, *float32, *bfloat16, *interface, *dtype;

    Names() {
        const auto kept = [](nb::object object) { return object.release().ptr(); };
        const nb::module_ numpy = nb::module_::import_("numpy");
        array_type = kept(numpy.attr("ndarray"));
        empty = kept(numpy.attr("empty"));
        int64 = kept(numpy.attr("dtype")(numpy.attr("int64")));
        float32 = kept(numpy.attr("dtype")(numpy.attr("float32")));
        bfloat16 = kept(numpy.attr("dtype")(nb::module_::import_("ml_dtypes").attr("bfloat16")));
        interface = PyUnicode_InternFromString("__array_struct__");
        dtype = PyUnicode_InternFromString("dtype");
    }
};

const Names& names() {
    static const Names all;
    return all;
}

nb::object made(PyObject* shape, PyObject* dtype) {
    PyObject* const arguments[] = {shape, dtype};
    PyObject* const array = PyObject_Vectorcall(names().empty, arguments, 2, nullptr);
    if (!array) throw nb::python_error();
    return nb::steal(array);
}

}  // namespace

NumpyArray::NumpyArray(PyObject* object) : object_(object) {
    require(reinterpret_cast<PyObject*>(Py_TYPE(object)) == names().array_type, "an array must be NumPy's");
    capsule_ = nb::steal(PyObject_GetAttr(object, names().interface));
    if (!capsule_.is_valid()) throw nb::python_error();
    interface_ = static_cast<const Interface*>(PyCapsule_GetPointer(capsule_.ptr(), nullptr));
    if (!interface_) throw nb::python_error();
}

bool NumpyArray::holds_bfloat16() const {
    if (!holds('V', 2)) return false;
    const nb::object dtype = nb::steal(PyObject_GetAttr(object_, names().dtype));
    if (!dtype.is_valid()) throw nb::python_error();
    return dtype.ptr() == names().bfloat16 || PyObject_RichCompareBool(dtype.ptr(), names().bfloat16, Py_EQ) == 1;
}

nb::object new_int64(size_t count) { return made(nb::steal(PyLong_FromSize_t(count)).ptr(), names().int64); }

nb::object new_float32(size_t rows, size_t columns) {
    return made(nb::make_tuple(rows, columns).ptr(), names().float32);
}

}  // namespace decodestep
