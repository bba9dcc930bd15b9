// Prefetches the next block of keys in between other work.
#pragma once

#include "attention/tile_call.h"
#include "core/cache_line.h"

namespace decodestep::DECODESTEP_BUILD {

// A few cache lines at a time: all at once they would wait for each other and delay reads of keys. A block may be
// larger than the first-level cache.
class KeyPrefetcher {
  public:
    explicit KeyPrefetcher(const TileCall& call) : call_(call) {}

    // Continues with keys [first, end), except those that have already been prefetched, in about equal parts.
    // advances: the number of calls of `advance` to come.
    void aim(size_t first, size_t end, size_t advances) {
        if (first > position_ || end < position_) position_ = first, part_ = 0, left_ = 0;
        end_ = end;
        lines_ = ceil_div(kBlockKeys * lines_a_key(), advances);
    }

    void advance() {
        for (size_t lines = lines_; lines > 0;) {
            if (left_ == 0 && !next_part()) return;
            const size_t n = std::min(lines, left_);
            for (size_t i = 0; i < n; ++i) prefetch_to_second_level(at_ + i * kCacheLine);
            at_ += n * kCacheLine;
            left_ -= n;
            lines -= n;
        }
    }

  private:
    static size_t lines(const PagedRows& cache, size_t values) {
        return ceil_div(values * value_bytes(cache.type), kCacheLine);
    }

    size_t lines_a_key() const {
        return lines(call_.a.kv, call_.latents_read().count) + 2 * lines(call_.a.kr, call_.ropes_read(0).count);
    }

    // The latents of a key, then each half of its rope key. Not in NZ order, where they are many small pieces.
    bool next_part() {
        if (position_ >= end_ || call_.a.kv.nz()) return false;
        const PagedRows& cache = part_ == 0 ? call_.a.kv : call_.a.kr;
        const Columns columns = part_ == 0 ? call_.latents_read() : call_.ropes_read(part_ - 1);
        at_ = cache.row(call_.table[position_ / call_.a.block_size], position_ % call_.a.block_size, columns.first);
        left_ = lines(cache, columns.count);
        if (++part_ == 3) part_ = 0, ++position_;
        return true;
    }

    const TileCall& call_;
    size_t position_ = 0, end_ = 0, part_ = 0, left_ = 0, lines_ = 0;
    const uint8_t* at_ = nullptr;
};

}  // namespace decodestep::DECODESTEP_BUILD
