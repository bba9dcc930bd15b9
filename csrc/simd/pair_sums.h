// Rounding to bytes with their PairSums, for targets whose vectors of sixteen int32 are quickly added up.
#pragma once

namespace decodestep::DECODESTEP_BUILD {

DECODESTEP_INLINE PairSums pair_sums(i32x16 a) {
    alignas(64) constexpr int32_t kEvenPairs[kLanes] = {-1, -1, 0, 0, -1, -1, 0, 0, -1, -1, 0, 0, -1, -1, 0, 0};
    const int32_t even = sum(a & load_bits(kEvenPairs));
    return {even, sum(a) - even};
}

// Rounds 32 values in [-127, 127] to bytes, ties to even, NaN to 0; returns the sums of the first and of the last
// sixteen.
DECODESTEP_INLINE std::pair<PairSums, PairSums> round_to_bytes(f32x16 first, f32x16 second, int8_t* bytes) {
    const i32x16 a = round_to_int(first), b = round_to_int(second);
    store_i8(bytes, a);
    store_i8(bytes + kLanes, b);
    return {pair_sums(a), pair_sums(b)};
}

}  // namespace decodestep::DECODESTEP_BUILD
