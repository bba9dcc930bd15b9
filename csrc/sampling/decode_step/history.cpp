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

uint32_t hash_of(std::span<const int64_t> tokens) {
    uint64_t hash = 0;
    for (const int64_t token : tokens) hash = mixed(hash + 0x9E3779B97F4A7C15u + static_cast<uint64_t>(token));
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

void Followers::add(std::span<const int64_t> tokens) {
    if (here_ != IndexTable::kNone) add_follower(tokens.back());
    ids_is_current_ = false;
    const size_t length = n - 1;  // of a context
    if (tokens.size() < length) return;
    const auto context = tokens.last(length);
    const uint32_t hash = hash_of(context);
    here_ = index_of_contexts_.find(hash, [&](size_t index) {
        return std::equal(context.begin(), context.end(), tokens.begin() + (contexts_[index].end - length));
    });
    if (here_ != IndexTable::kNone) return;
    index_of_contexts_.make_room();
    make_room_in(contexts_);
    here_ = contexts_.size();
    index_of_contexts_.add(hash);
    contexts_.push_back({.end = tokens.size()});
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
