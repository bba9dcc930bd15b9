// The tokens of a row, and indexes over them that grow with each token, and shrink with each that is taken back,
// instead of being built again. Where memory runs out, nothing has changed, or an index has taken fewer tokens and
// takes the others in the next call. Not built per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "sampling/decode_step/repetitions.h"

namespace decodestep {

// A hash table of indexes into a growing list of distinct items. It holds hashes only: the owner of the list compares
// the items.
class IndexTable {
  public:
    static constexpr size_t kNone = SIZE_MAX;

    // The index of the item with this hash for which same(index) holds, or kNone.
    template <class Same>
    size_t find(uint32_t hash, Same&& same) const {
        if (slots_.empty()) return kNone;
        for (size_t at = hash & mask(); slots_[at].index_plus_1; at = (at + 1) & mask())
            if (slots_[at].hash == hash && same(size_t{slots_[at].index_plus_1} - 1))
                return slots_[at].index_plus_1 - 1;
        return kNone;
    }

    // For one more item.
    void make_room();

    // Adds the item that has been appended to the list; none before may equal it. To be called after make_room.
    void add(uint32_t hash) noexcept { put({static_cast<uint32_t>(++count_), hash}); }

    // Removes the item that was added last, before its owner removes it from the list.
    void remove_last(uint32_t hash) noexcept;

  private:
    struct Slot {
        uint32_t index_plus_1 = 0;  // 0 in an empty slot
        uint32_t hash = 0;
    };

    size_t mask() const { return slots_.size() - 1; }
    void put(Slot slot) noexcept;

    std::vector<Slot> slots_;
    size_t count_ = 0;
};

// The distinct tokens of a growing sequence, in the order of their first occurrence, and how often each occurs.
class Tally {
  public:
    explicit Tally(size_t skipped) : skipped(skipped) {}

    const size_t skipped;  // how many leading tokens are left out

    // Takes the tokens that have been appended since the last call.
    void follow(std::span<const int64_t> tokens);

    // Takes back those after the first `length`; `tokens` still has them.
    void truncate(std::span<const int64_t> tokens, size_t length) noexcept;

    size_t index_of(int64_t token) const;  // in ids() and counts(), or IndexTable::kNone
    const std::vector<int64_t>& ids() const { return ids_; }
    const std::vector<double>& counts() const { return counts_; }

  private:
    void add(int64_t token);

    IndexTable index_;
    std::vector<int64_t> ids_;
    std::vector<double> counts_;
    size_t taken_ = skipped;  // how many tokens have been added or left out
};

// The tokens that have followed the last n - 1 tokens of a growing sequence, n >= 2, wherever those occurred before.
class Followers {
  public:
    explicit Followers(size_t n);

    const size_t n;

    void follow(std::span<const int64_t> tokens);                            // as of Tally
    void truncate(std::span<const int64_t> tokens, size_t length) noexcept;  // as of Tally

    // Distinct, in the order of their first occurrence.
    const std::vector<int64_t>& ids();

  private:
    static constexpr uint32_t kEnd = UINT32_MAX;

    struct Context {                         // n - 1 tokens
        size_t end;                          // of its first occurrence: the position after its last token
        uint32_t first = kEnd, last = kEnd;  // of its followers, a linked list
    };
    struct Follower {
        int64_t token;
        uint32_t context;
        uint32_t before, next;  // followers of the same context
        uint32_t at;            // the position of its first occurrence
    };

    // Adds the last of `tokens`; those before it have been added. Does nothing the second time for the same token.
    void add(std::span<const int64_t> tokens);
    size_t context_of(std::span<const int64_t> tokens, uint32_t hash);
    void add_follower(int64_t token, size_t at);
    void remove_last_follower() noexcept;
    void remove_last_token(std::span<const int64_t> tokens) noexcept;

    IndexTable index_of_contexts_, index_of_followers_;
    std::vector<Context> contexts_;
    std::vector<Follower> followers_;
    size_t here_ = IndexTable::kNone;  // the context at the end of the sequence
    std::vector<size_t> context_at_;   // the one that each token ended; kNone for the first tokens
    uint64_t sum_ = 0;                 // from which the hash of the last n - 1 tokens is made
    uint64_t base_to_length_ = 1;
    std::vector<int64_t> ids_;  // its followers, while ids_is_current_
    bool ids_is_current_ = false;
    size_t taken_ = 0;  // how many tokens have been added
};

class History {
  public:
    void append(int64_t token);

    // Keeps the first `length` tokens, at most all. Takes time in proportion to those that it takes back, in each index
    // that has been built; only `repetitions` compares with all tokens before, as for a token that is appended.
    void truncate(size_t length) noexcept;

    const std::vector<int64_t>& tokens() const { return tokens_; }
    int64_t highest() const { return maxima_.empty() ? -1 : tokens_[maxima_.back()]; }  // -1 if there is none
    size_t truncations() const { return truncations_; }  // how often tokens have been taken back

    // An index is built by the first call that needs it; the later ones only add what has been appended since.
    // References hold until the next `append` or `truncate`.
    const Tally& tally(size_t skipped);
    const std::vector<int64_t>& followers(size_t n);  // n >= 1: the distinct tokens that would complete an n-gram again
    const Repetitions& repetitions();

  private:
    std::vector<int64_t> tokens_;
    std::vector<size_t> maxima_;  // where a token is higher than all before it
    size_t truncations_ = 0;
    std::deque<Tally> tallies_;
    std::deque<Followers> followers_;
    Repetitions repetitions_;
};

}  // namespace decodestep
