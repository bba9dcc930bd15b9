// Which tokens of a call read the same keys: those of one sequence, and those of sequences that begin with the same
// prompt, whose tables name the same blocks. A split of the keys that several tokens share is read once for all of
// them.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "attention/partial_softmax.h"

namespace decodestep::DECODESTEP_BUILD {

// Where the keys of a call's tokens are.
struct KeyTables {
    size_t tokens;
    const int64_t* sequence;     // [tokens]: row of the table
    const int64_t* lengths;      // [tokens]: the keys that each sees, or has seen and no longer does
    const int64_t* block_table;  // [sequences, blocks]; null: not yet known, each sequence reads keys of its own
    size_t blocks, block_size;
};

// The tokens at places [first, end) read the same keys in splits [from, until).
struct SharedSection {
    size_t first, end, from, until;
};

// The tokens in an order in which those that share keys are adjacent: each has a place in it.
class SharedSplits {
  public:
    static constexpr size_t kAll = ~size_t{0};

    // In the order of the call, where only adjacent tokens are compared, or in one of its own.
    SharedSplits(const KeyTables& keys, bool reorders) : keys_(keys), shared_(keys.tokens, kAll), places_(keys.tokens) {
        list_runs();
        if (reorders) sort_runs();
        for (const Run& run : runs_) {
            shared_[tokens_.size()] = tokens_.empty() ? 0 : splits_of_both(*(&run - 1), run);
            for (size_t t = run.token; t < run.token + run.count; ++t) tokens_.push_back(t);
        }
        for (size_t place = 0; place < tokens_.size(); ++place) places_[tokens_[place]] = place;
    }

    size_t tokens() const { return tokens_.size(); }
    size_t token(size_t place) const { return tokens_[place]; }
    size_t place(size_t token) const { return places_[token]; }

    // The number of splits, from the first on, in which the tokens at a place and before it read the same keys: kAll if
    // they are of one sequence.
    size_t with_previous(size_t place) const { return shared_[place]; }

    // Calls body(SharedSection) for the splits that tokens at places [first, end) have in common, from split `from` on,
    // then for those that fewer of them share, down to the splits of each sequence: for every token in the order of its
    // keys, and for every sequence as a whole.
    template <class Body>
    void each_section(size_t first, size_t end, size_t from, Body&& body) const {
        size_t until = kAll;
        for (size_t i = first + 1; i < end; ++i) until = std::min(until, shared_[i]);
        if (until > from) body(SharedSection{first, end, from, until});
        if (until == kAll) return;
        for (size_t part = first, next; part < end; part = next) {
            for (next = part + 1; next < end && shared_[next] > until;) ++next;
            each_section(part, next, until, body);
        }
    }

  private:
    // Tokens [token, token + count) of one sequence, and the number of keys that the one that sees the most sees.
    struct Run {
        size_t token, count, longest;
    };

    void list_runs() {
        for (size_t t = 0; t < keys_.tokens; ++t) {
            if (t == 0 || keys_.sequence[t] != keys_.sequence[t - 1]) runs_.push_back({t, 0, 0});
            Run& run = runs_.back();
            ++run.count;
            run.longest = std::max(run.longest, static_cast<size_t>(keys_.lengths[t]));
        }
    }

    // By their tables, of which only full blocks matter.
    void sort_runs() {
        std::stable_sort(runs_.begin(), runs_.end(), [&](const Run& x, const Run& y) {
            const size_t in_x = full_blocks(x), in_y = full_blocks(y);
            const int order = std::memcmp(table(x), table(y), std::min(in_x, in_y) * sizeof(int64_t));
            return order != 0 ? order < 0 : in_x < in_y;
        });
    }

    const int64_t* table(const Run& run) const { return keys_.block_table + keys_.sequence[run.token] * keys_.blocks; }
    size_t full_blocks(const Run& run) const { return run.longest / keys_.block_size; }

    size_t splits_of_both(const Run& x, const Run& y) const {
        if (!keys_.block_table) return 0;
        const int64_t *of_x = table(x), *of_y = table(y);
        if (of_x == of_y) return kAll;
        const size_t most = std::min(full_blocks(x), full_blocks(y));
        const auto same = static_cast<size_t>(std::mismatch(of_x, of_x + most, of_y).first - of_x);
        return same * keys_.block_size / kSplitKeys;
    }

    const KeyTables keys_;
    std::vector<Run> runs_;
    std::vector<size_t> tokens_, shared_, places_;
};

}  // namespace decodestep::DECODESTEP_BUILD
