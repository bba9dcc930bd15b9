// Objects kept between calls and shared by all threads. Not for files that are built per instruction set.
#pragma once

#include <array>
#include <cstddef>
#include <mutex>
#include <utility>

#include "core/per_process.h"

namespace decodestep {

// Keeps at most kMost objects. A T() holds nothing. A forked child starts with an empty pool.
template <class T, size_t kMost, size_t (*bytes_of)(const T&)>
class ObjectPool {
  public:
    // One of the objects; T() if there is none.
    static T take() {
        Contents& kept = PerProcess<Contents>::get();
        const std::lock_guard lock(kept.mutex);
        if (kept.count == 0) return T{};
        T object = std::move(kept.objects[--kept.count]);
        kept.bytes -= bytes_of(object);
        return object;
    }

    // The object is destroyed if the pool is full, or would have more than most_bytes.
    static void give(T object, size_t most_bytes) noexcept {
        Contents* const kept = PerProcess<Contents>::existing();
        if (!kept) return;
        const size_t bytes = bytes_of(object);
        const std::lock_guard lock(kept->mutex);
        if (kept->count == kMost || kept->bytes + bytes > most_bytes) return;
        kept->bytes += bytes;
        kept->objects[kept->count++] = std::move(object);
    }

  private:
    struct Contents {
        std::mutex mutex;
        std::array<T, kMost> objects;
        size_t count = 0, bytes = 0;
    };
};

}  // namespace decodestep
