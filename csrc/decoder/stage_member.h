// A share of a stage as a member of the team runs it: what all kinds of stages have in common, the rows that products
// read and the sweeps over their panels.
#pragma once

#include <algorithm>
#include <utility>

#include "core/parallel.h"
#include "core/thread_scratch.h"
#include "decoder/decoder_plan.h"
#include "elementwise/rms_norm_row.h"
#include "elementwise/soft_cap.h"
#include "simd/rounding.h"

namespace decodestep::DECODESTEP_BUILD {

class StageMember {
  public:
    StageMember(const DecoderPlan& plan, const Stage& stage, const StageShare& share)
        : plan_(plan),
          step_(plan.step),
          decoder_(plan.decoder),
          stage_(stage),
          share_(share),
          own_(plan.members[share.member]) {}

  protected:
    // The rows that a product reads. make(out, row) stores one row.

    // Whether the member has to make its own rows now: once in a stage, and only if rows are replicated.
    bool begins_rows() const { return plan_.replicated_rows && std::exchange(own_.rows_of, &stage_) != &stage_; }

    Activations row_space(size_t count, size_t width) const {
        return stage_.forms.in_space(plan_.row_space(share_.member), count, width);
    }

    // The input of a product: all rows. They are made here if they are replicated, otherwise by the stage before.
    template <class Make>
    Activations rows(size_t count, size_t width, Make&& make) const {
        const Activations out = row_space(count, width);
        if (begins_rows()) make_rows(out, {0, count}, make);
        return out;
    }

    // The same for a share that reads only a part of the rows.
    template <class Make>
    Activations rows_of(size_t count, size_t width, Range part, Make&& make) const {
        const Activations out = row_space(count, width);
        if (plan_.replicated_rows) make_rows(out, part, make);
        return out;
    }

    // Makes the share's part of the rows that all members read in the next stage.
    template <class Make>
    void share_rows(size_t count, size_t width, Make&& make) const {
        const Activations out = row_space(count, width);
        share_.each(count, [&](size_t row) { make(out, row); });
    }

    template <class Make>
    static void make_rows(const Activations& out, Range part, Make&& make) {
        for (size_t row = part.first; row < part.end; ++row) make(out, row);
    }

    // Makes row t: the norm of row numbers[t] of `values`, or of row t without numbers; without gamma the row itself.
    // Rows have `width` values.
    static auto normalised(const float* values, size_t width, const float* gamma, float eps, bool centred,
                           const int64_t* numbers = nullptr) {
        return [=](const Activations& out, size_t t) {
            const float* x = values + (numbers ? static_cast<size_t>(numbers[t]) : t) * width;
            if (!gamma) return store_row(out, t, x, width);
            const RowNorm norm = row_norm(x, width, eps, centred);
            store_blocks(out, t, [&](size_t b) -> f32x32 {
                const size_t k = b * kBlockInputs;
                return {norm(load(x + k), load(gamma + k)), norm(load(x + k + kLanes), load(gamma + k + kLanes))};
            });
        };
    }

    auto residual_rows(const float* gamma, const int64_t* numbers = nullptr) const {
        return normalised(plan_.x, decoder_.hidden, gamma, decoder_.eps, decoder_.centred_norms, numbers);
    }

    static auto copied(const float* values, size_t width) {
        return [=](const Activations& out, size_t t) { store_row(out, t, values + t * width, width); };
    }

    // Products.

    // The share's panels of the stage's sweep.
    Range panels() const { return share_.of(plan_.sweeps[stage_.sweep].count(), kStreams); }

    NextPanels panels_after() const { return plan_.panels_after(stage_.sweep, share_, panels().end); }

    // Of one weight of a sweep over several: the share's panels, and those that are read after them.
    std::pair<Range, NextPanels> panels_of(size_t number) const {
        const PanelSweep& sweep = plan_.sweeps[stage_.sweep];
        const Range part = panels(), whole = sweep.panels_of(number);
        const auto within = [&](size_t panel) { return std::clamp(panel, whole.first, whole.end) - whole.first; };
        return {{within(part.first), within(part.end)}, part.end > whole.end ? sweep.from(whole.end) : panels_after()};
    }

