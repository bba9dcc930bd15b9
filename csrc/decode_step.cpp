#include "decode_step.h"

#include <algorithm>

#include "candidates.h"
#include "each_row.h"
#include "logits.h"
#include "overlay.h"
#include "race.h"
#include "threshold.h"
#include "workspace.h"

namespace decodestep::DECODESTEP_ISA {
namespace {

// A row on its way. The logits are looked at in passes, which find a short list of candidates that holds every token
// that the steps can leave; the steps then run on the list. Where no bound can prove that, the list is the whole row.
template <Real real>
class Row {
  public:
    Row(Logits<real> logits, const SampledRow& row, Workspace& work)
        : logits_(logits),
          row_(row),
          work_(work),
          overlay_(work),
          list_{work.ids.get(), work.scores.get(), 0, row.position, work} {}

    int64_t sample(float* processed) {
        const bool token_only = !processed && !row_.logprobs;
        if (starts_with_a_sweep()) sweep();  // before the patches: their logits are then at hand
        size_t next = patch();
        if (!listed_) {
            const Step* const scale =
                next < row_.count && row_.steps[next].what == Do::temperature ? &row_.steps[next] : nullptr;
            temperature_ = scale ? scale->amount : 1.0;
            scaled_ = scale != nullptr;
            const size_t filter = next + scaled_;
            if (token_only && filter == row_.count && !row_.greedy && race()) return winner_;
            if (token_only && !row_.greedy && nucleus(filter)) return winner_;
            narrow(filter, token_only);
        }
        for (; next < row_.count; ++next) list_.run(row_.steps[next]);
        const int64_t token = row_.greedy ? first_maximum() : draw();
        if (processed) {
            std::fill_n(processed, logits_.vocab, kNothing);
            for (size_t i = 0; i < list_.n; ++i) processed[list_.ids[i]] = list_.scores[i];
        }
        if (row_.logprobs && token >= 0) {
            list_.report(*row_.logprobs, 1, token);
            overlay_.clear();
            sweep();
            collect(kNothing, false);
            list_.report(*row_.logprobs, 0, token);
        }
        return token;
    }

  private:
    void sweep() {
        if (!swept_) logits_.sweep(work_);
        swept_ = true;
    }

    // Whether the first filter is one that needs nothing of the row but its maxima.
    bool starts_with_a_sweep() const {
        for (size_t i = 0; i < row_.count; ++i) {
            const Do what = row_.steps[i].what;
            if (what == Do::allow || what == Do::force) return false;
            if (what > Do::temperature) return what == Do::top_k || what == Do::min_p || what == Do::top_h;
        }
        return row_.greedy;
    }

