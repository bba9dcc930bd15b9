// What onnxruntime looks for in a library of custom operators: `RegisterCustomOps`. The operators themselves are
// Python's, and so the library can only be registered in a process that has imported
// decodestep.integrations.onnxruntime.
#include <atomic>

#include "bindings/bindings.h"

namespace {

// The beginning of onnxruntime's C interface, which no version changes: the first function of an OrtApi makes a status.
struct OrtApiBase {
    const void* const* (*get_api)(uint32_t version);
    const char* (*version)();
};
using CreateStatus = void* (*)(int code, const char* message);
using Registrar = void* (*)(void* options, const OrtApiBase* base);
constexpr int kFail = 1;

std::atomic<Registrar> registrar{nullptr};

// onnxruntime calls this for kernels that it no longer needs, even after the interpreter has gone.
void keep(void*) {}

}  // namespace

extern "C" __attribute__((visibility("default"))) void* RegisterCustomOps(void* options, const OrtApiBase* base) {
    if (const Registrar call = registrar.load()) return call(options, base);
    const auto create_status = reinterpret_cast<CreateStatus>(const_cast<void*>(base->get_api(1)[0]));
    return create_status(kFail,
                         "decodestep: import decodestep.integrations.onnxruntime before this library is registered");
}

namespace decodestep {

void bind_onnxruntime(nb::module_& m) {
    // Sets what RegisterCustomOps calls, a function of Python's ctypes that lives as long as the process, and returns
    // the address of a function that destroys a kernel by doing nothing.
    m.def("set_onnxruntime_registrar", [](uintptr_t address) {
        registrar = reinterpret_cast<Registrar>(address);
        return reinterpret_cast<uintptr_t>(&keep);
    });
}

}  // namespace decodestep
