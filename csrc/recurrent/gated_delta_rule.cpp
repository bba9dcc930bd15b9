#include <algorithm>

#include "core/parallel.h"
#include "elementwise/rms_norm_row.h"
#include "recurrent/decay.h"
#include "recurrent/recurrent_tasks.h"
#include "recurrent/state_columns.h"

namespace decodestep::DECODESTEP_BUILD {
namespace {

constexpr float kNormEpsilon = 1e-6f;

// The tokens of a row, for one head and some columns of its state.
template <bool has_beta>
class HeadTokens {
  public:
    static constexpr bool recalls = has_beta;

    HeadTokens(const GatedDeltaRule& a, const HeadColumns& at, float* memory)
        : a_(a), at_(at), key_head_(a.tiled ? at.head % a.key_heads : at.head / (a.state.heads / a.key_heads)) {
        const size_t padded = padded_width(a);
        for (Prepared& each : prepared_) {
            each = {memory, memory + padded, memory + 2 * padded, memory + 3 * padded};
            memory += kVectors * padded;
        }
    }

    static size_t floats(const GatedDeltaRule& a) { return 2 * kVectors * padded_width(a); }

    RowChange change(size_t t) {
        const Prepared& to = prepared_[t % 2];
        const size_t token = at_.first_token + t;
        prepare(a_.key.at(token, key_head_), 1.0f, to.key);
        prepare(a_.query.at(token, key_head_), a_.scale, to.query);
        const bool each_row = a_.decay.data != nullptr && a_.decays_rows;
        if (a_.decay.data == nullptr) {
            store(to.decay, broadcast(1.0f));
        } else if (each_row) {
            const float* decay = a_.decay.at(token, at_.head);
            each_vector([&](size_t i, auto&& load_from) { store(to.decay + i, decay_of(load_from(decay + i))); });
        } else {
            store(to.decay, decay_of(broadcast(*a_.decay.at(token, at_.head))));
        }
        for (size_t i = 0; i < a_.state.rows; i += kLanes)
            store(to.decayed_key + i, load(to.key + i) * load(to.decay + (each_row ? i : 0)));
        return {to.key, to.query, to.decay, each_row};
    }

    const float* decayed_key(size_t t) const { return prepared_[t % 2].decayed_key; }

    template <int N>
    DECODESTEP_INLINE Vectors<N> added(size_t t, const Vectors<N>& recalled) const {
        const size_t token = at_.first_token + t;
        Vectors<N> value = Vectors<N>::from(a_.value.at(token, at_.head) + at_.column, at_.columns);
        if constexpr (has_beta) {
            const f32x16 beta = broadcast(*a_.beta.at(token, at_.head));
            for (size_t n = 0; n < N; ++n) value.v[n] = beta * (value.v[n] - recalled.v[n]);
        }
        return value;
    }

    template <int N>
    DECODESTEP_INLINE void put(size_t t, const Vectors<N>& out) const {
        if (!a_.out.data) return;
        out.put(a_.out.at(at_.first_token + t, at_.head) + at_.column, at_.columns);
    }

  private:
    struct Prepared {
        float *key, *query, *decayed_key, *decay;
    };
    static constexpr size_t kVectors = 4;
    static size_t padded_width(const GatedDeltaRule& a) { return round_up(std::max<size_t>(a.state.rows, 1), kLanes); }

    // f(i, load_from) for each vector of a key's values from i on; what is loaded beyond them is 0.
    template <class F>
    DECODESTEP_INLINE void each_vector(F&& f) const {
        size_t i = 0;
        for (; i + kLanes <= a_.state.rows; i += kLanes) f(i, [](const float* p) { return load(p); });
        if (const size_t rest = a_.state.rows - i; rest > 0)
            f(i, [rest](const float* p) { return load_partial(p, rest); });
    }

    void prepare(const float* from, float scale, float* to) const {
        const f32x16 factor = broadcast(scale);
        if (!a_.l2_norm)
            return each_vector([&](size_t i, auto&& load_from) { store(to + i, load_from(from + i) * factor); });
        // The mean over one value is the sum.
        const f32x16 norm = broadcast(root_mean_square(from, a_.state.rows, kNormEpsilon, 1));
        each_vector([&](size_t i, auto&& load_from) { store(to + i, load_from(from + i) / norm * factor); });
    }

    const GatedDeltaRule& a_;
    const HeadColumns at_;
    size_t key_head_;
    Prepared prepared_[2];
};

}  // namespace

size_t task_count(const GatedDeltaRule& a) { return head_tasks(a); }

void run_task(const GatedDeltaRule& a, size_t task) {
    a.beta.data ? run_head_task<HeadTokens<true>>(a, task) : run_head_task<HeadTokens<false>>(a, task);
}

void gated_delta_rule(const GatedDeltaRule& a) {
    parallel_for(task_count(a), a.threads, [&](size_t task) { run_task(a, task); });
}

}  // namespace decodestep::DECODESTEP_BUILD
