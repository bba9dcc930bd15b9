// The work of one `linear_panels` call as two lists of tasks, for the operator and for other kernels that run them as
// stages: first every `read`, then every `multiply`. The tasks of a list may run in any order, on any threads.
#pragma once

#include <vector>

#include "linear/activations.h"
#include "linear/linear_panels.h"

namespace decodestep::DECODESTEP_BUILD {

class LinearPanelsTasks {
  public:
    explicit LinearPanelsTasks(const LinearPanels& call);

    // Converts one token to the form that the products read.
    size_t read_count() const { return call_.tokens; }
    void read(size_t token) const;

    // Multiplies all tokens by some panels: about 10 microseconds of work.
    size_t multiply_count() const { return ceil_div(panels_, panels_per_task_); }
    void multiply(size_t task) const;

  private:
    const LinearPanels call_;
    const size_t panels_, panels_per_task_;
    std::vector<float> space_;
    Activations x_;
};

}  // namespace decodestep::DECODESTEP_BUILD
