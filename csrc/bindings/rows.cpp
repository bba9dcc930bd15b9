// Rows that stay from one step to the next: what no token changes is read once, what follows from the history is looked
// up in its indexes, and a token that is drawn is noted without a way through Python.
#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <vector>

#include "bindings/history.h"
#include "bindings/steps.h"

namespace decodestep {
namespace {

constexpr double kMost = std::numeric_limits<double>::max();

// The classes of steps.py that look at the history; all other objects are called with it.
enum class Follows { penalise_seen, add_counted, ban_followers, stretch, call };

Follows follows(PyObject* object) {
    static const std::array<PyObject*, 4> classes = [] {
        const nb::module_ steps = nb::module_::import_("decodestep.ops.decode_step.steps");
        std::array<PyObject*, 4> found;
        size_t i = 0;
        for (const char* name : {"PenaliseSeen", "AddCounted", "BanFollowers", "While"})
            found[i++] = nb::object(steps.attr(name)).release().ptr();
        return found;
    }();
    const auto found = std::find(classes.begin(), classes.end(), reinterpret_cast<PyObject*>(Py_TYPE(object)));
    return static_cast<Follows>(found - classes.begin());
}

// A part of a row's steps: steps that stay, for a stretch of lengths of the history, or what makes one.
struct Part {
    Follows follows = Follows::stretch;
    std::vector<Step> steps;
    size_t first = 0, last = SIZE_MAX;  // steps: while first <= length < last
    size_t argument = 0;                // skipped or n
    double factor = 0, frequency = 0, presence = 0;
    std::vector<float> values = {};  // of add_counted
    size_t counted = 0;              // how many tokens of the history `values` knows
    nb::object make = {};

    Part(PyObject* object, size_t vocab, StepArrays& arrays);
    void take_stretch(PyObject* sequence, size_t vocab, StepArrays& arrays);
    void append_to(std::vector<Step>& all, History& history);
    const float* amounts(const Tally& tally, const std::vector<int64_t>& tokens);
};

Part::Part(PyObject* object, size_t vocab, StepArrays& arrays) {
    if (PyTuple_CheckExact(object) || PyList_CheckExact(object)) {
        take_stretch(object, vocab, arrays);
        return;
    }
    follows = decodestep::follows(object);
    if (follows == Follows::call) {
        require(PyCallable_Check(object), "a part of a row must be steps, or be called with the history");
        make = nb::borrow(object);
        return;
    }
    static constexpr Py_ssize_t fields[] = {2, 3, 1, 3};
    require(PyTuple_GET_SIZE(object) == fields[static_cast<size_t>(follows)], "a step has the wrong fields");
    const auto field = [&](Py_ssize_t i) { return PyTuple_GET_ITEM(object, i); };
    switch (follows) {
        case Follows::penalise_seen:
            argument = integer_of(field(0), 0, PY_SSIZE_T_MAX);
            factor = number_of(field(1), std::numeric_limits<double>::denorm_min(), kMost);
            break;
        case Follows::add_counted:
            argument = integer_of(field(0), 0, PY_SSIZE_T_MAX);
            frequency = number_of(field(1), -kMost, kMost);
            presence = number_of(field(2), -kMost, kMost);
            break;
        case Follows::ban_followers:
            argument = integer_of(field(0), 1, PY_SSIZE_T_MAX);
            break;
        case Follows::stretch:
            first = integer_of(field(0), 0, PY_SSIZE_T_MAX);
            last = integer_of(field(1), 0, PY_SSIZE_T_MAX);
            take_stretch(field(2), vocab, arrays);
            break;
        case Follows::call:
            break;
    }
}

void Part::take_stretch(PyObject* sequence, size_t vocab, StepArrays& arrays) {
    append_steps(steps, sequence, vocab, arrays);
    for (Step& step : steps) arrays.keep(step);
}

void Part::append_to(std::vector<Step>& all, History& history) {
    if (follows == Follows::stretch) {
        const size_t length = history.tokens().size();
        if (first <= length && length < last) all.insert(all.end(), steps.begin(), steps.end());
        return;
    }
    Step step{.what = Do::ban};
    const std::vector<int64_t>* ids;
    if (follows == Follows::ban_followers) {
        ids = &history.followers(argument);
    } else {
        const Tally& tally = history.tally(argument);
        ids = &tally.ids();
        step.what = follows == Follows::add_counted ? Do::add : Do::penalise;
        step.amount = factor;
        if (follows == Follows::add_counted) step.values = amounts(tally, history.tokens());
    }
    step.ids = ids->data();
    step.count = ids->size();
    if (step.count > 0) all.push_back(step);
}

// What is added to the tally's tokens: computed again for those alone that have come since the last time.
const float* Part::amounts(const Tally& tally, const std::vector<int64_t>& tokens) {
    values.resize(tally.ids().size());
    for (size_t i = std::max(counted, argument); i < tokens.size(); ++i) {
        const size_t place = tally.place_of(tokens[i]);
        values[place] = static_cast<float>(-(frequency * tally.counts()[place] + presence));
    }
    counted = tokens.size();
    return values.data();
}

// How a row goes on; sampler.py has them by these numbers.
enum class End : char { none, eos, stop, length, no_candidate };

struct HeldRow {
    size_t vocab;
    nb::object history_object;
    HeldHistory* history = nullptr;
    std::vector<Part> parts = {};
    StepArrays arrays = {};  // of `parts`
    bool greedy;
    uint64_t seed = 0;
    std::unique_ptr<LogprobsRoom> logprobs = {};
    std::vector<int64_t> ends = {}, stops = {};  // ascending
    size_t limit = SIZE_MAX;
    bool ended = false;

