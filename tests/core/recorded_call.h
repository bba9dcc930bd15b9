// Calls of a kernel with their results in files, which tests/core/test_arm.py writes, to be run on another processor.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <vector>

#include "core/isa.h"

namespace decodestep {

// Arrays one after another: the number of bytes as int64, then the bytes.
class Reader {
  public:
    explicit Reader(const char* path) : file_(path, std::ios::binary) {}

    template <class T>
    std::vector<T> array() {
        int64_t bytes = 0;
        file_.read(reinterpret_cast<char*>(&bytes), sizeof bytes);
        std::vector<T> items(static_cast<size_t>(bytes) / sizeof(T));
        file_.read(reinterpret_cast<char*>(items.data()), bytes);
        if (!file_) std::abort();
        return items;
    }

    // An array that lives as long as the reader.
    template <class T>
    const T* kept() {
        auto items = array<uint8_t>();
        items.resize(items.size() + 64);  // kernels may read a vector past a weight's end
        kept_.push_back(std::move(items));
        return reinterpret_cast<const T*>(kept_.back().data());
    }

  private:
    std::ifstream file_;
    std::vector<std::vector<uint8_t>> kept_;
};

// infinity: its bits, above which those of NaN are; which NaN it is depends on the processor.
template <class T>
size_t differences(const std::vector<T>& a, const std::vector<T>& b, uint32_t infinity) {
    constexpr T magnitude = static_cast<T>(~T{0}) >> 1;
    size_t count = 0;
    for (size_t i = 0; i < a.size(); ++i)
        count += a[i] != b[i] && !((a[i] & magnitude) > infinity && (b[i] & magnitude) > infinity);
    return count;
}

// Runs the calls in the files of the command line. differences_of(path): how many values differ.
inline int check_recorded(int argc, char** argv, size_t (*differences_of)(const char*)) {
    for (int i = 1; i < argc; ++i)
        if (const size_t count = differences_of(argv[i])) {
            std::printf("%s: %zu values differ\n", argv[i], count);
            return 1;
        }
    std::printf("%s: passed\n", tier_name());
    return 0;
}

}  // namespace decodestep
