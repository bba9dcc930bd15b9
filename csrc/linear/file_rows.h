// A weight's rows, read from files by all threads: to memory, or a piece at a time to be packed, so that they are never
// all in memory. What is read is looked at: nobody has checked the scales of a file's blocks.
#pragma once

#include <optional>

#include "linear/linear_panels.h"

namespace decodestep {

// The next `rows` rows of a weight lie in an open file, one after the other, from byte `at` on.
struct FilePart {
    int file;
    int64_t at;
    size_t rows;
};

struct ReadFileRows {
    const FilePart* parts;
    size_t count;
    Format format;  // of the rows
    size_t in, out;
    uint8_t* memory;      // [out, row_bytes(format, in)]; null: they are packed
    Format panel_format;  // if they are packed
    uint8_t* panels;
    int threads;
};

// Why a part cannot be used: its row `row` has a scale that is no finite number, or else `error`, a number of errno, or
// else its file has become shorter.
struct FileRowsProblem {
    size_t part;
    std::optional<size_t> row;
    int error;
};

// The problem of the first rows that have one; what was written is of no use then.
std::optional<FileRowsProblem> read_file_rows(const ReadFileRows& a);

}  // namespace decodestep
