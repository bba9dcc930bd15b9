#include "sampling/top_k_top_p_sample/top_k_top_p_sample.h"

#include "sampling/top_k_top_p_sample/exponential_race.h"
#include "sampling/top_k_top_p_sample/survivors.h"

namespace decodestep::DECODESTEP_BUILD {
namespace {

// One row. Its survivors are a list, in the order in which the specification counts them, or the whole row while
// `whole_` is set.
template <LogitType type>
class RowSampler {
  public:
    RowSampler(Survivors<type>& list, const TopKTopPSample& args, size_t b) : list_(list), args_(args), b_(b) {}

    void run() {
        const float p = args_.p[b_], m = args_.m ? args_.m[b_] : 0.0f;
        const auto k = static_cast<size_t>(std::max(args_.k[b_], 0));
        list_.sweep();
        if (args_.m && p <= 0.0f) {
            list_largest(1);
        } else if (k > 0 && k <= std::min(args_.vocab, args_.largest_k)) {
            list_largest(k);
            if (p > 0.0f && p < 1.0f) {
                cut_at(p);
                if (!args_.m) list_.softmax_of(list_.inputs);
            }
        } else if (p > 0.0f && p < 1.0f) {
            nucleus(p);
        } else {
            whole_ = true;
        }
        if (m > 0.0f) whole_ ? min_p_of_row(m) : min_p(m);
        write();
    }

  private:
    // Lists the `count` largest tokens, descending, and finds their values among themselves.
    void list_largest(size_t count) {
        list_.list_from(list_.reached_by(count));
        list_.rank(count);
        list_.append_rest(count);
        if (args_.input_is_logits)
            list_.softmax_of(list_.inputs);
        else
            list_.find_values(SoftmaxWeights::raw());
    }

    SoftmaxWeights weights_of_row() const {
        return args_.input_is_logits ? list_.softmax_of_row() : SoftmaxWeights::raw();
    }

    // Keeps the ranked list up to the token at which the running sum crosses p; false if it never does.
    bool cut_at(float p) {
        const double bound = static_cast<double>(p) * kUnits;
        double sum = 0;
        for (size_t i = 0; i < list_.n; ++i) {
            sum += static_cast<double>(units(list_.values[i]));
            if (args_.m ? sum >= bound : sum > bound) {
                list_.n = i + 1;
                return true;
            }
        }
        return false;
    }

    void nucleus(float p) {
        const SoftmaxWeights weights = weights_of_row();
        const size_t first = args_.guess == 0 ? 32 : std::clamp<size_t>(args_.guess, 8, 1024);
        list_.list_mass(weights, static_cast<double>(p) * kUnits, first);
        list_.rank(list_.n);
        list_.find_values(weights);
        if (!cut_at(p)) {
            list_.append_rest(args_.vocab);
            list_.find_values(weights);
        }
        if (!args_.m) list_.softmax_of(args_.kernel_exact ? list_.values : list_.inputs);
    }

    size_t index_of_best() const {
        size_t top = 0;
        for (size_t i = 1; i < list_.n; ++i)
            if (list_.values[i] > list_.values[top]) top = i;
        return top;
    }

    void min_p(float m) {
        const size_t top = index_of_best();
        const float least = m * list_.values[top];
        list_.keep_if([&](size_t i) { return i == top || (m < 1.0f && list_.values[i] >= least); });
    }

    void min_p_of_row(float m) {
        whole_ = false;
        if (m >= 1.0f) {
            const auto id = static_cast<size_t>(first_maximum());
            const SoftmaxWeights weights = weights_of_row();
            list_.n = 1;
            list_.ids[0] = static_cast<int32_t>(id);
            list_.inputs[0] = list_.input(id);
            return list_.find_values(weights);
        }
        const SoftmaxWeights weights = weights_of_row();
        // The list reaches so low that every unlisted token has less than m times the largest value, whatever the
        // roundings.
        const double drop = std::log(static_cast<double>(m));
        const bool bounded = args_.input_is_logits && std::isfinite(list_.max_input) && drop > -80;
        if (bounded) {
            const double top = list_.max_input;
            list_.list_from(static_cast<float>(top + drop - (1 - drop) * 1e-5 - std::fabs(top) * 1e-6));
        } else {
            list_.list_all();
        }
        list_.find_values(weights);
        min_p(m);
    }

