#include "decoder.h"

#include <algorithm>
#include <deque>

#include "gate.h"
#include "group_attention.h"
#include "halves.h"
#include "panel_product.h"
#include "parallel.h"
#include "rms_norm_row.h"
#include "rope.h"

namespace decodestep::DECODESTEP_ISA {
namespace {

// What a step is made of. With few tokens every member of the team normalises and merges them all for itself, which
// takes less than waiting for each other; with many they share that out too.
enum class Work { norm_in, project, attend, merge, output, norm_between, gate_up, down, norm_out, logits };
constexpr Work kFewTokensLayer[] = {Work::project, Work::attend, Work::output, Work::gate_up, Work::down};
constexpr Work kManyTokensLayer[] = {Work::norm_in, Work::project,      Work::attend,  Work::merge,
                                     Work::output,  Work::norm_between, Work::gate_up, Work::down};
constexpr size_t kFewTokens = 4;

// The products of a layer, in the order in which a step reads their weights.
enum Sweep : size_t { kProject, kOutput, kGateUp, kDown, kSweeps };

// Float buffers that a thread keeps from one step to the next.
class Arena {
  public:
    void reset() { used_ = 0; }
    float* take(size_t floats) {
        if (used_ == buffers_.size()) buffers_.emplace_back();
        auto& buffer = buffers_[used_++];
        if (buffer.size() < floats) buffer.resize(floats);
        return buffer.data();
    }
    Activations activations(size_t tokens, size_t in, bool as_values, bool as_bytes) {
        const size_t blocks = tokens * in / kBlockInputs;
        Activations x{.in = in};
        if (as_values) x.values = take(tokens * in);
        if (as_bytes) {
            x.bytes = reinterpret_cast<int8_t*>(take(tokens * in / sizeof(float)));
            x.unit = take(blocks);
            x.total = take(blocks);
            x.sum = reinterpret_cast<int32_t*>(take(blocks));
        }
        return x;
    }

  private:
    std::deque<std::vector<float>> buffers_;
    size_t used_ = 0;
};

// Tokens that follow each other in one sequence: their queries see nearly the same keys.
struct Run {
    size_t first, count;
};

class Step {
  public:
    Step(const DecoderStep& a, Arena& arena)
        : a_(a),
          m_(*a.decoder),
          few_(a.tokens <= kFewTokens && a.rows <= kFewTokens),
          queries_(m_.heads * m_.width),
          group_heads_(m_.heads / m_.groups) {
        bool values = false, bytes = false;
        const auto reads = [&](const Panels& w) { (reads_bytes(w.format) ? bytes : values) = true; };
        for (const auto& layer : m_.layers)
            for (const Panels* w :
                 {&layer.query, &layer.values_keys, &layer.output, &layer.gate, &layer.up, &layer.down})
                reads(*w);
        reads(m_.logits);
        x_ = arena.take(a.tokens * m_.hidden);
        q_ = arena.take(a.tokens * queries_);
        gated_ = arena.activations(a.tokens, m_.feed_forward, values, bytes);
        const size_t widest = m_.hidden > queries_ ? m_.hidden : queries_;
        if (few_) {
            for (int i = 0; i < a.threads; ++i) own_.push_back(arena.activations(kFewTokens, widest, values, bytes));
            for (size_t t = 0; t < a.tokens; ++t) most_chunks_ = std::max(most_chunks_, chunks_of(t));
            records_ = arena.take(a.tokens * m_.heads * most_chunks_ * record_floats(m_.width));
        } else {
            shared_ = arena.activations(std::max(a.tokens, a.rows), widest, values, bytes);
            attended_ = arena.take(a.tokens * queries_);
        }
        find_runs();
        list_stages();
    }

    void run() {
        take_rows({m_.embedding.data, m_.embedding.stride, m_.hidden, m_.embedding.format, a_.ids, a_.tokens, x_});
        parallel_stages(stages_.size(), a_.threads, [&](size_t stage, size_t member, size_t members) {
            Member{*this, stages_[stage].layer, member, members}.work(stages_[stage].work);
        });
    }

  private:
    struct Stage {
        Work work;
        size_t layer;
    };

    // One member's part of one stage.
    struct Member {
        const Step& s;
        const size_t layer, member, members;

