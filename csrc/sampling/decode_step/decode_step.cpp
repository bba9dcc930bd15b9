// A row's life:
//
//   given      the logits, read only
//     |        look_ahead: what the first filter needs of the logits is read before the patches, whose scattered logits
//     |        are then in the cache
//   patched    the leading patches of single tokens are in an overlay beside the logits, a leading temperature is kept
//     |
//     |--- draw_without_list: no filter, or top-p and min-p alone, and nothing but the token is wanted ------> drawn
//     |
//     |--- Allow or Force name their tokens -----------------------------------------------------------------> listed
//     |--- GuessedRow: for top-k and top-h the list from look_ahead, if it reaches down far enough ----------> listed
//     |--- SweptRow: the largest logit of every group gives a threshold; a second look lists what reaches it -> listed
//     |    (ProbabilityFilter: for top-p, typical, epsilon and eta, sums over the row give it)
//     |
//   listed     the list holds every token that the first filter can keep; where no bound proves that, the whole row
//     |        run_steps: the steps that are left run on the list in their order, as in reference.py
//   filtered   the list holds what the steps leave
//     |        the first maximum if greedy, otherwise the Gumbel race of the list
//   drawn      log-probabilities are reported of the list and of the logits
#include "sampling/decode_step/decode_step.h"

#include <algorithm>
#include <optional>
#include <span>

#include "sampling/decode_step/gumbel_race.h"
#include "sampling/decode_step/nucleus.h"
#include "sampling/decode_step/probability_filter.h"
#include "sampling/decode_step/swept_row.h"
#include "sampling/decode_step/whole_row_draw.h"
#include "sampling/row/each_row.h"

namespace decodestep::DECODESTEP_BUILD {
namespace {

template <LogitType type>
class Sampler {
  public:
    Sampler(Logits<type> logits, const RowRequest& request, Workspace& work)
        : request_(request), row_(logits, request.position, work), list_(row_.list) {}

    int64_t sample(float* processed) {
        look_ahead();
        patch();
        scale();
        // Log-probabilities of what filters leave are those of the list that they leave.
        token_only_ = !processed && (!request_.logprobs || keeps_row());
        std::optional<int64_t> drawn;
        if (!listed_ && token_only_ && !request_.greedy) drawn = draw_without_list();
        if (!drawn) {
            if (!listed_) list_for_first_filter();
            run_steps();
        }
        const int64_t token = drawn ? *drawn : request_.greedy ? first_maximum() : draw();
        if (processed) write(processed);
        if (request_.logprobs && token >= 0) report(token);
        return token;
    }

  private:
    using Steps = std::span<const Step>;

    Steps steps() const { return {request_.steps, request_.count}; }

    static bool is_filter(const Step& step) { return step.kind > StepKind::temperature; }

    // given -> patched: the pass over the logits that does not depend on the patches.
    void look_ahead() {
        const auto first = std::find_if(steps().begin(), steps().end(), [](const Step& step) {
            return step.kind == StepKind::allow || step.kind == StepKind::force || is_filter(step);
        });
        if (first == steps().end()) {
            if (request_.greedy) row_.find_group_maxima();
        } else if (first->kind == StepKind::top_k || first->kind == StepKind::top_h) {
            guess_ = list_from_guess(row_, std::max(first->k, first->min_keep));
            if (!guess_) row_.find_group_maxima();
        } else if (first->kind == StepKind::min_p) {
            row_.find_group_maxima();
        }
    }

    // given -> patched, or listed where a patch names all the tokens that stay.
    void patch() {
        for (unlisted_ = steps(); !unlisted_.empty() && !listed_; unlisted_ = unlisted_.subspan(1)) {
            const Step& step = unlisted_.front();
            if (step.kind == StepKind::allow)
                list_allowed(step);
            else if (step.kind == StepKind::force)
                list_.run(step);
            else if (step.kind < StepKind::allow)
                row_.overlay.apply(step, row_.logits);
            else
                return;
            listed_ = step.kind >= StepKind::allow;
        }
    }

    void list_allowed(const Step& step) {
        list_.run({.kind = StepKind::force, .ids = step.ids, .count = step.count});
        for (size_t i = 0; i < list_.n; ++i) list_.scores[i] = row_.logits.at(static_cast<size_t>(list_.ids[i]));
        for (size_t i = 0; i < row_.overlay.count(); ++i) {
            const size_t index = index_of(list_.ids, list_.n, row_.overlay.ids()[i]);
            if (index < list_.n) list_.scores[index] = row_.overlay.now()[i];
        }
        list_.keep_if([&](size_t i) { return list_.scores[i] > kMinusInfinity; });
    }

    // The passes divide by a leading temperature themselves; on the list it runs as a step.
    void scale() {
        filters_ = unlisted_;
        if (filters_.empty() || filters_.front().kind != StepKind::temperature) return;
        row_.scale_by(filters_.front().amount);
        filters_ = filters_.subspan(1);
    }

    // Whether the steps keep every token of the row.
    bool keeps_row() const { return !listed_ && filters_.empty(); }

    // patched -> drawn; nothing where that takes a list.
    std::optional<int64_t> draw_without_list() {
        if (filters_.empty()) return draw_from_row(row_, request_.seed, request_.position);
        return Nucleus(row_, filters_).draw(request_.seed, request_.position);
    }

