// Sequences of tokens, found by the tokens before their last: which tokens would complete one of them after a history.
// Not built per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace decodestep {

// An index that does not change. The tokens before the last of each sequence are in a radix tree that is read from the
// end of a history backwards: a look-up compares each token of the history at most once, whatever the sequences are,
// and needs nothing from the look-up before.
class SequenceEndings {
  public:
    // tokens: the sequences one after the other, of so many tokens each, >= 1; of equal ones the first counts. values:
    // one for each sequence; none unless has_values.
    SequenceEndings(std::vector<int64_t> tokens, std::span<const int64_t> lengths, std::span<const float> values,
                    bool has_values);

    bool has_values() const { return has_values_; }
    size_t endings() const { return distinct_.size(); }  // distinct tokens
    int64_t highest_ending() const { return distinct_.empty() ? -1 : distinct_.back(); }

  private:
    friend class FoundEndings;

    // Tokens that come before an ending, or after which the ways to several endings part.
    struct Node {
        size_t depth;   // how many tokens
        size_t stop;    // they are tokens_[stop - depth, stop)
        int64_t token;  // the one that leads here from the parent
        uint32_t first_ending, endings;
        uint32_t first_child, children;
    };

    // The node that a token leads to, being before those of the parent.
    struct Child {
        int64_t token;
        uint32_t node;
    };

    // A last token of sequences, and the sum of the values of all that it completes.
    struct Ending {
        int64_t token;
        uint32_t number;  // of the token, in distinct_
        float value;
    };

    struct Builder;

    const Node* child_of(const Node& node, int64_t token) const;

    std::vector<int64_t> tokens_;
    std::vector<Node> nodes_;        // each before those below it; first the root, of no token
    std::vector<Child> children_;    // ascending for each node
    std::vector<Ending> endings_;    // ascending for each node
    std::vector<int64_t> distinct_;  // the last tokens, ascending
    bool has_values_;
};

// What a history finds in an index.
class FoundEndings {
  public:
    void find(const SequenceEndings& sequences, std::span<const int64_t> history);

    // The distinct tokens that complete sequences, and for each the sum of the sequences' values. It is summed in
    // float32, that of the sequence of one token first, then by length, in the order in which the index was given the
    // lengths.
    const std::vector<int64_t>& ids() const { return ids_; }
    const std::vector<float>& values() const { return values_; }

  private:
    std::vector<std::span<const SequenceEndings::Ending>> path_;
    std::vector<uint8_t> named_;  // whether an ending is in ids_, by its number, while they are collected
    std::vector<int64_t> ids_;
    std::vector<float> values_;
};

}  // namespace decodestep
