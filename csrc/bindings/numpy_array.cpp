#include "bindings/numpy_array.h"

#include "bindings/made_once.h"

namespace decodestep {
namespace {

// The references are never given back, so the pointers stay valid.
struct NumpyObjects {
    PyObject *array_type, *empty, *int64, *float32, *bfloat16, *interface, *dtype;

    NumpyObjects() {
        const auto leaked = [](nb::object object) { return object.release().ptr(); };
        const nb::module_ numpy = nb::module_::import_("numpy");
        array_type = leaked(numpy.attr("ndarray"));
        empty = leaked(numpy.attr("empty"));
        int64 = leaked(numpy.attr("dtype")(numpy.attr("int64")));
        float32 = leaked(numpy.attr("dtype")(numpy.attr("float32")));
        bfloat16 = leaked(numpy.attr("dtype")(nb::module_::import_("ml_dtypes").attr("bfloat16")));
        interface = PyUnicode_InternFromString("__array_struct__");
        dtype = PyUnicode_InternFromString("dtype");
    }
};

const NumpyObjects& numpy_objects() { return made_once<NumpyObjects>(); }

nb::object new_array(PyObject* shape, PyObject* dtype) {
    PyObject* const arguments[] = {shape, dtype};
    PyObject* const array = PyObject_Vectorcall(numpy_objects().empty, arguments, 2, nullptr);
    if (!array) throw nb::python_error();
    return nb::steal(array);
}

}  // namespace

bool NumpyArray::is(PyObject* object) {
    return reinterpret_cast<PyObject*>(Py_TYPE(object)) == numpy_objects().array_type;
}

NumpyArray::NumpyArray(PyObject* object) : object_(object) {
    require(is(object), "an array must be a numpy.ndarray");
    capsule_ = nb::steal(PyObject_GetAttr(object, numpy_objects().interface));
    if (!capsule_.is_valid()) throw nb::python_error();
    interface_ = static_cast<const Interface*>(PyCapsule_GetPointer(capsule_.ptr(), nullptr));
    if (!interface_) throw nb::python_error();
}

bool NumpyArray::holds_bfloat16() const {
    if (!holds('V', 2)) return false;
    const nb::object dtype = nb::steal(PyObject_GetAttr(object_, numpy_objects().dtype));
    if (!dtype.is_valid()) throw nb::python_error();
    return dtype.ptr() == numpy_objects().bfloat16 ||
           PyObject_RichCompareBool(dtype.ptr(), numpy_objects().bfloat16, Py_EQ) == 1;
}

nb::object new_int64(size_t count) {
    return new_array(nb::steal(PyLong_FromSize_t(count)).ptr(), numpy_objects().int64);
}

nb::object new_float32(size_t rows, size_t columns) {
    return new_array(nb::make_tuple(rows, columns).ptr(), numpy_objects().float32);
}

}  // namespace decodestep
