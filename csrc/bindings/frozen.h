// Lists that nobody can change while they are read.
#pragma once

#include "bindings/bindings.h"

namespace decodestep {

// As deep as arguments are nested: a block's weights are a list of tuples within a tuple. A list may hold itself.
constexpr int kArgumentLevels = 3;

// The value, with tuples in place of lists. Converting an array may run Python code (__dlpack__), which could otherwise
// take away the items that are still to be converted.
inline nb::object frozen(nb::handle value, int levels = kArgumentLevels) {
    if (levels == 0 || !(PyList_CheckExact(value.ptr()) || PyTuple_CheckExact(value.ptr()))) return nb::borrow(value);
    nb::list items;
    for (const nb::handle item : nb::tuple(value)) items.append(frozen(item, levels - 1));
    return nb::tuple(items);
}

}  // namespace decodestep
