// The default floating-point environment for what Python and NumPy compute.
#include "core/float_environment.h"

#include <optional>

#include "bindings/bindings.h"

namespace decodestep {
namespace {

struct FloatsOfThread {
    std::optional<DefaultFloats> floats;
};

}  // namespace

void bind_float_environment(nb::module_& m) {
    nb::class_<FloatsOfThread>(m, "DefaultFloats")
        .def(nb::init<>())
        .def("__enter__", [](FloatsOfThread& of_thread) { of_thread.floats.emplace(); })
        .def("__exit__", [](FloatsOfThread& of_thread, nb::args) { of_thread.floats.reset(); });
}

}  // namespace decodestep
