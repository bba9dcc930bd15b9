// Whether the scales and minima inside a weight's blocks are finite numbers: of a file whose bytes nobody has looked
// at.
#pragma once

#include "linear/linear.h"

namespace decodestep {

// The first row with a scale or minimum that is NaN or infinite; w.out if all are finite. Dense formats have no scales.
size_t first_row_without_finite_scales(const RowWeight& w);

}  // namespace decodestep
