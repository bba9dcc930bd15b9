// Divides the attention of a step among the threads.
//
// A unit is the work of one kernel call after a split of the keys: tokens that read the same keys there, and query
// heads that share a key-value head. A band has tokens that share a part of their keys at least, and is processed
// section by section: first the splits that all of them share, then those that fewer share, down to those of each
// sequence. A split is read from memory for the first unit of its section, and from the cache for the others. A band
// that is a large part of the step is divided into several tasks (ranges of its steps, a split of a section each), so
// that a long context beside short ones occupies all threads; the partials of its splits are merged afterwards, in the
// order of the keys. The bits depend neither on units, bands nor tasks, because the splits are the same.
#pragma once

#include <algorithm>
#include <vector>

#include "attention/group_attention.h"
#include "attention/shared_splits.h"
#include "core/division.h"
#include "decoder/decoder_forward.h"

namespace decodestep::DECODESTEP_BUILD {

// Query heads [head, head + heads) of the model, which share a key-value head.
struct HeadGroup {
    size_t kv_head, head, heads;
};

// Tokens at places [first, first + count), whose queries are in the order (token, head).
struct AttentionUnit {
    size_t first, count;
    HeadGroup group;

    size_t queries() const { return count * group.heads; }
    size_t place_of(size_t query) const { return first + query / group.heads; }
    size_t head_of(size_t query) const { return group.head + query % group.heads; }
};

// Tokens at places [first, end), which read the same keys in splits [first_split, end_split).
struct AttentionSection {
    size_t first, end, first_split, end_split;
    size_t first_row;  // of its rows in the band, [splits, tokens]: a row is a token after a split

    size_t tokens() const { return end - first; }
    size_t splits() const { return end_split - first_split; }
    bool has(size_t place) const { return place >= first && place < end; }
    size_t row(size_t split, size_t place) const {
        return first_row + (split - first_split) * tokens() + place - first;
    }
};

// Tokens at places [first, end), and their sections, each of some of them: for a token in the order of its keys.
struct AttentionBand {
    size_t first, end;
    std::vector<AttentionSection> sections;
    size_t rows;  // of the sections
    bool divided = false;
    size_t first_partial = 0;  // if it is divided: of its partials, [rows] of all heads of a group, group after group

    size_t tokens() const { return end - first; }
    size_t steps() const {
        size_t sum = 0;
        for (const AttentionSection& section : sections) sum += section.splits();
        return sum;
    }

    // Calls body(section, split) for steps [from, to).
    template <class Body>
    void each_step(size_t from, size_t to, Body&& body) const {
        size_t step = 0;  // the section's first
        for (const AttentionSection& section : sections) {
            const size_t end = step + section.splits();
            for (size_t i = std::max(step, from); i < std::min(end, to); ++i)
                body(section, section.first_split + i - step);
            step = end;
        }
    }
};

// Steps [first, end) of a band, for each group of heads.
struct AttentionTask {
    const AttentionBand* band;
    size_t first, end, cost;
};

// window: the number of positions that a token attends to, its own included; 0: all up to its own. kv_heads: of the
// layers.
class AttentionPlan {
  public:
    // order: of the step's tokens; it must outlive the plan.
    AttentionPlan(const DecoderForward& step, const SharedSplits& order, size_t window, size_t kv_heads)
        : step_(step),
          order_(order),
          window_(window),
          kv_heads_(kv_heads),
          in_group_(step.decoder->heads / kv_heads),
          parts_(ceil_div(in_group_, kMaxQueries)) {
        list_bands();
        list_tasks();
    }
    AttentionPlan(AttentionPlan&&) = default;  // tasks refer to bands

    bool serves(const GroupedAttention& w) const { return w.window == window_ && w.kv_heads == kv_heads_; }

    // The positions that a token attends to are [first, length), the splits that hold them [first_split, end_split).
    size_t first(size_t token) const { return window_ && length(token) > window_ ? length(token) - window_ : 0; }
    size_t length(size_t token) const { return static_cast<size_t>(step_.positions[token]) + 1; }
    size_t first_split(size_t token) const { return first(token) / kSplitKeys; }
    size_t end_split(size_t token) const { return key_splits(length(token)); }

    size_t token(size_t place) const { return order_.token(place); }

    // Groups of heads: each runs the same tasks. There is one for each key-value head, or several if it has many heads.
    size_t groups() const { return kv_heads_ * parts_; }
    HeadGroup group(size_t number) const {
        const size_t kv_head = number / parts_, part = number % parts_, first = in_group_ * part / parts_,
                     end = in_group_ * (part + 1) / parts_;
        return {kv_head, kv_head * in_group_ + first, end - first};
    }
    HeadGroup group_of(size_t head) const {
        size_t number = head / in_group_ * parts_;
        while (head >= group(number).head + group(number).heads) ++number;
        return group(number);
    }

    const std::vector<AttentionTask>& tasks() const { return tasks_; }  // in descending order of cost

    // Bands that are divided, their tokens and their partials.
    bool is_divided() const { return partials_ > 0; }
    size_t divided_tokens() const { return divided_tokens_; }
    size_t partials() const { return partials_; }

    // Calls body(band, place) for tokens [from, to) of these.
    template <class Body>
    void each_divided_token(size_t from, size_t to, Body&& body) const {
        size_t number = 0;  // of the band's first token
        for (const AttentionBand& band : bands_) {
            if (!band.divided) continue;
            for (size_t i = std::max(number, from); i < std::min(number + band.tokens(), to); ++i)
                body(band, band.first + i - number);
            number += band.tokens();
        }
    }

