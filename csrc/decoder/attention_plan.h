// How the attention of a step is shared out.
//
// A unit is what one kernel call can take: the queries of some heads of one key-value head, of a run of tokens. A unit
// that is a large part of the step is cut into pieces of its splits, so that a long context beside short ones occupies
// all threads; its states are merged afterwards, in the order of the keys. The bits do not depend on the pieces, since
// the splits are the same.
#pragma once

#include <algorithm>
#include <vector>

#include "attention/group_attention.h"
#include "decoder/decoder_forward.h"

namespace decodestep::DECODESTEP_ISA {

// Adjacent tokens of one sequence, whose queries see nearly the same keys.
struct TokenRun {
    size_t first, count;
};

struct AttentionUnit {
    TokenRun run;
    size_t kv_head, head, heads;    // query heads [head, head + heads) of all
    size_t first_split, end_split;  // from the one in which its first token's window begins, to its last token's own
    size_t pieces;
    size_t first_state;  // with several pieces: the number of the first of its states, [splits(), queries]

    size_t splits() const { return end_split - first_split; }

    // Queries are in the order (token, head).
    size_t queries() const { return run.count * heads; }
    size_t token_of(size_t query) const { return run.first + query / heads; }
    size_t head_of(size_t query) const { return head + query % heads; }
};

// Splits [first, end) of a unit.
struct AttentionTask {
    size_t unit, first, end, cost;
};

// window: how many positions a token sees, its own included; 0: all up to its own.
class AttentionPlan {
  public:
    AttentionPlan(const DecoderForward& step, size_t window) : a_(step), d_(*step.decoder), window_(window) {
        find_runs();
        for (const TokenRun& run : runs_) list_units(run);
        list_tasks();
    }

    size_t window() const { return window_; }

    // The positions that a token sees, and the splits that they lie in: [first, end).
    size_t first(size_t token) const { return window_ && length(token) > window_ ? length(token) - window_ : 0; }
    size_t length(size_t token) const { return static_cast<size_t>(a_.positions[token]) + 1; }
    size_t first_split(size_t token) const { return first(token) / kSplitKeys; }
    size_t end_split(size_t token) const { return key_splits(length(token)); }

    const AttentionUnit& unit(size_t number) const { return units_[number]; }

    // The units in several pieces, and the number of their states.
    const std::vector<AttentionUnit>& cut_units() const { return cut_units_; }
    size_t states() const { return states_; }

    // Calls body(task) for a member's tasks. The largest come first, and are dealt forth and back: so the shares
    // differ by less than one of them.
    template <class Body>
    void each_task(size_t member, size_t members, Body&& body) const {
        for (size_t dealt = 0; dealt < tasks_.size(); dealt += members) {
            const size_t task = dealt + (dealt / members % 2 ? members - 1 - member : member);
            if (task < tasks_.size()) body(tasks_[task]);
        }
    }

  private:
    static constexpr size_t kTasksPerThread = 16;  // or more: enough to balance the threads

    void find_runs() {
        const size_t longest = std::max<size_t>(1, kMaxQueries / (d_.heads / d_.kv_heads));
        for (size_t t = 0; t < a_.tokens; ++t) {
            const bool follows =
                t > 0 && a_.sequence[t] == a_.sequence[t - 1] && a_.positions[t] == a_.positions[t - 1] + 1;
            if (follows && runs_.back().count < longest)
                ++runs_.back().count;
            else
                runs_.push_back({t, 1});
        }
    }

    void list_units(const TokenRun& run) {
        const size_t in_group = d_.heads / d_.kv_heads;
        for (size_t kv_head = 0; kv_head < d_.kv_heads; ++kv_head)
            for (size_t h = 0; h < in_group; h += kMaxQueries)
                units_.push_back({run, kv_head, kv_head * in_group + h, std::min(kMaxQueries, in_group - h),
                                  first_split(run.first), end_split(run.first + run.count - 1), 1, 0});
    }

    // Of splits [first, end): reading a position takes about as long as multiplying it by one query.
    size_t cost(const AttentionUnit& unit, size_t first, size_t end) const {
        const size_t keys = std::min(length(unit.run.first + unit.run.count - 1), end * kSplitKeys) -
                            std::max(this->first(unit.run.first), first * kSplitKeys);
        return keys * (1 + unit.queries());
    }
    size_t cost(const AttentionUnit& unit) const { return cost(unit, unit.first_split, unit.end_split); }

    void list_tasks() {
        const auto threads = static_cast<size_t>(a_.threads), shares = threads > 1 ? threads * kTasksPerThread : 0;
        size_t total = 0;
        for (const AttentionUnit& unit : units_) total += cost(unit);
        for (size_t number = 0; number < units_.size(); ++number) {
            AttentionUnit& unit = units_[number];
            unit.pieces = std::clamp((cost(unit) * shares + total - 1) / total, size_t{1}, unit.splits());
            if (unit.pieces > 1) {
                unit.first_state = states_;
                states_ += unit.splits() * unit.queries();
                cut_units_.push_back(unit);
            }
            for (size_t piece = 0; piece < unit.pieces; ++piece) {
                const size_t first = unit.first_split + unit.splits() * piece / unit.pieces,
                             end = unit.first_split + unit.splits() * (piece + 1) / unit.pieces;
                tasks_.push_back({number, first, end, cost(unit, first, end)});
            }
        }
        std::stable_sort(tasks_.begin(), tasks_.end(),
                         [](const AttentionTask& x, const AttentionTask& y) { return x.cost > y.cost; });
    }

    const DecoderForward& a_;
    const Decoder& d_;
    const size_t window_;
    std::vector<TokenRun> runs_;
    std::vector<AttentionUnit> units_;
    std::vector<AttentionTask> tasks_;  // the largest first
    std::vector<AttentionUnit> cut_units_;
    size_t states_ = 0;
};

}  // namespace decodestep::DECODESTEP_ISA
