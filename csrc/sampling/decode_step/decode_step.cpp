#include "sampling/decode_step/decode_step.h"

#include <algorithm>

#include "sampling/decode_step/gumbel_race.h"
#include "sampling/decode_step/mass_filter.h"
#include "sampling/decode_step/nucleus.h"
#include "sampling/decode_step/patched_row.h"
#include "sampling/row/each_row.h"

namespace decodestep::DECODESTEP_ISA {
namespace {

// A row on its way. The logits are looked at in passes, which find a short list of candidates that holds every token
// that the steps can leave; the steps then run on the list. Where no bound can prove that, the list is the whole row.
template <Real real>
class Sampler {
  public:
    Sampler(Logits<real> logits, const SampledRow& asked, Workspace& work)
        : asked_(asked), row_(logits, asked.position, work), list_(row_.list) {}

    int64_t sample(float* processed) {
        look_ahead();
        size_t next = patch(), filter = next;
        if (filter < asked_.count && asked_.steps[filter].what == Do::temperature)
            row_.scale_by(asked_.steps[filter++].amount);
        // Log-probabilities of what the steps leave take a list of that, but where it is the row.
        const bool all_left = !listed_ && filter == asked_.count;
        const bool token_only = !processed && (!asked_.logprobs || all_left);
        std::optional<int64_t> drawn;
        if (!listed_ && token_only && !asked_.greedy) drawn = draw_in_passes(filter);
        if (!drawn) {
            if (!listed_) narrow(filter, token_only);
            for (; next < asked_.count; ++next) {
                list_.run(next == filter && stands_in_ ? *stands_in_ : asked_.steps[next]);
                if (next == filter) list_.row = {};
            }
        }
        const int64_t token = drawn ? *drawn : asked_.greedy ? first_maximum() : draw();
        if (processed) {
            std::fill_n(processed, row_.logits.vocab, kNothing);
            for (size_t i = 0; i < list_.n; ++i) processed[list_.ids[i]] = list_.scores[i];
        }
        if (asked_.logprobs && token >= 0) report(token, all_left);
        return token;
    }

  private:
    // The first pass, where it does not depend on the patches: behind it their logits are at hand.
    void look_ahead() {
        const auto names_tokens_or_filters = [](const Step& step) {
            return step.what == Do::allow || step.what == Do::force || step.what > Do::temperature;
        };
        const Step* const end = asked_.steps + asked_.count;
        const Step* const step = std::find_if(asked_.steps, end, names_tokens_or_filters);
        if (step == end) {
            if (asked_.greedy) row_.sweep();
        } else if (step->what == Do::top_k || step->what == Do::top_h) {
            if (!row_.guess(std::max(step->k, step->keep))) row_.sweep();
        } else if (step->what == Do::min_p) {
            row_.sweep();
        }
    }

    // Leading patches, beside the logits; returns the step behind them. A step that names its tokens makes the list.
    size_t patch() {
        for (size_t i = 0; i < asked_.count; ++i) {
            const Step& step = asked_.steps[i];
            switch (step.what) {
                case Do::penalise:
                case Do::add:
                case Do::lift:
                case Do::ban:
                    row_.overlay.apply(step, row_.logits);
                    continue;
                case Do::allow:
                    list_.run({.what = Do::force, .ids = step.ids, .count = step.count});
                    for (size_t j = 0; j < list_.n; ++j)
                        list_.scores[j] = row_.logits.at(static_cast<size_t>(list_.ids[j]));
                    for (size_t j = 0; j < row_.overlay.count(); ++j) {
                        const size_t place = place_of(list_.ids, list_.n, row_.overlay.ids()[j]);
                        if (place < list_.n) list_.scores[place] = row_.overlay.now()[j];
                    }
                    list_.keep([&](size_t j) { return list_.scores[j] > kNothing; });
                    listed_ = true;
                    return i + 1;
                case Do::force:
                    list_.run(step);
                    listed_ = true;
                    return i + 1;
                default:
                    return i;
            }
        }
        return asked_.count;
    }

    // The token, where it takes no list of what the steps leave.
    std::optional<int64_t> draw_in_passes(size_t filter) {
        if (filter == asked_.count) return race();
        return Nucleus(row_, {asked_.steps + filter, asked_.count - filter}).draw(asked_.seed, asked_.position);
    }

    // Log-probabilities of what the steps leave, which is the list or all of the row, and of the logits.
    void report(int64_t token, bool all_left) {
        Logprobs& out = *asked_.logprobs;
        all_left ? report_row(1, token) : list_.report(out, 1, token);
        if (all_left && row_.is_as_given()) {
            out.chosen[0] = out.chosen[1];
            out.found[0] = out.found[1];
            std::copy_n(out.ids[1], out.found[1], out.ids[0]);
            std::copy_n(out.values[1], out.found[1], out.values[0]);
            return;
        }
        row_.forget_steps();
        report_row(0, token);
    }

    // Those of a row behind its patches and its temperature.
    void report_row(int which, int64_t token) {
        row_.find_largest();
        if (row_.plainly_scaled()) return RowSums(row_).report(*asked_.logprobs, which, token);
        row_.collect(kNothing, false);
        if (row_.is_scaled()) list_.run({.what = Do::temperature, .amount = row_.temperature()});
        list_.report(*asked_.logprobs, which, token);
    }

