#include "mixture_of_experts/mixture_of_experts.h"

#include "core/parallel.h"
#include "mixture_of_experts/mixture_products.h"

namespace decodestep::DECODESTEP_BUILD {
namespace {

// The stages of one call.
class MixtureStages {
  public:
    enum Stage { kRead, kMultiply, kReadGated, kAdd, kStages };

    explicit MixtureStages(const MixtureOfExperts& call) : a_(call) {
        rows_.assign(a_.experts, a_.weights, a_.tokens, a_.used, a_.routed.count);
        const FeedForwardPanels &r = a_.routed, &s = a_.shared;
        forms_ = {&r.gate, &r.up, &s.gate, &s.up};
        const Forms of_gated{&r.down}, of_shared{&s.down};
        const size_t entries = a_.tokens * a_.used, width = r.width();
        const size_t shared_tokens = s.is_given() ? a_.tokens : 0, shared_width = s.is_given() ? s.width() : 0;
        const size_t sizes[] = {forms_.floats(a_.tokens, r.inputs()), entries * width, of_gated.floats(entries, width),
                                shared_tokens * shared_width, of_shared.floats(shared_tokens, shared_width)};
        size_t total = 0;
        for (const size_t size : sizes) total += size;
        space_.resize(total);
        float* at = space_.data();
        auto take = [&, i = size_t{0}]() mutable { return std::exchange(at, at + sizes[i++]); };
        x_ = forms_.in_space(take(), a_.tokens, r.inputs());
        gated_ = take();
        const Activations gated_rows = of_gated.in_space(take(), entries, width);
        shared_gated_ = take();
        const Activations shared_rows = of_shared.in_space(take(), shared_tokens, shared_width);
        inputs_ = {&r, shared_tokens ? &s : nullptr, &rows_, gated_rows, shared_rows, entries, a_.tokens};
    }

    void run(size_t stage, const StageShare& share) const {
        switch (stage) {
            case kRead:
                return share.each(a_.tokens, [&](size_t t) {
                    std::memset(a_.y + t * x_.in, 0, x_.in * sizeof(float));
                    store_row(x_, t, a_.x + static_cast<ptrdiff_t>(t) * a_.x_stride, x_.in);
                });
            case kMultiply:
                if (inputs_.shared) multiply_shared(share);
                return multiply_experts(a_.routed, rows_, x_, forms_, share, gated_);
            case kReadGated:
                return share.each(inputs_.count(), [&](size_t row) { inputs_.store(row, gated_, shared_gated_); });
            case kAdd:
                return add_experts(inputs_, 1.0f, share, a_.y);
        }
    }

  private:
    void multiply_shared(const StageShare& share) const {
        const FeedForwardPanels& w = a_.shared;
        const Range own = share.of(w.wide_panels(), kStreams);
        gate_up_panels(w, own, w.first().panel(0), x_, a_.tokens, shared_gated_ + own.first * kPanelOutputs, w.width());
    }

    const MixtureOfExperts& a_;
    Forms forms_;  // of x
    ExpertRows rows_;
    std::vector<float> space_;
    Activations x_;
    MixtureInputs inputs_{};
    float *gated_ = nullptr, *shared_gated_ = nullptr;
};

}  // namespace

void mixture_of_experts(const MixtureOfExperts& a) {
    const MixtureStages stages(a);
    parallel_stages(MixtureStages::kStages, a.threads,
                    [&](size_t stage, const StageShare& share) { stages.run(stage, share); });
}

}  // namespace decodestep::DECODESTEP_BUILD
