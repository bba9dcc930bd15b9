#include "recurrent/gated_delta_rule.h"

#include <algorithm>

#include "core/parallel.h"
#include "core/pieces.h"
#include "core/thread_scratch.h"
#include "elementwise/rms_norm_row.h"
#include "recurrent/decay.h"
#include "recurrent/state_columns.h"

namespace decodestep::DECODESTEP_BUILD {
namespace {

constexpr float kNormEpsilon = 1e-6f;

// The tokens of a row, for one head and some columns of its state.
class HeadTokens {
  public:
    // memory: `floats(a)`.
    HeadTokens(const GatedDeltaRule& a, size_t begin, size_t head, size_t column, size_t columns, float* memory)
        : a_(a),
          begin_(begin),
          head_(head),
          key_head_(a.tiled ? head % a.key_heads : head / (a.heads / a.key_heads)),
          column_(column),
          columns_(columns) {
        const size_t padded = padded_width(a);
        for (Prepared& each : prepared_) {
            each = {memory, memory + padded, memory + 2 * padded, memory + 3 * padded};
            memory += kVectors * padded;
        }
    }

    static size_t floats(const GatedDeltaRule& a) { return 2 * kVectors * padded_width(a); }

    RowChange change(size_t t) {
        const Prepared& to = prepared_[t % 2];
        const size_t token = begin_ + t;
        prepare(a_.key.at(token, key_head_), 1.0f, to.key);
        prepare(a_.query.at(token, key_head_), a_.scale, to.query);
        const bool each_row = a_.decay.data != nullptr && a_.decays_rows;
        if (a_.decay.data == nullptr) {
            store(to.decay, broadcast(1.0f));
        } else if (each_row) {
            const float* decay = a_.decay.at(token, head_);
            each_vector([&](size_t i, auto&& at) { store(to.decay + i, decay_of(at(decay + i))); });
        } else {
            store(to.decay, decay_of(broadcast(*a_.decay.at(token, head_))));
        }
        for (size_t i = 0; i < a_.key_width; i += kLanes)
            store(to.decayed_key + i, load(to.key + i) * load(to.decay + (each_row ? i : 0)));
        return {to.key, to.query, to.decay, each_row};
    }

    const float* decayed_key(size_t t) const { return prepared_[t % 2].decayed_key; }

    template <int N>
    DECODESTEP_INLINE Vectors<N> added(size_t t, const Vectors<N>& recalled) const {
        const size_t token = begin_ + t;
        Vectors<N> value = Vectors<N>::from(a_.value.at(token, head_) + column_, columns_);
        if (a_.beta.data == nullptr) return value;
        const f32x16 beta = broadcast(*a_.beta.at(token, head_));
        for (size_t n = 0; n < N; ++n) value.v[n] = beta * (value.v[n] - recalled.v[n]);
        return value;
    }

    template <int N>
    DECODESTEP_INLINE void put(size_t t, const Vectors<N>& out) const {
        out.put(a_.out + (begin_ + t) * a_.out_token_stride + head_ * a_.value_width + column_, columns_);
    }

  private:
    struct Prepared {
        float *key, *query, *decayed_key, *decay;
    };
    static constexpr size_t kVectors = 4;
    static size_t padded_width(const GatedDeltaRule& a) { return round_up(std::max<size_t>(a.key_width, 1), kLanes); }

    // f(i, load) for each vector of key_width values from i on; what is loaded beyond them is 0.
    template <class F>
    DECODESTEP_INLINE void each_vector(F&& f) const {
        size_t i = 0;
        for (; i + kLanes <= a_.key_width; i += kLanes) f(i, [](const float* p) { return load(p); });
        if (const size_t rest = a_.key_width - i; rest > 0) f(i, [rest](const float* p) { return load_partial(p, rest); });
    }

    void prepare(const float* from, float scale, float* to) const {
        const f32x16 factor = broadcast(scale);
        if (!a_.l2_norm) return each_vector([&](size_t i, auto&& at) { store(to + i, at(from + i) * factor); });
        // The mean over one value is the sum.
        const f32x16 norm = broadcast(root_mean_square(from, a_.key_width, kNormEpsilon, 1));
        each_vector([&](size_t i, auto&& at) { store(to + i, at(from + i) / norm * factor); });
    }

    const GatedDeltaRule& a_;
    size_t begin_, head_, key_head_, column_, columns_;
    Prepared prepared_[2];
};

}  // namespace

void gated_delta_rule(const GatedDeltaRule& a) {
    const size_t blocks = ceil_div(a.value_width, kMostColumns), held = a.key_width * kMostColumns;
    parallel_for(a.rows.count * a.heads * blocks, a.threads, [&](size_t task) {
        const size_t row = task / blocks / a.heads, head = task / blocks % a.heads;
        const size_t column = task % blocks * kMostColumns, columns = std::min(kMostColumns, a.value_width - column);
        const auto state = [&](const int64_t* slots) {
            float* data = a.state + slots[row] * a.state_stride + head * a.state_head_stride + column;
            return Columns{data, a.state_row_stride};
        };
        const ThreadScratch scratch(held + HeadTokens::floats(a));
        HeadTokens of(a, a.rows.first(row), head, column, columns, scratch.data() + held);
        with_constant<kMostVectors>(ceil_div(columns, kLanes), [&]<int N>() {
            const auto run = a.beta.data ? run_columns<N, true, HeadTokens&> : run_columns<N, false, HeadTokens&>;
            run(of, a.rows.tokens(row), state(a.rows.read), state(a.rows.written), a.key_width, columns, scratch.data());
        });
    });
}

}  // namespace decodestep::DECODESTEP_BUILD
