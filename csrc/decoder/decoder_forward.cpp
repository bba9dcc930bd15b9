#include "decoder/decoder_forward.h"

#include "core/parallel.h"
#include "decoder/decoder_plan.h"
#include "elementwise/rms_norm_row.h"
#include "elementwise/rope.h"
#include "elementwise/silu.h"
#include "simd/rounding.h"

namespace decodestep::DECODESTEP_ISA {
namespace {

// One member's part of one stage.
struct Member {
    const Plan& plan;
    const size_t layer, member, members;

    void work(Work work) const {
        const DecoderLayer& w = plan.m.layers[layer];
        switch (work) {
            case Work::norm_in:
                return norm_shared(w.attention_norm, nullptr, plan.a.tokens);
            case Work::project:
                return project(w.attention_norm);
            case Work::attend:
                return plan.few ? attend_splits() : attend_runs();
            case Work::round_attended:
                return round_shared(plan.attended, plan.queries);
            case Work::output:
                return add_product(kOutput, plan.few ? attended() : at_width(plan.shared, plan.queries));
            case Work::norm_between:
                return norm_shared(w.ffn_norm, nullptr, plan.a.tokens);
            case Work::gate_up:
                return gate_up(w.ffn_norm);
            case Work::round_gated:
                return round_shared(plan.gated, plan.m.feed_forward);
            case Work::down:
                return add_product(kDown, plan.few ? rounded() : at_width(plan.shared, plan.m.feed_forward));
            case Work::norm_out:
                return norm_shared(plan.m.norm, plan.a.wanted, plan.a.rows);
            case Work::logits:
                return logits();
        }
    }

    // The same memory as rows of another length.
    static Activations at_width(Activations x, size_t in) {
        x.in = in;
        return x;
    }

    Share share(size_t units) const { return share_of(units, member, members); }

    void norm(const float* gamma, size_t row, const Activations& out, size_t t) const {
        const float* x = plan.x + row * plan.m.hidden;
        const f32x16 rms = broadcast(root_mean_square(x, plan.m.hidden, plan.m.eps));
        put_blocks(out, t, [&](size_t b) -> Block {
            const size_t k = b * kBlockInputs;
            return {normed(load(x + k), rms, load(gamma + k)),
                    normed(load(x + k + kLanes), rms, load(gamma + k + kLanes))};
        });
    }

    void norm_shared(const float* gamma, const int64_t* rows, size_t count) const {
        const Activations out = at_width(plan.shared, plan.m.hidden);
        const Share part = share(count);
        for (size_t t = part.first; t < part.end; ++t) norm(gamma, rows ? rows[t] : t, out, t);
    }

    // The normalised rows: all of them made here if they are few, else those that the team has made before.
    Activations normalised(const float* gamma, const int64_t* rows, size_t count) const {
        if (!plan.few) return at_width(plan.shared, plan.m.hidden);
        const Activations out = at_width(plan.own[member], plan.m.hidden);
        for (size_t t = 0; t < count; ++t) norm(gamma, rows ? rows[t] : t, out, t);
        return out;
    }

    // body(i, next) for this member's panels of a sweep; next is where its reading goes on.
    template <class Body>
    void sweep(size_t kind, Body&& body) const {
        const size_t number = kind == kSweeps ? plan.m.layers.size() * kSweeps : layer * kSweeps + kind;
        const Share part = plan.panels_of(number, member, members);
        for (size_t i = part.first; i < part.end; ++i)
            body(i, i + 1 < part.end ? plan.panel_at(number, i + 1) : plan.begins(number + 1, member, members));
    }

    void project(const float* gamma) const {
        const DecoderLayer& w = plan.m.layers[layer];
        const Activations x = normalised(gamma, nullptr, plan.a.tokens);
        sweep(kProject, [&](size_t i, const uint8_t* next) {
            const size_t queries = w.query.count();
            if (i < queries)
                times_panel(
                    w.query, i, next, x, plan.a.tokens, [&](size_t t, float* y) { put_queries(t, i, y); },
                    [&](size_t t) { return query_at(t, i); });
            else
                times_panel(w.values_keys, i - queries, next, x, plan.a.tokens,
                            [&](size_t t, float* y) { put_cache(t, (i - queries) * kPanelOutputs, y); });
        });
    }

    // Sixteen outputs of a head, from `column` of it on.
    void rotate(size_t t, size_t column, float* y) const {
        const size_t at = plan.a.positions[t] * (plan.m.width / 2) + column / 2;
        store(y, rotate_pairs(load(y), plan.a.sin + at, plan.a.cos + at));
    }

