// Objects kept between calls and shared by all threads. Not for files that are built per instruction set.
#pragma once

#include <pthread.h>

#include <atomic>
#include <mutex>

namespace decodestep {

// The contents are leaked on purpose, so that a call during process exit finds them. A forked child starts with empty
// shelves: at the moment of the fork another thread may have held the mutex, and that thread does not exist in the
// child.
template <class Contents>
class Shelf {
  public:
    // Calls body(contents); no other thread uses them meanwhile.
    template <class Body>
    static void use(Body&& body) {
        std::call_once(once_, [] {
            guarded_ = new Guarded;
            pthread_atfork(nullptr, nullptr, [] { guarded_ = new Guarded; });
        });
        Guarded& guarded = *guarded_;
        const std::lock_guard lock(guarded.mutex);
        body(guarded.contents);
    }

  private:
    struct Guarded {
        std::mutex mutex;
        Contents contents;
    };

    static inline std::once_flag once_;
    static inline std::atomic<Guarded*> guarded_{nullptr};
};

}  // namespace decodestep
