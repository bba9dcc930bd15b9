#include "decoder/state_replay.h"

#include <algorithm>
#include <vector>

#include "core/parallel.h"
#include "decoder/recurrent_calls.h"
#include "decoder/step_buffers.h"

namespace decodestep::DECODESTEP_BUILD {
namespace {

// A row's tokens in one layer, which depend on no other layer. first_task: of the updates of its state.
struct ReplayedLayer {
    const RecurrentMixer* w;
    size_t row, convolved_at, first_task;
};

class Replay {
  public:
    Replay(const StateReplay& a, StepBuffers& buffers) : a_(a) {
        size_t floats = 0;
        for (size_t row = 0; row < a.rows; ++row)
            for (const DecoderLayer& layer : a.decoder->layers) {
                if (!layer.has_state()) continue;
                layers_.push_back({&layer.recurrent, row, floats, 0});
                floats += a.tokens[row] * layer.recurrent.channels();
            }
        convolved_ = buffers.take(floats);
        for (ReplayedLayer& layer : layers_) {
            layer.first_task = tasks_;
            with_update(layer, [&](const auto& call) { tasks_ += task_count(call); });
        }
    }

    void run() const {
        parallel_for(layers_.size(), a_.threads, [&](size_t number) {
            with_calls(layers_[number], [](const RecurrentCalls& calls) {
                const CausalConv1d call = calls.convolution();
                convolve(call, {0, 0, call.channels});
            });
        });
        parallel_for(tasks_, a_.threads, [&](size_t task) {
            const auto after = std::upper_bound(layers_.begin(), layers_.end(), task,
                                                [](size_t number, const auto& of) { return number < of.first_task; });
            const ReplayedLayer& of = *(after - 1);
            with_update(of, [&](const auto& call) { run_task(call, task - of.first_task); });
        });
    }

  private:
    template <class Body>
    void with_calls(const ReplayedLayer& of, Body&& body) const {
        const RecurrentMixer& w = *of.w;
        const float* const kept = a_.kept[of.row] + w.kept_at;
        const float* const by_head = kept + w.channels();
        const int64_t starts[] = {0, static_cast<int64_t>(a_.tokens[of.row])};
        body(RecurrentCalls(w, {.tokens = a_.tokens[of.row],
                                .inputs = kept,
                                .betas = by_head,
                                .steps = by_head + (w.kind == Mixer::delta ? w.heads : 0),
                                .pitch = a_.decoder->kept_size,
                                .convolved = convolved_ + of.convolved_at,
                                .results = nullptr,
                                .states = a_.states,
                                .state_size = a_.decoder->state_size,
                                .rows = {1, starts, a_.read + of.row, a_.written + of.row},
                                .threads = a_.threads}));
    }

    template <class Body>
    void with_update(const ReplayedLayer& of, Body&& body) const {
        with_calls(of, [&](const RecurrentCalls& calls) {
            if (of.w->kind == Mixer::delta) body(calls.delta());
            if (of.w->kind == Mixer::mamba) body(calls.mamba());
        });
    }

    const StateReplay& a_;
    std::vector<ReplayedLayer> layers_;
    size_t tasks_ = 0;
    float* convolved_ = nullptr;
};

}  // namespace

void replay_states(const StateReplay& a) {
    StepBuffers buffers;
    Replay(a, buffers).run();
}

}  // namespace decodestep::DECODESTEP_BUILD
