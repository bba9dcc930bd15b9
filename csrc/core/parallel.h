// One pool of worker threads for all kernels.
#pragma once

#include <cstddef>

namespace decodestep {

// Calls body(context, task) once for every task in [0, tasks), on the calling thread and up to threads - 1 workers.
// Tasks are claimed one by one, so the caller never waits for a worker that has not started; it waits only for tasks
// that a worker has claimed. Called from inside a body, or while another thread's call is running, it runs all tasks on
// the calling thread.
void parallel_for(size_t tasks, int threads, void (*body)(void* context, size_t task), void* context);

template <class Body>
void parallel_for(size_t tasks, int threads, Body&& body) {
    parallel_for(
        tasks, threads, [](void* context, size_t task) { (*static_cast<Body*>(context))(task); },
        const_cast<void*>(static_cast<const void*>(&body)));
}

// Calls body(context, stage, member, members) for every stage in turn, and in each stage once for every member of
// [0, members): a team of the calling thread and up to threads - 1 workers, in which each finds its share of the work
// by its number. Between two stages all members wait for each other, a fraction of a microsecond. The team begins with
// the threads that are ready; a worker that starts later joins at the next stage, so `members` may grow from one stage
// to the next, and nobody waits for a worker that has not joined.
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

// A buffer of the calling thread, of at least `floats` floats, valid until the next call on the same thread.
float* thread_scratch(size_t floats);

}  // namespace decodestep
