// The work of one `linear` call as two lists of tasks, for the operator and for other kernels that run them as stages:
// first every `read`, then every `multiply`. The tasks of a list may run in any order, on any threads.
#pragma once

#include <optional>

#include "linear/blocked_tokens.h"
#include "linear/linear.h"

namespace decodestep::DECODESTEP_BUILD {

class LinearTasks {
  public:
    explicit LinearTasks(const Linear& call) : LinearTasks(call, call.tokens) {}
    // `tokens` of the largest of several calls with as many rows, which thereby have as many tasks.
    LinearTasks(const Linear& call, size_t tokens);

    // Many tokens are copied, each by its task. Few are read where they lie: they have no tasks, and `read` does
    // nothing.
    size_t read_count() const { return copied_ ? call_.tokens : 0; }
    void read(size_t token) const;

    // Multiplies all tokens by some rows: about 10 microseconds of work.
    size_t multiply_count() const { return ceil_div(call_.w.out, rows_per_task_); }
    void multiply(size_t task) const;

  private:
    const Linear call_;
    const size_t rows_per_task_;
    std::optional<CopiedTokens> copied_;
};

}  // namespace decodestep::DECODESTEP_BUILD
