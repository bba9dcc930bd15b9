// Objects of the process. Not for files that are built per instruction set.
#pragma once

#include <pthread.h>

#include <atomic>
#include <memory>
#include <mutex>

namespace decodestep {

// The one T of the process, made at its first use. A forked child makes its own: at the moment of the fork another
// thread may have been using the parent's, and that thread does not exist in the child. Leaked on purpose, so that
// threads and calls during process exit find it.
template <class T>
class PerProcess {
  public:
    static T& get() {
        // The handler allocates nothing: another thread may have held the allocator's lock.
        std::call_once(handled_, [] { pthread_atfork(nullptr, nullptr, [] { object_.store(nullptr); }); });
        T* first = object_.load();
        if (!first) {
            auto made = std::make_unique<T>();
            if (object_.compare_exchange_strong(first, made.get())) first = made.release();
        }
        return *first;
    }

    // Null before the first use.
    static T* existing() { return object_.load(); }

  private:
    static inline std::once_flag handled_;
    static inline std::atomic<T*> object_{nullptr};
};

}  // namespace decodestep
