// Bytes of a file, and checksums of them at the speed of memory.
//
// Bytes have checksums in pieces of 1 MiB: eight for each, of every eighth word of 64 bits. A word that differs changes
// its checksum in any case, words that change together with a probability of 2^-64 do not: that finds damage, not
// somebody who looks for other bytes with the same checksums.
#pragma once

#include <cstddef>
#include <cstdint>

namespace decodestep {

constexpr size_t kPieceBytes = size_t{1} << 20;
constexpr size_t kPieceChecksums = 8;

struct CheckedBytes {
    uint8_t* bytes;
    size_t size;          // a multiple of 64
    uint64_t* checksums;  // [pieces, kPieceChecksums]
    int threads;
};

// Fills `bytes` from an open file, from byte `at` on. Returns 0, an errno, or -1 if the file ends early.
int read_bytes(int file, int64_t at, uint8_t* bytes, size_t size);

// Writes the checksums of bytes.
void checksum_bytes(const CheckedBytes& a);

// The same of bytes that are read from a file, from byte `begin` on, while they are in a core's cache. Returns 0, or
// what read_bytes does where bytes could not be read.
int read_checked_bytes(const CheckedBytes& a, int file, int64_t begin);

}  // namespace decodestep