    // patched -> listed
    void list_for_first_filter() {
        if (guess_) {
            GuessedRow guessed(row_, *guess_);
            if (guessed.list_from(threshold(guessed))) return;
        }
        SweptRow swept(row_);
        if (!filters_.empty() && ProbabilityFilter<type>::handles(filters_.front()) && !only_maximum_counts()) {
            if (const auto sums = RowSums<type>::of(swept)) {
                equivalent_filter_ = ProbabilityFilter(*sums, filters_.front()).narrow();
                return;
            }
        }
        swept.list_from(threshold(swept));
    }

    // What is below it cannot outlive the first filter. `Pass` is SweptRow or GuessedRow.
    template <class Pass>
    float threshold(const Pass& pass) const {
        if (pass.max_bound() == std::numeric_limits<float>::infinity()) return kMinusInfinity;
        const auto reached_by = [&](size_t count) { return row_.below(pass.reached_by(count)); };
        if (only_maximum_counts()) return reached_by(1);
        if (filters_.empty()) return kMinusInfinity;
        const Step& step = filters_.front();
        switch (step.kind) {
            case StepKind::top_k:
                return reached_by(std::max(step.k, step.min_keep));
            case StepKind::top_h:
                return reached_by(step.k);
            case StepKind::top_p:
                return step.amount == 0 ? reached_by(step.min_keep) : kMinusInfinity;
            case StepKind::min_p: {
                if (step.amount == 0) return kMinusInfinity;
                const float least = row_.lower_bound_of_probability(pass.reached_by(1), step.amount);
                return std::min(least, reached_by(step.min_keep));
            }
            default:
                return kMinusInfinity;
        }
    }

    bool only_maximum_counts() const {
        return token_only_ && request_.greedy && std::all_of(filters_.begin(), filters_.end(), keeps_maximum);
    }

    static bool keeps_maximum(const Step& step) {
        switch (step.kind) {
            case StepKind::top_k:
            case StepKind::top_p:
            case StepKind::min_p:
            case StepKind::top_h:
            case StepKind::epsilon:
            case StepKind::eta:
            case StepKind::top_n_sigma:
                return true;
            default:
                return false;
        }
    }

    // listed -> filtered
    void run_steps() {
        for (const Step& step : unlisted_) {
            const bool is_first_filter = !filters_.empty() && &step == &filters_.front();
            list_.run(is_first_filter && equivalent_filter_ ? *equivalent_filter_ : step);
            if (is_first_filter) list_.whole_row = {};  // to later filters the list is the row
        }
    }

    // filtered -> drawn
    int64_t first_maximum() const {
        if (list_.n == 0) return -1;
        size_t best = 0;
        for (size_t i = 1; i < list_.n; ++i)
            if (list_.scores[i] > list_.scores[best]) best = i;
        return list_.ids[best];
    }

    // filtered -> drawn
    int64_t draw() const {
        if (list_.n == 0) return -1;
        GumbelRace race(request_.seed, request_.position);
        const float top = list_.max_score();
        if (std::isinf(top)) {  // +inf scores share the draw
            for (size_t i = 0; i < list_.n; ++i)
                if (list_.scores[i] == top) race.enter(list_.ids[i], 0.0f);
        } else {
            race.enter_all(list_.ids, list_.scores, list_.n);
        }
        return race.winner();
    }

    void write(float* processed) const {
        std::fill_n(processed, row_.logits.vocab, kMinusInfinity);
        for (size_t i = 0; i < list_.n; ++i) processed[list_.ids[i]] = list_.scores[i];
    }

    // Log-probabilities of what the steps leave, which is the row or the list, and of the logits; both lists and
    // patches are overwritten.
    void report(int64_t token) {
        Logprobs& out = *request_.logprobs;
        keeps_row() ? report_row(out.processed, token) : list_.report(out.processed, out.wanted, token);
        if (keeps_row() && row_.is_unchanged()) {
            out.raw.chosen = out.processed.chosen;
            out.raw.count = out.processed.count;
            std::copy_n(out.processed.ids, out.processed.count, out.raw.ids);
            std::copy_n(out.processed.values, out.processed.count, out.raw.values);
            return;
        }
        row_.forget_steps();
        report_row(out.raw, token);
    }

    // Of the patched and scaled row.
    void report_row(RowLogprobs& out, int64_t token) {
        const size_t wanted = request_.logprobs->wanted;
        SweptRow swept(row_);
        if (const auto sums = RowSums<type>::of(swept)) return sums->report(out, wanted, token);
        swept.list_from(kMinusInfinity);
        if (row_.is_scaled()) list_.run({.kind = StepKind::temperature, .amount = row_.temperature()});
        list_.report(out, wanted, token);
    }

    const RowRequest& request_;
    PatchedRow<type> row_;
    Candidates& list_;
    Steps unlisted_;                         // what has yet to run on the list: the steps after the leading patches
    Steps filters_;                          // those after the leading temperature too
    bool listed_ = false;                    // Allow or Force has made the list
    bool token_only_ = false;                // neither scores nor log-probabilities of what filters leave are wanted
    std::optional<float> guess_;             // the list holds the unpatched logits from here on
    std::optional<Step> equivalent_filter_;  // runs instead of the first filter, which ProbabilityFilter has looked at
};

}  // namespace

void decode_step(const DecodeStep& args) {
    if (args.batch == 0) return;
    each_row(args, [&](const auto& logits, size_t b, Workspace& work) {
        Sampler sampler(logits, args.rows[b], work);
        args.tokens[b] = sampler.sample(args.processed ? args.processed + b * args.vocab : nullptr);
    });
}

}  // namespace decodestep::DECODESTEP_BUILD
