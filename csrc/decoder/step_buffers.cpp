#include "decoder/step_buffers.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <utility>

#include "core/object_pool.h"

namespace decodestep {
namespace {

size_t bytes_of(const std::vector<PageMemory>& buffers) {
    size_t floats = 0;
    for (const PageMemory& buffer : buffers) floats += buffer.floats();
    return floats * sizeof(float);
}

// Those of a few concurrent steps.
using BufferPool = ObjectPool<std::vector<PageMemory>, 4, bytes_of>;
constexpr size_t kMostKept = size_t{256} << 20;

}  // namespace

PageMemory::PageMemory(size_t floats) : floats_(std::max<size_t>(floats, 1)) {
    void* const pages =
        mmap(nullptr, floats_ * sizeof(float), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE  // else, or where it is refused, small pages
    // What many tokens read goes over more small pages than a TLB has entries: huge ones make a prompt 4 % faster.
    madvise(pages, floats_ * sizeof(float), MADV_HUGEPAGE);
#endif
    data_ = static_cast<float*>(pages);
}

PageMemory::PageMemory(PageMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), floats_(std::exchange(other.floats_, 0)) {}

PageMemory& PageMemory::operator=(PageMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(floats_, other.floats_);
    return *this;
}

PageMemory::~PageMemory() {
    if (data_) munmap(data_, floats_ * sizeof(float));
}

StepBuffers::StepBuffers() : buffers_(BufferPool::take()) {}

StepBuffers::~StepBuffers() { BufferPool::give(std::move(buffers_), kMostKept); }

float* StepBuffers::take(size_t floats) {
    if (used_ == buffers_.size())
        buffers_.emplace_back(floats);
    else if (buffers_[used_].floats() < floats)
        buffers_[used_] = PageMemory(floats);
    return buffers_[used_++].data();
}

}  // namespace decodestep