    // Rows for outputs, `pitch` floats from one to the next.
    struct OutputRows {
        float* data;
        size_t pitch;
    };

    // out [tokens, width] = the outputs of some panels of a weight, multiplied by `scale`, plus the bias if there is
    // one; soft-capped if cap > 0. Outputs from `width` on are dropped.
    void store_products(const LinearPanelWeight& w, Range panels, NextPanels next, const Activations& x, size_t tokens,
                        OutputRows out, size_t width, float scale = 1.0f, const float* bias = nullptr,
                        float cap = 0.0f) const {
        multiply_panels(w, panels, next, x, tokens, [&](size_t i, size_t t, float* y) {
            const size_t first = i * kPanelOutputs, count = std::min(kPanelOutputs, width - first);
            if (scale != 1.0f)
                for (size_t j = 0; j < kPanelOutputs; ++j) y[j] *= scale;
            add_bias(bias, first, width, y);
            if (cap > 0)
                for (size_t j = 0; j < kPanelOutputs; j += kLanes) store(y + j, soft_capped(load(y + j), cap));
            std::memcpy(out.data + t * out.pitch + first, y, count * sizeof(float));
        });
    }
    void store_products(const LinearPanelWeight& w, Range panels, NextPanels next, const Activations& x, size_t tokens,
                        float* out, size_t width, float scale = 1.0f, const float* bias = nullptr,
                        float cap = 0.0f) const {
        store_products(w, panels, next, x, tokens, OutputRows{out, width}, width, scale, bias, cap);
    }

    // y += bias for outputs [first, first + kPanelOutputs) of `outputs`; nothing if bias is null.
    static void add_bias(const float* bias, size_t first, size_t outputs, float* y) {
        for (size_t j = 0; bias && j < kPanelOutputs && first + j < outputs; ++j) y[j] += bias[first + j];
    }

    // x += residual_scale * (product + bias); or the product goes to `branch`, for add_branch.
    void add_product(const LinearPanelWeight& w, const float* bias, bool to_branch, const Activations& x) const {
        const f32x16 scale = broadcast(decoder_.residual_scale);
        float* const rows = to_branch ? plan_.branch : plan_.x;
        const auto row = [&](size_t i, size_t t) { return rows + t * decoder_.hidden + i * kPanelOutputs; };
        const auto add = [&](size_t i, size_t t, float* y) {
            float* to = row(i, t);
            add_bias(bias, i * kPanelOutputs, decoder_.hidden, y);
            for (size_t j = 0; j < kPanelOutputs; j += kLanes)
                store(to + j, to_branch ? load(y + j) : fma(scale, load(y + j), load(to + j)));
        };
        multiply_panels(w, panels(), panels_after(), x, step_.tokens, add, row);
    }

    // x += residual_scale * branch, or its norm, for the share's tokens; then it is multiplied by a factor.
    void add_branch(const float* post_norm, float factor = 1.0f) const {
        const f32x16 scale = broadcast(decoder_.residual_scale), by = broadcast(factor);
        share_.each(step_.tokens, [&](size_t t) {
            const float* from = plan_.branch + t * decoder_.hidden;
            float* to = plan_.x + t * decoder_.hidden;
            if (!post_norm) {
                for (size_t j = 0; j < decoder_.hidden; j += kLanes)
                    store(to + j, fma(scale, load(from + j), load(to + j)));
                return;
            }
            const RowNorm norm = row_norm(from, decoder_.hidden, decoder_.eps, decoder_.centred_norms);
            for (size_t j = 0; j < decoder_.hidden; j += kLanes)
                store(to + j, fma(scale, norm(load(from + j), load(post_norm + j)), load(to + j)) * by);
        });
    }

    // The offset of the cache that the stage's layer reads, for `width` values per position.
    size_t layer_offset(size_t width, size_t page = 0) const {
        return plan_.page_offset(stage_.layer->cache_layer, page, 0, width);
    }

    const DecoderPlan& plan_;
    const DecoderForward& step_;
    const Decoder& decoder_;
    const Stage& stage_;
    const StageShare& share_;
    MemberMemory& own_;
};

}  // namespace decodestep::DECODESTEP_BUILD