    // The first partial of a row of a divided band for a group of heads.
    static size_t partial(const AttentionBand& band, const HeadGroup& group, size_t row) {
        return band.first_partial + band.rows * group.head + row * group.heads;
    }

    // Calls body(unit) for the units of a section that attend to keys of a split.
    template <class Body>
    void each_unit(const AttentionSection& section, size_t split, const HeadGroup& group, Body&& body) const {
        for (size_t first = section.first, count; first < section.end; first += count) {
            count = std::min(unit_tokens(), section.end - first);
            if (sees(first, first + count, split)) body(AttentionUnit{first, count, group});
        }
    }

    // Whether no token of a unit attends to keys of an earlier split.
    bool begins(const AttentionUnit& unit, size_t split) const {
        for (size_t place = unit.first; place < unit.first + unit.count; ++place)
            if (first_split(token(place)) < split) return false;
        return true;
    }

  private:
    static constexpr size_t kTasksPerThread = 16;  // at least: enough to balance the threads
    static constexpr size_t kBandQueries = 48;     // at most, so that their partials fit the cache beside the keys

    // At most, of a unit and of a band.
    size_t unit_tokens() const { return std::max<size_t>(1, kMaxQueries / in_group_); }
    size_t band_tokens() const { return kBandQueries / kMaxQueries * unit_tokens(); }

    // Whether one of the tokens at these places attends to keys of a split.
    bool sees(size_t first, size_t end, size_t split) const {
        for (size_t place = first; place < end; ++place)
            if (split >= first_split(token(place)) && split < end_split(token(place))) return true;
        return false;
    }

    // Whether the tokens at a place and before it attend to keys that both read.
    bool joins(size_t place) const {
        return order_.with_previous(place) > std::max(first_split(token(place)), first_split(token(place - 1)));
    }

    void list_bands() {
        for (size_t first = 0, end; first < order_.tokens(); first = end) {
            for (end = first + 1; end < std::min(order_.tokens(), first + band_tokens()) && joins(end);) ++end;
            AttentionBand& band = bands_.emplace_back(AttentionBand{.first = first, .end = end, .rows = 0});
            order_.each_section(first, end, 0, [&](const SharedSection& shared) { add_section(band, shared); });
        }
    }

    void add_section(AttentionBand& band, const SharedSection& shared) const {
        size_t from = SharedSplits::kAll, until = 0;
        for (size_t place = shared.first; place < shared.end; ++place) {
            from = std::min(from, first_split(token(place)));
            until = std::max(until, end_split(token(place)));
        }
        from = std::max(from, shared.from);
        until = std::min(until, shared.until);
        if (from >= until) return;
        band.sections.push_back({shared.first, shared.end, from, until, band.rows});
        band.rows += band.sections.back().splits() * band.sections.back().tokens();
    }

    // The cost of a step for a group: reading a position takes about as long as multiplying it by one query.
    size_t cost(const AttentionSection& section, size_t split) const {
        size_t sum = 0;
        each_unit(section, split, group(groups() - 1), [&](const AttentionUnit& unit) {
            size_t from = SharedSplits::kAll, end = 0;
            for (size_t place = unit.first; place < unit.first + unit.count; ++place) {
                from = std::min(from, first(token(place)));
                end = std::max(end, length(token(place)));
            }
            const size_t keys = std::min(end, (split + 1) * kSplitKeys) - std::max(from, split * kSplitKeys);
            sum += keys * (1 + unit.queries());
        });
        return sum;
    }

    void list_tasks() {
        const auto threads = static_cast<size_t>(step_.threads), shares = threads > 1 ? threads * kTasksPerThread : 0;
        std::vector<std::vector<size_t>> costs;  // of the steps of each band, of all steps before and of its own
        size_t total = 0;
        for (const AttentionBand& band : bands_) {
            size_t sum = 0;
            std::vector<size_t>& of_band = costs.emplace_back();
            band.each_step(0, band.steps(), [&](const AttentionSection& section, size_t split) {
                of_band.push_back(sum += cost(section, split));
            });
            total += sum * groups();
        }
        for (size_t i = 0; i < bands_.size(); ++i) list_tasks(bands_[i], costs[i], shares, total);
        std::stable_sort(tasks_.begin(), tasks_.end(),
                         [](const AttentionTask& x, const AttentionTask& y) { return x.cost > y.cost; });
    }

    // Divides a band at steps of about equal cost.
    void list_tasks(AttentionBand& band, const std::vector<size_t>& costs, size_t shares, size_t total) {
        const size_t all = costs.back(), tasks = std::clamp(ceil_div(all * shares, total), size_t{1}, costs.size());
        size_t first = 0, before = 0;
        for (size_t step = 0, made = 0; step < costs.size(); ++step) {
            if (step + 1 < costs.size() && costs[step] * tasks < all * (made + 1)) continue;
            tasks_.push_back({&band, first, step + 1, costs[step] - before});
            first = step + 1, before = costs[step], ++made;
        }
        band.divided = tasks_.back().first > 0;
        if (!band.divided) return;
        band.first_partial = partials_;
        partials_ += band.rows * step_.decoder->heads;
        divided_tokens_ += band.tokens();
    }

    const DecoderForward& step_;
    const SharedSplits& order_;
    const size_t window_, kv_heads_, in_group_, parts_;  // in_group: query heads that share a key-value head
    std::vector<AttentionBand> bands_;
    std::vector<AttentionTask> tasks_;
    size_t divided_tokens_ = 0, partials_ = 0;
};

}  // namespace decodestep::DECODESTEP_BUILD
