// Reads a weight's rows from files, on all threads: into memory, or in pieces that are packed at once, so that the rows
// are never all in memory. The scales of the blocks are checked, since they come from a file.
#pragma once

#include <optional>

#include "linear/linear_panels.h"

namespace decodestep {

// The next `rows` rows of a weight, consecutive in an open file from byte `at` on.
struct FilePart {
    int file;
    int64_t at;
    size_t rows;
};

struct ReadFileRows {
    const FilePart* parts = nullptr;
    size_t count = 0;
    Format format{};  // of the rows
    size_t in = 0, out = 0;
    uint8_t* memory = nullptr;  // [out, row_bytes(format, in)]; null: they are packed
    Format panel_format{};      // if they are packed
    uint8_t* panels = nullptr;
    int threads = 1;
};

// Why a part cannot be used: `row` has a scale that is not finite; or `error` is an errno; or else the file has become
// shorter.
struct FileRowsProblem {
    size_t part;
    std::optional<size_t> row;
    int error;
};

// Returns the first problem in order of rows; the output is then unspecified.
std::optional<FileRowsProblem> read_file_rows(const ReadFileRows& a);

}  // namespace decodestep
