// One pool of worker threads for all kernels.
//
// Several threads may call at once: each call is a job, and a free worker joins the open job with the fewest workers.
// If a body throws, its job ends early; the first exception reaches the caller after all threads have left the job. A
// process may fork at any time: the child starts with a pool without workers.
#pragma once

#include <cstddef>
#include <vector>

#include "core/division.h"
#include "core/stage_share.h"

namespace decodestep {

// From now on, worker n, from 1, runs on cpus[n % cpus.size()] alone, also if it exists already; callers run where they
// do. False if the system refuses a CPU, or does not let threads be pinned.
bool pin_workers(std::vector<int> cpus);

// Calls body(context, task) once for every task in [0, tasks), on the calling thread and up to threads - 1 workers.
// Tasks are claimed one by one, so the caller never waits for a worker that has not started; it waits only for tasks
// that a worker has claimed. A call from inside a body runs on the calling thread alone.
void parallel_for(size_t tasks, int threads, void (*body)(void* context, size_t task), void* context);

template <class Body>
void parallel_for(size_t tasks, int threads, Body&& body) {
    parallel_for(
        tasks, threads, [](void* context, size_t task) { (*static_cast<Body*>(context))(task); },
        const_cast<void*>(static_cast<const void*>(&body)));
}

// Calls body(row) for every row of `width` values. Short rows are grouped into tasks, because a smaller task would take
// less time than waking a thread for it.
template <class Body>
void parallel_rows(size_t rows, size_t width, int threads, Body&& body) {
    constexpr size_t kTaskValues = size_t{1} << 15;
    const size_t in_task = width < kTaskValues ? kTaskValues / (width + 1) + 1 : 1;
    parallel_for(ceil_div(rows, in_task), threads, [&](size_t task) {
        const size_t first = task * in_task, end = first + in_task < rows ? first + in_task : rows;
        for (size_t row = first; row < end; ++row) body(row);
    });
}

// For every stage in order, calls begin(context, stage) once, then body(context, stage, share) for all of its shares,
// in any order: on a team of the calling thread and up to threads - 1 workers. A stage begins a fraction of a
// microsecond after the last share of the one before has ended. A thread first claims the shares of its own seat, then
// those of seats whose thread is late: one that has not started, runs on a slower core or has lost its core to another
// program holds the team up for no more than the share that it is in.
struct StageCalls {
    void (*begin)(void* context, size_t stage);
    void (*body)(void* context, size_t stage, const StageShare& share);
    void* context;
};
void parallel_stages(size_t stages, int threads, const StageCalls& calls);

template <class Begin, class Body>
void parallel_stages(size_t stages, int threads, Begin&& begin, Body&& body) {
    struct Calls {
        Begin& begin;
        Body& body;
    } calls{begin, body};
    parallel_stages(
        stages, threads,
        {[](void* context, size_t stage) { static_cast<Calls*>(context)->begin(stage); },
         [](void* context, size_t stage, const StageShare& share) { static_cast<Calls*>(context)->body(stage, share); },
         &calls});
}

template <class Body>
void parallel_stages(size_t stages, int threads, Body&& body) {
    parallel_stages(stages, threads, [](size_t) {}, body);
}

}  // namespace decodestep
