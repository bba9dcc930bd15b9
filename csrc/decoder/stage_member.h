// One member's share of a stage: what all kinds of stages have in common, the rows that products read and the sweeps
// over their panels.
#pragma once

#include "core/parallel.h"
#include "decoder/decoder_plan.h"
#include "elementwise/rms_norm_row.h"
#include "simd/rounding.h"

namespace decodestep::DECODESTEP_ISA {

class StageMember {
  public:
    StageMember(const DecoderPlan& plan, const Stage& stage, size_t member, size_t members)
        : plan_(plan), step_(plan.step), decoder_(plan.decoder), stage_(stage), member_(member), members_(members) {}

  protected:
    // ---- The rows that a product reads. make(out, row) stores one row.

    // The input of a product: all rows. They are made here if they are replicated, otherwise by the stage before.
    template <class Make>
    Activations rows(size_t count, size_t width, Make&& make) const {
        return rows_of(count, width, {0, count}, make);
    }

    // The same for a member that reads only a part of the rows.
    template <class Make>
    Activations rows_of(size_t count, size_t width, Range part, Make&& make) const {
        const Activations out = stage_.forms.in_space(plan_.row_space(member_), count, width);
        for (size_t row = part.first; plan_.replicated_rows && row < part.end; ++row) make(out, row);
        return out;
    }

    // Makes this member's share of the rows that all members read in the next stage.
    template <class Make>
    void share_rows(size_t count, size_t width, Make&& make) const {
        const Activations out = stage_.forms.in_space(plan_.row_space(member_), count, width);
        const Range part = part_of(count, member_, members_);
        for (size_t row = part.first; row < part.end; ++row) make(out, row);
    }

    // Makes row t: rms_norm of row numbers[t] of `values`, or of row t without numbers. Rows have `width` values.
    static auto normalised(const float* values, size_t width, const float* gamma, float eps,
                           const int64_t* numbers = nullptr) {
        return [=](const Activations& out, size_t t) {
            const float* x = values + (numbers ? static_cast<size_t>(numbers[t]) : t) * width;
            const f32x16 rms = broadcast(root_mean_square(x, width, eps));
            store_blocks(out, t, [&](size_t b) -> Block {
                const size_t k = b * kBlockInputs;
                return {normed(load(x + k), rms, load(gamma + k)),
                        normed(load(x + k + kLanes), rms, load(gamma + k + kLanes))};
            });
        };
    }

    auto residual_rows(const float* gamma, const int64_t* numbers = nullptr) const {
        return normalised(plan_.x, decoder_.hidden, gamma, decoder_.eps, numbers);
    }

    static auto copied(const float* values, size_t width) {
        return [=](const Activations& out, size_t t) { store_row(out, t, values + t * width, width); };
    }

    // ---- Products

    Range panels_of_member() const { return plan_.panels_of(stage_.sweep, member_, members_); }

    // This member's panels in a sweep over two weights; `panels`: the number of panels of the first.
    std::pair<PanelRange, PanelRange> panels_of_two(size_t panels) const {
        const Range part = panels_of_member();
        return {{std::min(part.first, panels), std::min(part.end, panels)},
                {std::max(part.first, panels) - panels, std::max(part.end, panels) - panels}};
    }
    const uint8_t* panel_after() const { return plan_.first_panel_after(stage_.sweep, member_, members_); }

    // out [tokens, width] = the outputs of some panels of a weight, multiplied by `scale`, plus the bias if there is
    // one. Outputs from `width` on are dropped.
    void store_products(const LinearPanelWeight& w, PanelRange panels, const uint8_t* next_panel, const Activations& x,
                        size_t tokens, float* out, size_t width, float scale = 1.0f,
                        const float* bias = nullptr) const {
        multiply_panels(w, panels, next_panel, x, tokens, [&](size_t i, size_t t, float* y) {
            const size_t first = i * kPanelOutputs, count = std::min(kPanelOutputs, width - first);
            if (scale != 1.0f)
                for (size_t j = 0; j < kPanelOutputs; ++j) y[j] *= scale;
            add_bias(bias, first, width, y);
            std::memcpy(out + t * width + first, y, count * sizeof(float));
        });
    }

    // y += bias for outputs [first, first + kPanelOutputs) of `outputs`; nothing if bias is null.
    static void add_bias(const float* bias, size_t first, size_t outputs, float* y) {
        for (size_t j = 0; bias && j < kPanelOutputs && first + j < outputs; ++j) y[j] += bias[first + j];
    }

    // x += residual_scale * (product + bias); with a post norm the product goes to `branch` for add_branch.
    void add_product(const LinearPanelWeight& w, const float* bias, const float* post_norm,
                     const Activations& x) const {
        const f32x16 scale = broadcast(decoder_.residual_scale);
        float* const rows = post_norm ? plan_.branch : plan_.x;
        const auto row = [&](size_t i, size_t t) { return rows + t * decoder_.hidden + i * kPanelOutputs; };
        const auto add = [&](size_t i, size_t t, float* y) {
            float* to = row(i, t);
            add_bias(bias, i * kPanelOutputs, decoder_.hidden, y);
            for (size_t j = 0; j < kPanelOutputs; j += kLanes)
                store(to + j, post_norm ? load(y + j) : fma(scale, load(y + j), load(to + j)));
        };
        const Range part = panels_of_member();
        multiply_panels(w, {part.first, part.end}, panel_after(), x, step_.tokens, add, row);
    }

    // x += residual_scale * rms_norm(branch), for this member's share of the tokens.
    void add_branch(const float* post_norm) const {
        const f32x16 scale = broadcast(decoder_.residual_scale);
        const Range part = part_of(step_.tokens, member_, members_);
        for (size_t t = part.first; t < part.end; ++t) {
            const float* from = plan_.branch + t * decoder_.hidden;
            float* to = plan_.x + t * decoder_.hidden;
            const f32x16 rms = broadcast(root_mean_square(from, decoder_.hidden, decoder_.eps));
            for (size_t j = 0; j < decoder_.hidden; j += kLanes)
                store(to + j, fma(scale, normed(load(from + j), rms, load(post_norm + j)), load(to + j)));
        }
    }

    // The offset of the cache of the stage's layer, for `width` values per position.
    size_t layer_offset(size_t width, size_t page = 0, size_t kv_head = 0) const {
        return plan_.page_offset(stage_.layer_number, page, kv_head, width);
    }

    const DecoderPlan& plan_;
    const DecoderForward& step_;
    const Decoder& decoder_;
    const Stage& stage_;
    const size_t member_, members_;
};

}  // namespace decodestep::DECODESTEP_ISA