        void work(Work work) const {
            const DecoderLayer& w = s.m_.layers[layer < s.m_.layers.size() ? layer : 0];
            switch (work) {
                case Work::norm_in:
                    return norm_shared(w.attention_norm, nullptr, s.a_.tokens);
                case Work::project:
                    return project(w.attention_norm);
                case Work::attend:
                    return s.few_ ? attend_chunks() : attend_runs();
                case Work::merge:
                    return merge_shared();
                case Work::output:
                    return add_product(kOutput, s.few_ ? merged() : at_width(s.shared_, s.queries_));
                case Work::norm_between:
                    return norm_shared(w.ffn_norm, nullptr, s.a_.tokens);
                case Work::gate_up:
                    return gate_up(w.ffn_norm);
                case Work::down:
                    return add_product(kDown, s.gated_);
                case Work::norm_out:
                    return norm_shared(s.m_.norm, s.a_.wanted, s.a_.rows);
                case Work::logits:
                    return logits();
            }
        }

        Activations& own() const { return const_cast<Step&>(s).own_[member]; }

        // The same memory as rows of another length.
        static Activations at_width(Activations x, size_t in) {
            x.in = in;
            return x;
        }

        struct Share {
            size_t first, end;
        };
        Share share(size_t units) const { return {units * member / members, units * (member + 1) / members}; }

        void norm(const float* gamma, size_t row, const Activations& out, size_t t) const {
            const float* x = s.x_ + row * s.m_.hidden;
            const f32x16 rms = broadcast(root_mean_square(x, s.m_.hidden, s.m_.eps));
            for (size_t b = 0, k = 0; k < s.m_.hidden; ++b, k += kBlockInputs)
                put_block(out, t, b, normed(load(x + k), rms, load(gamma + k)),
                          normed(load(x + k + kLanes), rms, load(gamma + k + kLanes)));
        }

        void norm_shared(const float* gamma, const int64_t* rows, size_t count) const {
            const Activations out = at_width(s.shared_, s.m_.hidden);
            const Share part = share(count);
            for (size_t t = part.first; t < part.end; ++t) norm(gamma, rows ? rows[t] : t, out, t);
        }

        // The normalised rows: all of them made here if they are few, else those that the team has made before.
        Activations normalised(const float* gamma, const int64_t* rows, size_t count) const {
            if (!s.few_) return at_width(s.shared_, s.m_.hidden);
            const Activations out = at_width(own(), s.m_.hidden);
            for (size_t t = 0; t < count; ++t) norm(gamma, rows ? rows[t] : t, out, t);
            return out;
        }

        // body(i, next) for this member's panels of a sweep; next is where its reading goes on.
        template <class Body>
        void sweep(size_t kind, Body&& body) const {
            const size_t number = kind == kSweeps ? s.m_.layers.size() * kSweeps : layer * kSweeps + kind;
            const Share part = s.panels_of(number, member, members);
            for (size_t i = part.first; i < part.end; ++i)
                body(i, i + 1 < part.end ? s.panel_at(number, i + 1) : s.begins(number + 1, member, members));
        }

        void project(const float* gamma) const {
            const DecoderLayer& w = s.m_.layers[layer];
            const Activations x = normalised(gamma, nullptr, s.a_.tokens);
            sweep(kProject, [&](size_t i, const uint8_t* next) {
                const size_t queries = w.query.count();
                if (i < queries)
                    times_panel(w.query, i, next, x, s.a_.tokens,
                                [&](size_t t, float* y) { put_queries(t, i * kPanelOutputs, y); });
                else
                    times_panel(w.values_keys, i - queries, next, x, s.a_.tokens,
                                [&](size_t t, float* y) { put_cache(t, (i - queries) * kPanelOutputs, y); });
            });
        }

        // Sixteen outputs of a head, from `column` of it on.
        void rotate(size_t t, size_t column, float* y) const {
            const size_t at = s.a_.positions[t] * (s.m_.width / 2) + column / 2;
            rotate_pairs(y, kLanes / 2, s.a_.sin + at, s.a_.cos + at);
        }

        void put_queries(size_t t, size_t first, float* y) const {
            for (size_t i = 0; i < kPanelOutputs; i += kLanes) rotate(t, (first + i) % s.m_.width, y + i);
            std::memcpy(s.q_ + t * s.queries_ + first, y, kPanelOutputs * sizeof(float));
        }

        void put_cache(size_t t, size_t first, float* y) const {
            const size_t position = s.a_.positions[t], row = position % kPagePositions, width = s.m_.width;
            const size_t page = s.pages_of(s.a_.sequence[t])[position / kPagePositions];
            for (size_t i = 0; i < kPanelOutputs; i += kLanes) {
                const size_t output = first + i, group = output / width, column = output % width;
                const bool is_key = group >= s.m_.groups;
                if (is_key) rotate(t, column, y + i);
                // The largest float16 stands for what is larger.
                uint16_t halves[kLanes];
                to_f16(min(broadcast(65504.0f), max(broadcast(-65504.0f), load(y + i))), halves);
                if (is_key) {
                    uint16_t* keys = s.a_.keys + s.page_at(layer, page, group - s.m_.groups) + column * kPagePositions;
                    for (size_t c = 0; c < kLanes; ++c) keys[c * kPagePositions + row] = halves[c];
                } else {
                    std::memcpy(s.a_.values + s.page_at(layer, page, group) + row * width + column, halves,
                                sizeof halves);
                }
            }
        }

