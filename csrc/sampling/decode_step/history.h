// What a row has seen: its tokens, and indexes over them that grow with each token instead of being made anew. Not
// built per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <utility>
#include <vector>

namespace decodestep {

// A hash table of places in a list that grows. It knows hashes alone: the list tells equal items from others.
class PlaceTable {
  public:
    static constexpr size_t kNone = SIZE_MAX;

    // The place of the item with this hash for which same(place) holds, or kNone.
    template <class Same>
    size_t find(uint32_t hash, Same&& same) const {
        if (slots_.empty()) return kNone;
        for (size_t at = hash & mask(); slots_[at].place; at = (at + 1) & mask())
            if (slots_[at].hash == hash && same(size_t{slots_[at].place} - 1)) return slots_[at].place - 1;
        return kNone;
    }

    // Adds the item behind the `count()` that are there; none must equal it.
    void add(uint32_t hash);

    size_t count() const { return count_; }

  private:
    struct Slot {
        uint32_t place = 0;  // + 1; 0 where there is none
        uint32_t hash = 0;
    };

    size_t mask() const { return slots_.size() - 1; }
    void put(Slot slot);

    std::vector<Slot> slots_;
    size_t count_ = 0;
};

// The distinct tokens of a sequence that grows, in the order in which they came, and how often each occurs.
class Tally {
  public:
    explicit Tally(size_t skipped) : skipped(skipped) {}

    const size_t skipped;  // how many leading tokens are left out

    void add(int64_t token);
    size_t place_of(int64_t token) const;
    const std::vector<int64_t>& ids() const { return ids_; }
    const std::vector<double>& counts() const { return counts_; }

  private:
    PlaceTable places_;
    std::vector<int64_t> ids_;
    std::vector<double> counts_;
};

// What has followed the last n - 1 tokens of a sequence that grows, n >= 2, wherever they stood in it before.
class Followers {
  public:
    explicit Followers(size_t n) : n(n) {}

    const size_t n;

    // Takes the last of `tokens`; those before it have been taken.
    void add(std::span<const int64_t> tokens);

    // Distinct, in the order in which they came.
    const std::vector<int64_t>& ids();

  private:
    static constexpr uint32_t kEnd = UINT32_MAX;

    struct Context {
        size_t end;  // where it stood first, behind its last token
        uint32_t first = kEnd, last = kEnd;
    };
    struct Follower {
        int64_t token;
        size_t context;
        uint32_t next;  // of the same context
    };

    void add_follower(int64_t token);

    PlaceTable places_of_contexts_, places_of_followers_;
    std::vector<Context> contexts_;
    std::vector<Follower> followers_;
    size_t here_ = PlaceTable::kNone;  // the context that the tokens end with
    std::vector<int64_t> ids_;         // what has followed it, where it was asked for
    bool asked_ = false;
};

class History {
  public:
    void append(int64_t token);

    const std::vector<int64_t>& tokens() const { return tokens_; }
    int64_t highest() const { return highest_; }  // -1 where there is none

    // Each index is built where it is first asked for, and kept up from then on. What these return holds until the
    // next `append`.
    const Tally& tally(size_t skipped);
    const std::vector<int64_t>& followers(size_t n);  // n >= 1: the distinct tokens that would complete an n-gram again

  private:
    std::vector<int64_t> tokens_;
    int64_t highest_ = -1;
    std::deque<Tally> tallies_;
    std::deque<Followers> followers_;
};

}  // namespace decodestep
