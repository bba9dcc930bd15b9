// Compaction lane by lane, for targets without an instruction for it. Included at the end of such a target's file.
#pragma once

namespace decodestep::DECODESTEP_BUILD {

// Writes the lanes of the mask one after the other, and the ids first + lane; there must be room for sixteen of each.
// Returns their number.
DECODESTEP_INLINE size_t compact(Mask mask, f32x16 values, int32_t first, float* scores, int32_t* ids) {
    float lanes[kLanes];
    store(lanes, values);
    size_t n = 0;
    for (; mask; mask &= mask - 1, ++n) {
        const int lane = std::countr_zero(mask);
        scores[n] = lanes[lane];
        ids[n] = first + lane;
    }
    return n;
}

}  // namespace decodestep::DECODESTEP_BUILD
