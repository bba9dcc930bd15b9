#include "sampling/decode_step/history.h"

#include <algorithm>

namespace decodestep {
namespace {

// MurmurHash3's finalisation: every bit of the input affects every bit of the hash.
uint64_t mixed(uint64_t x) {
    x = (x ^ x >> 33) * 0xFF51AFD7ED558CCDu;
    x = (x ^ x >> 33) * 0xC4CEB9FE1A85EC53u;
    return x ^ x >> 33;
}

constexpr uint64_t kHashBase = 0x9E3779B97F4A7C15u;

uint32_t hash_of(std::span<const int64_t> tokens) {
    uint64_t hash = 0;
    for (const int64_t token : tokens) hash = mixed(hash + kHashBase + static_cast<uint64_t>(token));
    return static_cast<uint32_t>(hash);
}

// So that push_back cannot fail.
template <class T>
void make_room_in(std::vector<T>& items) {
    if (items.size() == items.capacity()) items.reserve(std::max<size_t>(16, 2 * items.size()));
}

}  // namespace

void IndexTable::put(Slot slot) noexcept {
    size_t at = slot.hash & mask();
    while (slots_[at].index_plus_1) at = (at + 1) & mask();
    slots_[at] = slot;
}

void IndexTable::make_room() {
    if (2 * (count_ + 1) <= slots_.size()) return;
    const std::vector<Slot> before = std::exchange(slots_, std::vector<Slot>(std::max<size_t>(32, 2 * slots_.size())));
    for (const Slot& slot : before)
        if (slot.index_plus_1) put(slot);
}

size_t Tally::index_of(int64_t token) const {
    return index_.find(hash_of({&token, 1}), [&](size_t index) { return ids_[index] == token; });
}

void Tally::add(int64_t token) {
    const size_t index = index_of(token);
    if (index != IndexTable::kNone) {
        ++counts_[index];
        return;
    }
    index_.make_room();
    make_room_in(ids_);
    make_room_in(counts_);
    index_.add(hash_of({&token, 1}));
    ids_.push_back(token);
    counts_.push_back(1);
}

void Tally::follow(std::span<const int64_t> tokens) {
    for (; taken_ < tokens.size(); ++taken_) add(tokens[taken_]);
}

Followers::Followers(size_t n) : n(n) {
    uint64_t square = kHashBase;
    for (size_t left = n - 1; left > 0; left /= 2, square *= square)
        if (left % 2) base_to_length_ *= square;
}

void Followers::add(std::span<const int64_t> tokens) {
    if (here_ != IndexTable::kNone) add_follower(tokens.back());
    ids_is_current_ = false;
    make_room_in(context_at_);
    const size_t length = n - 1;  // of a context
    // A polynomial, so that a context of any length takes one token in and lets one go.
    uint64_t sum = sum_ * kHashBase + mixed(static_cast<uint64_t>(tokens.back()));
    if (tokens.size() > length)
        sum -= base_to_length_ * mixed(static_cast<uint64_t>(tokens[tokens.size() - 1 - length]));
    here_ = tokens.size() < length ? IndexTable::kNone : context_of(tokens, static_cast<uint32_t>(mixed(sum)));
    sum_ = sum;
    context_at_.push_back(here_);
}

// The context at the end, which is added unless it is there.
size_t Followers::context_of(std::span<const int64_t> tokens, uint32_t hash) {
    const auto context = tokens.last(n - 1);
    const auto same = [&](size_t index) {
        const size_t end = contexts_[index].end;
        if (tokens[end - 1] != tokens.back()) return false;
        // Equal tokens after equal contexts: so it is while a repetition lasts, however long the contexts are.
        if (end >= 2 && context_at_[end - 2] != IndexTable::kNone && context_at_[end - 2] == context_at_.back())
            return true;
        return std::equal(context.begin(), context.end(), tokens.begin() + (end - context.size()));
    };
    const size_t found = index_of_contexts_.find(hash, same);
    if (found != IndexTable::kNone) return found;
    index_of_contexts_.make_room();
    make_room_in(contexts_);
    index_of_contexts_.add(hash);
    contexts_.push_back({.end = tokens.size()});
    return contexts_.size() - 1;
}

void Followers::follow(std::span<const int64_t> tokens) {
    for (; taken_ < tokens.size(); ++taken_) add(tokens.first(taken_ + 1));
}

void Followers::add_follower(int64_t token) {
    const int64_t pair[] = {static_cast<int64_t>(here_), token};
    const uint32_t hash = hash_of(pair);
    const auto same = [&](size_t index) {
        return followers_[index].context == here_ && followers_[index].token == token;
    };
    if (index_of_followers_.find(hash, same) != IndexTable::kNone) return;
    index_of_followers_.make_room();
    make_room_in(followers_);
    Context& context = contexts_[here_];
    const auto added = static_cast<uint32_t>(followers_.size());
    (context.first == kEnd ? context.first : followers_[context.last].next) = added;
    context.last = added;
    index_of_followers_.add(hash);
    followers_.push_back({token, here_, kEnd});
}

const std::vector<int64_t>& Followers::ids() {
    if (ids_is_current_) return ids_;
    ids_.clear();
    if (here_ != IndexTable::kNone)
        for (uint32_t i = contexts_[here_].first; i != kEnd; i = followers_[i].next)
            ids_.push_back(followers_[i].token);
    ids_is_current_ = true;
    return ids_;
}

void History::append(int64_t token) {
    tokens_.push_back(token);
    highest_ = std::max(highest_, token);
}

void History::remove_last() {
    tokens_.pop_back();
    highest_ = tokens_.empty() ? -1 : *std::max_element(tokens_.begin(), tokens_.end());
}

const Tally& History::tally(size_t skipped) {
    const auto found =
        std::find_if(tallies_.begin(), tallies_.end(), [&](const Tally& t) { return t.skipped == skipped; });
    Tally& tally = found != tallies_.end() ? *found : tallies_.emplace_back(skipped);
    tally.follow(tokens_);
    return tally;
}

const std::vector<int64_t>& History::followers(size_t n) {
    if (n == 1) return tally(0).ids();
    const auto found = std::find_if(followers_.begin(), followers_.end(), [&](const Followers& f) { return f.n == n; });
    Followers& followers = found != followers_.end() ? *found : followers_.emplace_back(n);
    followers.follow(tokens_);
    return followers.ids();
}

const Repetitions& History::repetitions() {
    repetitions_.follow(tokens_, tally(0));
    return repetitions_;
}

}  // namespace decodestep
