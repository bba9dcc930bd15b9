// How long an idle worker stays awake for its next job, depending on how soon earlier jobs came.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace decodestep {

struct SteadyTime {
    static std::chrono::nanoseconds now() { return std::chrono::steady_clock::now().time_since_epoch(); }
    static void give_way() { std::this_thread::yield(); }
};

// A program that calls kernels one after another, with a tenth of a millisecond of other work in between, would find
// the workers asleep at each call, and waking one takes as long as reading megabytes. So a worker whose jobs have come
// soon stays awake for the next one, for at most kMost. Meanwhile it yields; if another thread took its core, it goes
// to sleep: two threads that only yield to each other stay on one core, since the scheduler moves sleeping threads.
template <class Time>
class IdlePolicyBy {
  public:
    // Called by a worker that has spun for a while without finding a job: true to go on looking, false to sleep.
    bool stays_awake() {
        const auto now = Time::now();
        if (!waiting_) began_ = now, waiting_ = true, gave_way_ = false;
        if (worth_ <= 0 || gave_way_ || now - began_ > kMost) return false;
        Time::give_way();
        gave_way_ = Time::now() - now > kBriefly;
        return true;
    }

    // Called when the worker gets a job.
    void got_job() {
        if (!waiting_) return;
        waiting_ = false;
        const bool soon = !gave_way_ && Time::now() - began_ <= kMost;
        worth_ = soon ? std::min(worth_ + 1, kBest) : std::max(worth_ - kLoss, kWorst);
    }

    static constexpr std::chrono::microseconds kMost{500};

  private:
    static constexpr std::chrono::microseconds kBriefly{20};  // a yield to nobody takes less than one
    // Of the roughly twenty jobs of a decode step a few may come late.
    static constexpr int kLoss = 4, kBest = 16, kWorst = -16;

    int worth_ = 0;
    bool waiting_ = false, gave_way_ = false;
    std::chrono::nanoseconds began_{0};
};

using IdlePolicy = IdlePolicyBy<SteadyTime>;

// For waits whose length needs no prediction.
struct SleepsAtOnce {
    static bool stays_awake() { return false; }
};

}  // namespace decodestep