    std::vector<Step> steps = {};  // of this call
    StepArrays arrays_of_call = {};

    SampledRow described();
    End accept(int64_t token);
};

// Calls what makes steps of the history, which may be any code.
SampledRow HeldRow::described() {
    require(history->index.highest() < static_cast<int64_t>(vocab), "a history holds a token outside the vocabulary");
    require(history->index.tokens().size() <= UINT32_MAX, "a history is too long");
    steps.clear();
    arrays_of_call.clear();
    for (Part& part : parts) {
        if (part.follows == Follows::call)
            append_steps(steps, part.make(history_object).ptr(), vocab, arrays_of_call);
        else
            part.append_to(steps, history->index);
    }
    return {.steps = steps.data(),
            .count = steps.size(),
            .greedy = greedy,
            .seed = seed,
            .position = static_cast<uint32_t>(history->index.tokens().size()),
            .logprobs = logprobs ? &logprobs->logprobs : nullptr};
}

End HeldRow::accept(int64_t token) {
    End end = End::none;
    if (token < 0) {
        end = End::no_candidate;
    } else {
        history->append(token);
        const size_t generated = history->index.tokens().size() - history->prompt_length;
        end = std::binary_search(ends.begin(), ends.end(), token)     ? End::eos
              : std::binary_search(stops.begin(), stops.end(), token) ? End::stop
              : generated >= limit                                    ? End::length
                                                                      : End::none;
    }
    ended |= end != End::none;
    return end;
}

std::vector<int64_t> ascending(const nb::list& ids) {
    std::vector<int64_t> values;
    for (const nb::handle id : ids) values.push_back(static_cast<int64_t>(integer_of(id.ptr(), 0, INT64_MAX)));
    std::sort(values.begin(), values.end());
    return values;
}

void make(HeldRow* self, size_t vocab, nb::object history, const nb::list& parts, bool greedy, nb::handle seed,
          nb::handle top_logprobs, const nb::list& ends, const nb::list& stops, nb::handle limit) {
    HeldRow row{.vocab = vocab, .history_object = history, .greedy = greedy};
    require(nb::try_cast(history, row.history) && row.history, "history must be a History");
    for (const nb::handle part : parts) row.parts.emplace_back(part.ptr(), vocab, row.arrays);
    row.seed = integer_of(seed.ptr(), 0, UINT64_MAX);
    if (!top_logprobs.is_none())
        row.logprobs = std::make_unique<LogprobsRoom>(integer_of(top_logprobs.ptr(), 0, PY_SSIZE_T_MAX), vocab);
    row.ends = ascending(ends);
    row.stops = ascending(stops);
    row.limit = limit.is_none() ? SIZE_MAX : integer_of(limit.ptr(), 0, PY_SSIZE_T_MAX);
    new (self) HeldRow(std::move(row));
}

// The rows of a call. Until they are left, nothing else may step them or append to their histories.
class Taken {
  public:
    Taken() = default;
    ~Taken() { leave(); }
    Taken(const Taken&) = delete;
    Taken& operator=(const Taken&) = delete;

