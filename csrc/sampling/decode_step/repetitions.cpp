#include "sampling/decode_step/repetitions.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "sampling/decode_step/history.h"

namespace decodestep {
namespace {

// Whether one of eight bytes, at most 127 each, is at least so much, 1 to 127.
bool any_reaches(const uint8_t* bytes, size_t least) {
    constexpr uint64_t each = 0x0101010101010101, top = 0x80 * each;
    uint64_t eight;
    std::memcpy(&eight, bytes, sizeof eight);
    return ((eight + (0x80 - least) * each) & top) != 0;
}

}  // namespace

void Repetitions::follow(std::span<const int64_t> tokens, const Tally& distinct) {
    for (size_t i = numbers_.size(); i < tokens.size(); ++i)
        numbers_.push_back(static_cast<uint32_t>(distinct.index_of(tokens[i])));
    if (tokens.size() > lengths_.size()) {
        std::vector<uint8_t> larger(std::max<size_t>(64, tokens.size() / 2 * 3));
        std::copy_backward(lengths_.begin(), lengths_.end(), larger.end());
        lengths_.swap(larger);
    }
    if (tokens.size() - taken_ > kLongest) {  // no length depends on more than the last kLongest tokens
        std::fill(lengths_.begin(), lengths_.end(), uint8_t{0});
        taken_ = tokens.size() - kLongest;
    }
    for (; taken_ < tokens.size(); ++taken_) add(taken_);
}

void Repetitions::truncate(size_t length) noexcept {
    if (length < numbers_.size()) numbers_.resize(length);
    if (taken_ <= length) return;
    std::fill(lengths_.end() - static_cast<ptrdiff_t>(count()), lengths_.end(), uint8_t{0});
    taken_ = length;
    if (length == 0) return;
    // What the tokens after it left of the lengths does not tell those of before: nearly all end at the first token.
    const uint32_t* const last = numbers_.data() + length - 1;
    uint8_t* const lengths = lengths_.data() + lengths_.size() - count();
    for (size_t i = 0; i < count(); ++i) {
        const size_t most = std::min<size_t>(i + 1, kLongest);
        const uint32_t* const at = numbers_.data() + i;
        while (lengths[i] < most && *(at - lengths[i]) == *(last - lengths[i])) ++lengths[i];
    }
}

// The token at this position is the last one now.
void Repetitions::add(size_t at) {
    const uint32_t* const numbers = numbers_.data();
    const uint32_t last = numbers[at];
    uint8_t* const lengths = lengths_.data() + lengths_.size() - at;
    for (size_t i = 0; i < at; ++i) {
        const auto longer = static_cast<uint8_t>(lengths[i] + (lengths[i] < kLongest));
        lengths[i] = numbers[i] == last ? longer : uint8_t{0};
    }
}

Continuations::Continuations(size_t shortest, size_t longest, std::vector<int64_t> breakers, size_t range)
    : shortest_(shortest), longest_(longest), range_(range), breakers_(std::move(breakers)) {
    std::sort(breakers_.begin(), breakers_.end());
}

void Continuations::find(History& history) {
    const Repetitions& repetitions = history.repetitions();
    const Tally& distinct = history.tally(0);
    count_ = 0;
    if (std::exchange(truncations_, history.truncations()) != history.truncations()) longest_of_.clear();
    while (longest_of_.size() < distinct.ids().size()) {
        const int64_t token = distinct.ids()[longest_of_.size()];
        longest_of_.push_back(std::binary_search(breakers_.begin(), breakers_.end(), token) ? kBreaker : 0);
    }
    const auto numbers = repetitions.numbers();
    const size_t first = range_ && range_ < numbers.size() ? numbers.size() - range_ : 0;
    const size_t most = std::min(longest_, numbers.size() - first);
    size_t unbroken = 0;  // how many of the last tokens are no breakers
    while (unbroken < most && longest_of_[numbers[numbers.size() - 1 - unbroken]] != kBreaker) ++unbroken;
    if (unbroken < shortest_) return;
    if (ids_.size() <= longest_of_.size()) {  // one more: the loop writes before it knows whether it counts
        lengths_.resize(2 * longest_of_.size());
        ids_.resize(2 * longest_of_.size());
    }
    // Local copies: the compiler must assume that stores through pointers change the members.
    const auto repeated = repetitions.lengths();
    uint8_t* const longest_of = longest_of_.data();
    int64_t* const found = ids_.data();  // first as numbers
    const size_t shortest = shortest_;
    size_t count = 0;
    const auto note = [&](size_t i, size_t at_most) {
        const size_t length = std::min<size_t>(repeated[i], at_most);
        const uint32_t next = numbers[i + 1];
        if (length < shortest || length <= longest_of[next]) return;
        found[count] = next;
        count += longest_of[next] == 0;
        longest_of[next] = static_cast<uint8_t>(length);
    };
    size_t i = first;
    for (; i < std::min(first + unbroken, repeated.size()); ++i) note(i, i - first + 1);
    for (; i + 8 <= repeated.size(); i += 8)
        if (any_reaches(repeated.data() + i, shortest))
            for (size_t k = i; k < i + 8; ++k) note(k, unbroken);
    for (; i < repeated.size(); ++i) note(i, unbroken);
    for (size_t k = 0; k < count; ++k) {
        const auto number = static_cast<size_t>(found[k]);
        lengths_[k] = std::exchange(longest_of[number], 0);
        found[k] = distinct.ids()[number];
    }
    count_ = count;
}

}  // namespace decodestep