    Bf16* query_at(size_t t, size_t panel) const { return plan.q + t * plan.queries + panel * kPanelOutputs; }

    void put_queries(size_t t, size_t panel, float* y) const {
        for (size_t i = 0; i < kPanelOutputs; i += kLanes) rotate(t, (panel * kPanelOutputs + i) % plan.m.width, y + i);
        store_sums(query_at(t, panel), y, kPanelOutputs);
    }

    void put_cache(size_t t, size_t first, float* y) const {
        const size_t position = plan.a.positions[t], row = position % kPagePositions, width = plan.m.width;
        const size_t page = plan.pages_of(plan.a.sequence[t])[position / kPagePositions];
        for (size_t i = 0; i < kPanelOutputs; i += kLanes) {
            const size_t output = first + i, group = output / width, column = output % width;
            const bool is_key = group >= plan.m.groups;
            if (is_key) rotate(t, column, y + i);
            Bf16 sixteen[kLanes];
            store_sums(sixteen, load(y + i));
            if (is_key) {
                uint16_t* pair =
                    plan.a.keys + plan.page_at(layer, page, group - plan.m.groups) + column * kPagePositions + 2 * row;
                for (size_t c = 0; c < kLanes; c += 2, pair += 2 * kPagePositions)
                    std::memcpy(pair, sixteen + c, 2 * sizeof(Bf16));
            } else {
                uint16_t* pair = plan.a.values + plan.page_at(layer, page, group) + row / 2 * 2 * width + 2 * column;
                for (size_t c = 0; c < kLanes; ++c, pair += 2) {
                    pair[row % 2] = sixteen[c].bits;
                    // Read with a weight of zero until its position comes, and zero times an infinity is none.
                    if (row % 2 == 0) pair[1] = 0;
                }
            }
        }
    }

    // Heads [first, first + count) of a group, of a run of tokens.
    Queries queries_of(const Run& run, size_t group, size_t first, size_t count) const {
        Queries q;
        for (size_t t = run.first; t < run.first + run.count; ++t)
            for (size_t h = first; h < first + count; ++h, ++q.count) {
                q.query[q.count] = plan.q + t * plan.queries + (group * plan.group_heads + h) * plan.m.width;
                q.length[q.count] = plan.a.positions[t] + 1;
            }
        return q;
    }

    GroupPages pages(size_t t, size_t group) const {
        const size_t at = plan.page_at(layer, 0, group);
        return {plan.a.keys + at, plan.a.values + at, plan.pages_of(plan.a.sequence[t]), plan.m.width};
    }

    // body(group, first head, heads) for the heads of all groups, so many at a time as a kernel takes.
    template <class Body>
    void each_heads(Body&& body) const {
        for (size_t group = 0; group < plan.m.groups; ++group)
            for (size_t h = 0; h < plan.group_heads; h += kRows) body(group, h, std::min(kRows, plan.group_heads - h));
    }

    // Few tokens: splits are what is shared out, and added by whoever needs them.
    void attend_splits() const {
        size_t task = 0;
        for (size_t t = 0; t < plan.a.tokens; ++t)
            each_heads([&](size_t group, size_t first, size_t count) {
                for (size_t split = 0; split < plan.splits_of(t); ++split) {
                    if (task++ % members != member) continue;
                    attend_split(queries_of({t, 1}, group, first, count), pages(t, group), plan.m.scale, split,
                                 plan.partials(t, split, group * plan.group_heads + first));
                }
            });
    }

    Activations attended() const {
        const Activations out = at_width(plan.own[member], plan.queries);
        const size_t width = plan.m.width;
        float* row = thread_scratch(plan.queries + Partial::floats(width));
        const Partial sum{row + plan.queries, width};
        for (size_t t = 0; t < plan.a.tokens; ++t) {
            for (size_t head = 0; head < plan.m.heads; ++head) {
                sum.clear();
                for (size_t split = 0; split < plan.splits_of(t); ++split) sum.add(plan.partials(t, split, head)[0]);
                sum.finish(nullptr, row + head * width);
            }
            put_row(out, t, row, plan.queries);
        }
        return out;
    }

    // Many tokens: runs of them are shared out, dealt in turn since later ones see more.
    void attend_runs() const {
        size_t task = 0;
        for (const Run& run : plan.runs)
            each_heads([&](size_t group, size_t first, size_t count) {
                if (task++ % members == member) attend_run(run, group, first, count);
            });
    }

