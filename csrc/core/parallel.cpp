#include "core/parallel.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "core/cache_line.h"
#include "core/event.h"
#include "core/float_environment.h"
#include "core/idle_policy.h"
#include "core/per_process.h"

namespace decodestep {
namespace {

// True on workers, and on a caller while its job runs: a job started inside a job runs on one thread.
thread_local bool inside_job = false;

// The number of a pool's worker, from 1; 0 on other threads.
thread_local size_t worker_number = 0;

// The first exception that a body throws. The others, and what a body would do after it, are dropped.
class FirstError {
  public:
    bool caught() const { return caught_.load(std::memory_order_relaxed); }

    template <class Call>
    void guard(Call&& call) noexcept {
        try {
            call();
        } catch (...) {
            if (!caught_.exchange(true)) error_ = std::current_exception();
        }
    }

    // To be called after all threads that may call `guard` have finished.
    void rethrow() {
        if (!caught_.exchange(false)) return;
        std::rethrow_exception(std::exchange(error_, nullptr));
    }

  private:
    std::atomic<bool> caught_{false};
    std::exception_ptr error_;
};

bool pin(pthread_t thread, int cpu) {
#ifdef __linux__
    cpu_set_t set;
    CPU_ZERO(&set);
    if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_SET(cpu, &set);
    return pthread_setaffinity_np(thread, sizeof set, &set) == 0;
#else
    return static_cast<void>(thread), static_cast<void>(cpu), false;
#endif
}

// The job of one calling thread. A slot lives as long as the pool, so that a worker may look at a job that has just
// ended; only `state_` says whether the worker may enter:
//
//     owner: open ───────────── work ─────────────── close ── wait until nobody is inside ── (next job)
//     state: kOpen | 0          kOpen | inside       inside   0
//     worker:         enter: inside + 1 ── work ── leave: inside - 1
//
// `open` publishes the fields above it with the store to `state_`, `enter` reads them after its compare-and-swap on it.
class alignas(kWritersApart) JobSlot {
  public:
    std::mutex owner;  // held by the calling thread from before `open` until after `close_and_wait`

    void open(size_t tasks, int seats, void (*body)(void*, size_t), void* context) {
        body_ = body;
        context_ = context;
        tasks_ = tasks;
        next_.store(0, std::memory_order_relaxed);
        seats_.store(seats, std::memory_order_relaxed);
        state_.store(kOpen);
    }

    // The number of workers inside; kFull where none may enter.
    uint32_t crowd() const {
        const uint32_t state = state_.load();
        return state & kOpen && seats_.load(std::memory_order_relaxed) > 0 ? state & ~kOpen : kFull;
    }

    bool enter() {
        if (!state_.increment_if(kOpen)) return false;
        if (seats_.fetch_sub(1) > 0) return true;
        leave();
        return false;
    }

    // The number of workers that may still enter.
    int free_seats() const { return seats_.load(std::memory_order_relaxed); }

    void leave() { state_.decrement_and_wake_at_zero(); }

    void work() {
        for (size_t task; !error_.caught() && (task = next_.fetch_add(1, std::memory_order_relaxed)) < tasks_;)
            error_.guard([&] { body_(context_, task); });
    }

    void close_and_wait() {
        state_.clear(kOpen);
        state_.wait_until([](uint32_t state) { return state == 0; });
        error_.rethrow();
    }

    static constexpr uint32_t kFull = ~uint32_t{0};

  private:
    static constexpr uint32_t kOpen = 1u << 31;  // the other bits count the workers inside

    struct State : Event {
        bool increment_if(uint32_t bit) {
            for (uint32_t now = word_.load(); now & bit;)
                if (word_.compare_exchange_weak(now, now + 1)) return true;
            return false;
        }
        void decrement_and_wake_at_zero() {
            if (word_.fetch_sub(1) == 1) wake_all();
        }
        void clear(uint32_t bit) { word_.fetch_and(~bit); }
    };

    State state_;
    std::atomic<int> seats_{0};
    std::atomic<size_t> next_{0};
    size_t tasks_ = 0;
    void (*body_)(void*, size_t) = nullptr;
    void* context_ = nullptr;
    FirstError error_;
};

class Pool {
  public:
    // False if every slot is taken: the cores are busy then, and the caller works alone.
    bool run(size_t tasks, int threads, void (*body)(void*, size_t), void* context) {
        JobSlot* const slot = take_slot();
        if (slot == nullptr) return false;
        const std::lock_guard lock(slot->owner, std::adopt_lock);
        const auto seats = static_cast<int>(std::min(static_cast<size_t>(threads), tasks)) - 1;
        grow(seats);
        slot->open(tasks, seats, body, context);
        // After `open`: a worker that sees the new epoch sees the job.
        epoch_.add_one_and_wake(std::min(seats, kWokenByEach));
        slot->work();
        slot->close_and_wait();
        return true;
    }

