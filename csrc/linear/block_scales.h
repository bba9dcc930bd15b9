// Checks that the scales and minima in a weight's blocks are finite: the bytes come from a file.
#pragma once

#include "linear/linear.h"

namespace decodestep {

// The first row with a scale or minimum that is NaN or infinite; w.out if all are finite. Dense formats have no scales.
size_t first_row_without_finite_scales(const RowWeight& w);

}  // namespace decodestep
