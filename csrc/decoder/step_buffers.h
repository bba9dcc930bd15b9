// The memory of a step: float buffers that later steps reuse. Not built per instruction set.
#pragma once

#include <cstddef>
#include <vector>

namespace decodestep {

// Memory in pages of its own, which return to the system as soon as it is freed, whatever thread allocated it.
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

// The buffers of one step, in order: in another step the first take() returns the first buffer again, and so on. They
// come from a pool shared by all threads and return to it at the end.
class StepBuffers {
  public:
    StepBuffers();
    ~StepBuffers();
    StepBuffers(const StepBuffers&) = delete;
    StepBuffers& operator=(const StepBuffers&) = delete;

    // A buffer of at least `floats` floats, not initialised.
    float* take(size_t floats);

  private:
    std::vector<PageMemory> buffers_;
    size_t used_ = 0;
};

}  // namespace decodestep
