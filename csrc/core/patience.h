// Whether a worker stays awake a while longer for its next job, by what its waits have been worth.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace decodestep {

struct SteadyTime {
    static std::chrono::nanoseconds now() { return std::chrono::steady_clock::now().time_since_epoch(); }
    static void give_way() { std::this_thread::yield(); }
};

// A program that calls kernels in turn, with a tenth of a millisecond of its own between two, would find workers asleep
// at each call, and waking one takes as long as reading megabytes. So a worker whose jobs have come soon waits for the
// next one awake, for at most kMost. It gives way to whoever wants its core, and where somebody did, it goes to sleep:
// of two threads on one core that only give way to each other neither would move to an idle one.
template <class Time>
class PatienceBy {
  public:
    // For a worker that has looked for a job for a little while: whether to look again, or to sleep.
    bool lasts() {
        const auto now = Time::now();
        if (!waiting_) began_ = now, waiting_ = true, gave_way_ = false;
        if (worth_ <= 0 || gave_way_ || now - began_ > kMost) return false;
        Time::give_way();
        gave_way_ = Time::now() - now > kBriefly;
        return true;
    }

    // The worker has got a job.
    void rewarded() {
        if (!waiting_) return;
        waiting_ = false;
        const bool soon = !gave_way_ && Time::now() - began_ <= kMost;
        worth_ = soon ? std::min(worth_ + 1, kBest) : std::max(worth_ - kLoss, kWorst);
    }

    static constexpr std::chrono::microseconds kMost{500};

  private:
    static constexpr std::chrono::microseconds kBriefly{20};  // with nobody there it takes less than one
    // Among the some twenty jobs of a decode step a few may come late.
    static constexpr int kLoss = 4, kBest = 16, kWorst = -16;

    int worth_ = 0;
    bool waiting_ = false, gave_way_ = false;
    std::chrono::nanoseconds began_{0};
};

using Patience = PatienceBy<SteadyTime>;

// For waits that are short, or long.
struct NoPatience {
    static bool lasts() { return false; }
};

}  // namespace decodestep
