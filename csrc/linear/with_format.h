// A weight's format as a constant.
#pragma once

#include "linear/linear.h"

namespace decodestep::DECODESTEP_BUILD {

// Calls body<F>() for the format.
template <class Body>
void with_format(Format format, Body&& body) {
    switch (format) {
        case Format::f32:
            return body.template operator()<Format::f32>();
        case Format::f16:
            return body.template operator()<Format::f16>();
        case Format::bf16:
            return body.template operator()<Format::bf16>();
        case Format::q4_0:
            return body.template operator()<Format::q4_0>();
        case Format::q4_1:
            return body.template operator()<Format::q4_1>();
        case Format::q8_0:
            return body.template operator()<Format::q8_0>();
        case Format::q4_k:
            return body.template operator()<Format::q4_k>();
        case Format::q5_k:
            return body.template operator()<Format::q5_k>();
        case Format::q6_k:
            return body.template operator()<Format::q6_k>();
        case Format::q5_0:
            return body.template operator()<Format::q5_0>();
        case Format::q5_1:
            return body.template operator()<Format::q5_1>();
        case Format::iq4_nl:
            return body.template operator()<Format::iq4_nl>();
        case Format::iq4_xs:
            return body.template operator()<Format::iq4_xs>();
        case Format::mxfp4:
            return body.template operator()<Format::mxfp4>();
    }
}

}  // namespace decodestep::DECODESTEP_BUILD
