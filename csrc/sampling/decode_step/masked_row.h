// A copy of a row in which the logits that a mask forbids are -inf: all passes over the row then find what the steps
// before the first filter leave, without a look at the mask.
#pragma once

#include <limits>
#include <type_traits>

#include "sampling/row/logits.h"
#include "sampling/row/workspace.h"

namespace decodestep::DECODESTEP_BUILD {

// bits: of `vocab` tokens. row: may be the copy itself, to forbid more.
// Writes sixteen items: those of which a bit of the mask is 1, and -inf.
DECODESTEP_INLINE void put_allowed(const float* from, Mask mask, float* to) {
    // x - 0 is x, also where it is -0, and 0 - inf is -inf.
    store(to, select(mask, load(from)) - select(~mask & kAllLanes, broadcast(std::numeric_limits<float>::infinity())));
}

template <class Half>
DECODESTEP_INLINE void put_allowed(const Half* from, Mask mask, Half* to) {
    alignas(32) static constexpr uint16_t kBit[kLanes] = {1,   2,   4,    8,    16,   32,   64,    128,
                                                          256, 512, 1024, 2048, 4096, 8192, 16384, 32768};
    constexpr uint16_t forbidden = std::is_same_v<Half, Bf16> ? 0xFF80 : 0xFC00;
    using Bits = uint16_t __attribute__((may_alias));
    const auto* const in = reinterpret_cast<const Bits*>(from);
    auto* const out = reinterpret_cast<Bits*>(to);
    const auto wanted = static_cast<uint16_t>(mask);
#pragma GCC ivdep
    for (int i = 0; i < kLanes; ++i) out[i] = (wanted & kBit[i]) != 0 ? in[i] : forbidden;
}

// bits: of the row's tokens. row: may be the copy itself, to forbid more.
template <LogitType type>
Logits<type> masked_row(const Logits<type>& row, const uint32_t* bits, Workspace& work) {
    using Row = Logits<type>;
    auto* const out = reinterpret_cast<typename Row::Item*>(work.masked());
    size_t i = 0;
    for (; i + 2 * kLanes <= row.vocab; i += 2 * kLanes) {
        const uint32_t word = bits[i / 32];
        for (size_t j = 0; j < 2 * kLanes; j += kLanes) {
            Row::prefetch_ahead_of(row.data + i + j);
            put_allowed(row.data + i + j, word >> j & kAllLanes, out + i + j);
        }
    }
    for (; i < row.vocab; ++i) out[i] = bits[i / 32] >> (i % 32) & 1 ? row.data[i] : Row::minus_infinity();
    return {out, row.vocab};
}

}  // namespace decodestep::DECODESTEP_BUILD
