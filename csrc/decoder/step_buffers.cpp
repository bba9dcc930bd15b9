#include "decoder/step_buffers.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <utility>

#include "core/shelf.h"

namespace decodestep {
namespace {

// What is kept for later steps: the buffers of a few concurrent steps, and no more than this many bytes in all.
constexpr size_t kShelf = 4, kMaxFloats = size_t{256} << 18;

struct KeptBuffers {
    std::vector<std::vector<PageMemory>> sets;
    size_t floats = 0;
};

size_t floats_of(const std::vector<PageMemory>& buffers) {
    size_t floats = 0;
    for (const PageMemory& buffer : buffers) floats += buffer.floats();
    return floats;
}

}  // namespace

PageMemory::PageMemory(size_t floats) : floats_(std::max<size_t>(floats, 1)) {
    void* const pages =
        mmap(nullptr, floats_ * sizeof(float), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) throw std::bad_alloc();
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

StepBuffers::StepBuffers() {
    Shelf<KeptBuffers>::use([&](KeptBuffers& kept) {
        if (kept.sets.empty()) return;
        buffers_ = std::move(kept.sets.back());
        kept.sets.pop_back();
        kept.floats -= floats_of(buffers_);
    });
}

StepBuffers::~StepBuffers() {
    const size_t floats = floats_of(buffers_);
    Shelf<KeptBuffers>::use([&](KeptBuffers& kept) {
        if (kept.sets.capacity() < kShelf) kept.sets.reserve(kShelf);
        if (kept.sets.size() == kShelf || kept.floats + floats > kMaxFloats) return;
        kept.floats += floats;
        kept.sets.push_back(std::move(buffers_));
    });
}

float* StepBuffers::take(size_t floats) {
    if (used_ == buffers_.size())
        buffers_.emplace_back(floats);
    else if (buffers_[used_].floats() < floats)
        buffers_[used_] = PageMemory(floats);
    return buffers_[used_++].data();
}

}  // namespace decodestep
