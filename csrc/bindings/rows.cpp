// Rows that live from one decode step to the next. Steps that no token changes are read once; those that depend on the
// history are looked up in its indexes; the tokens drawn are appended to the history without a detour through Python.
#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "bindings/history.h"
#include "bindings/made_once.h"
#include "bindings/steps.h"
#include "core/float_environment.h"

namespace decodestep {
namespace {

constexpr double kMost = std::numeric_limits<double>::max();

// The classes of steps.py that depend on the history. Any other object is called with it and returns steps.
enum class PartKind { penalise_seen, add_counted, ban_followers, while_length, call };
constexpr auto kPartClasses =
    std::to_array<StepClass>({{"PenaliseSeen", 2}, {"AddCounted", 3}, {"BanFollowers", 1}, {"While", 3}});
static_assert(kPartClasses.size() == static_cast<size_t>(PartKind::call));

struct PartObjects {
    std::array<PyObject*, kPartClasses.size()> classes = class_objects(kPartClasses);
};

PartKind part_kind(PyObject* object) {
    const auto& classes = made_once<PartObjects>().classes;
    const auto found = std::find(classes.begin(), classes.end(), reinterpret_cast<PyObject*>(Py_TYPE(object)));
    return static_cast<PartKind>(found - classes.begin());
}

// A part of a row's steps.
struct Part {
    PartKind kind = PartKind::while_length;
    std::vector<Step> steps;            // of while_length: in force while
    size_t first = 0, last = SIZE_MAX;  // first <= length of the history < last
    size_t argument = 0;                // of penalise_seen and add_counted: skipped; of ban_followers: n
    double factor = 0;                  // of penalise_seen
    double frequency = 0, presence = 0;
    std::vector<float> values = {};  // of add_counted: what is added to each token of the tally
    size_t counted = 0;              // how many tokens of the history `values` accounts for
    nb::object make = {};            // of call

    Part(PyObject* object, size_t vocab, StepArrays& arrays);
    void append_to(std::vector<Step>& all, History& history);
    const float* counted_values(const Tally& tally, const std::vector<int64_t>& tokens);
};

Part::Part(PyObject* object, size_t vocab, StepArrays& arrays) {
    if (PyTuple_CheckExact(object) || PyList_CheckExact(object)) {
        append_steps(steps, object, vocab, arrays);
        return;
    }
    kind = part_kind(object);
    if (kind == PartKind::call) {
        require(PyCallable_Check(object), "a part of a row must be a sequence of steps, or callable");
        make = nb::borrow(object);
        return;
    }
    require(PyTuple_GET_SIZE(object) == kPartClasses[static_cast<size_t>(kind)].fields,
            "a step must have the fields of its type");
    const auto field = [&](Py_ssize_t i) { return PyTuple_GET_ITEM(object, i); };
    switch (kind) {
        case PartKind::penalise_seen:
            argument = integer_of(field(0), 0, PY_SSIZE_T_MAX);
            factor = number_of(field(1), std::numeric_limits<double>::denorm_min(), kMost);
            break;
        case PartKind::add_counted:
            argument = integer_of(field(0), 0, PY_SSIZE_T_MAX);
            frequency = number_of(field(1), -kMost, kMost);
            presence = number_of(field(2), -kMost, kMost);
            break;
        case PartKind::ban_followers:
            argument = integer_of(field(0), 1, PY_SSIZE_T_MAX);
            break;
        case PartKind::while_length:
            first = integer_of(field(0), 0, PY_SSIZE_T_MAX);
            last = integer_of(field(1), 0, PY_SSIZE_T_MAX);
            append_steps(steps, field(2), vocab, arrays);
            break;
        case PartKind::call:
            break;
    }
}

void Part::append_to(std::vector<Step>& all, History& history) {
    if (kind == PartKind::while_length) {
        const size_t length = history.tokens().size();
        if (first <= length && length < last) all.insert(all.end(), steps.begin(), steps.end());
        return;
    }
    Step step{.kind = StepKind::ban};
    const std::vector<int64_t>* ids;
    if (kind == PartKind::ban_followers) {
        ids = &history.followers(argument);
    } else {
        const Tally& tally = history.tally(argument);
        ids = &tally.ids();
        step.kind = kind == PartKind::add_counted ? StepKind::add : StepKind::penalise;
        step.amount = factor;
        if (kind == PartKind::add_counted) step.values = counted_values(tally, history.tokens());
    }
    step.ids = ids->data();
    step.count = ids->size();
    if (step.count > 0) all.push_back(step);
}

// Computed again only for the tokens that have been appended since the last call.
const float* Part::counted_values(const Tally& tally, const std::vector<int64_t>& tokens) {
    values.resize(tally.ids().size());
    for (size_t i = std::max(counted, argument); i < tokens.size(); ++i) {
        const size_t index = tally.index_of(tokens[i]);
        values[index] = static_cast<float>(-(frequency * tally.counts()[index] + presence));
    }
    counted = tokens.size();
    return values.data();
}

// Why a row ends; the order is that of ENDS in src/decodestep/ops/decode_step/rows.py.
enum class End : char { none, eos, stop, length, no_candidate };

struct HeldRow {
    size_t vocab;
    nb::object history_object;
    HeldHistory* history = nullptr;
    std::vector<Part> parts = {};
    StepArrays arrays = {};  // of `parts`
    bool greedy;
    uint64_t seed = 0;
    std::unique_ptr<LogprobsBuffer> logprobs = {};
    std::vector<int64_t> ends = {}, stops = {};  // ascending
    size_t limit = SIZE_MAX;
    bool ended = false;

