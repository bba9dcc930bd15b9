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

// By which a product with an odd number is divided again, modulo 2^64: each round doubles the bits that are right.
constexpr uint64_t inverse_of(uint64_t odd) {
    uint64_t inverse = odd;
    for (int round = 0; round < 5; ++round) inverse *= 2 - odd * inverse;
    return inverse;
}
static_assert(kHashBase * inverse_of(kHashBase) == 1);

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

void IndexTable::remove_last(uint32_t hash) noexcept {
    size_t hole = hash & mask();
    while (slots_[hole].index_plus_1 != count_) hole = (hole + 1) & mask();
    // Those after it move up, as far as the place where a search for them begins.
    for (size_t at = (hole + 1) & mask(); slots_[at].index_plus_1; at = (at + 1) & mask()) {
        const size_t from_home = (at - slots_[at].hash) & mask(), from_hole = (at - hole) & mask();
        if (from_home >= from_hole) slots_[std::exchange(hole, at)] = slots_[at];
    }
    slots_[hole] = {};
    --count_;
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

void Tally::truncate(std::span<const int64_t> tokens, size_t length) noexcept {
    for (; taken_ > std::max(length, skipped); --taken_) {
        const int64_t token = tokens[taken_ - 1];
        if (--counts_[index_of(token)] > 0) continue;
        index_.remove_last(hash_of({&token, 1}));  // the last token to occur first
        ids_.pop_back();
        counts_.pop_back();
    }
}

Followers::Followers(size_t n) : n(n) {
    uint64_t square = kHashBase;
    for (size_t left = n - 1; left > 0; left /= 2, square *= square)
        if (left % 2) base_to_length_ *= square;
}

void Followers::add(std::span<const int64_t> tokens) {
    if (here_ != IndexTable::kNone) add_follower(tokens.back(), tokens.size() - 1);
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

void Followers::add_follower(int64_t token, size_t at) {
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
    const uint32_t before = context.first == kEnd ? kEnd : context.last;
    (before == kEnd ? context.first : followers_[before].next) = added;
    context.last = added;
    index_of_followers_.add(hash);
    followers_.push_back({token, static_cast<uint32_t>(here_), before, kEnd, static_cast<uint32_t>(at)});
}

void Followers::remove_last_follower() noexcept {
    const Follower& last = followers_.back();
    Context& context = contexts_[last.context];
    context.last = last.before;
    (last.before == kEnd ? context.first : followers_[last.before].next) = kEnd;
    const int64_t pair[] = {static_cast<int64_t>(last.context), last.token};
    index_of_followers_.remove_last(hash_of(pair));
    followers_.pop_back();
}

// The last of `tokens`, all of which have been added.
void Followers::remove_last_token(std::span<const int64_t> tokens) noexcept {
    const size_t length = n - 1;
    if (!contexts_.empty() && contexts_.back().end == tokens.size()) {  // it ended a context for the first time
        index_of_contexts_.remove_last(static_cast<uint32_t>(mixed(sum_)));
        contexts_.pop_back();
    }
    sum_ -= mixed(static_cast<uint64_t>(tokens.back()));
    if (tokens.size() > length)
        sum_ += base_to_length_ * mixed(static_cast<uint64_t>(tokens[tokens.size() - 1 - length]));
    sum_ *= inverse_of(kHashBase);
    context_at_.pop_back();
    here_ = context_at_.empty() ? IndexTable::kNone : context_at_.back();
}

void Followers::truncate(std::span<const int64_t> tokens, size_t length) noexcept {
    // Followers first, since contexts hold them; one may be of a token whose context found no memory.
    while (!followers_.empty() && followers_.back().at >= length) remove_last_follower();
    for (; taken_ > length; --taken_) remove_last_token(tokens.first(taken_));
    ids_is_current_ = false;
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
    make_room_in(tokens_);
    if (token > highest()) maxima_.push_back(tokens_.size());
    tokens_.push_back(token);
}

void History::truncate(size_t length) noexcept {
    if (length >= tokens_.size()) return;
    for (Tally& tally : tallies_) tally.truncate(tokens_, length);
    for (Followers& followers : followers_) followers.truncate(tokens_, length);
    repetitions_.truncate(length);
    while (!maxima_.empty() && maxima_.back() >= length) maxima_.pop_back();
    tokens_.resize(length);
    ++truncations_;
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
