// A word that threads wait on. They spin for about as long as it usually takes until the next kernel of a decode step,
// then sleep until the word changes.
//
// On Linux they sleep on a futex. std::atomic::wait yields (sched_yield) a few times before it sleeps: of two threads
// on one core the other then runs and changes the word, so neither ever sleeps, and both stay on that core while others
// are idle. A sleeping thread is woken on an idle core.
#pragma once

#include <atomic>
#include <climits>
#include <cstdint>

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "core/idle_policy.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace decodestep {

class Event {
  public:
    uint32_t load() const { return word_.load(std::memory_order_acquire); }

    void store(uint32_t value) {
        word_.store(value);
        wake_all();
    }

    // Adds 1 and wakes at most `count` of the sleeping threads.
    void add_one_and_wake(int count) {
        word_.fetch_add(1);
        const int asleep = asleep_.load();
        if (asleep > 0) wake(asleep <= count ? INT_MAX : count);
    }

    // Wakes at most `count` of the threads that sleep although the word has changed.
    void wake_some(int count) {
        if (count > 0 && asleep_.load() > 0) wake(count);
    }

    // Whether ready(value) becomes true within so many spins.
    template <class Ready>
    bool spin_until(Ready&& ready, int spins) const {
        for (; spins > 0; --spins, relax())
            if (ready(load())) return true;
        return false;
    }

    static constexpr int kSpins = 2000;  // 50 to 100 microseconds

    // Returns the value for which ready(value) is true. It sleeps after so many spins, unless `idle` decides to
    // stay awake longer.
    template <class Ready, class Awake = SleepsAtOnce>
    uint32_t wait_until(Ready&& ready, Awake&& idle = {}, int spins_awake = kSpins) {
        for (int spins = 0;;) {
            const uint32_t now = load();
            if (ready(now)) return now;
            relax();
            if (++spins < spins_awake || idle.stays_awake()) continue;
            // The sleeper counts itself, then reads the word again; a thread that changes the word changes it first,
            // then reads the count. Both orders are sequentially consistent, so at least one of the two sees the other.
            asleep_.fetch_add(1);
            sleep_unless_changed(now);
            asleep_.fetch_sub(1);
            spins = 0;
        }
    }

  protected:
    void wake_all() {
        if (asleep_.load() > 0) wake(INT_MAX);
    }

    std::atomic<uint32_t> word_{0};

  private:
    static void relax() {
#ifdef __x86_64__
        _mm_pause();
#elif defined(__aarch64__)
        asm volatile("isb" ::: "memory");  // a pause of tens of cycles; `yield` does nothing on most cores
#endif
    }

    // May return early.
    void sleep_unless_changed(uint32_t seen) {
#ifdef __linux__
        syscall(SYS_futex, &word_, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
#else
        word_.wait(seen);
#endif
    }

    void wake(int count) {
#ifdef __linux__
        syscall(SYS_futex, &word_, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
#else
        if (count == INT_MAX) return word_.notify_all();
        for (int i = 0; i < count; ++i) word_.notify_one();
#endif
    }

    static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));

    std::atomic<int> asleep_{0};
};

}  // namespace decodestep
