// A row's life, whose way Route tells in advance:
//
//   given      the logits, read only; where masks are among the leading patches, a copy that they have forbidden tokens
//   of
//     |        look_ahead: what the first filter needs of the logits is read before the patches, whose scattered logits
//     |        are then in the cache
//   patched    the leading patches of single tokens are in an overlay beside the logits, a leading temperature is kept
//     |
//     |--- Draw::of_row, Draw::of_nucleus: the token is drawn in passes over the row --------------------------> drawn
//     |
//     |--- Listing::named: Allow or Force name the tokens ----------------------------------------------------> listed
//     |--- Listing::guessed: the list from look_ahead, if it reaches down far enough -------------------------> listed
//     |--- Listing::summed: sums over the row give a threshold; a second look lists what reaches it ----------> listed
//     |--- Listing::swept: the largest logit of every group gives the threshold ------------------------------> listed
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
#include "sampling/decode_step/masked_row.h"
#include "sampling/decode_step/nucleus.h"
#include "sampling/decode_step/probability_filter.h"
#include "sampling/decode_step/swept_row.h"
#include "sampling/decode_step/whole_row_draw.h"
#include "sampling/row/each_row.h"

namespace decodestep::DECODESTEP_BUILD {
namespace {

using Steps = std::span<const Step>;

// Where a token comes from. A pass over the row that cannot tell leaves it to the list.
enum class Draw {
    of_row,      // no filter, and nothing but the token is wanted
    of_nucleus,  // top-p, perhaps with min-p, and nothing but the token is wanted
    of_list
};

// How the list is found. What gives no threshold leaves it to `swept`, which lists the whole row where it has none.
enum class Listing {
    named,    // by Allow or Force
    guessed,  // from a sample of the row: for top-k and top-h
    summed,   // from sums over the row: for top-p, typical, epsilon and eta
    swept     // from the largest logit of every group
};

// What the steps of a row are to the passes over it.
struct Route {
    Steps patches;            // the leading ones of single tokens
    const Step* naming;       // Allow or Force after them; null if there is none
    Steps left;               // the steps after these, which run on the list
    const Step* temperature;  // the first of `left`, if it is one: the passes divide by it themselves
    Steps filters;            // the steps after that; the first one says what the list must hold
    bool only_token;          // neither scores nor log-probabilities of what filters leave are wanted
    bool only_maximum;        // and of these the first maximum, which no filter drops
    Draw draw;
    Listing listing;

    Route(const RowRequest& request, bool wants_scores) {
        const Steps steps(request.steps, request.count);
        const auto end_of_patches =
            std::find_if(steps.begin(), steps.end(), [](const Step& step) { return step.kind >= StepKind::allow; });
        patches = {steps.begin(), end_of_patches};
        left = {end_of_patches, steps.end()};
        naming = left.empty() || left.front().kind > StepKind::force ? nullptr : &left.front();
        if (naming) left = left.subspan(1);
        temperature = left.empty() || left.front().kind != StepKind::temperature ? nullptr : &left.front();
        filters = temperature ? left.subspan(1) : left;
        // Log-probabilities of what filters leave are those of the list that they leave.
        only_token = !wants_scores && (!request.logprobs || keeps_row());
        only_maximum = only_token && request.greedy && std::all_of(filters.begin(), filters.end(), keeps_maximum);
        draw = naming || !only_token || request.greedy ? Draw::of_list
               : filters.empty()                       ? Draw::of_row
               : filter_is(StepKind::top_p)            ? Draw::of_nucleus
                                                       : Draw::of_list;
        listing = naming                                                             ? Listing::named
                  : filter_is(StepKind::top_k) || filter_is(StepKind::top_h)         ? Listing::guessed
                  : !filters.empty() && needs_sums(filters.front()) && !only_maximum ? Listing::summed
                                                                                     : Listing::swept;
    }

    // Whether the steps keep every token of the row.
    bool keeps_row() const { return !naming && filters.empty(); }

  private:
    bool filter_is(StepKind kind) const { return !filters.empty() && filters.front().kind == kind; }

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
};

template <LogitType type>
class Sampler {
  public:
    Sampler(Logits<type> logits, const RowRequest& request, bool wants_scores, Workspace& work)
        : request_(request),
          route_(request, wants_scores),
          given_(logits),
          row_(allowed(logits, route_.patches, work), request.position, work),
          list_(row_.list) {}

    // processed: null unless scores are wanted.
    int64_t sample(float* processed) {
        look_ahead();
        for (const Step& patch : route_.patches)
            if (patch.kind != StepKind::allow_bits) row_.overlay.apply(patch, row_.logits);
        if (route_.temperature) row_.scale_by(route_.temperature->amount);
        const std::optional<int64_t> drawn = draw_without_list();
        if (!drawn) {
            find_list();
            run_steps();
        }
        const int64_t token = drawn ? *drawn : request_.greedy ? first_maximum() : draw();
        if (processed) write(processed);
        if (request_.logprobs && token >= 0) report(token);
        return token;
    }

