// One pool of worker threads for all kernels.
//
// Several threads may call at once: each has a job of its own, and a worker that becomes free goes to the open job that
// has the fewest. A body that throws ends its job early; the first exception reaches the caller once no thread runs the
// body any more. A process may fork at any time: the child starts with a pool without workers.
#pragma once

#include <cstddef>

namespace decodestep {

// Calls body(context, task) once for every task in [0, tasks), on the calling thread and up to threads - 1 workers.
// Tasks are claimed one by one, so the caller never waits for a worker that has not started; it waits only for tasks
// that a worker has claimed. A body that is called from inside a body runs on its own thread alone.
void parallel_for(size_t tasks, int threads, void (*body)(void* context, size_t task), void* context);

template <class Body>
void parallel_for(size_t tasks, int threads, Body&& body) {
    parallel_for(
        tasks, threads, [](void* context, size_t task) { (*static_cast<Body*>(context))(task); },
        const_cast<void*>(static_cast<const void*>(&body)));
}

// Calls body(row) for every row of `width` values, in tasks of several if they are short: less work than a task takes
// no longer than waking a thread for it.
template <class Body>
void parallel_rows(size_t rows, size_t width, int threads, Body&& body) {
    constexpr size_t kTaskValues = size_t{1} << 15;
    const size_t in_task = width < kTaskValues ? kTaskValues / (width + 1) + 1 : 1;
    parallel_for((rows + in_task - 1) / in_task, threads, [&](size_t task) {
        const size_t first = task * in_task, end = first + in_task < rows ? first + in_task : rows;
        for (size_t row = first; row < end; ++row) body(row);
    });
}

// Calls body(context, stage, member, members) for every stage in turn, in each for every member of [0, members): a team
// of the calling thread and up to threads - 1 workers, in which each member takes its share of the work by its number.
// A stage begins when all members have finished the one before, a fraction of a microsecond later. The team begins with
// whoever is there; a worker that starts later joins at the next stage, so `members` may grow from one stage to the
// next and nobody waits for it before. At most 65534 stages.
void parallel_stages(size_t stages, int threads,
                     void (*body)(void* context, size_t stage, size_t member, size_t members), void* context);

template <class Body>
void parallel_stages(size_t stages, int threads, Body&& body) {
    parallel_stages(
        stages, threads,
        [](void* context, size_t stage, size_t member, size_t members) {
            (*static_cast<Body*>(context))(stage, member, members);
        },
        const_cast<void*>(static_cast<const void*>(&body)));
}

// A buffer of the calling thread, of at least `floats` floats; the next call on the same thread reuses it.
float* thread_scratch(size_t floats);

}  // namespace decodestep
