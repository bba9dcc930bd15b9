#include <algorithm>

#include "core/parallel.h"
#include "recurrent/decay.h"
#include "recurrent/recurrent_tasks.h"
#include "recurrent/softplus.h"
#include "recurrent/state_columns.h"

namespace decodestep::DECODESTEP_BUILD {
namespace {

// The tokens of a row, for one head and some columns of its state.
class HeadTokens {
  public:
    static constexpr bool recalls = false;

    HeadTokens(const SelectiveStateUpdate& a, const HeadColumns& at, float*)
        : a_(a), at_(at), group_(at.head / (a.state.heads / a.groups)) {}

    static size_t floats(const SelectiveStateUpdate&) { return 0; }

    RowChange change(size_t t) {
        if (t % kLanes == 0) find_steps(t);
        const size_t token = at_.first_token + t;
        return {a_.b.at(token, group_), a_.c.at(token, group_), decays_ + t % kSteps, 0};
    }

    const float* decayed_key(size_t) const { return nullptr; }

    template <int N>
    DECODESTEP_INLINE Vectors<N> added(size_t t, const Vectors<N>&) const {
        Vectors<N> x = inputs<N>(t);
        const f32x16 step = broadcast(steps_[t % kSteps]);
        for (size_t n = 0; n < N; ++n) x.v[n] = step * x.v[n];
        return x;
    }

    template <int N>
    DECODESTEP_INLINE void put(size_t t, Vectors<N> out) const {
        if (!a_.y.data) return;
        if (a_.d) {
            const Vectors<N> x = inputs<N>(t);
            const f32x16 d = broadcast(a_.d[at_.head]);
            for (size_t n = 0; n < N; ++n) out.v[n] = fma(d, x.v[n], out.v[n]);
        }
        out.put(a_.y.at(at_.first_token + t, at_.head) + at_.column, at_.columns);
    }

  private:
    static constexpr size_t kSteps = 2 * kLanes;  // those of the tokens before are still in use

    template <int N>
    DECODESTEP_INLINE Vectors<N> inputs(size_t t) const {
        return Vectors<N>::from(a_.x.at(at_.first_token + t, at_.head) + at_.column, at_.columns);
    }

    // The steps and decays of sixteen tokens from t on.
    void find_steps(size_t t) {
        float* steps = steps_ + t % kSteps;
        const float bias = a_.dt_bias ? a_.dt_bias[at_.head] : 0.0f;
        const size_t count = std::min<size_t>(kLanes, at_.tokens - t);
        for (size_t i = 0; i < count; ++i) steps[i] = softplus(*a_.dt.at(at_.first_token + t + i, at_.head) + bias);
        store(decays_ + t % kSteps, decay_of(load(steps) * broadcast(a_.a[at_.head])));
    }

    const SelectiveStateUpdate& a_;
    const HeadColumns at_;
    size_t group_;
    float steps_[kSteps] = {}, decays_[kSteps];
};

}  // namespace

size_t task_count(const SelectiveStateUpdate& a) { return head_tasks(a); }

void run_task(const SelectiveStateUpdate& a, size_t task) { run_head_task<HeadTokens>(a, task); }

void selective_state_update(const SelectiveStateUpdate& a) {
    parallel_for(task_count(a), a.threads, [&](size_t task) { run_task(a, task); });
}

}  // namespace decodestep::DECODESTEP_BUILD
