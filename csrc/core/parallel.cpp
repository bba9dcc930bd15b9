#include "core/parallel.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "core/isa.h"

#ifdef DECODESTEP_X86
#include <immintrin.h>
#endif

namespace decodestep {
namespace {

void relax() {
#ifdef DECODESTEP_X86
    _mm_pause();
#else
    std::this_thread::yield();
#endif
}

// About 50 microseconds: longer than the gap between two kernels of a decode step, far shorter than a time slice.
constexpr int kSpins = 2000;

// Waits in turns of the processor: briefly without giving it up, since what is awaited comes soon, then by yielding.
template <class Ready>
void wait_until(Ready&& ready) {
    for (int spins = 0; !ready();) {
        relax();
        if (++spins > kSpins) std::this_thread::yield();
    }
}

thread_local bool inside_job = false;

class Pool {
  public:
    // Returns false when another thread of this process is using the pool; the caller then works alone.
    bool run(size_t tasks, int threads, void (*body)(void*, size_t), void* context) {
        std::unique_lock lock(owner_, std::try_to_lock);
        if (!lock) return false;
        grow(std::min<size_t>(threads - 1, tasks - 1));
        body_ = body;
        context_ = context;
        tasks_ = tasks;
        seats_.store(threads - 1, std::memory_order_relaxed);
        next_.store(0, std::memory_order_relaxed);
        epoch_.fetch_add(1);  // opens the job: everything above is visible to whoever enters it
        state_.store(kOpen);
        if (asleep_.load() > 0) epoch_.notify_all();
        work();
        state_.fetch_and(~kOpen);  // nobody enters from here on; wait for those inside
        wait_until([&] { return state_.load(std::memory_order_acquire) == 0; });
        return true;
    }

  private:
    static constexpr uint32_t kOpen = 1u << 31;  // the other bits of state_ count the workers inside the job

    void work() {
        for (size_t task; (task = next_.fetch_add(1, std::memory_order_relaxed)) < tasks_;) body_(context_, task);
    }

    void grow(size_t workers) {
        try {
            for (; workers_ < workers; ++workers_) std::thread([this] { serve(); }).detach();
        } catch (const std::system_error&) {
            // The system gives no more threads: the job runs on those that there are.
        }
    }

    bool enter() {
        for (uint32_t s = state_.load(); s & kOpen;)
            if (state_.compare_exchange_weak(s, s + 1)) return true;
        return false;
    }

    void serve() {
        inside_job = true;
        uint32_t seen = 0;
        for (;;) {
            for (int spins = 0; epoch_.load(std::memory_order_acquire) == seen;) {
                relax();
                if (++spins < kSpins) continue;
                asleep_.fetch_add(1);
                epoch_.wait(seen);
                asleep_.fetch_sub(1);
                spins = 0;
            }
            seen = epoch_.load(std::memory_order_acquire);
            if (!enter()) continue;
            if (seats_.fetch_sub(1) > 0) work();
            state_.fetch_sub(1, std::memory_order_release);
        }
    }

    std::mutex owner_;
    std::atomic<uint32_t> epoch_{0}, state_{0};
    std::atomic<size_t> next_{0};
    std::atomic<int> asleep_{0}, seats_{0};
    size_t workers_ = 0, tasks_ = 0;
    void (*body_)(void*, size_t) = nullptr;
    void* context_ = nullptr;
};

// Whoever comes first leads: it opens each stage for those who have come by then, and waits for them at its end.
class Team {
  public:
    using Body = void (*)(void*, size_t, size_t, size_t);

    Team(size_t stages, Body body, void* context) : stages_(stages), body_(body), context_(context) {}

    void take_part() {
        const size_t me = joined_.fetch_add(1);
        me == 0 ? lead() : follow(me);
    }

  private:
    static constexpr uint64_t kMembers = 0xffff, kOver = ~uint64_t{0};

    void lead() {
        size_t due = 0;
        for (size_t stage = 0; stage < stages_; ++stage) {
            const size_t members = joined_.load(std::memory_order_relaxed);
            open_.store((stage + 1) << 16 | members, std::memory_order_release);
            body_(context_, stage, 0, members);
            due += members - 1;
            wait_until([&] { return done_.load(std::memory_order_acquire) == due; });
        }
        open_.store(kOver, std::memory_order_release);
    }

    void follow(size_t me) {
        for (uint64_t seen = 0;;) {
            uint64_t now = seen;
            wait_until([&] { return (now = open_.load(std::memory_order_acquire)) != seen; });
            if (now == kOver) return;
            seen = now;
            if ((now & kMembers) <= me) continue;  // opened before this one came
            body_(context_, (now >> 16) - 1, me, now & kMembers);
            done_.fetch_add(1, std::memory_order_release);
        }
    }

    const size_t stages_;
    const Body body_;
    void* const context_;
    alignas(128) std::atomic<uint64_t> open_{0};  // the stage, from 1 on, and how many members it has
    alignas(128) std::atomic<size_t> done_{0};    // parts of stages that are finished, the leader's not counted
    alignas(128) std::atomic<size_t> joined_{0};
};

// Leaked on purpose: workers outlive static destruction, and a forked child, which has no workers, starts a pool anew.
std::atomic<Pool*> pool{nullptr};

Pool& the_pool() {
    static std::once_flag once;
    std::call_once(once, [] {
        pool = new Pool;
        pthread_atfork(nullptr, nullptr, [] { pool = new Pool; });
    });
    return *pool;
}

}  // namespace

void parallel_for(size_t tasks, int threads, void (*body)(void*, size_t), void* context) {
    if (tasks > 1 && threads > 1 && !inside_job) {
        inside_job = true;
        const bool done = the_pool().run(tasks, threads, body, context);
        inside_job = false;
        if (done) return;
    }
    for (size_t task = 0; task < tasks; ++task) body(context, task);
}

void parallel_stages(size_t stages, int threads, void (*body)(void*, size_t, size_t, size_t), void* context) {
    Team team(stages, body, context);
    const auto seats = static_cast<size_t>(threads);
    parallel_for(seats, threads, [&](size_t) { team.take_part(); });
}

float* thread_scratch(size_t floats) {
    static thread_local std::vector<float> buffer;
    if (buffer.size() < floats) buffer.resize(floats);
    return buffer.data();
}

}  // namespace decodestep
