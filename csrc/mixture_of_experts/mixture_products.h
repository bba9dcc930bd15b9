// The products of feed-forward blocks as stages of a team: for the operator, and for kernels that have more stages.
#pragma once

#include <algorithm>

#include "core/thread_scratch.h"
#include "elementwise/silu.h"
#include "linear/forms.h"
#include "linear/panel_product.h"
#include "mixture_of_experts/expert_rows.h"
#include "mixture_of_experts/mixture_of_experts.h"

namespace decodestep::DECODESTEP_BUILD {

// Outputs at..at + 15 with their bias, if there is one.
DECODESTEP_INLINE f32x16 biased(const float* bias, size_t at, const float* outputs) {
    return bias ? load(outputs) + load(bias + at) : load(outputs);
}

// The activation of outputs at..at + 15 of gate and up, or of up alone in a block without a gate.
DECODESTEP_INLINE f32x16 activated(const FeedForwardPanels& w, size_t at, const float* gate, const float* up) {
    const f32x16 u = biased(w.up_bias, at, up);
    if (!w.has_gate()) return squared_relu(u);
    const f32x16 g = biased(w.gate_bias, at, gate);
    if (w.activation == Gate::silu) return gated(g, u);
    return w.activation == Gate::gelu ? gelu_gated(g, u) : clamped_swiglu(g, u);
}

// The activations of the panels of gate and up that fill whole groups of streams, if there are few rows; returns the
// panel after them. Row i of panel p goes to out + i * stride + (p - range.first) * kPanelOutputs.
inline size_t gate_up_streams(const FeedForwardPanels& w, Range range, NextPanels after, const Activations& x,
                              RowRange rows, float* out, size_t stride) {
    size_t p = range.first;
    if constexpr (kStreams > 1) {
        constexpr size_t kPairs = kStreams / 2;  // pairs of a panel of gate and the same panel of up
        const bool goes_on = after.first == w.first().panel(range.end);  // with the same weights
        const bool in_streams = w.has_gate() && w.gate.format == w.up.format && streams(w.up.format, rows.count);
        for (; in_streams && p + kPairs <= range.end; p += kPairs) {
            alignas(64) float y[kStreams * kStreamedTokens][kPanelOutputs];
            PanelGroup group;
            for (size_t s = 0; s < kStreams; ++s) {
                const LinearPanelWeight& from = s % 2 ? w.up : w.gate;
                const size_t panel = p + s / 2, next = panel + kPairs;
                group.panels[s] = from.panel(panel);
                group.next[s] = next < range.end || goes_on ? from.panel(next) : after.first + s * after.stride;
            }
            decodestep::panel_streams(
                {w.gate.format, w.gate.blocks(), group.panels, group.next, x, rows.first, rows.count, y});
            for (size_t s = 0; s < kStreams; s += 2)
                for (size_t i = 0; i < rows.count; ++i) {
                    const float *gate = y[s * rows.count + i], *up = y[(s + 1) * rows.count + i];
                    for (size_t j = 0; j < kPanelOutputs; j += kLanes) {
                        const size_t at = (p + s / 2) * kPanelOutputs + j;
                        store(out + i * stride + at - range.first * kPanelOutputs, activated(w, at, gate + j, up + j));
                    }
                }
        }
    }
    return p;
}

// The same of all panels of a range, by the faster method. after: what is read after the range.
inline void gate_up_panels(const FeedForwardPanels& w, Range range, NextPanels after, const Activations& x,
                           RowRange rows, float* out, size_t stride) {
    const Range left{gate_up_streams(w, range, after, x, rows, out, stride), range.end};
    const size_t panel_bytes = (w.has_gate() ? w.gate.panel_bytes() : 0) + w.up.panel_bytes();
    each_panel_tile(
        left, panel_bytes, [&](size_t p) { return w.first().panel(p); }, after.first, rows,
        [&](size_t p, const uint8_t* next, size_t from, size_t count) {
            alignas(64) float gate[kTileTokens][kPanelOutputs], up[kTileTokens][kPanelOutputs];
            const auto row = [&](size_t i) { return out + i * stride + (p - range.first) * kPanelOutputs; };
            prefetch_outputs(from, count, row);
            if (w.has_gate())
                decodestep::panel_tile({w.gate.format, w.gate.blocks(), w.gate.panel(p),
                                        from == 0 ? w.up.panel(p) : nullptr, x, rows.first + from, count, gate});
            decodestep::panel_tile({w.up.format, w.up.blocks(), w.up.panel(p), next, x, rows.first + from, count, up});
            for (size_t i = 0; i < count; ++i)
                for (size_t j = 0; j < kPanelOutputs; j += kLanes)
                    store(row(from + i) + j, activated(w, p * kPanelOutputs + j, gate[i] + j, up[i] + j));
        });
}

// The panels of gate and up of all experts in use, divided by cost.
class ExpertPanels {
  public:
    ExpertPanels(const FeedForwardPanels& w, const ExpertRows& rows) : w_(w), rows_(rows) {
        for (const ExpertRun& run : rows.runs()) total_ += w.wide_panels() * cost(run);
    }