    // Leading patches, beside the logits; returns the step behind them. A step that names its tokens makes the list.
    size_t patch() {
        for (size_t i = 0; i < row_.count; ++i) {
            const Step& step = row_.steps[i];
            switch (step.what) {
                case Do::penalise:
                case Do::add:
                case Do::lift:
                case Do::ban:
                    overlay_.apply(step, logits_);
                    continue;
                case Do::allow:
                    list_.run({.what = Do::force, .ids = step.ids, .count = step.count});
                    for (size_t j = 0; j < list_.n; ++j)
                        list_.scores[j] = logits_.at(static_cast<size_t>(list_.ids[j]));
                    for (size_t j = 0; j < overlay_.count(); ++j) {
                        const size_t place = place_of(list_.ids, list_.n, overlay_.ids()[j]);
                        if (place < list_.n) list_.scores[place] = overlay_.now()[j];
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
        return row_.count;
    }

    // The list of all tokens whose patched logit is at least `threshold`; group_max must be there.
    void collect(float threshold, bool few = true) {
        list_.n =
            few ? logits_.template collect<true>(work_, threshold) : logits_.template collect<false>(work_, threshold);
        if (overlay_.count() == 0) return;
        list_.keep([&](size_t i) { return !overlay_.holds(static_cast<size_t>(list_.ids[i])); });
        Ranked* const added = work_.ranking.get();
        size_t count = 0;
        for (size_t i = 0; i < overlay_.count(); ++i)
            if (overlay_.now()[i] >= threshold && overlay_.now()[i] > kNothing)
                added[count++] = {static_cast<double>(overlay_.now()[i]), static_cast<uint32_t>(overlay_.ids()[i])};
        std::sort(added, added + count, [](const Ranked& a, const Ranked& b) { return a.place < b.place; });
        // Merged from behind: the two ascending parts share no id.
        size_t left = list_.n;
        list_.n += count;
        for (size_t at = list_.n; count > 0; --at) {
            if (left > 0 && list_.ids[left - 1] > static_cast<int32_t>(added[count - 1].place)) {
                --left;
                list_.ids[at - 1] = list_.ids[left];
                list_.scores[at - 1] = list_.scores[left];
            } else {
                --count;
                list_.ids[at - 1] = static_cast<int32_t>(added[count].place);
                list_.scores[at - 1] = static_cast<float>(added[count].key);
            }
        }
    }

    // How many patched logits are at least t, at the least: every group counts for one of its logits, unless a patch
    // took that away.
    size_t surely_at_least(float t) const {
        const size_t raw = count_at_least(groups_, group_count_, t);
        const size_t gone = count_at_least(overlay_.raw(), overlay_.count(), t);
        return raw - std::min(raw, gone) + count_at_least(overlay_.now(), overlay_.count(), t);
    }

    // A threshold that `count` patched logits reach, and few more; -inf where the groups can't tell.
    float reached_by(size_t count) const {
        if (count <= 1 && overlay_.count() == 0) return largest_;
        return threshold_reached_by(count, largest_, [&](float t) { return surely_at_least(t); });
    }

    // A threshold below `t` by so much that the temperature can't make equal what it keeps apart.
    float below(float t) const {
        if (!scaled_ || t == kNothing) return t;
        const auto divisor = static_cast<float>(temperature_);
        const float lower = t - std::max(std::fabs(t) * 0x1p-20f, 0x1p-100f);
        return lower / divisor < t / divisor ? lower : kNothing;
    }

    // The passes that the first filter needs.
    void narrow(size_t filter, bool token_only) {
        sweep();
        note_largest();
        const bool finite = largest_ < std::numeric_limits<float>::infinity();
        collect(finite ? threshold_for(filter, token_only) : kNothing);
    }

    // What is below it can't outlive the filter, or be the token.
    float threshold_for(size_t filter, bool token_only) const {
        if (row_.greedy && token_only && std::all_of(row_.steps + filter, row_.steps + row_.count, keeps_maximum))
            return below(reached_by(1));
        if (filter == row_.count) return kNothing;
        const Step& step = row_.steps[filter];
        switch (step.what) {
            case Do::top_k:
                return below(reached_by(std::max(step.k, step.keep)));
            case Do::top_h:
                return below(reached_by(step.k));
            case Do::top_p:
                return step.amount == 0 ? below(reached_by(step.keep)) : kNothing;
            case Do::min_p: {
                if (step.amount == 0) return kNothing;
                return std::min(least_of(reached_by(1), step.amount), below(reached_by(step.keep)));
            }
            default:
                return kNothing;
        }
    }

    // A logit below which exp((x - top) / temperature) < p, whatever the roundings on the way.
    float least_of(double top, double p) const {
        const double drop = temperature_ * (std::log(p) - 1e-7);
        return static_cast<float>(top + drop - (std::fabs(top) - drop) * 1e-5 - 1e-44);
    }

    static bool keeps_maximum(const Step& step) {
        return step.what == Do::top_k || step.what == Do::top_p || step.what == Do::min_p || step.what == Do::top_h ||
               step.what == Do::epsilon || step.what == Do::eta || step.what == Do::top_n_sigma;
    }

    void note_largest() {
        f32x16 best = broadcast(kNothing);
        for (size_t block = 0; block < logits_.blocks(); ++block) best = max(logits_.load_maxima(work_, block), best);
        largest_ = largest(best);
        for (size_t i = 0; i < overlay_.count(); ++i) largest_ = std::max(largest_, overlay_.now()[i]);
        groups_ = work_.group_max.get();
        group_count_ = logits_.blocks() * kLanes;
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
        Race race(row_.seed, row_.position);
        const float top = list_.top();
        if (std::isinf(top)) {  // +inf scores share the draw
            for (size_t i = 0; i < list_.n; ++i)
                if (list_.scores[i] == top) race.enter(list_.ids[i], 0.0f);
        } else {
            race.enter_all(list_.ids, list_.scores, list_.n);
        }
        return race.winner();
    }

    // Whether dividing by the temperature is all that it does to this row.
    bool plainly_scaled() const {
        return largest_ > kNothing && std::isfinite(largest_) &&
               (!scaled_ || std::isfinite(largest_ / static_cast<float>(temperature_)));
    }

    float scaled(float x) const { return scaled_ ? x / static_cast<float>(temperature_) : x; }

    // The draw from a whole row in one pass. False where the row has no finite largest score.
    bool race() {
        const auto inverse = static_cast<float>(1.0 / temperature_);
        if (!std::isfinite(inverse)) return false;
        Race race(row_.seed, row_.position);
        const auto enter = [&](int32_t id, float x) {
            const float score = scaled(x);
            if (score > kNothing && score < std::numeric_limits<float>::infinity()) race.enter(id, score);
        };
        f32x16 best = broadcast(kNothing);
        const f32x16 scale = broadcast(inverse);
        const u32x16 lanes = load_ids(kLaneIds);
        for (size_t block = 0; block < logits_.blocks(); ++block) {
            logits_.each_vector(block, [&](f32x16 x, size_t i) {
                best = max(x, best);
                Mask mask = race.may_win(x * scale, lanes + broadcast_bits(static_cast<uint32_t>(i)));
                for (; mask; mask &= mask - 1) {
                    const size_t id = i + static_cast<size_t>(std::countr_zero(mask));
                    if (id < logits_.vocab && !overlay_.holds(id)) enter(static_cast<int32_t>(id), logits_.at(id));
                }
            });
        }
        largest_ = largest(best);
        for (size_t i = 0; i < overlay_.count(); ++i) {
            largest_ = std::max(largest_, overlay_.now()[i]);
            enter(overlay_.ids()[i], overlay_.now()[i]);
        }
        winner_ = race.winner();
        return plainly_scaled();
    }

    // Top-p on the whole row, and min-p behind it, where the token is all that is asked for. The winner of the race
    // among a few more tokens than top-p keeps is the token if top-p keeps it, which takes the mass before it and no
    // sort. False where the bounds of the sums can't tell.
    bool nucleus(size_t filter) {
        if (filter >= row_.count || row_.steps[filter].what != Do::top_p) return false;
        const Step& step = row_.steps[filter];
        if (step.keep > 1 || !(step.amount > 0 && step.amount < 1)) return false;
        double least_likely = 0;  // relative to the largest
        for (size_t i = filter + 1; i < row_.count; ++i) {
            if (row_.steps[i].what != Do::min_p || row_.steps[i].keep > 1) return false;
            least_likely = std::max(least_likely, row_.steps[i].amount);
        }
        const auto inverse = static_cast<float>(1.0 / temperature_);
        if (!std::isfinite(inverse)) return false;
        logits_.sweep_mass(work_, inverse);
        swept_ = true;
        note_largest();
        if (!plainly_scaled()) return false;
        if (overlay_.count() > 0) {  // the largest group may owe its place to a token that was patched
            collect(reached_by(1));
            largest_ = list_.top();
            if (!plainly_scaled()) return false;
        }
        // Relative errors: of exp and the sums of 32, and of scores that are off by a few roundings.
        const double error = 0x1p-18 + (std::fabs(static_cast<double>(largest_) * inverse) + 20) * 0x1p-21;
        double mass = 0, slack = 0;
        if (!total_mass(inverse, error, mass, slack)) return false;
        const double target = step.amount * mass, target_slack = step.amount * slack;
        const float deepest = least_likely > 0 ? least_of(largest_, least_likely) : kNothing;
        float threshold = likely_threshold(target, mass, inverse);
        for (double further = 0.5 * temperature_;; further *= 2) {
            threshold = std::max(below(threshold), deepest);
            collect(threshold, false);
            if (weigh_list() * (1 - error) >= target + target_slack || threshold == deepest) break;
            threshold = below_by(threshold, further);
        }
        for (;;) {
            Race race(row_.seed, row_.position);
            race.enter_all(list_.ids, list_.scores, list_.n);
            winner_ = race.winner();
            const float score = race.score();
            const Ahead before = ahead_of_winner(score);
            if (!before.any) return true;
            const double weight = natural_exp(static_cast<double>(score) - static_cast<double>(scaled(largest_)));
            if (weight >= least_likely) {
                if (before.mass * (1 + error) < target - target_slack) return true;
                if (before.mass * (1 - error) < target + target_slack) return false;
            }
            // Not kept, and neither is what ranks behind it.
            list_.keep([&](size_t i) {
                return list_.scores[i] > score || (list_.scores[i] == score && list_.ids[i] < winner_);
            });
        }
    }

    // The sum of exp((x - largest) / temperature) over the patched row, and by how much it may be off.
    bool total_mass(float inverse, double error, double& mass, double& slack) const {
        const auto weight = [&](float x) {
            return natural_exp(std::min(
                (static_cast<double>(x) - static_cast<double>(largest_)) * static_cast<double>(inverse), 40.0));
        };
        float top = kNothing;
        double factor = 0;
        for (size_t block = 0; block < logits_.blocks(); ++block) {
            if (work_.block_top[block] != top) {
                top = work_.block_top[block];
                factor = weight(top);
            }
            mass += work_.block_sum[block] * factor;
        }
        double touched = mass;
        for (size_t i = 0; i < overlay_.count(); ++i) {
            const double raw = weight(overlay_.raw()[i]), now = weight(overlay_.now()[i]);
            mass += now - raw;
            touched += now + raw;
        }
        slack = error * touched;
        return slack < 0.05 * mass;
    }

    // About the logit that a mass of `target` reaches from above, guessed from the head of the row and a sample of the
    // rest.
    float likely_threshold(double target, double mass, float inverse) {
        const float head = reached_by(32);
        collect(head);
        double above = 0;
        for (size_t i = 0; i < list_.n; ++i)
            above += natural_exp((static_cast<double>(list_.scores[i]) - static_cast<double>(largest_)) * inverse);
        if (above >= target * 1.001 || head == kNothing) return head;
        constexpr size_t kSampled = 16;
        const size_t stride = std::max<size_t>(1, logits_.blocks() / kSampled);
        float* const sample = work_.selection.get();
        size_t n = 0;
        for (size_t block = stride / 2; block < logits_.blocks() && n < kSampled * kBlock; block += stride)
            logits_.each_vector(block, [&](f32x16 x, size_t) {
                store(sample + n, x);
                n += kLanes;
            });
        float* const weights = work_.scores.get();  // free until the next `collect`
        const f32x16 scale = broadcast(inverse), offset = broadcast(-largest_ * inverse);
        for (size_t i = 0; i < n; i += kLanes) {
            const f32x16 x = load(sample + i), weight = decaying_exp(min(fma(x, scale, offset), broadcast(0.0f)));
            store(weights + i, select(~at_least(x, broadcast(head)) & kAllLanes, weight));
        }
        const auto mass_from = [&](float t) {
            f32x16 sums = broadcast(0.0f);
            for (size_t i = 0; i < n; i += kLanes)
                sums = sums + select(at_least(load(sample + i), broadcast(t)), load(weights + i));
            return sum(sums);
        };
        const double share = std::min(1.0, (target - above) / std::max(mass - above, 1e-300) + 0.03);
        const double wanted = share * mass_from(kNothing);
        uint32_t low = ordered(kNothing), high = ordered(head);
        for (int i = 0; i < 16 && high - low > 1; ++i) {
            const uint32_t middle = low + (high - low) / 2;
            (mass_from(from_ordered(middle)) >= wanted ? low : high) = middle;
        }
        return from_ordered(low);
    }

    static float below_by(float t, double by) {
        const auto lower = static_cast<float>(static_cast<double>(t) - by - std::fabs(static_cast<double>(t)) * 1e-3);
        return std::isfinite(lower) ? lower : kNothing;
    }

    // The sum of what weight(i) gives for each sixteen of the list; float32 for as long as its error stays small.
    template <class Weight>
    double sum_over_list(Weight&& weight) const {
        double total = 0;
        for (size_t i = 0; i < list_.n;) {
            f32x16 sums = broadcast(0.0f);
            for (const size_t end = std::min(list_.n, i + kBlock); i < end; i += kLanes) sums = sums + weight(i);
            total += static_cast<double>(sum(sums));
        }
        return total;
    }

    Mask lanes_at(size_t i) const { return i + kLanes <= list_.n ? kAllLanes : (1u << (list_.n - i)) - 1; }

    // Turns the list's logits into scores, and returns the sum of their weights.
    double weigh_list() {
        const f32x16 divisor = broadcast(static_cast<float>(temperature_)), top = broadcast(scaled(largest_));
        return sum_over_list([&](size_t i) {
            f32x16 s = load(list_.scores + i);
            if (scaled_) s = s / divisor;
            store(list_.scores + i, s);
            return select(lanes_at(i), decaying_exp(s - top));
        });
    }

    struct Ahead {
        double mass;
        bool any;
    };

    // What ranks before the winner.
    Ahead ahead_of_winner(float score) const {
        const f32x16 top = broadcast(scaled(largest_)), bound = broadcast(score);
        Mask any = 0;
        const double mass = sum_over_list([&](size_t i) {
            const f32x16 s = load(list_.scores + i);
            const Mask not_above = at_least(bound, s);
            Mask mask = ~not_above & lanes_at(i);
            for (Mask equal = not_above & at_least(s, bound) & lanes_at(i); equal; equal &= equal - 1)
                if (list_.ids[i + static_cast<size_t>(std::countr_zero(equal))] < winner_) mask |= equal & -equal;
            any |= mask;
            return select(mask, decaying_exp(s - top));
        });
        return {mass, any != 0};
    }

    static constexpr int32_t kLaneIds[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

    const Logits<real> logits_;
    const SampledRow& row_;
    Workspace& work_;
    Overlay overlay_;
    Candidates list_;
    bool listed_ = false, scaled_ = false, swept_ = false;
    double temperature_ = 1;
    float largest_ = kNothing;
    const float* groups_ = nullptr;
    size_t group_count_ = 0;
    int64_t winner_ = -1;
};

}  // namespace

void decode_step(const DecodeStep& args) {
    if (args.batch == 0) return;
    each_row(args, [&](const auto& logits, size_t b, Workspace& work) {
        Row row(logits, args.rows[b], work);
        args.tokens[b] = row.sample(args.processed ? args.processed + b * args.vocab : nullptr);
    });
}

}  // namespace decodestep::DECODESTEP_ISA