    void take(const nb::list& objects, size_t vocab) {
        rows_.reserve(nb::len(objects));
        for (const nb::handle object : objects) {
            HeldRow* row = nullptr;
            require(nb::try_cast(object, row) && row, "rows must be a list of Row");
            require(row->vocab == vocab, "a row is of another vocabulary");
            require(!row->history->in_use, "a row can take one step at a time");
            row->history->in_use = true;
            rows_.emplace_back(nb::borrow(object), row);
        }
    }

    void leave() {
        for (size_t i = 0; i < rows_.size() && !left_; ++i) rows_[i].second->history->in_use = false;
        left_ = true;
    }

    size_t count() const { return rows_.size(); }
    HeldRow& operator[](size_t i) const { return *rows_[i].second; }

  private:
    std::vector<std::pair<nb::object, HeldRow*>> rows_;
    bool left_ = false;
};

// (tokens, ends, logprobs): int64, -1 for a row without a token; bytes of `End`, or None where no row has ended, now or
// before; as of decode_step.
nb::object step_rows(nb::handle logits, const nb::list& objects, int threads) {
    static const Step nothing{.what = Do::force};  // what ended rows get: then their logits are not looked at
    static const SampledRow over{&nothing, 1, true, 0, 0, nullptr};
    const LogitsArgument given(logits.ptr());
    Taken taken;
    taken.take(objects, given.vocab);
    require(taken.count() == given.batch, "rows must be one for each row of the logits");
    std::vector<SampledRow> rows;
    rows.reserve(given.batch);
    for (size_t b = 0; b < given.batch; ++b) rows.push_back(taken[b].ended ? over : taken[b].described());
    DecodeStep args = given.over(rows, threads);
    const nb::object tokens = new_int64(given.batch);
    args.tokens = static_cast<int64_t*>(NumpyArray(tokens.ptr()).data());
    {
        nb::gil_scoped_release release;
        decode_step(args);
    }
    taken.leave();
    std::string ends(given.batch, static_cast<char>(End::none));
    bool ended = false;
    for (size_t b = 0; b < given.batch; ++b) {
        if (!taken[b].ended) ends[b] = static_cast<char>(taken[b].accept(args.tokens[b]));
        ended |= taken[b].ended;
    }
    return nb::make_tuple(tokens, ended ? nb::object(nb::bytes(ends.data(), ends.size())) : nb::none(),
                          logprobs_of(rows, args.tokens));
}

}  // namespace

void bind_rows(nb::module_& m) {
    nb::class_<HeldRow>(m, "Row")
        .def("__init__", &make, nb::arg("vocab"), nb::arg("history"), nb::arg("parts"), nb::arg("greedy"),
             nb::arg("seed"), nb::arg("top_logprobs").none(), nb::arg("ends"), nb::arg("stops"),
             nb::arg("limit").none())
        .def_rw("ended", &HeldRow::ended);
    m.def("step_rows", &step_rows, nb::arg("logits"), nb::arg("rows"), nb::arg("threads"));
    m.def(
        "accept_token",
        [](HeldRow& row, nb::handle token) {
            const bool none = token.is_none();
            return static_cast<int>(
                row.accept(none ? -1 : static_cast<int64_t>(integer_of(token.ptr(), 0, INT64_MAX))));
        },
        nb::arg("row"), nb::arg("token").none());
}

}  // namespace decodestep
