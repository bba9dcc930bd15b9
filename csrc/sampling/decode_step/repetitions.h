// Where the last tokens of a growing sequence occurred before, and what followed them there. Not built per instruction
// set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace decodestep {

class History;
class Tally;

// For every distance: how many of the last tokens are the same as those that far before them. A token more takes one
// comparison for each distance, whatever the tokens are.
class Repetitions {
  public:
    static constexpr uint8_t kLongest = 50;  // longer ones count as this long; as DRY_LONGEST in processors/extra.py

    // Takes the tokens that have been appended since the last call. distinct: the tally of all tokens.
    void follow(std::span<const int64_t> tokens, const Tally& distinct);

    // Takes back the tokens after the first `length`.
    void truncate(size_t length) noexcept;

    // One for each token but the last: how many tokens up to it are the same as the last ones.
    std::span<const uint8_t> lengths() const { return {lengths_.data() + lengths_.size() - count(), count()}; }

    // Of every token, which one of the distinct ones it is.
    std::span<const uint32_t> numbers() const { return numbers_; }

  private:
    size_t count() const { return taken_ ? taken_ - 1 : 0; }
    void add(size_t at);

    std::vector<uint32_t> numbers_;  // compared faster than the tokens, being narrower
    std::vector<uint8_t> lengths_;   // by distance, the nearest last, so that a token more moves none; 0 beyond them
    size_t taken_ = 0;               // how many tokens the lengths are of
};

// The tokens that would continue a repetition, by the rules of one row.
class Continuations {
  public:
    // A repetition is of `shortest` to `longest` tokens, 1 <= shortest <= longest <= Repetitions::kLongest, that are no
    // breakers, among the last `range` tokens; 0: among all.
    Continuations(size_t shortest, size_t longest, std::vector<int64_t> breakers, size_t range);

    // Longer repetitions count as the longest; breakers continue none. history: the same in all calls.
    void find(History& history);

    // The distinct tokens, and the length of the longest repetition that each continues.
    std::span<const int64_t> ids() const { return {ids_.data(), count_}; }
    std::span<const uint8_t> lengths() const { return {lengths_.data(), count_}; }

  private:
    static constexpr uint8_t kBreaker = UINT8_MAX;

    size_t shortest_, longest_, range_;
    std::vector<int64_t> breakers_;    // ascending
    std::vector<uint8_t> longest_of_;  // by the number of a token: kBreaker, or 0 but for those found so far
    size_t truncations_ = 0;           // of the history when the tokens were numbered so
    std::vector<int64_t> ids_;         // count_ of them have been found
    std::vector<uint8_t> lengths_;
    size_t count_ = 0;
};

}  // namespace decodestep