    bool pin_workers(std::vector<int> cpus) {
        const std::lock_guard lock(growing_);
        cpus_ = std::move(cpus);
        bool all = true;
        for (size_t number = 1; number <= handles_.size(); ++number) all &= pin_worker(number);
        return all;
    }

  private:
    static constexpr size_t kSlots = 16;  // callers at once
    // Waking a thread takes a microsecond or two, so the workers that a job has wake those that it still wants: of a
    // hundred the last is awake after six rounds rather than a hundred.
    static constexpr int kWokenByEach = 2;

    JobSlot* take_slot() {
        for (JobSlot& slot : slots_)
            if (slot.owner.try_lock()) return &slot;
        return nullptr;
    }

    // As many workers as the largest job wants. Concurrent callers share them; each caller is a thread of its own.
    void grow(int wanted) {
        if (workers_.load(std::memory_order_relaxed) >= wanted) return;
        const std::lock_guard lock(growing_);
        try {
            while (workers_.load(std::memory_order_relaxed) < wanted) {
                const size_t number = static_cast<size_t>(workers_.load(std::memory_order_relaxed)) + 1;
                handles_.reserve(number);  // nothing may throw once the thread exists
                std::thread worker([this, number] { serve(number); });
                handles_.push_back(worker.native_handle());
                worker.detach();
                workers_.fetch_add(1, std::memory_order_relaxed);
                pin_worker(number);  // or it runs elsewhere, if the process has lost that CPU meanwhile
            }
        } catch (const std::system_error&) {
            // The system provides no more threads: the job runs on those that exist.
        }
    }

    bool pin_worker(size_t number) const {
        return cpus_.empty() || pin(handles_[number - 1], cpus_[number % cpus_.size()]);
    }

    void serve(size_t number) {
        worker_number = number;
        inside_job = true;
        const DefaultFloats floats;  // a new thread has those of its creator
        IdlePolicy idle;
        for (uint32_t seen = 0;;) {
            seen = epoch_.wait_until([&](uint32_t epoch) { return epoch != seen; }, idle);
            while (JobSlot* const slot = enter_least_crowded()) {
                idle.got_job();
                epoch_.wake_some(std::min(slot->free_seats(), kWokenByEach));
                slot->work();
                slot->leave();
            }
        }
    }

    JobSlot* enter_least_crowded() {
        for (;;) {
            JobSlot* best = nullptr;
            uint32_t least = JobSlot::kFull;
            for (JobSlot& slot : slots_)
                if (const uint32_t crowd = slot.crowd(); crowd < least) {
                    least = crowd;
                    best = &slot;
                }
            if (best == nullptr || best->enter()) return best;
        }
    }

    alignas(kWritersApart) Event epoch_;  // incremented for every job; workers wait on it
    std::array<JobSlot, kSlots> slots_;
    std::mutex growing_;
    std::atomic<int> workers_{0};
    std::vector<pthread_t> handles_;  // of the workers, by number - 1
    std::vector<int> cpus_;           // that they are pinned to
};

// A job of stages. The thread that ends the last share of a stage opens the next one, so that no thread is waited for
// unless it is inside a share:
//
//     open_ = stage ── claim and run shares ── ended of the seat's group += shares run ── wait until open_ changes
//                                              └─ all of the group: ended_groups_ += 1
//                                                 └─ all groups: begin(stage + 1), open_ = stage + 1
//
// Seats are in groups, so that of many threads few write the same line at the end of a stage; and a thread that has
// nothing to do first looks for shares in its own group, whose lines are in a cache that it shares with the others if
// the system has put neighbours side by side, and passes over the seats of groups that have ended.
class Team {
  public:
    Team(size_t stages, size_t seats, const StageCalls& calls)
        : stages_(stages),
          chunks_(seats > 1 ? kChunks : 1),
          calls_(calls),
          seats_(seats),
          groups_(ceil_div(seats, kGroupSeats)) {
        begin(0);
    }

    void take_part() {
        const size_t me = take_seat();
        for (size_t stage = open_.load(); stage < stages_;) {
            const auto is_over = [&](uint32_t open) { return open != stage; };
            run_seat(stage, me, me);
            const bool all_here = taken_.load(std::memory_order_relaxed) == seats_.size();
            const size_t group = me / kGroupSeats;
            if (!open_.spin_until(is_over, all_here ? kSpinsBeforeHelp : 1)) help(stage, group, me);
            if (groups_.size() > 1 && !open_.spin_until(is_over, all_here ? kSpinsBeforeHelpAfar : 1))
                for (size_t i = 1; i < groups_.size(); ++i) help(stage, (group + i) % groups_.size(), me);
            stage = open_.wait_until(is_over, SleepsAtOnce{}, kSpinsAwake);
        }
    }

    void rethrow() { error_.rethrow(); }

