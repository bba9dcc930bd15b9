// A weight's format as a constant.
#pragma once

#include "linear/formats.h"

namespace decodestep::DECODESTEP_BUILD {

// Calls body<F>() for the format.
template <class Body>
void with_format(Format format, Body&& body) {
    switch (format) {
#define DECODESTEP_CALL_WITH_FORMAT(name, ...) \
    case Format::name:                         \
        return body.template operator()<Format::name>();
        DECODESTEP_FORMATS(DECODESTEP_CALL_WITH_FORMAT)
#undef DECODESTEP_CALL_WITH_FORMAT
    }
    __builtin_unreachable();
}

}  // namespace decodestep::DECODESTEP_BUILD