        // Heads [first, first + count) of a group, of a run of tokens.
        Queries queries_of(const Run& run, size_t group, size_t first, size_t count) const {
            Queries q;
            for (size_t t = run.first; t < run.first + run.count; ++t)
                for (size_t h = first; h < first + count; ++h, ++q.count) {
                    q.query[q.count] = s.q_ + t * s.queries_ + (group * s.group_heads_ + h) * s.m_.width;
                    q.length[q.count] = s.a_.positions[t] + 1;
                }
            return q;
        }

        GroupPages pages(size_t t, size_t group) const {
            const size_t at = s.page_at(layer, 0, group);
            return {s.a_.keys + at, s.a_.values + at, s.m_.groups * s.m_.width * kPagePositions,
                    s.pages_of(s.a_.sequence[t]), s.m_.width};
        }

        // body(group, first head, heads) for the heads of all groups, so many at a time as a kernel takes.
        template <class Body>
        void each_heads(Body&& body) const {
            for (size_t group = 0; group < s.m_.groups; ++group)
                for (size_t h = 0; h < s.group_heads_; h += kRows) body(group, h, std::min(kRows, s.group_heads_ - h));
        }

        // Few tokens: chunks are what is shared out, and merged by whoever needs them.
        void attend_chunks() const {
            size_t task = 0;
            for (size_t t = 0; t < s.a_.tokens; ++t)
                each_heads([&](size_t group, size_t first, size_t count) {
                    for (size_t chunk = 0; chunk < s.chunks_of(t); ++chunk) {
                        if (task++ % members != member) continue;
                        attend_chunk(queries_of({t, 1}, group, first, count), pages(t, group), s.m_.scale, chunk,
                                     s.record(t, chunk, group * s.group_heads_ + first));
                    }
                });
        }

        Activations merged() const {
            const Activations out = at_width(own(), s.queries_);
            float* row = thread_scratch(s.queries_);
            const size_t stride = s.m_.heads * record_floats(s.m_.width);
            for (size_t t = 0; t < s.a_.tokens; ++t) {
                for (size_t head = 0; head < s.m_.heads; ++head)
                    merge_chunks(s.record(t, 0, head), stride, s.chunks_of(t), s.m_.width, row + head * s.m_.width);
                put_row(out, t, row, s.queries_);
            }
            return out;
        }

        // Many tokens: runs of them are shared out, dealt in turn since later ones see more.
        void attend_runs() const {
            size_t task = 0;
            for (const Run& run : s.runs_)
                each_heads([&](size_t group, size_t first, size_t count) {
                    if (task++ % members == member) attend_run(run, group, first, count);
                });
        }

        void attend_run(const Run& run, size_t group, size_t first, size_t count) const {
            const Queries q = queries_of(run, group, first, count);
            const GroupPages where = pages(run.first, group);
            const size_t record = record_floats(s.m_.width), stride = q.count * record;
            const size_t chunks = s.chunks_of(run.first + run.count - 1);
            float* records = thread_scratch(chunks * stride);
            for (size_t chunk = 0; chunk < chunks; ++chunk)
                attend_chunk(q, where, s.m_.scale, chunk, records + chunk * stride);
            for (size_t r = 0; r < q.count; ++r) {
                const size_t t = run.first + r / count, head = group * s.group_heads_ + first + r % count;
                merge_chunks(records + r * record, stride, s.chunks_of(t), s.m_.width,
                             s.attended_ + t * s.queries_ + head * s.m_.width);
            }
        }

        void merge_shared() const {
            const Activations out = at_width(s.shared_, s.queries_);
            const Share part = share(s.a_.tokens);
            for (size_t t = part.first; t < part.end; ++t) put_row(out, t, s.attended_ + t * s.queries_, s.queries_);
        }

        void add_product(Sweep kind, const Activations& x) const {
            const DecoderLayer& layer_weights = s.m_.layers[layer];
            const Panels& w = kind == kOutput ? layer_weights.output : layer_weights.down;
            sweep(kind, [&](size_t i, const uint8_t* next) {
                times_panel(w, i, next, x, s.a_.tokens, [&](size_t t, const float* y) {
                    float* row = s.x_ + t * s.m_.hidden + i * kPanelOutputs;
                    store(row, load(row) + load(y));
                    store(row + kLanes, load(row + kLanes) + load(y + kLanes));
                });
            });
        }

