// Divides the attention of a step among the threads.
//
// A unit is the work of one kernel call: a run of tokens, and query heads that share a key-value head. Units with the
// same heads and consecutive runs form a band, which is processed split by split: a split of the keys is read from
// memory for the first unit, and from the cache for the others. A band that is a large part of the step is divided into
// several tasks (ranges of its splits), so that a long context beside short ones occupies all threads; the partials of
// its splits are merged afterwards, in the order of the keys. The bits depend neither on bands nor on tasks, because
// the splits are the same.
#pragma once

#include <algorithm>
#include <vector>

#include "attention/group_attention.h"
#include "core/division.h"
#include "decoder/decoder_forward.h"

namespace decodestep::DECODESTEP_BUILD {

// Adjacent tokens of one sequence, whose queries see nearly the same keys.
struct TokenRun {
    size_t first, count;
};

struct AttentionUnit {
    TokenRun run;
    size_t kv_head, head, heads;    // query heads [head, head + heads) of the model
    size_t first_split, end_split;  // from the split of its first token's window start to its last token's split
    size_t first_partial = 0;       // if its band is divided: index of its first partial, [splits(), queries]

    size_t splits() const { return end_split - first_split; }

    // Queries are in the order (token, head).
    size_t queries() const { return run.count * heads; }
    size_t token_of(size_t query) const { return run.first + query / heads; }
    size_t head_of(size_t query) const { return head + query % heads; }
};

// Units [unit, unit + units) of one sequence and the same heads, in the order of their tokens.
struct AttentionBand {
    size_t unit, units;
    bool divided = false;
};

// Splits [first, end) of a band.
struct AttentionTask {
    AttentionBand band;
    size_t first, end, cost;
};

// window: the number of positions that a token attends to, its own included; 0: all up to its own. kv_heads: of the
// layers.
class AttentionPlan {
  public:
    AttentionPlan(const DecoderForward& step, size_t window, size_t kv_heads)
        : step_(step), window_(window), kv_heads_(kv_heads), in_group_(step.decoder->heads / kv_heads) {
        find_runs();
        list_bands();
        list_tasks();
    }

    bool serves(const GroupedAttention& w) const { return w.window == window_ && w.kv_heads == kv_heads_; }

    // The positions that a token attends to are [first, length), the splits that hold them [first_split, end_split).
    size_t first(size_t token) const { return window_ && length(token) > window_ ? length(token) - window_ : 0; }
    size_t length(size_t token) const { return static_cast<size_t>(step_.positions[token]) + 1; }
    size_t first_split(size_t token) const { return first(token) / kSplitKeys; }
    size_t end_split(size_t token) const { return key_splits(length(token)); }

    const AttentionUnit& unit(size_t number) const { return units_[number]; }

    // The units of bands that are divided, and the numbers of their queries and partials.
    const std::vector<AttentionUnit>& divided_units() const { return divided_units_; }
    size_t divided_queries() const { return divided_queries_; }
    size_t partials() const { return partials_; }

    const std::vector<AttentionTask>& tasks() const { return tasks_; }  // in descending order of cost

  private:
    static constexpr size_t kTasksPerThread = 16;  // at least: enough to balance the threads
    static constexpr size_t kBandQueries = 48;     // at most, so that their partials fit the cache beside the keys

    // Whether a token is the next one of its predecessor's sequence.
    bool follows(size_t t) const {
        return t > 0 && step_.sequence[t] == step_.sequence[t - 1] && step_.positions[t] == step_.positions[t - 1] + 1;
    }

    void find_runs() {
        const size_t longest = std::max<size_t>(1, kMaxQueries / in_group_);
        for (size_t t = 0; t < step_.tokens; ++t) {
            if (follows(t) && runs_.back().count < longest)
                ++runs_.back().count;
            else
                runs_.push_back({t, 1});
        }
    }

    // Lists the bands of runs [first, first + count), whose tokens are consecutive.
    void list_bands(size_t first, size_t count) {
        const size_t parts = ceil_div(in_group_, kMaxQueries);
        for (size_t kv_head = 0; kv_head < kv_heads_; ++kv_head)
            for (size_t part = 0; part < parts; ++part) {
                bands_.push_back({units_.size(), count});
                const size_t head = in_group_ * part / parts, end = in_group_ * (part + 1) / parts;
                for (size_t i = first; i < first + count; ++i) {
                    const TokenRun& run = runs_[i];
                    units_.push_back({run, kv_head, kv_head * in_group_ + head, end - head, first_split(run.first),
                                      end_split(run.first + run.count - 1)});
                }
            }
    }

    void list_bands() {
        constexpr size_t most = kBandQueries / kMaxQueries;
        size_t count = 0;
        for (size_t first = 0; first < runs_.size(); first += count) {
            const size_t left = std::min(most, runs_.size() - first);
            for (count = 1; count < left && follows(runs_[first + count].first);) ++count;
            list_bands(first, count);
        }
    }

    // The cost of splits [first, end): reading a position takes about as long as multiplying it by one query.
    size_t cost(const AttentionUnit& unit, size_t first, size_t end) const {
        const size_t keys = std::min(length(unit.run.first + unit.run.count - 1), end * kSplitKeys) -
                            std::max(this->first(unit.run.first), first * kSplitKeys);
        return keys * (1 + unit.queries());
    }
    size_t cost(const AttentionBand& band, size_t first, size_t end) const {
        size_t sum = 0;
        for (size_t i = band.unit; i < band.unit + band.units; ++i) {
            const size_t from = std::max(first, units_[i].first_split), to = std::min(end, units_[i].end_split);
            if (from < to) sum += cost(units_[i], from, to);
        }
        return sum;
    }

    void list_tasks() {
        const auto threads = static_cast<size_t>(step_.threads), shares = threads > 1 ? threads * kTasksPerThread : 0;
        size_t total = 0;
        for (const AttentionUnit& unit : units_) total += cost(unit, unit.first_split, unit.end_split);
        for (AttentionBand& band : bands_) {
            const size_t first = units_[band.unit].first_split, end = units_[band.unit + band.units - 1].end_split,
                         all = cost(band, first, end);
            const size_t tasks = std::clamp(ceil_div(all * shares, total), size_t{1}, end - first);
            band.divided = tasks > 1;
            if (band.divided) reserve_partials(band);
            for (size_t task = 0; task < tasks; ++task) {
                const size_t from = first + (end - first) * task / tasks,
                             to = first + (end - first) * (task + 1) / tasks;
                tasks_.push_back({band, from, to, cost(band, from, to)});
            }
        }
        std::stable_sort(tasks_.begin(), tasks_.end(),
                         [](const AttentionTask& x, const AttentionTask& y) { return x.cost > y.cost; });
    }

    void reserve_partials(const AttentionBand& band) {
        for (size_t i = band.unit; i < band.unit + band.units; ++i) {
            units_[i].first_partial = partials_;
            partials_ += units_[i].splits() * units_[i].queries();
            divided_units_.push_back(units_[i]);
            divided_queries_ += units_[i].queries();
        }
    }

    const DecoderForward& step_;
    const size_t window_, kv_heads_, in_group_;  // query heads that share a key-value head
    std::vector<TokenRun> runs_;
    std::vector<AttentionUnit> units_;
    std::vector<AttentionBand> bands_;
    std::vector<AttentionTask> tasks_;
    std::vector<AttentionUnit> divided_units_;
    size_t divided_queries_ = 0, partials_ = 0;
};

}  // namespace decodestep::DECODESTEP_BUILD
