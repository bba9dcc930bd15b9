#include "core/checked_bytes.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>

#include "core/division.h"
#include "core/parallel.h"

namespace decodestep {
namespace {

constexpr size_t kReadBytes = size_t{1} << 18;  // at a time, which a core's cache holds until they have been added

struct Checksums {
    uint64_t lanes[kPieceChecksums] = {1, 2, 3, 4, 5, 6, 7, 8};

    // One multiplication for each word, and the words of a line do not wait for each other.
    void add(const uint8_t* bytes, size_t size) {
        constexpr uint64_t kFactor = 0x9E3779B97F4A7C15;  // odd, so that products with it differ where words do
        for (size_t i = 0; i < size; i += sizeof lanes) {
            uint64_t words[kPieceChecksums];
            std::memcpy(words, bytes + i, sizeof words);
            for (size_t k = 0; k < kPieceChecksums; ++k) lanes[k] = std::rotl((lanes[k] ^ words[k]) * kFactor, 31);
        }
    }
};

// For every piece, calls add(bytes before, bytes, the checksums to add them to) for all of its bytes, some at a time.
template <class Add>
void for_each_piece(const CheckedBytes& a, Add&& add) {
    parallel_for(ceil_div(a.size, kPieceBytes), a.threads, [&](size_t piece) {
        const size_t first = piece * kPieceBytes, end = std::min(first + kPieceBytes, a.size);
        Checksums checksums;
        for (size_t at = first; at < end; at += kReadBytes) add(at, std::min(kReadBytes, end - at), checksums);
        std::memcpy(a.checksums + piece * kPieceChecksums, checksums.lanes, sizeof checksums.lanes);
    });
}

}  // namespace

int read_bytes(int file, int64_t at, uint8_t* bytes, size_t size) {
    while (size > 0) {
        const ssize_t count = pread(file, bytes, size, static_cast<off_t>(at));
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return count < 0 ? errno : -1;
        bytes += count;
        at += count;
        size -= static_cast<size_t>(count);
    }
    return 0;
}

void checksum_bytes(const CheckedBytes& a) {
    for_each_piece(a, [&](size_t at, size_t size, Checksums& checksums) { checksums.add(a.bytes + at, size); });
}

int read_checked_bytes(const CheckedBytes& a, int file, int64_t begin) {
    std::atomic<int> problem{0};
    for_each_piece(a, [&](size_t at, size_t size, Checksums& checksums) {
        if (problem.load(std::memory_order_relaxed)) return;
        const int found = read_bytes(file, begin + static_cast<int64_t>(at), a.bytes + at, size);
        if (found) return problem.store(found, std::memory_order_relaxed);
        checksums.add(a.bytes + at, size);
    });
    return problem;
}

}  // namespace decodestep