        void gate_up(const float* gamma) const {
            const DecoderLayer& w = s.m_.layers[layer];
            const Activations x = normalised(gamma, nullptr, s.a_.tokens);
            sweep(kGateUp, [&](size_t i, const uint8_t* next) {
                alignas(64) float gate[kTileTokens][kPanelOutputs], up[kTileTokens][kPanelOutputs];
                each_tile(s.a_.tokens, [&](size_t first, size_t count) {
                    const bool once = first == 0;
                    panel_tile(w.gate.format, w.gate.blocks(), w.gate.panel(i), once ? w.up.panel(i) : nullptr, x,
                               first, count, gate);
                    panel_tile(w.up.format, w.up.blocks(), w.up.panel(i), once ? next : nullptr, x, first, count, up);
                    for (size_t t = 0; t < count; ++t)
                        put_block(s.gated_, first + t, i, gated(load(gate[t]), load(up[t])),
                                  gated(load(gate[t] + kLanes), load(up[t] + kLanes)));
                });
            });
        }

        void logits() const {
            const Panels& w = s.m_.logits;
            const Activations x = normalised(s.m_.norm, s.a_.wanted, s.a_.rows);
            sweep(kSweeps, [&](size_t i, const uint8_t* next) {
                const size_t first = i * kPanelOutputs, count = std::min(kPanelOutputs, w.out - first);
                times_panel(w, i, next, x, s.a_.rows, [&](size_t r, const float* y) {
                    std::memcpy(s.a_.logits + r * w.out + first, y, count * sizeof(float));
                });
            });
        }
    };

    size_t chunks_of(size_t t) const { return (a_.positions[t] + kChunk) / kChunk; }
    const int64_t* pages_of(size_t sequence) const { return a_.page_table + sequence * a_.table_width; }
    size_t page_at(size_t layer, size_t page, size_t group) const {
        return ((layer * a_.pages + page) * m_.groups + group) * m_.width * kPagePositions;
    }
    float* record(size_t t, size_t chunk, size_t head) const {
        return records_ + ((t * most_chunks_ + chunk) * m_.heads + head) * record_floats(m_.width);
    }

    // Sweeps are numbered through the layers; behind them comes that of the logits, then the next step's first.
    size_t panels_in(size_t number) const {
        if (number == m_.layers.size() * kSweeps) return m_.logits.count();
        const DecoderLayer& w = m_.layers[number / kSweeps];
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
        if (number == m_.layers.size() * kSweeps) return m_.logits.panel(i);
        const DecoderLayer& w = m_.layers[number / kSweeps];
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

    Member::Share panels_of(size_t number, size_t member, size_t members) const {
        const size_t count = panels_in(number);
        return {count * member / members, count * (member + 1) / members};
    }

    const uint8_t* begins(size_t number, size_t member, size_t members) const {
        if (number > m_.layers.size() * kSweeps) number = 0;
        return panel_at(number, panels_of(number, member, members).first);
    }

    void find_runs() {
        const size_t longest = std::max<size_t>(1, kRows / group_heads_);
        for (size_t t = 0; t < a_.tokens; ++t) {
            const bool follows =
                t > 0 && a_.sequence[t] == a_.sequence[t - 1] && a_.positions[t] == a_.positions[t - 1] + 1;
            if (follows && runs_.back().count < longest)
                ++runs_.back().count;
            else
                runs_.push_back({t, 1});
        }
    }

    void list_stages() {
        const auto add = [&](const auto& works, size_t layer) {
            for (const Work work : works) stages_.push_back({work, layer});
        };
        for (size_t layer = 0; layer < m_.layers.size(); ++layer)
            few_ ? add(kFewTokensLayer, layer) : add(kManyTokensLayer, layer);
        if (a_.rows == 0) return;
        if (!few_) stages_.push_back({Work::norm_out, 0});
        stages_.push_back({Work::logits, 0});
    }

    const DecoderStep& a_;
    const Decoder& m_;
    const bool few_;
    const size_t queries_, group_heads_;
    size_t most_chunks_ = 0;
    float *x_ = nullptr, *q_ = nullptr, *records_ = nullptr, *attended_ = nullptr;
    Activations shared_, gated_;
    std::vector<Activations> own_;
    std::vector<Run> runs_;
    std::vector<Stage> stages_;
};

}  // namespace

void decoder_step(const DecoderStep& a) {
    static thread_local Arena arena;
    arena.reset();
    Step(a, arena).run();
}

}  // namespace decodestep::DECODESTEP_ISA
