// A format's block of at least 32 values, as rows hold it.
#pragma once

#include <algorithm>

#include "linear/formats.h"
#include "simd/simd.h"

namespace decodestep::DECODESTEP_BUILD {

constexpr size_t kLoadValues = 32;  // that are widened at a time, a piece

template <Format F>
constexpr size_t kBlockValues = std::max(kLoadValues, traits(F).values);
template <Format F>
constexpr size_t kBlockBytes = row_bytes(F, kBlockValues<F>);
template <Format F>
constexpr size_t kPieces = kBlockValues<F> / kLoadValues;

// Its specialisations have load(p, a, b), which widens the block at p, or, where it has several pieces, load(p, j, a,
// b), which widens piece j.
template <Format F>
struct RowBlock;

}  // namespace decodestep::DECODESTEP_BUILD