    std::vector<Step> steps = {};  // of this call
    StepArrays arrays_of_call = {};

    RowRequest request();
    End end_of(int64_t token) const;
};

// The row's steps for its history. May run any Python code, in the parts that are called.
RowRequest HeldRow::request() {
    require(history->index.highest() < static_cast<int64_t>(vocab),
            "a history must not hold a token outside the vocabulary");
    require(history->index.tokens().size() <= UINT32_MAX, "a history must have at most 2^32 - 1 tokens");
    steps.clear();
    arrays_of_call.clear();
    for (Part& part : parts) {
        if (part.kind == PartKind::call)
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

// Why the row ends with its next token.
End HeldRow::end_of(int64_t token) const {
    const size_t generated = history->index.tokens().size() + 1 - history->prompt_length;
    return token < 0                                               ? End::no_candidate
           : std::binary_search(ends.begin(), ends.end(), token)   ? End::eos
           : std::binary_search(stops.begin(), stops.end(), token) ? End::stop
           : generated >= limit                                    ? End::length
                                                                   : End::none;
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
        row.logprobs = std::make_unique<LogprobsBuffer>(integer_of(top_logprobs.ptr(), 0, PY_SSIZE_T_MAX), vocab);
    row.ends = ascending(ends);
    row.stops = ascending(stops);
    row.limit = limit.is_none() ? SIZE_MAX : integer_of(limit.ptr(), 0, PY_SSIZE_T_MAX);
    new (self) HeldRow(std::move(row));
}

// For the garbage collector: a part may hold the row that calls it, by way of any other object.
int visit_parts(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    if (!nb::inst_ready(self)) return 0;
    const HeldRow& row = *nb::inst_ptr<HeldRow>(self);
    Py_VISIT(row.history_object.ptr());
    for (const Part& part : row.parts) Py_VISIT(part.make.ptr());
    return 0;
}

int clear_parts(PyObject* self) {
    if (!nb::inst_ready(self)) return 0;
    HeldRow& row = *nb::inst_ptr<HeldRow>(self);
    row.ended = true;
    // Taken out before they are destroyed, which may run Python code that finds the row.
    const std::vector<Part> parts = std::exchange(row.parts, {});
    return 0;
}

const PyType_Slot kCollected[] = {{Py_tp_traverse, reinterpret_cast<void*>(visit_parts)},
                                  {Py_tp_clear, reinterpret_cast<void*>(clear_parts)},
                                  {0, nullptr}};

// The rows of a call, locked against other calls: until `unlock`, nothing else may step them or append to their
// histories.
class LockedRows {
  public:
    LockedRows() = default;
    ~LockedRows() { unlock(); }
    LockedRows(const LockedRows&) = delete;
    LockedRows& operator=(const LockedRows&) = delete;

    void lock(const nb::list& objects, size_t vocab) {
        rows_.reserve(nb::len(objects));
        for (const nb::handle object : objects) {
            HeldRow* row = nullptr;
            require(nb::try_cast(object, row) && row, "rows must be a list of Row");
            require(row->vocab == vocab, "a row and the logits must have the same vocabulary");
            require(!row->history->in_use.is_set(), "a row can take one step at a time");
            row->history->in_use.set();
            rows_.emplace_back(nb::borrow(object), row);
        }
    }

    // Takes the tokens into the rows' histories, all or none of them, and ends the rows that end with theirs. A row
    // that has ended, also since its token was drawn, takes none: its token becomes -1. Returns what result_of makes of
    // the ends (bytes of End, or None if no row has ended in this call or before): while the rows are locked, and
    // before they change, because making Python objects may fail, or start a garbage collection, and that may run any
    // code, another step of these rows too.
    template <class ResultOf>
    nb::object take(int64_t* tokens, ResultOf&& result_of) {
        const std::string ends = ends_of(tokens);
        const nb::object result = result_of(reported(ends, tokens));
        unlock();
        append(tokens);
        for (size_t b = 0; b < count(); ++b) rows_[b].second->ended |= ends[b] != static_cast<char>(End::none);
        return result;
    }

    size_t count() const { return rows_.size(); }
    HeldRow& operator[](size_t i) const { return *rows_[i].second; }

  private:
    void unlock() {
        if (unlocked_) return;
        for (const auto& [object, row] : rows_) row->history->in_use.clear();
        unlocked_ = true;
    }

    // Why each row ends with its token, as End's.
    std::string ends_of(int64_t* tokens) const {
        std::string ends(count(), static_cast<char>(End::none));
        for (size_t b = 0; b < count(); ++b) {
            const HeldRow& row = *rows_[b].second;
            if (row.ended)
                tokens[b] = -1;
            else
                ends[b] = static_cast<char>(row.end_of(tokens[b]));
        }
        return ends;
    }

    static nb::object reported(const std::string& ends, const int64_t* tokens) {
        bool ended = false;
        for (size_t b = 0; b < ends.size(); ++b) ended |= tokens[b] < 0 || ends[b] != static_cast<char>(End::none);
        return ended ? nb::object(nb::bytes(ends.data(), ends.size())) : nb::none();
    }

    // All of the tokens or none.
    void append(const int64_t* tokens) {
        size_t b = 0;
        try {
            for (; b < count(); ++b)
                if (tokens[b] >= 0) rows_[b].second->history->append(tokens[b]);
        } catch (...) {
            while (b-- > 0)
                if (tokens[b] >= 0) rows_[b].second->history->remove_last();
            throw;
        }
    }

    std::vector<std::pair<nb::object, HeldRow*>> rows_;
    bool unlocked_ = false;
};

// Returns (tokens, ends, logprobs): int64, -1 for a row without a token; as `take` reports them; as decode_step.
// Nothing has changed where it throws.
nb::object step_rows(nb::handle logits, const nb::list& objects, int threads) {
    static const Step force_nothing{.kind = StepKind::force};
    static const RowRequest ended_row{&force_nothing, 1, true, 0, 0, nullptr};  // its logits are not read
    const DefaultFloats floats;  // values are computed and rounded here too
    const LogitsArgument given(logits.ptr());
    LockedRows locked;
    locked.lock(objects, given.vocab);
    require(locked.count() == given.batch, "rows must hold one Row for each row of the logits");
    std::vector<RowRequest> rows;
    rows.reserve(given.batch);
    for (size_t b = 0; b < given.batch; ++b) rows.push_back(locked[b].ended ? ended_row : locked[b].request());
    DecodeStep args = given.arguments(rows, threads);
    const nb::object tokens = new_int64(given.batch);
    args.tokens = static_cast<int64_t*>(NumpyArray(tokens.ptr()).data());
    {
        const ReleasedGil released;
        decode_step(args);
    }
    return locked.take(args.tokens, [&](const nb::object& ends) {
        return nb::make_tuple(tokens, ends, logprobs_of(rows, args.tokens));
    });
}

// Takes tokens that were drawn elsewhere, one for each row, -1 for none. Returns the ends, as step_rows does. Nothing
// has changed where it throws.
nb::object accept_tokens(const nb::list& objects, const nb::list& drawn, size_t vocab) {
    LockedRows locked;
    locked.lock(objects, vocab);
    require(locked.count() == nb::len(drawn), "tokens must hold one token for each row");
    std::vector<int64_t> tokens;
    tokens.reserve(locked.count());
    for (const nb::handle token : drawn) {
        require(PyLong_CheckExact(token.ptr()), "tokens must be integers");
        const int64_t value = PyLong_AsLongLong(token.ptr());
        const bool fits = value != -1 || !PyErr_Occurred();
        PyErr_Clear();
        require(fits && value >= -1 && (value < 0 || static_cast<size_t>(value) < vocab),
                "tokens must be -1 or in [0, vocab)");
        tokens.push_back(value);
    }
    return locked.take(tokens.data(), [](const nb::object& ends) { return ends; });
}

}  // namespace

void bind_rows(nb::module_& m) {
    nb::class_<HeldRow>(m, "Row", nb::type_slots(kCollected))
        .def("__init__", &make, nb::arg("vocab"), nb::arg("history"), nb::arg("parts"), nb::arg("greedy"),
             nb::arg("seed"), nb::arg("top_logprobs").none(), nb::arg("ends"), nb::arg("stops"),
             nb::arg("limit").none())
        .def_rw("ended", &HeldRow::ended);
    m.def("step_rows", &step_rows, nb::arg("logits"), nb::arg("rows"), nb::arg("threads"));
    m.def("accept_tokens", &accept_tokens, nb::arg("rows"), nb::arg("tokens"), nb::arg("vocab"));
}

}  // namespace decodestep