    void attend_run(const Run& run, size_t group, size_t first, size_t count) const {
        const Queries q = queries_of(run, group, first, count);
        const GroupPages where = pages(run.first, group);
        const size_t width = plan.m.width, splits = plan.splits_of(run.first + run.count - 1);
        const Partials partials{thread_scratch(Partials::floats(splits * q.count, width)), width};
        for (size_t split = 0; split < splits; ++split)
            attend_split(q, where, plan.m.scale, split, partials.from(split * q.count));
        for (size_t r = 0; r < q.count; ++r) {
            const size_t t = run.first + r / count, head = group * plan.group_heads + first + r % count;
            for (size_t split = 1; split < plan.splits_of(t); ++split) partials[r].add(partials[split * q.count + r]);
            partials[r].finish(nullptr, plan.attended + t * plan.queries + head * width);
        }
    }

    void round_shared(const float* rows, size_t width) const {
        const Activations out = at_width(plan.shared, width);
        const Share part = share(plan.a.tokens);
        for (size_t t = part.first; t < part.end; ++t) put_row(out, t, rows + t * width, width);
    }

    void add_product(Sweep kind, const Activations& x) const {
        const DecoderLayer& layer_weights = plan.m.layers[layer];
        const Panels& w = kind == kOutput ? layer_weights.output : layer_weights.down;
        sweep(kind, [&](size_t i, const uint8_t* next) {
            const auto row = [&](size_t t) { return plan.x + t * plan.m.hidden + i * kPanelOutputs; };
            const auto add = [&](size_t t, const float* y) {
                for (size_t j = 0; j < kPanelOutputs; j += kLanes) store(row(t) + j, load(row(t) + j) + load(y + j));
            };
            times_panel(w, i, next, x, plan.a.tokens, add, row);
        });
    }

    void gate_up(const float* gamma) const {
        const DecoderLayer& w = plan.m.layers[layer];
        const Activations x = normalised(gamma, nullptr, plan.a.tokens);
        sweep(kGateUp, [&](size_t i, const uint8_t* next) {
            alignas(64) float gate[kTileTokens][kPanelOutputs], up[kTileTokens][kPanelOutputs];
            const auto row = [&](size_t t) { return plan.gated + t * plan.m.feed_forward + i * kPanelOutputs; };
            each_tile(plan.a.tokens, [&](size_t first, size_t count) {
                const bool once = first == 0;
                ask_for_outputs(first, count, row);
                panel_tile(w.gate.format, w.gate.blocks(), w.gate.panel(i), once ? w.up.panel(i) : nullptr, x, first,
                           count, gate);
                panel_tile(w.up.format, w.up.blocks(), w.up.panel(i), once ? next : nullptr, x, first, count, up);
                for (size_t t = 0; t < count; ++t)
                    for (size_t j = 0; j < kPanelOutputs; j += kLanes)
                        store(row(first + t) + j, gated(load(gate[t] + j), load(up[t] + j)));
            });
        });
    }

    Activations rounded() const {
        const size_t width = plan.m.feed_forward;
        const Activations out = at_width(plan.own[member], width);
        for (size_t t = 0; t < plan.a.tokens; ++t) put_row(out, t, plan.gated + t * width, width);
        return out;
    }

    void logits() const {
        const Panels& w = plan.m.logits;
        const Activations x = normalised(plan.m.norm, plan.a.wanted, plan.a.rows);
        sweep(kSweeps, [&](size_t i, const uint8_t* next) {
            const size_t first = i * kPanelOutputs, count = std::min(kPanelOutputs, w.out - first);
            times_panel(w, i, next, x, plan.a.rows, [&](size_t r, const float* y) {
                std::memcpy(plan.a.logits + r * w.out + first, y, count * sizeof(float));
            });
        });
    }
};

}  // namespace

void decoder_forward(const DecoderForward& a) {
    static thread_local Storage arena;
    arena.reset();
    const Plan plan(a, arena);
    const Rows& w = a.decoder->embedding;
    take_rows({w.data, w.stride, w.in, w.format, a.ids, a.tokens, plan.x});
    parallel_stages(plan.stages.size(), a.threads, [&](size_t stage, size_t member, size_t members) {
        Member{plan, plan.stages[stage].layer, member, members}.work(plan.stages[stage].work);
    });
}

}  // namespace decodestep::DECODESTEP_ISA
