// Rows that live from one decode step to the next. Steps that no token changes are read once; those that depend on the
// history are looked up in its indexes; the tokens drawn are appended to the history without a detour through Python.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "bindings/history.h"
#include "bindings/row_parts.h"
#include "bindings/steps.h"
#include "core/float_environment.h"

namespace decodestep {
namespace {

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
        if (const auto* call = std::get_if<CallPart>(&part))
            append_steps(steps, call->function(history_object).ptr(), vocab, arrays_of_call);
        else
            append_steps(steps, part, history->index);
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
    for (const nb::handle part : parts) row.parts.push_back(part_of(part.ptr(), vocab, row.arrays));
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
    for (const Part& part : row.parts)
        if (const auto* call = std::get_if<CallPart>(&part)) Py_VISIT(call->function.ptr());
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
            while (b-- > 0) {
                HeldHistory& history = *rows_[b].second->history;
                if (tokens[b] >= 0) history.truncate(history.index.tokens().size() - 1);
            }
            throw;
        }
    }

    std::vector<std::pair<nb::object, HeldRow*>> rows_;
    bool unlocked_ = false;
};

// Which row of the logits each row reads.
std::vector<size_t> places_of(const nb::list& places, size_t logits) {
    std::vector<size_t> values;
    values.reserve(nb::len(places));
    for (const nb::handle place : places) {
        require(logits > 0, "places must be rows of the logits");
        values.push_back(integer_of(place.ptr(), 0, logits - 1));
    }
    return values;
}

// Returns (tokens, ends, logprobs): int64, -1 for a row without a token; as `take` reports them; as decode_step.
// places: which row of the logits each row reads; without them, its own. Nothing has changed where it throws.
nb::object step_rows(nb::handle logits, const nb::list& objects, int threads,
                     const std::optional<nb::list>& places_of_rows) {
    static const Step force_nothing{.kind = StepKind::force};
    static const RowRequest ended_row{&force_nothing, 1, true, 0, 0, nullptr};  // its logits are not read
    const DefaultFloats floats;  // values are computed and rounded here too
    const LogitsArgument given(logits.ptr());
    LockedRows locked;
    locked.lock(objects, given.vocab);
    const std::vector<size_t> places = places_of_rows ? places_of(*places_of_rows, given.batch) : std::vector<size_t>{};
    const size_t batch = places_of_rows ? places.size() : given.batch;
    require(locked.count() == batch, "rows must hold one Row for each row of the logits, or for each place");
    std::vector<RowRequest> rows;
    rows.reserve(batch);
    for (size_t b = 0; b < batch; ++b) rows.push_back(locked[b].ended ? ended_row : locked[b].request());
    DecodeStep args = given.arguments(rows, threads);
    const nb::object tokens = new_int64(batch);
    if (places_of_rows) args.places = places.data();
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
    m.def("step_rows", &step_rows, nb::arg("logits"), nb::arg("rows"), nb::arg("threads"),
          nb::arg("places").none() = nb::none());
    m.def("accept_tokens", &accept_tokens, nb::arg("rows"), nb::arg("tokens"), nb::arg("vocab"));
}

}  // namespace decodestep
