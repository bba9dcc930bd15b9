// Arguments by name, for calls with many of them.
#pragma once

#include <string>
#include <unordered_map>

#include "bindings/bindings.h"

namespace decodestep {

// The arguments of a call, or a group of them, read by name where they are used: no order of tens of values that two
// places would have to share.
class Keywords {
  public:
    // op: the function of _native, for messages.
    Keywords(const char* op, const nb::dict& given) : op_(op), given_(given) {}

    // An array or a group, which is never converted; None with std::optional.
    template <class A>
    A array(const char* name) {
        return get<A>(name, false);
    }

    template <class N>
    N number(const char* name) {
        return get<N>(name, true);
    }

    Keywords group(const char* name) { return {op_, array<nb::dict>(name)}; }

    // To be called after the last argument has been read.
    void require_all_read() const {
        if (given_.size() != read_) throw nb::type_error(message("an argument", " is unknown").c_str());
    }

  private:
    template <class V>
    V get(const char* name, bool convert) {
        ++read_;
        PyObject* const found = PyDict_GetItem(given_.ptr(), interned(name));
        if (!found) throw nb::type_error(message(name, " is missing").c_str());
        const nb::object value = frozen(found);
        V result;
        if (!nb::try_cast<V>(value, result, convert))
            throw nb::type_error(message(name, " has the wrong type").c_str());
        return result;
    }

    std::string message(const char* name, const char* what) const {
        return std::string("_native.") + op_ + ": " + name + what;
    }

    // The string object of a literal, made once: making one for each look-up would take longer than the look-up.
    static PyObject* interned(const char* literal) {
        static std::unordered_map<const char*, PyObject*> names;  // by address; guarded by the GIL
        PyObject*& name = names[literal];
        if (!name) name = PyUnicode_InternFromString(literal);
        return name;
    }

    const char* op_;
    nb::dict given_;
    size_t read_ = 0;
};

}  // namespace decodestep
