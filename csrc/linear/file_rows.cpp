#include "linear/file_rows.h"

#include <algorithm>
#include <mutex>

#include "core/checked_bytes.h"
#include "core/division.h"
#include "core/parallel.h"
#include "core/thread_scratch.h"
#include "linear/block_scales.h"

namespace decodestep {
namespace {

constexpr size_t kPackedAtATime = size_t{1} << 18;  // bytes, which stay in a core's cache until they are packed

// The problem of the first piece that has one.
class FirstProblem {
  public:
    void add(size_t piece, const FileRowsProblem& problem) {
        const std::lock_guard lock(mutex_);
        if (problem_ && piece_ <= piece) return;
        piece_ = piece;
        problem_ = problem;
    }

    const std::optional<FileRowsProblem>& get() const { return problem_; }

  private:
    std::mutex mutex_;
    size_t piece_ = 0;
    std::optional<FileRowsProblem> problem_;
};

// Reads rows [first, first + count) of the weight.
std::optional<FileRowsProblem> read_rows(const ReadFileRows& a, size_t first, size_t count, uint8_t* data) {
    const size_t bytes = row_bytes(a.format, a.in);
    for (size_t p = 0; count > 0; ++p) {
        const FilePart& part = a.parts[p];
        if (first >= part.rows) {
            first -= part.rows;
            continue;
        }
        const size_t here = std::min(part.rows - first, count);
        const int error = read_bytes(part.file, part.at + static_cast<int64_t>(first * bytes), data, here * bytes);
        if (error) return FileRowsProblem{p, std::nullopt, std::max(error, 0)};
        const size_t bad = first_row_without_finite_scales({data, bytes, a.in, here, a.format});
        if (bad < here) return FileRowsProblem{p, first + bad, 0};
        data += here * bytes;
        count -= here;
        first = 0;
    }
    return std::nullopt;
}

}  // namespace

std::optional<FileRowsProblem> read_file_rows(const ReadFileRows& a) {
    const size_t bytes = row_bytes(a.format, a.in);
    const size_t rows =
        std::max(kPackedAtATime / std::max(bytes, size_t{1}) / kPanelOutputs, size_t{1}) * kPanelOutputs;
    const LinearPanelWeight packed{a.panels, a.in, a.out, a.panel_format};
    FirstProblem problem;
    parallel_for(ceil_div(a.out, rows), a.threads, [&](size_t piece) {
        const size_t first = piece * rows, count = std::min(rows, a.out - first);
        const ThreadScratch scratch(a.memory ? 0 : count * bytes / sizeof(float) + 1);
        uint8_t* data = a.memory ? a.memory + first * bytes : reinterpret_cast<uint8_t*>(scratch.data());
        if (const auto found = read_rows(a, first, count, data)) return problem.add(piece, *found);
        if (a.memory) return;
        uint8_t* panels = a.panels + first / kPanelOutputs * packed.panel_bytes();
        pack_linear_panels({{data, bytes, a.in, count, a.format}, a.panel_format, panels, 1});
    });
    return problem.get();
}

}  // namespace decodestep
