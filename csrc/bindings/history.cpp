#include "bindings/history.h"

#include <memory>

#include "bindings/steps.h"

namespace decodestep {
namespace {

int64_t token_of(nb::handle object) { return static_cast<int64_t>(integer_of(object.ptr(), 0, INT64_MAX)); }

template <class T>
nb::object copied(const std::vector<T>& values) {
    auto copy = std::make_unique<std::vector<T>>(values);
    const nb::capsule owner(copy.get(), [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    std::vector<T>& kept = *copy.release();
    return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(kept.data(), {kept.size()}, owner));
}

nb::object tally(HeldHistory& held, nb::handle skipped) {
    const Tally& found = held.index.tally(integer_of(skipped.ptr(), 0, PY_SSIZE_T_MAX));
    return nb::make_tuple(copied(found.ids()), copied(found.counts()));
}

nb::object followers(HeldHistory& held, nb::handle n) {
    return copied(held.index.followers(integer_of(n.ptr(), 1, PY_SSIZE_T_MAX)));
}

}  // namespace

HeldHistory::HeldHistory(nb::list prompt) : tokens(), prompt_length(nb::len(prompt)) {
    for (size_t i = 0; i < prompt_length; ++i) append(token_of(prompt[i]));
}

void HeldHistory::append(int64_t token) {
    require(!in_use.is_set(), "a history must not grow while a call reads it");
    index.append(token);
    try {
        tokens.append(token);
    } catch (...) {
        index.remove_last();
        throw;
    }
}

void HeldHistory::remove_last() noexcept {
    index.remove_last();
    PyList_SetSlice(tokens.ptr(), static_cast<Py_ssize_t>(index.tokens().size()), PY_SSIZE_T_MAX, nullptr);
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
    m.def("tally", &tally, nb::arg("history"), nb::arg("skipped"));
    m.def("followers", &followers, nb::arg("history"), nb::arg("n"));
}

}  // namespace decodestep
