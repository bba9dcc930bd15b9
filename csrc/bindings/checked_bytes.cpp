#include "core/checked_bytes.h"

#include <limits>

#include "bindings/bindings.h"
#include "core/division.h"

namespace decodestep {
namespace {

using Memory = Packed<uint8_t, 1>;
using Checksums = Packed<uint64_t, 2>;

CheckedBytes checked_bytes_of(uint8_t* bytes, size_t size, const Checksums& checksums, int threads) {
    require_aligned(checksums);
    require(size % 64 == 0, "bytes must fill lines of 64");
    require(checksums.shape(0) == ceil_div(size, kPieceBytes) && checksums.shape(1) == kPieceChecksums,
            "checksums has the wrong shape");
    return {bytes, size, checksums.data(), thread_count(threads)};
}

void call_checksum_bytes(Memory memory, Checksums checksums, int threads) {
    const CheckedBytes args = checked_bytes_of(memory.data(), memory.size(), checksums, threads);
    const ReleasedGil released;
    checksum_bytes(args);
}

int call_read_checked_bytes(int64_t file, int64_t at, Memory memory, Checksums checksums, int threads) {
    require(file >= 0 && file <= std::numeric_limits<int>::max() && at >= 0 && at < int64_t{1} << 62,
            "a part of a file is out of range");
    const CheckedBytes args = checked_bytes_of(memory.data(), memory.size(), checksums, threads);
    const ReleasedGil released;
    return read_checked_bytes(args, static_cast<int>(file), at);
}

}  // namespace

void bind_checked_bytes(nb::module_& m) {
    m.def("checksum_bytes", &call_checksum_bytes, nb::arg("memory").noconvert(), nb::arg("checksums").noconvert(),
          nb::arg("threads"));
    m.def("read_checked_bytes", &call_read_checked_bytes, nb::arg("file"), nb::arg("at"), nb::arg("memory").noconvert(),
          nb::arg("checksums").noconvert(), nb::arg("threads"));
}

}  // namespace decodestep
