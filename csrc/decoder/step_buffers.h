// The memory of a step: float buffers that later steps use again. Not built per instruction set.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace decodestep {

// Memory of its own pages, which the system has back as soon as it is not needed, whatever thread took it.
class PageMemory {
  public:
    explicit PageMemory(size_t floats);  // throws std::bad_alloc
    PageMemory(PageMemory&& other) noexcept;
    PageMemory& operator=(PageMemory&& other) noexcept;
    ~PageMemory();

    float* data() const { return data_; }
    size_t floats() const { return floats_; }

  private:
    float* data_;
    size_t floats_;
};

// The buffers of one step, one after another; in another step the first take() gives the first buffer again, and so on.
// They come from a shelf that all threads share, and go back to it at the end.
class StepBuffers {
  public:
    StepBuffers();
    ~StepBuffers();
    StepBuffers(const StepBuffers&) = delete;
    StepBuffers& operator=(const StepBuffers&) = delete;

    // At least so many floats; not initialised.
    float* take(size_t floats);

  private:
    std::vector<PageMemory> buffers_;
    size_t used_ = 0;
};

}  // namespace decodestep
