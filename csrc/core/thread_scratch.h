// Memory that a thread keeps between tasks. Not built per instruction set.
#pragma once

#include <cstddef>

#include "core/cache_line.h"
#include "core/compiler.h"

namespace decodestep {

// A lease of `floats` floats from a cache line on, not initialised: those that the thread keeps, if they are enough. A
// thread has one lease at a time: a second one would be correct, but would allocate each time, so builds with
// assertions refuse it.
class ThreadScratch {
  public:
    explicit ThreadScratch(size_t floats);  // throws std::bad_alloc
    ~ThreadScratch();
    ThreadScratch(const ThreadScratch&) = delete;
    ThreadScratch& operator=(const ThreadScratch&) = delete;

    DECODESTEP_INLINE float* data() const { return lines_->floats; }

  private:
    CacheLine* lines_;
    size_t count_;
};

}  // namespace decodestep
