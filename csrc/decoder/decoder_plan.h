// How a step of the decoder is cut into stages, and where it keeps what they hand on.
#pragma once

#include <algorithm>
#include <deque>
#include <vector>

#include "attention/group_attention.h"
#include "linear/panel_product.h"

namespace decodestep::DECODESTEP_ISA {

// What a step is made of. With few tokens every member of the team makes all rows that products read for itself, which
// takes less than waiting for each other; with many they share that out too.
enum class Work {
    norm_in,
    project,
    attend,
    round_attended,
    output,
    norm_between,
    gate_up,
    round_gated,
    down,
    norm_out,
    logits
};
constexpr Work kFewTokensLayer[] = {Work::project, Work::attend, Work::output, Work::gate_up, Work::down};
constexpr Work kManyTokensLayer[] = {Work::norm_in,        Work::project,     Work::attend,
                                     Work::round_attended, Work::output,      Work::norm_between,
                                     Work::gate_up,        Work::round_gated, Work::down};
constexpr size_t kFewTokens = 4;

// The products of a layer, in the order in which a step reads their weights.
enum Sweep : size_t { kProject, kOutput, kGateUp, kDown, kSweeps };

// Float buffers that a thread keeps from one step to the next.
class Storage {
  public:
    void reset() { used_ = 0; }
    float* take(size_t floats) {
        if (used_ == buffers_.size()) buffers_.emplace_back();
        auto& buffer = buffers_[used_++];
        if (buffer.size() < floats) buffer.resize(floats);
        return buffer.data();
    }
    Activations activations(size_t tokens, size_t in, bool as_values, bool as_bytes) {
        float* space = take(Activations::floats(tokens, in, as_values, as_bytes));
        return Activations::in_space(space, tokens, in, as_values, as_bytes);
    }

  private:
    std::deque<std::vector<float>> buffers_;
    size_t used_ = 0;
};

// Tokens that follow each other in one sequence: their queries see nearly the same keys.
struct Run {
    size_t first, count;
};

struct Share {
    size_t first, end;
};

// The part of so many units that is one member's of a team.
inline Share share_of(size_t units, size_t member, size_t members) {
    return {units * member / members, units * (member + 1) / members};
}

struct Stage {
    Work work;
    size_t layer;
};

// What the members of a team know of a step. `few`: the activations that products read are in own[member], else in
// shared.
class Plan {
  public:
    Plan(const DecoderForward& step, Storage& arena)
        : a(step),
          m(*step.decoder),
          few(step.tokens <= kFewTokens && step.rows <= kFewTokens),
          queries(m.heads * m.width),
          group_heads(m.heads / m.groups) {
        bool values = false, bytes = false;
        const auto reads = [&](const Panels& w) { (reads_bytes(w.format) ? bytes : values) = true; };
        for (const auto& layer : m.layers)
            for (const Panels* w :
                 {&layer.query, &layer.values_keys, &layer.output, &layer.gate, &layer.up, &layer.down})
                reads(*w);
        reads(m.logits);
        x = arena.take(a.tokens * m.hidden);
        q = reinterpret_cast<Bf16*>(arena.take(a.tokens * queries / 2));
        gated = arena.take(a.tokens * m.feed_forward);
        const size_t widest = std::max({m.hidden, queries, m.feed_forward});
        if (few) {
            for (int i = 0; i < a.threads; ++i) own.push_back(arena.activations(kFewTokens, widest, values, bytes));
            for (size_t t = 0; t < a.tokens; ++t) most_splits_ = std::max(most_splits_, splits_of(t));
            partials_ = {arena.take(Partials::floats(a.tokens * most_splits_ * m.heads, m.width)), m.width};
        } else {
            shared = arena.activations(std::max(a.tokens, a.rows), widest, values, bytes);
            attended = arena.take(a.tokens * queries);
        }
        find_runs();
        list_stages();
    }

    size_t splits_of(size_t t) const { return key_splits(a.positions[t] + 1); }
    const int64_t* pages_of(size_t sequence) const { return a.page_table + sequence * a.table_width; }
    size_t page_at(size_t layer, size_t page, size_t group) const {
        return ((layer * m.groups + group) * a.pages + page) * m.width * kPagePositions;
    }
    Partials partials(size_t t, size_t split, size_t head) const {
        return partials_.from((t * most_splits_ + split) * m.heads + head);
    }

    // Sweeps are numbered through the layers; behind them comes that of the logits, then the next step's first.
    size_t panels_in(size_t number) const {
        if (number == m.layers.size() * kSweeps) return m.logits.count();
        const DecoderLayer& w = m.layers[number / kSweeps];
        switch (number % kSweeps) {
            case kProject:
                return w.query.count() + w.values_keys.count();
            case kOutput:
                return w.output.count();
            case kGateUp:
                return w.gate.count();
            default:
                return w.down.count();
        }
    }

    const uint8_t* panel_at(size_t number, size_t i) const {
        if (number == m.layers.size() * kSweeps) return m.logits.panel(i);
        const DecoderLayer& w = m.layers[number / kSweeps];
        switch (number % kSweeps) {
            case kProject:
                return i < w.query.count() ? w.query.panel(i) : w.values_keys.panel(i - w.query.count());
            case kOutput:
                return w.output.panel(i);
            case kGateUp:
                return w.gate.panel(i);
            default:
                return w.down.panel(i);
        }
    }

    Share panels_of(size_t number, size_t member, size_t members) const {
        return share_of(panels_in(number), member, members);
    }

    const uint8_t* begins(size_t number, size_t member, size_t members) const {
        if (number > m.layers.size() * kSweeps) number = 0;
        return panel_at(number, panels_of(number, member, members).first);
    }

    const DecoderForward& a;
    const Decoder& m;
    const bool few;
    const size_t queries, group_heads;  // values of all queries of a token; heads of a group
    float *x = nullptr, *attended = nullptr, *gated = nullptr;
    Bf16* q = nullptr;
    Activations shared;
    std::vector<Activations> own;
    std::vector<Run> runs;
    std::vector<Stage> stages;

  private:
    void find_runs() {
        const size_t longest = std::max<size_t>(1, kRows / group_heads);
        for (size_t t = 0; t < a.tokens; ++t) {
            const bool follows =
                t > 0 && a.sequence[t] == a.sequence[t - 1] && a.positions[t] == a.positions[t - 1] + 1;
            if (follows && runs.back().count < longest)
                ++runs.back().count;
            else
                runs.push_back({t, 1});
        }
    }

    void list_stages() {
        const auto add = [&](const auto& works, size_t layer) {
            for (const Work work : works) stages.push_back({work, layer});
        };
        for (size_t layer = 0; layer < m.layers.size(); ++layer)
            few ? add(kFewTokensLayer, layer) : add(kManyTokensLayer, layer);
        if (a.rows == 0) return;
        if (!few) stages.push_back({Work::norm_out, 0});
        stages.push_back({Work::logits, 0});
    }

    size_t most_splits_ = 0;
    Partials partials_{};
};

}  // namespace decodestep::DECODESTEP_ISA
