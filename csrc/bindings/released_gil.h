// Releases the GIL while it lives.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

namespace decodestep {

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
            nanobind::set_leak_warnings(false);
            for (;;) pause();
        }
    }

  private:
    PyThreadState* thread_;
};

}  // namespace decodestep
