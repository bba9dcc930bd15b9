#include "bindings/row_parts.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "bindings/history.h"
#include "bindings/made_once.h"

namespace decodestep {
namespace {

constexpr double kMost = std::numeric_limits<double>::max(), kLeast = std::numeric_limits<double>::denorm_min();

// The classes of steps.py that depend on the history.
enum class PartKind {
    penalise_seen,
    add_counted,
    ban_followers,
    add_endings,
    ban_endings,
    add_continuations,
    while_length,
    other
};
constexpr auto kPartClasses = std::to_array<StepClass>({{"PenaliseSeen", 2},
                                                        {"AddCounted", 3},
                                                        {"BanFollowers", 1},
                                                        {"AddEndings", 1},
                                                        {"BanEndings", 1},
                                                        {"AddContinuations", 4},
                                                        {"While", 3}});
static_assert(kPartClasses.size() == static_cast<size_t>(PartKind::other));

struct PartObjects {
    std::array<PyObject*, kPartClasses.size()> classes = class_objects(kPartClasses);
};

PartKind part_kind(PyObject* object) {
    const auto& classes = made_once<PartObjects>().classes;
    const auto found = std::find(classes.begin(), classes.end(), reinterpret_cast<PyObject*>(Py_TYPE(object)));
    return static_cast<PartKind>(found - classes.begin());
}

template <class T>
Packed<const T, 1> packed(PyObject* object) {
    Packed<const T, 1> array;
    require(nb::try_cast(nb::handle(object), array), "a step's array must be a packed vector of its type");
    return array;
}

size_t count_of(PyObject* object, size_t least = 0) { return integer_of(object, least, PY_SSIZE_T_MAX); }

EndingsPart endings_part(PyObject* object, StepKind kind, size_t vocab) {
    const SequenceEndings& sequences = sequence_endings_of(object);
    require(sequences.highest_ending() < static_cast<int64_t>(vocab), "a step's ids must be in [0, vocab)");
    require(kind == StepKind::ban || sequences.has_values(), "sequences must have values to add");
    return {nb::borrow(object), &sequences, kind, {}};
}

AddContinuationsPart add_continuations_part(PyObject* object) {
    const auto field = [&](Py_ssize_t i) { return NB_TUPLE_GET_ITEM(object, i); };
    const auto values = packed<double>(field(0));
    require_aligned(values);
    std::vector<double> amounts = copy_of(values);
    const size_t shortest = count_of(field(1), 1), longest = shortest + amounts.size() - 1;
    return {continuations_of(shortest, longest, packed<int64_t>(field(2)), count_of(field(3))), shortest,
            std::move(amounts)};
}

// Of each kind of part, its steps for the history.
struct Appender {
    std::vector<Step>& steps;
    History& history;

    void append(Step step, std::span<const int64_t> ids) const {
        step.ids = ids.data();
        step.count = ids.size();
        if (step.count > 0) steps.push_back(step);
    }

    void operator()(const WhilePart& part) const {
        const size_t length = history.tokens().size();
        if (part.first <= length && length < part.last) steps.insert(steps.end(), part.steps.begin(), part.steps.end());
    }

    void operator()(const PenaliseSeenPart& part) const {
        append({.kind = StepKind::penalise, .amount = part.factor}, history.tally(part.skipped).ids());
    }

    void operator()(AddCountedPart& part) const {
        const Tally& tally = history.tally(part.skipped);
        const std::vector<int64_t>& tokens = history.tokens();
        part.values.resize(tally.ids().size());
        if (std::exchange(part.truncations, history.truncations()) != history.truncations()) part.counted = 0;
        for (size_t i = std::max(part.counted, part.skipped); i < tokens.size(); ++i) {  // those appended since
            const size_t index = tally.index_of(tokens[i]);
            part.values[index] = static_cast<float>(-(part.frequency * tally.counts()[index] + part.presence));
        }
        part.counted = tokens.size();
        append({.kind = StepKind::add, .values = part.values.data()}, tally.ids());
    }

    void operator()(const BanFollowersPart& part) const { append({.kind = StepKind::ban}, history.followers(part.n)); }

    void operator()(EndingsPart& part) const {
        part.found.find(*part.sequences, history.tokens());
        append({.kind = part.kind, .values = part.found.values().data()}, part.found.ids());
    }

    void operator()(AddContinuationsPart& part) const {
        part.found.find(history);
        const auto lengths = part.found.lengths();
        part.values.resize(lengths.size());
        std::transform(lengths.begin(), lengths.end(), part.values.begin(),
                       [&](uint8_t length) { return static_cast<float>(part.amounts[length - part.shortest]); });
        append({.kind = StepKind::add, .values = part.values.data()}, part.found.ids());
    }

    void operator()(const CallPart&) const {}
};

}  // namespace

Part part_of(PyObject* object, size_t vocab, StepArrays& arrays) {
    if (PyTuple_CheckExact(object) || PyList_CheckExact(object)) {
        WhilePart part{{}, 0, SIZE_MAX};
        append_steps(part.steps, object, vocab, arrays);
        return part;
    }
    const PartKind kind = part_kind(object);
    if (kind == PartKind::other) {
        require(PyCallable_Check(object), "a part of a row must be a sequence of steps, or callable");
        return CallPart{nb::borrow(object)};
    }
    require(NB_TUPLE_GET_SIZE(object) == kPartClasses[static_cast<size_t>(kind)].fields,
            "a step must have the fields of its type");
    const auto field = [&](Py_ssize_t i) { return NB_TUPLE_GET_ITEM(object, i); };
    switch (kind) {
        case PartKind::penalise_seen:
            return PenaliseSeenPart{count_of(field(0)), number_of(field(1), kLeast, kMost)};
        case PartKind::add_counted:
            return AddCountedPart{count_of(field(0)), number_of(field(1), -kMost, kMost),
                                  number_of(field(2), -kMost, kMost)};
        case PartKind::ban_followers:
            return BanFollowersPart{count_of(field(0), 1)};
        case PartKind::add_endings:
            return endings_part(field(0), StepKind::add, vocab);
        case PartKind::ban_endings:
            return endings_part(field(0), StepKind::ban, vocab);
        case PartKind::add_continuations:
            return add_continuations_part(object);
        default:
            break;
    }
    WhilePart part{{}, count_of(field(0)), count_of(field(1))};
    append_steps(part.steps, field(2), vocab, arrays);
    return part;
}

void append_steps(std::vector<Step>& steps, Part& part, History& history) {
    std::visit(Appender{steps, history}, part);
}

}  // namespace decodestep