    // Calls body(run, panels, next): the share's panels of the run's expert, and the panel that is read after them.
    template <class Body>
    void each_part(const StageShare& share, Body&& body) const {
        const auto [begin, end] = share.of(total_);
        size_t at = 0;  // the cost of the earlier runs
        for (size_t i = 0; i < rows_.runs().size(); ++i) {
            const ExpertRun &run = rows_.runs()[i], &after = rows_.runs()[std::min(i + 1, rows_.runs().size() - 1)];
            const auto panels_before = [&](size_t bound) {
                return bound <= at ? 0 : std::min(w_.wide_panels(), ceil_div(bound - at, cost(run)));
            };
            const size_t from = panels_before(begin), to = panels_before(end);
            const size_t first = run.expert * w_.wide_panels();
            if (from < to) body(run, {first + from, first + to}, after.expert * w_.wide_panels());
            at += w_.wide_panels() * cost(run);
        }
    }

  private:
    // Reading a panel from memory takes about as long as multiplying it by four tokens.
    static size_t cost(const ExpertRun& run) { return 4 + run.count; }

    const FeedForwardPanels& w_;
    const ExpertRows& rows_;
    size_t total_ = 0;
};

// The share's part of the activations of all entries, to out [entries, width]. x: rows by token, in `forms`.
inline void multiply_experts(const FeedForwardPanels& w, const ExpertRows& rows, const Activations& x, Forms forms,
                             const StageShare& share, float* out) {
    ExpertPanels(w, rows).each_part(share, [&](const ExpertRun& run, Range panels, size_t next) {
        Activations own = x;
        size_t row = rows.token(run.first);
        const bool copies = !rows.adjacent(run);
        const ThreadScratch scratch(copies ? forms.floats(run.count, x.in) : 0);
        if (copies) {
            own = forms.in_space(scratch.data(), run.count, x.in);
            for (size_t i = 0; i < run.count; ++i) copy_row(x, rows.token(run.first + i), own, i);
            row = 0;
        }
        const size_t column = panels.first % w.wide_panels() * kPanelOutputs;
        gate_up_panels(w, panels, w.first().panel(next), own, {row, run.count}, out + run.first * w.width() + column,
                       w.width());
    });
}

// y[token(i)] += weight(i) * (row i of x times some panels of down + bias). y starts at the first panel's first output.
template <class Token, class Weight>
void add_down_panels(const FeedForwardPanels& w, Range panels, NextPanels next, const Activations& x, RowRange rows,
                     float* y, size_t stride, Token&& token, Weight&& weight) {
    multiply_panels(w.down, panels, next, x, rows, [&](size_t panel, size_t i, const float* outputs) {
        float* row = y + token(i) * stride + (panel - panels.first) * kPanelOutputs;
        const f32x16 factor = broadcast(weight(i));
        for (size_t j = 0; j < kPanelOutputs; j += kLanes)
            store(row + j, fma(factor, biased(w.down_bias, panel * kPanelOutputs + j, outputs + j), load(row + j)));
    });
}

// The inputs of the down products: rows by entry for the experts, by token for the shared block.
struct MixtureInputs {
    const FeedForwardPanels *routed, *shared;  // shared may be null
    const ExpertRows* rows;
    Activations gated, shared_gated;
    size_t entries, tokens;

    size_t count() const { return entries + (shared ? tokens : 0); }

    // Stores a row of the experts' inputs, or from `entries` on of the shared block's, from the outputs of gate and up.
    void store(size_t row, const float* gated_values, const float* shared_values) const {
        const bool is_routed = row < entries;
        const Activations& to = is_routed ? gated : shared_gated;
        const size_t i = is_routed ? row : row - entries;
        store_row(to, i, (is_routed ? gated_values : shared_values) + i * to.in, to.in);
    }
};

// The share's columns of y [tokens, inputs] += scale * the blocks' outputs: experts ascending, then the shared block.
inline void add_experts(const MixtureInputs& in, float scale, const StageShare& share, float* y) {
    // Panels of an expert that are multiplied in succession: its rows of `gated` are then read from a near cache.
    constexpr size_t kTogether = 4;
    const FeedForwardPanels& w = *in.routed;
    const std::vector<ExpertRun>& runs = in.rows->runs();
    const auto side_by_side = [](const LinearPanelWeight& from, size_t panel) {
        return NextPanels(from.panel(panel), from.panel_bytes());
    };
    if (runs.empty() && !in.shared) return;
    const size_t panels = w.narrow_panels(), stride = w.inputs();
    const Range part = share.of(panels, kTogether);
    for (size_t p = part.first, end = part.end, until; p < end; p = until) {
        until = std::min(end, p + kTogether);
        float* const to = y + p * kPanelOutputs;
        const size_t later = until < panels ? until : p;
        const NextPanels after = runs.empty() ? side_by_side(in.shared->down, later)
                                              : side_by_side(w.down, runs.front().expert * panels + later);
        for (size_t i = 0; i < runs.size(); ++i) {
            const ExpertRun& run = runs[i];
            const size_t first = run.expert * panels;
            NextPanels next = in.shared ? side_by_side(in.shared->down, p) : after;
            if (i + 1 < runs.size()) next = side_by_side(w.down, runs[i + 1].expert * panels + p);
            add_down_panels(
                w, {first + p, first + until}, next, in.gated, {run.first, run.count}, to, stride,
                [&](size_t r) { return in.rows->token(run.first + r); },
                [&](size_t r) { return scale * in.rows->weight(run.first + r); });
        }
        if (in.shared)
            add_down_panels(
                *in.shared, {p, until}, after, in.shared_gated, in.tokens, to, stride, [](size_t r) { return r; },
                [&](size_t) { return scale; });
    }
}

}  // namespace decodestep::DECODESTEP_BUILD
