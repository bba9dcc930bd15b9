// The pool of threads from C++: bodies that throw, callers at once, forks, the floating-point environment.
#include "core/parallel.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <limits>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/float_environment.h"
#include "core/idle_policy.h"
#include "core/thread_scratch.h"

namespace {

using decodestep::parallel_for;
using decodestep::parallel_stages;
using decodestep::StageShare;

#define CHECK(condition)                                                    \
    do {                                                                    \
        if (!(condition)) {                                                 \
            std::printf("%s:%d: not %s\n", __FILE__, __LINE__, #condition); \
            std::exit(1);                                                   \
        }                                                                   \
    } while (false)

void pause_a_moment() { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }

void each_task_runs_once(int threads) {
    std::vector<std::atomic<int>> runs(1000);
    parallel_for(runs.size(), threads, [&](size_t task) { ++runs[task]; });
    for (const auto& count : runs) CHECK(count == 1);
}

// Every unit of every stage runs once; a stage begins once, after the one before has ended and before its own units.
void each_share_runs_once(int threads) {
    constexpr size_t kStages = 200, kUnits = 37;
    std::vector<std::atomic<int>> units(kStages * kUnits), tasks(kStages * kUnits);
    std::atomic<size_t> ended{0}, early{0};
    size_t begun = 0;
    const auto begin = [&](size_t stage) {
        if (ended < stage * kUnits || begun != stage) ++early;
        begun = stage + 1;
    };
    parallel_stages(kStages, threads, begin, [&](size_t stage, const StageShare& share) {
        if (begun != stage + 1) ++early;
        CHECK(share.member < static_cast<size_t>(threads));
        share.each_dealt(kUnits, [&](size_t task) { ++tasks[stage * kUnits + task]; });
        const auto part = share.of(kUnits, 1 + stage % 5);
        for (size_t unit = part.first; unit < part.end; ++unit) ++units[stage * kUnits + unit];
        ended += part.end - part.first;
    });
    for (const auto& count : units) CHECK(count == 1);
    for (const auto& count : tasks) CHECK(count == 1);
    CHECK(early == 0 && begun == kStages);
}

// A thread that has lost its core holds a stage up for the share that it is in; others run the rest of its part.
void others_run_the_shares_of_a_late_thread(int threads) {
    std::atomic<size_t> others{0};
    parallel_stages(20, threads, [&](size_t stage, const StageShare& share) {
        if (share.seat > 0 || share.chunk > 0) return void(++others);
        const size_t all_others = (stage + 1) * (share.seats * share.chunks - 1);
        for (int waited = 0; others < all_others; ++waited) {
            CHECK(waited < 20000);
            pause_a_moment();
        }
    });
}

template <class Call>
bool throws(Call&& call) {
    try {
        call();
    } catch (const std::runtime_error& error) {
        return std::strcmp(error.what(), "thrown") == 0;
    }
    return false;
}

void bodies_may_throw() {
    for (size_t bad = 0; bad < 40; ++bad) {
        CHECK(throws([&] {
            parallel_for(40, 4, [&](size_t task) {
                pause_a_moment();
                if (task == bad) throw std::runtime_error("thrown");
            });
        }));
        each_task_runs_once(4);
    }
    for (size_t bad = 0; bad < 4; ++bad) {
        // The members that do not throw must not wait for those that have.
        std::atomic<bool> thrown{false};
        const bool caught = throws([&] {
            parallel_stages(20, 4, [&](size_t, const StageShare& share) {
                pause_a_moment();
                if (share.member == bad) {
                    thrown = true;
                    throw std::runtime_error("thrown");
                }
            });
        });
        CHECK(caught == thrown);
        each_share_runs_once(4);
    }
    CHECK(throws([] { parallel_for(1, 4, [](size_t) { throw std::runtime_error("thrown"); }); }));
}

// A job that wants many workers wakes them all, though each wakes only two.
void all_workers_wake() {
    constexpr int kThreads = 24;
    each_task_runs_once(kThreads);
    for (int round = 0; round < 5; ++round) {
        std::this_thread::sleep_for(std::chrono::milliseconds(3));  // until they sleep
        std::atomic<int> here{0};
        parallel_for(kThreads, kThreads, [&](size_t) {
            ++here;
            for (int waited = 0; here < kThreads; ++waited) {
                CHECK(waited < 20000);
                pause_a_moment();
            }
        });
    }
}

// After a body has thrown, later jobs still run on several threads.
void threads_come_back() {
    CHECK(throws([] { parallel_for(8, 4, [](size_t) { throw std::runtime_error("thrown"); }); }));
    std::mutex mutex;
    std::set<std::thread::id> seen;
    parallel_for(64, 4, [&](size_t) {
        pause_a_moment();
        const std::lock_guard lock(mutex);
        seen.insert(std::this_thread::get_id());
    });
    CHECK(seen.size() == 4);
}

// Two callers at once share the workers: a job of which one thread is busy elsewhere gets one when it comes free.
void callers_share_workers() {
    std::mutex mutex;
    std::set<size_t> members;
    std::atomic<bool> first_runs{false};
    std::thread first([&] {
        parallel_for(8, 4, [&](size_t) {
            first_runs = true;
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
        });
    });
    while (!first_runs) std::this_thread::yield();
    parallel_stages(100, 4, [&](size_t, const StageShare& share) {
        pause_a_moment();
        const std::lock_guard lock(mutex);
        members.insert(share.member);
    });
    first.join();
    CHECK(members.size() > 1);
}

void many_callers() {
    std::vector<std::thread> callers;
    for (int i = 0; i < 24; ++i)  // more than the pool has slots
        callers.emplace_back([i] {
            for (int round = 0; round < 20; ++round) {
                each_task_runs_once(1 + (i + round) % 5);
                each_share_runs_once(1 + (i + round) % 5);
            }
        });
    for (auto& caller : callers) caller.join();
}

// With many workers in the pool, a job on two threads uses two.
void seats_are_kept() {
    each_task_runs_once(16);
    std::atomic<int> inside{0}, most{0};
    parallel_for(200, 2, [&](size_t) {
        const int now = ++inside;
        int seen = most;
        while (now > seen && !most.compare_exchange_weak(seen, now)) {
        }
        std::this_thread::sleep_for(std::chrono::microseconds(50));
        --inside;
    });
    CHECK(most <= 2);
}

void a_forked_child_works() {
    each_task_runs_once(4);
    std::atomic<bool> over{false};
    std::thread other([&] {
        while (!over) each_task_runs_once(4);
    });
    for (int i = 0; i < 20; ++i) {
        const pid_t child = fork();
        if (child == 0) {
            alarm(20);
            each_task_runs_once(4);
            each_share_runs_once(4);
            _exit(0);
        }
        int status = 0;
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    over = true;
    other.join();
}

// What the host has set for its threads does not reach the bodies.
void floats_are_the_default() {
#if defined(__x86_64__)
    const unsigned found = _mm_getcsr();
    _mm_setcsr(found | 0x8040);  // flush to zero, subnormals are zeros
    volatile float small = std::numeric_limits<float>::denorm_min();
    each_task_runs_once(4);  // starts the workers, which inherit what is set
    {
        const decodestep::DefaultFloats floats;
        std::atomic<int> kept{0};
        parallel_for(64, 4, [&](size_t) {
            if (small * 2.0f > 0.0f) ++kept;
            pause_a_moment();
        });
        CHECK(kept == 64);
    }
    CHECK((_mm_getcsr() & 0x8040) == 0x8040);
    _mm_setcsr(found);
#endif
}

#ifdef __linux__
void run_all_threads_on(const cpu_set_t& cpus) {
    for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task"))
        sched_setaffinity(std::stoi(thread.path().filename().string()), sizeof(cpus), &cpus);
}

// A thread that only gives way to the one it waits for, on the core that they share, never leaves that core: the system
// moves those that sleep.
void who_waits_sleeps() {
    cpu_set_t allowed, one;
    CHECK(sched_getaffinity(0, sizeof(allowed), &allowed) == 0);
    int cpu = 0;
    while (!CPU_ISSET(cpu, &allowed)) ++cpu;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    run_all_threads_on(one);
    const auto slept = [] {
        rusage used;
        getrusage(RUSAGE_SELF, &used);
        return used.ru_nvcsw;
    };
    constexpr size_t kStages = 100;
    std::atomic<size_t> begun{0};
    std::atomic<long> pauses{0};
    const long before = slept();
    parallel_stages(kStages, 2, [&](size_t stage, const StageShare& share) {
        using namespace std::chrono;
        if (share.member == 0) {
            for (; begun <= stage; ++pauses) pause_a_moment();  // until the other is in a share
            return;
        }
        begun = stage + 1;
        for (const auto start = steady_clock::now(); steady_clock::now() - start < 300us;) {
        }
    });
    const long times = slept() - before - pauses;
    run_all_threads_on(allowed);
    CHECK(times > static_cast<long>(kStages) / 4);
}
#endif

// A clock of the test's own; giving way takes `given_way`.
struct FakeTime {
    static std::chrono::nanoseconds now() { return time; }
    static void give_way() { time += given_way; }
    static inline std::chrono::nanoseconds time{0}, given_way{500};
};

using FakeIdlePolicy = decodestep::IdlePolicyBy<FakeTime>;

// How long a worker stays awake for a job that comes after `gap`.
std::chrono::nanoseconds awake(FakeIdlePolicy& idle, std::chrono::microseconds gap) {
    const auto start = FakeTime::time;
    while (FakeTime::time - start < gap && idle.stays_awake()) {
    }
    const auto stayed = FakeTime::time - start;
    FakeTime::time = std::max(FakeTime::time, start + gap);
    idle.got_job();
    return stayed;
}

void workers_wait_awake_where_that_pays() {
    using namespace std::chrono_literals;
    FakeIdlePolicy idle;
    CHECK(awake(idle, 200us) == 0us);  // nothing is known yet
    for (int i = 0; i < 8; ++i) CHECK(awake(idle, 200us) >= 200us);
    const auto in_vain = awake(idle, 100000us);
    CHECK(in_vain >= FakeIdlePolicy::kMost && in_vain < 2 * FakeIdlePolicy::kMost);
    CHECK(awake(idle, 200us) >= 200us);  // one late job among many
    for (int i = 0; i < 8; ++i) awake(idle, 100000us);
    CHECK(awake(idle, 100000us) == 0us);
    CHECK(awake(idle, 200us) == 0us);
    for (int i = 0; i < 20; ++i) awake(idle, 200us);
    CHECK(awake(idle, 200us) >= 200us);
    // Somebody else wants the core.
    FakeTime::given_way = 3ms;
    for (int i = 0; i < 8; ++i) CHECK(awake(idle, 200us) <= 3ms);
    CHECK(awake(idle, 200us) == 0us);
    FakeTime::given_way = 500ns;
}

// Workers that have waited awake between jobs sleep soon after the last.
void idle_workers_sleep() {
    using namespace std::chrono;
    for (int i = 0; i < 40; ++i) {
        each_task_runs_once(4);
        for (const auto start = steady_clock::now(); steady_clock::now() - start < 150us;) {
        }
    }
    const auto used = [] {
        timespec time;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
        return seconds(time.tv_sec) + nanoseconds(time.tv_nsec);
    };
    const auto before = used();
    std::this_thread::sleep_for(30ms);
    CHECK(used() - before < 10ms);
}

// A lease has its own memory, from a cache line on, which its thread keeps for the next one.
void scratch_is_leased() {
    float* kept = nullptr;
    for (const size_t floats : {0, 1, 17, 5000, 16, 5000}) {
        const decodestep::ThreadScratch scratch(floats);
        CHECK(scratch.data() && reinterpret_cast<uintptr_t>(scratch.data()) % decodestep::kCacheLine == 0);
        std::fill_n(scratch.data(), floats, 1.0f);
        if (kept) CHECK(scratch.data() == kept);
        if (floats == 5000) kept = scratch.data();
    }
    std::atomic<size_t> wrong{0};
    parallel_for(200, 4, [&](size_t task) {
        const decodestep::ThreadScratch scratch(task % 3 ? 100 : 300000);
        std::fill_n(scratch.data(), 100, static_cast<float>(task));
        pause_a_moment();
        wrong += static_cast<size_t>(std::count(scratch.data(), scratch.data() + 100, static_cast<float>(task))) != 100;
    });
    CHECK(wrong == 0);
}

}  // namespace

int main(int argc, char** argv) {
    const bool may_fork = argc < 2 || std::strcmp(argv[1], "--no-fork") != 0;
    floats_are_the_default();                            // first, because it starts the workers
    for (const int threads : {1, 2, 3, 8, 9, 33, 64}) {  // one group of seats, and several
        each_task_runs_once(threads);
        each_share_runs_once(threads);
    }
    bodies_may_throw();
    threads_come_back();
    for (const int threads : {4, 20}) others_run_the_shares_of_a_late_thread(threads);
    all_workers_wake();
    callers_share_workers();
    seats_are_kept();
    many_callers();
    workers_wait_awake_where_that_pays();
    idle_workers_sleep();
    scratch_is_leased();
#ifdef __linux__
    who_waits_sleeps();
#endif
    if (may_fork) a_forked_child_works();  // the thread sanitizer does not follow a fork with threads
    std::puts("passed");
}