  private:
    // What a patch drops stays dropped, so that masks may come first.
    static Logits<type> allowed(Logits<type> logits, Steps patches, Workspace& work) {
        for (const Step& patch : patches)
            if (patch.kind == StepKind::allow_bits) logits = masked_row(logits, patch.bits, work);
        return logits;
    }

    // given -> patched: the pass over the logits that does not depend on the patches.
    void look_ahead() {
        if (route_.draw != Draw::of_list) return;
        if (route_.listing == Listing::guessed) {
            const Step& filter = route_.filters.front();
            guess_ = list_from_guess(row_, std::max(filter.k, filter.min_keep));
        }
        if (route_.listing == Listing::swept || (route_.listing == Listing::guessed && !guess_)) row_.group_maxima();
    }

    // patched -> drawn; nothing where that takes a list.
    std::optional<int64_t> draw_without_list() {
        switch (route_.draw) {
            case Draw::of_row:
                return draw_from_row(row_, request_.seed, request_.position);
            case Draw::of_nucleus:
                return Nucleus(row_, route_.filters).draw(request_.seed, request_.position);
            case Draw::of_list:
                break;
        }
        return {};
    }

    // patched -> listed
    void find_list() {
        switch (route_.listing) {
            case Listing::named:
                return route_.naming->kind == StepKind::allow ? list_allowed(*route_.naming)
                                                              : list_.run(*route_.naming);
            case Listing::guessed:
                if (!guess_) break;
                if (GuessedRow guessed(row_, *guess_); guessed.list_from(threshold(guessed))) return;
                break;
            case Listing::summed:
                if (list_from_sums()) return;
                break;
            case Listing::swept:
                break;
        }
        SweptRow swept(row_);
        swept.list_from(threshold(swept));
    }

    bool list_from_sums() {
        SweptRow swept(row_);
        const auto sums = RowSums<type>::of(swept);
        if (sums) equivalent_filter_ = ProbabilityFilter(*sums, route_.filters.front()).narrow();
        return sums.has_value();
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

    // What is below it cannot outlive the first filter. `Pass` is SweptRow or GuessedRow.
    template <class Pass>
    float threshold(const Pass& pass) const {
        if (pass.max_bound() == std::numeric_limits<float>::infinity()) return kMinusInfinity;
        const auto reached_by = [&](size_t count) { return row_.below(pass.reached_by(count)); };
        if (route_.only_maximum) return reached_by(1);
        if (route_.filters.empty()) return kMinusInfinity;
        const Step& step = route_.filters.front();
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

    // listed -> filtered
    void run_steps() {
        for (const Step& step : route_.left) {
            const bool is_first_filter = !route_.filters.empty() && &step == &route_.filters.front();
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
        route_.keeps_row() ? report_row(row_, out.processed, token) : list_.report(out.processed, out.wanted, token);
        const bool masked = row_.logits.data != given_.data;
        if (route_.keeps_row() && row_.is_unchanged() && !masked) {
            out.raw.chosen = out.processed.chosen;
            out.raw.count = out.processed.count;
            std::copy_n(out.processed.ids, out.processed.count, out.raw.ids);
            std::copy_n(out.processed.values, out.processed.count, out.raw.values);
            return;
        }
        row_.forget_steps();
        if (!masked) return report_row(row_, out.raw, token);
        PatchedRow<type> given(given_, request_.position, row_.work);
        report_row(given, out.raw, token);
    }

    // Of a patched and scaled row.
    void report_row(PatchedRow<type>& row, RowLogprobs& out, int64_t token) {
        const size_t wanted = request_.logprobs->wanted;
        SweptRow swept(row);
        if (const auto sums = RowSums<type>::of(swept)) return sums->report(out, wanted, token);
        swept.list_from(kMinusInfinity);
        if (row.is_scaled()) row.list.run({.kind = StepKind::temperature, .amount = row.temperature()});
        row.list.report(out, wanted, token);
    }

    const RowRequest& request_;
    const Route route_;
    const Logits<type> given_;
    PatchedRow<type> row_;
    Candidates& list_;
    std::optional<float> guess_;             // the list holds the unpatched logits from here on
    std::optional<Step> equivalent_filter_;  // runs instead of the first filter, which ProbabilityFilter has looked at
};

}  // namespace

void decode_step(const DecodeStep& args) {
    if (args.batch == 0) return;
    each_row(args, [&](const auto& logits, size_t b, Workspace& work) {
        Sampler sampler(logits, args.rows[b], args.processed != nullptr, work);
        args.tokens[b] = sampler.sample(args.processed ? args.processed + b * args.vocab : nullptr);
    });
}

}  // namespace decodestep::DECODESTEP_BUILD
