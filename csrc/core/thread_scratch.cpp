#include "core/thread_scratch.h"

#include <algorithm>
#include <cassert>
#include <memory>
#include <utility>

namespace decodestep {
namespace {

constexpr size_t kMostKept = cache_lines(size_t{4} << 20);  // 16 MB a thread; a larger lease is freed at its end

struct Kept {
    std::unique_ptr<CacheLine[]> lines;
    size_t count = 0;
    bool leased = false;
};
thread_local Kept kept;

}  // namespace

ThreadScratch::ThreadScratch(size_t floats) {
    assert(!kept.leased);
    const size_t wanted = std::max<size_t>(cache_lines(floats), 1);
    if (kept.count < wanted) {
        kept.lines.reset();  // before more is allocated
        kept.count = 0;
        kept.lines = std::make_unique_for_overwrite<CacheLine[]>(wanted);
        kept.count = wanted;
    }
    lines_ = kept.lines.release();
    count_ = std::exchange(kept.count, 0);
    kept.leased = true;
}

ThreadScratch::~ThreadScratch() {
    std::unique_ptr<CacheLine[]> lines(lines_);
    kept.leased = false;
    if (count_ > kMostKept || count_ < kept.count) return;
    kept.lines = std::move(lines);
    kept.count = count_;
}

}  // namespace decodestep