    // The first token with the largest value of the whole row: logits that differ may have equal values.
    int64_t first_maximum() {
        if (!args_.input_is_logits) return race_of_row(Noise::none, SoftmaxWeights::raw());
        if (list_.max_input == kMinusInfinity) return 0;
        list_.list_from(std::isinf(list_.max_input) ? list_.max_input : list_.max_input - 0x1p-20f);
        if (std::all_of(list_.inputs, list_.inputs + list_.n, [&](float x) { return x == list_.max_input; }))
            return list_.id_at(0);
        list_.find_values(weights_of_row());
        return list_.id_at(index_of_best());
    }

    Noise noise() const { return args_.q ? Noise::given : args_.seed ? Noise::seeded : Noise::none; }
    const float* q() const { return args_.q ? args_.q + static_cast<ptrdiff_t>(b_) * args_.q_row : nullptr; }
    uint32_t state() const { return args_.seed ? noise_state(args_.seed[b_], args_.position[b_]) : 0; }

    int64_t race_of_row(Noise noise, const SoftmaxWeights& weights) const {
        return with_race(noise, q(), state(), args_.eps, weights.total, [&](auto& race) {
            for (size_t block = 0; block < list_.logits.blocks(); ++block)
                list_.logits.each_vector(block, [&](f32x16 x, size_t i) {
                    race.enter(weights.of(x), list_.lanes_of(i, args_.vocab), i, IdsFrom{static_cast<uint32_t>(i)});
                });
        });
    }

    int64_t race_of_list() const {
        const int64_t place = with_race(noise(), q(), state(), args_.eps, 1.0f, [&](auto& race) {
            for (size_t i = 0; i < list_.n; i += kLanes)
                race.enter(load(list_.values + i), list_.lanes_of(i, list_.n), i, ListedIds{list_.ids + i});
        });
        return list_.id_at(static_cast<size_t>(place));
    }

    void write() {
        const size_t vocab = args_.vocab;
        if (args_.masked) {
            float* const masked = args_.masked + b_ * vocab;
            if (whole_) {
                for (size_t block = 0; block < list_.logits.blocks(); ++block)
                    list_.logits.each_vector(block, [&](f32x16 x, size_t i) {
                        i + kLanes <= vocab ? store(masked + i, x) : store_partial(masked + i, x, vocab - i);
                    });
            } else {
                std::fill_n(masked, vocab, args_.input_is_logits ? kMinusInfinity : 0.0f);
                for (size_t i = 0; i < list_.n; ++i) {
                    const auto id = static_cast<size_t>(list_.ids[i]);
                    masked[id] = list_.input(id);
                }
            }
        }
        if (args_.chosen) {
            if (!whole_)
                args_.chosen[b_] = race_of_list();
            else if (noise() == Noise::none)
                args_.chosen[b_] = first_maximum();
            else
                args_.chosen[b_] = race_of_row(noise(), weights_of_row());
        }
        if (!args_.ids) return;
        if (whole_) {
            const SoftmaxWeights weights = weights_of_row();
            list_.list_all();
            list_.find_values(weights);
        }
        int64_t* const ids = args_.ids + b_ * vocab;
        float* const values = args_.values + b_ * vocab;
        std::copy_n(list_.ids, list_.n, ids);
        std::fill_n(ids + list_.n, vocab - list_.n, int64_t{0});
        std::copy_n(list_.values, list_.n, values);
        std::fill_n(values + list_.n, vocab - list_.n, 0.0f);
    }

    Survivors<type>& list_;
    const TopKTopPSample& args_;
    const size_t b_;
    bool whole_ = false;
};

}  // namespace

void top_k_top_p_sample(const TopKTopPSample& args) {
    each_survivors(args, [&](auto& list, size_t b) { RowSampler(list, args, b).run(); });
}

}  // namespace decodestep::DECODESTEP_BUILD
