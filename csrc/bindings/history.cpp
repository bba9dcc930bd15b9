#include "bindings/history.h"

#include <memory>

#include "bindings/steps.h"
#include "core/float_environment.h"

namespace decodestep {
namespace {

int64_t token_of(nb::handle object) { return static_cast<int64_t>(integer_of(object.ptr(), 0, INT64_MAX)); }

template <class T>
nb::object copied(std::span<const T> values) {
    auto copy = std::make_unique<std::vector<T>>(values.begin(), values.end());
    const nb::capsule owner(copy.get(), [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    std::vector<T>& kept = *copy.release();
    return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(kept.data(), {kept.size()}, owner));
}

nb::object token_ids(const HeldHistory& held) { return copied<int64_t>(held.index.tokens()); }

nb::object tally(HeldHistory& held, nb::handle skipped) {
    const Tally& found = held.index.tally(integer_of(skipped.ptr(), 0, PY_SSIZE_T_MAX));
    return nb::make_tuple(copied<int64_t>(found.ids()), copied<double>(found.counts()));
}

nb::object followers(HeldHistory& held, nb::handle n) {
    return copied<int64_t>(held.index.followers(integer_of(n.ptr(), 1, PY_SSIZE_T_MAX)));
}

void make_sequences(SequenceEndings* self, const Ids& tokens, const Ids& lengths, const std::optional<Vector>& values) {
    require_aligned(tokens, lengths, values);
    std::vector<int64_t> ids = copy_of(tokens);
    const std::vector<int64_t> counts = copy_of(lengths);
    const std::vector<float> numbers = values ? copy_of(*values) : std::vector<float>{};
    require(all_within(ids, SIZE_MAX), "the tokens of sequences must be integers >= 0");
    require(counts.size() < (size_t{1} << 31), "there must be less than 2^31 sequences");
    require(!values || numbers.size() == counts.size(), "sequences must have one value each");
    size_t left = ids.size();
    for (const int64_t count : counts) {
        require(count >= 1 && static_cast<size_t>(count) <= left, "sequences must have tokens");
        left -= static_cast<size_t>(count);
    }
    require(left == 0, "sequences must have all tokens");
    const DefaultFloats floats;  // values are summed
    const ReleasedGil released;  // a large index takes a tenth of a second
    new (self) SequenceEndings(std::move(ids), counts, numbers, values.has_value());
}

nb::object endings(HeldHistory& held, nb::handle sequences) {
    FoundEndings found;
    found.find(sequence_endings_of(sequences), held.index.tokens());
    return nb::make_tuple(copied<int64_t>(found.ids()), copied<float>(found.values()));
}

nb::object continuations(HeldHistory& held, nb::handle shortest, nb::handle longest, const Ids& breakers,
                         nb::handle range) {
    const auto count_of = [](nb::handle object) { return integer_of(object.ptr(), 0, PY_SSIZE_T_MAX); };
    Continuations found = continuations_of(count_of(shortest), count_of(longest), breakers, count_of(range));
    found.find(held.index);
    return nb::make_tuple(copied<int64_t>(found.ids()), copied<uint8_t>(found.lengths()));
}

}  // namespace

const SequenceEndings& sequence_endings_of(nb::handle object) {
    const SequenceEndings* sequences = nullptr;
    require(nb::try_cast(object, sequences) && sequences, "sequences must be a SequenceEndings");
    return *sequences;
}

Continuations continuations_of(size_t shortest, size_t longest, const Ids& breakers, size_t range) {
    require(shortest >= 1 && shortest <= longest && longest <= Repetitions::kLongest,
            "a repetition must have a length that is counted");
    require_aligned(breakers);
    return Continuations(shortest, longest, copy_of(breakers), range);
}

HeldHistory::HeldHistory(nb::list prompt) : tokens(), prompt_length(nb::len(prompt)) {
    for (size_t i = 0; i < prompt_length; ++i) append(token_of(prompt[i]));
}

void HeldHistory::append(int64_t token) {
    require(!in_use.is_set(), "a history must not grow while a call reads it");
    index.append(token);
    try {
        tokens.append(token);
    } catch (...) {
        index.truncate(index.tokens().size() - 1);
        throw;
    }
}

void HeldHistory::truncate(size_t length) {
    require(!in_use.is_set(), "a history must not shrink while a call reads it");
    require(prompt_length <= length && length <= index.tokens().size(),
            "a history must keep its prompt, and can keep no more than it has");
    if (PyList_SetSlice(tokens.ptr(), static_cast<Py_ssize_t>(length), PY_SSIZE_T_MAX, nullptr) != 0)
        throw nb::python_error();
    index.truncate(length);
}

void bind_history(nb::module_& m) {
    nb::class_<HeldHistory>(m, "History")
        .def(nb::init<nb::list>(), nb::arg("prompt_ids"))
        .def("__len__", [](const HeldHistory& held) { return held.index.tokens().size(); })
        .def_ro("tokens", &HeldHistory::tokens)
        .def_ro("prompt_length", &HeldHistory::prompt_length)
        .def_prop_ro("highest", [](const HeldHistory& held) { return held.index.highest(); });
    m.def(
        "append_token", [](HeldHistory& held, nb::handle token) { held.append(token_of(token)); }, nb::arg("history"),
        nb::arg("token"));
    m.def(
        "truncate_history",
        [](HeldHistory& held, nb::handle length) { held.truncate(integer_of(length.ptr(), 0, PY_SSIZE_T_MAX)); },
        nb::arg("history"), nb::arg("length"));
    m.def("token_ids", &token_ids, nb::arg("history"));
    m.def("tally", &tally, nb::arg("history"), nb::arg("skipped"));
    m.def("followers", &followers, nb::arg("history"), nb::arg("n"));
    nb::class_<SequenceEndings>(m, "SequenceEndings")
        .def("__init__", &make_sequences, nb::arg("tokens"), nb::arg("lengths"), nb::arg("values").none());
    m.def("endings", &endings, nb::arg("history"), nb::arg("sequences"));
    m.def("continuations", &continuations, nb::arg("history"), nb::arg("shortest"), nb::arg("longest"),
          nb::arg("breakers"), nb::arg("range"));
}

}  // namespace decodestep
