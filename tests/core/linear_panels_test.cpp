// Runs the products in the files of the command line on one and two threads, and compares the sums with those in the
// file, bit by bit but for the payload of NaN.
#include "linear/linear_panels.h"

#include "recorded_call.h"

namespace {

using namespace decodestep;

size_t differences_of(const char* path) {
    Reader file(path);
    const auto sizes = file.array<uint64_t>();  // see tests/core/test_arm.py
    const size_t in = sizes[0], out = sizes[1], tokens = sizes[3];
    const LinearPanelWeight w{file.kept<uint8_t>(), in, out, static_cast<Format>(sizes[2])};
    const auto x = file.array<float>();
    const auto expected = file.array<uint32_t>();
    size_t count = 0;
    for (int threads = 1; threads <= 2; ++threads) {
        std::vector<uint32_t> y(expected.size());
        linear_panels({.x = x.data(),
                       .x_stride = static_cast<ptrdiff_t>(in),
                       .tokens = tokens,
                       .w = w,
                       .y = reinterpret_cast<float*>(y.data()),
                       .y_stride = static_cast<ptrdiff_t>(out),
                       .threads = threads});
        count += differences(y, expected, 0x7f800000);
    }
    return count;
}

}  // namespace

int main(int argc, char** argv) { return decodestep::check_recorded(argc, argv, differences_of); }
