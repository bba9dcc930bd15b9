// An object that a module's functions share, made at its first use.
#pragma once

#include <atomic>
#include <memory>

namespace decodestep {

// The one T(), never destroyed. To be called with the GIL. No lock is held while it is made: that runs Python code,
// which may give up the GIL to a thread that would wait for the lock with the GIL in its hands. Two threads may both
// make one.
template <class T>
const T& made_once() {
    static std::atomic<const T*> shared{nullptr};
    const T* first = shared.load();
    if (!first) {
        auto made = std::make_unique<const T>();
        if (shared.compare_exchange_strong(first, made.get())) first = made.release();
    }
    return *first;
}

}  // namespace decodestep