  private:
    static constexpr size_t kChunks = 4;
    static constexpr size_t kGroupSeats = 8;
    static constexpr int kSpinsBeforeHelp = 40;       // about a microsecond
    static constexpr int kSpinsBeforeHelpAfar = 400;  // then ten, outside the own group
    // A thread that has lost its core to another program is mostly back after some hundred microseconds, and waking
    // those that wait for it takes longer than a stage.
    static constexpr int kSpinsAwake = 4 * Event::kSpins;

    struct alignas(kWritersApart) Seat {
        std::atomic<bool> taken{false};
        std::atomic<uint64_t> claimed{0};  // a stage in the upper half, the number of its chunks claimed in the lower

        // Claims the next chunk of a stage; false if all are claimed, or the stage is over.
        bool claim(size_t stage, size_t chunks, size_t& chunk) {
            const uint64_t none = static_cast<uint64_t>(stage) << 32;
            for (uint64_t now = claimed.load(std::memory_order_relaxed);;) {
                const uint64_t before = std::max(now, none);  // `now` may be of an earlier stage
                if (before >= none + chunks) return false;
                if (!claimed.compare_exchange_weak(now, before + 1, std::memory_order_relaxed)) continue;
                chunk = before - none;
                return true;
            }
        }
    };

    struct alignas(kWritersApart) Group {
        std::atomic<size_t> ended{0};  // shares of its seats, of all stages
    };

    // Seats [first, end) of a group.
    Range seats_of(size_t group) const {
        return {group * kGroupSeats, std::min((group + 1) * kGroupSeats, seats_.size())};
    }
    // The shares of a group's seats in a stage and those before it.
    size_t shares_until(size_t stage, size_t group) const {
        const Range seats = seats_of(group);
        return (stage + 1) * (seats.end - seats.first) * chunks_;
    }

    // A thread has the same seat in every job, if it is free.
    size_t take_seat() {
        taken_.fetch_add(1, std::memory_order_relaxed);
        for (size_t seat = worker_number;; ++seat)
            if (!seats_[seat % seats_.size()].taken.exchange(true)) return seat % seats_.size();
    }

    // Runs what is left of a seat's part. After an error, nothing is run any more, but counted.
    void run_seat(size_t stage, size_t seat, size_t me) {
        size_t run = 0;
        for (size_t chunk; seats_[seat].claim(stage, chunks_, chunk); ++run)
            if (!error_.caught())
                error_.guard([&] { calls_.body(calls_.context, stage, {me, seat, seats_.size(), chunk, chunks_}); });
        const size_t group = seat / kGroupSeats;
        if (run == 0 || groups_[group].ended.fetch_add(run) + run < shares_until(stage, group)) return;
        if (groups_.size() > 1 && ended_groups_.fetch_add(1) + 1 < (stage + 1) * groups_.size()) return;
        begin(stage + 1);
        open_.store(static_cast<uint32_t>(stage + 1));
    }

    // Runs what is left of the parts of a group's seats, from the one after the thread's own on.
    void help(size_t stage, size_t group, size_t me) {
        if (groups_[group].ended.load(std::memory_order_relaxed) >= shares_until(stage, group)) return;
        const Range seats = seats_of(group);
        const size_t count = seats.end - seats.first;
        for (size_t i = 1; i <= count; ++i)
            if (const size_t seat = seats.first + (me + i) % count; seat != me) run_seat(stage, seat, me);
    }

    void begin(size_t stage) {
        if (stage < stages_ && !error_.caught()) error_.guard([&] { calls_.begin(calls_.context, stage); });
    }

    const size_t stages_, chunks_;
    const StageCalls calls_;
    std::vector<Seat> seats_;
    std::vector<Group> groups_;
    alignas(kWritersApart) std::atomic<size_t> taken_{0};         // seats
    alignas(kWritersApart) Event open_;                           // the current stage
    alignas(kWritersApart) std::atomic<size_t> ended_groups_{0};  // of all stages, if there are several
    alignas(kWritersApart) FirstError error_;                     // asked before each share
};

// Restores the flag however the job ends.
struct InsideJob {
    InsideJob() { inside_job = true; }
    ~InsideJob() { inside_job = false; }
};

}  // namespace

bool pin_workers(std::vector<int> cpus) { return PerProcess<Pool>::get().pin_workers(std::move(cpus)); }

void parallel_for(size_t tasks, int threads, void (*body)(void*, size_t), void* context) {
    if (tasks > 1 && threads > 1 && !inside_job) {
        const InsideJob inside;
        if (PerProcess<Pool>::get().run(tasks, threads, body, context)) return;
    }
    for (size_t task = 0; task < tasks; ++task) body(context, task);
}

void parallel_stages(size_t stages, int threads, const StageCalls& calls) {
    const auto seats = static_cast<size_t>(threads);
    Team team(stages, seats, calls);
    parallel_for(seats, threads, [&](size_t) { team.take_part(); });
    team.rethrow();
}

}  // namespace decodestep
