// What all targets share: the number of lanes, and types that are the same whatever the registers are.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "core/compiler.h"
#include "core/half.h"

namespace decodestep::DECODESTEP_BUILD {

constexpr int kLanes = 16;  // of a vector, on every target

using Mask = uint32_t;  // bit i stands for lane i
constexpr Mask kAllLanes = 0xFFFF;

// Sums of bytes 0, 1, 4, 5, ... and of the others.
struct PairSums {
    int32_t even, odd;

    int32_t as_words() const {
        return static_cast<int32_t>((static_cast<uint32_t>(even) & 0xffff) | static_cast<uint32_t>(odd) << 16);
    }
};

}  // namespace decodestep::DECODESTEP_BUILD