    // The passes that the first filter needs.
    void narrow(size_t filter, bool token_only) {
        const bool is_maximum = token_only && asked_.greedy && all_keep_maximum(filter);
        if (!is_maximum && filter < asked_.count && MassFilter<real>::knows(asked_.steps[filter])) {
            row_.find_largest();
            if (row_.plainly_scaled()) {
                stands_in_ = MassFilter(row_, asked_.steps[filter]).narrow();
                return;
            }
        }
        const auto threshold = [&] {
            row_.note_largest();
            const bool finite = row_.largest() < std::numeric_limits<float>::infinity();
            return !finite ? kNothing : is_maximum ? row_.below(row_.reached_by(1)) : threshold_for(filter);
        };
        if (row_.settle_guess() && row_.pick(threshold())) return;
        row_.sweep();
        row_.collect(threshold());
    }

    // What is below it can't outlive the filter.
    float threshold_for(size_t filter) const {
        const auto reached_by = [&](size_t count) { return row_.below(row_.reached_by(count)); };
        if (filter == asked_.count) return kNothing;
        const Step& step = asked_.steps[filter];
        switch (step.what) {
            case Do::top_k:
                return reached_by(std::max(step.k, step.keep));
            case Do::top_h:
                return reached_by(step.k);
            case Do::top_p:
                return step.amount == 0 ? reached_by(step.keep) : kNothing;
            case Do::min_p: {
                if (step.amount == 0) return kNothing;
                return std::min(row_.least_of(row_.reached_by(1), step.amount), reached_by(step.keep));
            }
            default:
                return kNothing;
        }
    }

    bool all_keep_maximum(size_t filter) const {
        return std::all_of(asked_.steps + filter, asked_.steps + asked_.count, keeps_maximum);
    }

    static bool keeps_maximum(const Step& step) {
        return step.what == Do::top_k || step.what == Do::top_p || step.what == Do::min_p || step.what == Do::top_h ||
               step.what == Do::epsilon || step.what == Do::eta || step.what == Do::top_n_sigma;
    }

    int64_t first_maximum() const {
        if (list_.n == 0) return -1;
        size_t best = 0;
        for (size_t i = 1; i < list_.n; ++i)
            if (list_.scores[i] > list_.scores[best]) best = i;
        return list_.ids[best];
    }

    int64_t draw() {
        if (list_.n == 0) return -1;
        Race race(asked_.seed, asked_.position);
        const float top = list_.top();
        if (std::isinf(top)) {  // +inf scores share the draw
            for (size_t i = 0; i < list_.n; ++i)
                if (list_.scores[i] == top) race.enter(list_.ids[i], 0.0f);
        } else {
            race.enter_all(list_.ids, list_.scores, list_.n);
        }
        return race.winner();
    }

    // The draw from a whole row in one pass; nothing where the row has no finite largest score.
    std::optional<int64_t> race() {
        const auto inverse = static_cast<float>(1.0 / row_.temperature());
        if (!std::isfinite(inverse)) return {};
        Race race(asked_.seed, asked_.position);
        const auto enter = [&](int32_t id, float x) {
            const float score = row_.scaled(x);
            if (score > kNothing && score < std::numeric_limits<float>::infinity()) race.enter(id, score);
        };
        f32x16 best = broadcast(kNothing);
        const f32x16 scale = broadcast(inverse);
        const i32x16 lanes = load_bits(kLaneIds), even = lanes + lanes;
        for (size_t block = 0; block < row_.logits.blocks(); ++block) {
            row_.logits.each_vector_in_any_order(block, [&](f32x16 x, size_t first, size_t step) {
                best = max(x, best);
                const i32x16 ids = (step == 1 ? lanes : even) + broadcast_int(static_cast<int32_t>(first));
                for (Mask mask = race.may_win(x * scale, ids); mask; mask &= mask - 1) {
                    const size_t id = first + step * static_cast<size_t>(std::countr_zero(mask));
                    if (id < row_.logits.vocab && !row_.overlay.holds(id))
                        enter(static_cast<int32_t>(id), row_.logits.at(id));
                }
            });
        }
        for (size_t i = 0; i < row_.overlay.count(); ++i) enter(row_.overlay.ids()[i], row_.overlay.now()[i]);
        row_.note_largest(best);
        if (!row_.plainly_scaled()) return {};
        return race.winner();
    }

    static constexpr int32_t kLaneIds[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

    const SampledRow& asked_;
    PatchedRow<real> row_;
    Candidates& list_;
    bool listed_ = false;
    std::optional<Step> stands_in_;  // for the first filter
};

}  // namespace

void decode_step(const DecodeStep& args) {
    if (args.batch == 0) return;
    each_row(args, [&](const auto& logits, size_t b, Workspace& work) {
        Sampler sampler(logits, args.rows[b], work);
        args.tokens[b] = sampler.sample(args.processed ? args.processed + b * args.vocab : nullptr);
    });
}

}  // namespace decodestep::DECODESTEP_ISA
