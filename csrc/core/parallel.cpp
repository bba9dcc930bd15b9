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

// Spins for a while, since the wait is mostly short, then yields the processor between two looks.
template <class Ready>
void wait_until(Ready&& ready) {
    for (int spins = 0; !ready();) {
        relax();
        if (++spins > kSpins) std::this_thread::yield();
    }
}

thread_local bool inside_job = false;

// One job at a time: a number of tasks that the caller and the workers claim one by one. state_ says whether workers
// may enter the job, and counts those inside:
//
//     closed, 0 ---- run() ----> open, 0 <---- enter() +1, leave -1 ----> open, n
//                                   |                                       |
//                                   +- run() finds no task left to claim ---+
//                                   v                                       v
//               run() returns <- closed, 0 <--------- leave -1 --------- closed, n
//
// Who writes what:
//   body_, context_, tasks_   run(), while the job is closed and nobody is inside, so nobody reads them
//   workers_                  run(); owner_ lets only one thread be in there
//   next_                     the next task; run() sets it to 0, everybody inside adds 1 for a task that they claim
//   seats_                    how many more workers may claim tasks; run() sets it, each worker that enters takes one
//   epoch_                    the number of the job, from run(); idle workers wait for it to change
//   asleep_                   how many workers wait for that in the kernel; each counts itself
//
// Memory order: the store of kOpen publishes the job, and the exchange in enter() acquires it, so next_ and seats_ can
// be relaxed. A worker leaves with a release, and run() waits for a count of 0 with an acquire: it returns when
// everything that the workers wrote is visible. epoch_ and asleep_ are sequentially consistent: a worker first adds
// itself to asleep_ and then looks at epoch_, run() first raises epoch_ and then looks at asleep_, so one of them sees
// the other and no worker sleeps through a job for ever. A worker that misses a job does no harm: its tasks are claimed
// by others.
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
        epoch_.fetch_add(1);
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
            // The system gives no more threads: the job runs on those that exist.
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

// The members of one job that runs in stages. The first thread to join leads (member 0):
//
//     leader:    open_ = {stage, members}; its part; wait until done_ == due; the next stage; at last open_ = kOver
//     follower:  wait until open_ changes; its part, if it is one of the members; done_ + 1; wait again
//
// Who writes what:
//   joined_   each member adds 1, once, and its number is the count before. The leader reads it when it opens a stage:
//             a member that joins later than that is counted from the next stage on
//   open_     the leader
//   done_     each follower adds 1 at the end of its part; never reset, so what the leader waits for grows by the
//             followers of each stage
//
// Memory order: what members write in a stage is released by their addition to done_, acquired by the leader before it
// opens the next stage, and released with that to all who acquire open_.
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
            if ((now & kMembers) <= me) continue;  // opened before this one joined
            body_(context_, (now >> 16) - 1, me, now & kMembers);
            done_.fetch_add(1, std::memory_order_release);
        }
    }

    const size_t stages_;
    const Body body_;
    void* const context_;
    // Each on cache lines of its own.
    alignas(128) std::atomic<uint64_t> open_{0};  // the stage, from 1 on, and below it, in 16 bits, its members
    alignas(128) std::atomic<size_t> done_{0};    // finished parts of all stages, without the leader's
    alignas(128) std::atomic<size_t> joined_{0};
};

// Never deleted. The workers are detached and may still look at the pool while the process ends and destroys its static
// objects. A forked child has none of the workers, and its copy of the pool may be in any state: it gets a new pool.
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
