// A word that threads wait on: they spin for about as long as the next kernel of a decode step takes to come, then
// sleep until the word changes.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/tiers.h"

#ifdef DECODESTEP_X86
#include <immintrin.h>
#endif

namespace decodestep {

class Signal {
  public:
    uint32_t load() const { return word_.load(std::memory_order_acquire); }

    void store(uint32_t value) {
        word_.store(value);
        wake_all();
    }

    uint32_t add(uint32_t value) {
        const uint32_t before = word_.fetch_add(value);
        wake_all();
        return before;
    }

    // Adds 1 and wakes at most `count` of the sleeping threads.
    void add_one_and_wake(int count) {
        word_.fetch_add(1);
        const int asleep = asleep_.load();
        if (asleep <= count) return wake_all();
        for (int i = 0; i < count; ++i) word_.notify_one();
    }

    // The value for which ready(value) is true.
    template <class Ready>
    uint32_t wait_until(Ready&& ready) {
        for (int spins = 0;;) {
            const uint32_t now = load();
            if (ready(now)) return now;
            relax();
            if (++spins < kSpins) continue;
            // The sleeper counts itself, then looks at the word again; whoever changes the word changes it first, then
            // looks at the count. Both orders are sequentially consistent, so at least one of the two sees the other.
            asleep_.fetch_add(1);
            word_.wait(now);
            asleep_.fetch_sub(1);
            spins = 0;
        }
    }

  protected:
    void wake_all() {
        if (asleep_.load() > 0) word_.notify_all();
    }

    std::atomic<uint32_t> word_{0};

  private:
    static constexpr int kSpins = 2000;  // about 50 microseconds

    static void relax() {
#ifdef DECODESTEP_X86
        _mm_pause();
#elif defined(__aarch64__)
        asm volatile("isb" ::: "memory");  // a pause of tens of cycles; `yield` does nothing on most cores
#endif
    }

    std::atomic<int> asleep_{0};
};

}  // namespace decodestep
