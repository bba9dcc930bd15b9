// The part of a table of pages that a call reads, copied and checked: the kernel runs without the GIL,
// so another thread may change the table meanwhile.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "bindings/bindings.h"

namespace decodestep {

struct TableCopy {
    std::unique_ptr<int64_t[]> entries;  // [rows that tokens name, width]
    size_t width;
    std::vector<int64_t> rows;  // [tokens], numbers of rows of the copy
};

// Token t reads the first entries_of(t) > 0 entries of row rows[t] of the table. Time and memory grow with the tokens
// and with the rows' longest reads, not with their product. Entries that are read must be in [0, end); the copy has
// place_of(entry) in their stead.
template <class Count, class Place = std::identity>
TableCopy copy_of_table(const Packed<const int64_t, 2>& table, std::vector<int64_t> rows, Count&& entries_of,
                        size_t end, const char* rule, Place&& place_of = {}) {
    std::vector<size_t> used(table.shape(0));
    for (size_t t = 0; t < rows.size(); ++t) {
        size_t& entries = used[static_cast<size_t>(rows[t])];
        entries = std::max(entries, entries_of(t));
    }
    const size_t width = used.empty() ? 0 : *std::max_element(used.begin(), used.end());
    const auto count = static_cast<size_t>(std::count_if(used.begin(), used.end(), [](size_t n) { return n > 0; }));
    TableCopy copy{std::make_unique_for_overwrite<int64_t[]>(count * width), width, std::move(rows)};
    std::vector<int64_t> numbers(used.size());
    int64_t* to = copy.entries.get();
    int64_t number = 0;
    for (size_t row = 0; row < used.size(); ++row) {
        if (used[row] == 0) continue;
        std::copy_n(table.data() + row * table.shape(1), used[row], to);
        require(std::all_of(to, to + used[row], [=](int64_t p) { return p >= 0 && static_cast<size_t>(p) < end; }),
                rule);
        std::transform(to, to + used[row], to, place_of);
        numbers[row] = number++;
        to += width;
    }
    for (int64_t& row : copy.rows) row = numbers[static_cast<size_t>(row)];
    return copy;
}

}  // namespace decodestep
