// Reads the typed steps straight from their Python objects: a call costs microseconds less than through arrays made for
// it.
#include "../decode_step.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <memory>
#include <vector>

#include "bindings.h"

namespace decodestep {
namespace {

// Holds what the kernel reads while the GIL is released.
class Arguments {
  public:
    Arguments() = default;
    Arguments(const Arguments&) = delete;
    Arguments& operator=(const Arguments&) = delete;
    ~Arguments() {
        for (Py_buffer& buffer : buffers_) PyBuffer_Release(&buffer);
    }

    // A contiguous vector; refused where the object is none of this type.
    const Py_buffer& vector(PyObject* object, std::initializer_list<char> formats) {
        Py_buffer buffer;
        if (PyObject_GetBuffer(object, &buffer, PyBUF_FORMAT | PyBUF_ND | PyBUF_C_CONTIGUOUS) != 0) {
            PyErr_Clear();
            throw std::invalid_argument("_native: a step's array must be a contiguous vector");
        }
        buffers_.push_back(buffer);
        const Py_buffer& held = buffers_.back();
        const bool known = held.ndim == 1 && held.format && held.format[1] == 0 &&
                           std::find(formats.begin(), formats.end(), held.format[0]) != formats.end();
        const bool aligned =
            reinterpret_cast<uintptr_t>(held.buf) % static_cast<size_t>(held.itemsize ? held.itemsize : 1) == 0;
        require(known && (aligned || held.len == 0), "a step's array has the wrong type");
        return held;
    }

    float* floats(size_t count) {
        numbers_.push_back(std::make_unique<float[]>(count));
        return numbers_.back().get();
    }

    std::vector<Step> steps;
    std::vector<SampledRow> rows;
    std::deque<Logprobs> logprobs;
    std::deque<std::vector<int64_t>> ids;
    std::deque<std::vector<double>> values;

  private:
    std::deque<Py_buffer> buffers_;
    std::vector<std::unique_ptr<float[]>> numbers_;
};

double number(PyObject* object) {
    const double value = PyBool_Check(object) ? -1 : PyFloat_AsDouble(object);
    if (PyBool_Check(object) || (value == -1 && PyErr_Occurred())) {
        PyErr_Clear();
        throw std::invalid_argument("_native: a step's argument must be a number");
    }
    return value;
}

uint64_t integer(PyObject* object, uint64_t low, uint64_t high) {
    require(PyLong_CheckExact(object), "an integer must be a Python int");
    const uint64_t value = PyLong_AsUnsignedLongLong(object);
    if (PyErr_Occurred()) {
        PyErr_Clear();
        throw std::invalid_argument("_native: an integer is out of range");
    }
    require(value >= low && value <= high, "an integer is out of range");
    return value;
}

double within(PyObject* object, double low, double high) {
    const double value = number(object);
    require(value >= low && value <= high, "a step's argument is out of range");
    return value;
}

// The classes of steps.py in the order of `Do`; the module stays loaded, so the pointers stay good.
const std::array<PyObject*, 17>& step_classes() {
    static const std::array<PyObject*, 17> classes = [] {
        const nb::module_ steps = nb::module_::import_("decodestep.ops.decode_step.steps");
        std::array<PyObject*, 17> found;
        size_t i = 0;
        for (const char* name : {"Penalise", "Add", "Lift", "Ban", "Allow", "Force", "Temperature", "TopK", "TopP",
                                 "MinP", "Typical", "Epsilon", "Eta", "TopH", "TopNSigma", "Xtc", "Normalise"})
            found[i++] = nb::object(steps.attr(name)).release().ptr();
        return found;
    }();
    return classes;
}

void take_ids(Step& step, PyObject* object, size_t vocab, Arguments& held) {
    const Py_buffer& buffer = held.vector(object, {'l', 'q'});
    step.ids = static_cast<const int64_t*>(buffer.buf);
    step.count = static_cast<size_t>(buffer.len) / sizeof(int64_t);
    require(step.count <= vocab, "a step's ids must be distinct");
    bool inside = true;
    for (size_t i = 0; i < step.count; ++i) inside &= static_cast<uint64_t>(step.ids[i]) < vocab;
    require(inside, "a step's id is out of range");
}

void take_values(Step& step, PyObject* object, Arguments& held) {
    const Py_buffer& buffer = held.vector(object, {'f', 'd'});
    require(static_cast<size_t>(buffer.len / buffer.itemsize) == step.count, "values must be one for each id");
    if (buffer.format[0] == 'f') {
        step.values = static_cast<const float*>(buffer.buf);
        return;
    }
    float* const narrow = held.floats(step.count);
    for (size_t i = 0; i < step.count; ++i) narrow[i] = static_cast<float>(static_cast<const double*>(buffer.buf)[i]);
    step.values = narrow;
}

Step parsed(PyObject* object, size_t vocab, Arguments& held) {
    constexpr double most = std::numeric_limits<double>::max(), least = std::numeric_limits<double>::denorm_min(),
                     one = 1 - 0x1p-53;
    constexpr uint64_t any = PY_SSIZE_T_MAX;
    const auto& classes = step_classes();
    const auto found = std::find(classes.begin(), classes.end(), reinterpret_cast<PyObject*>(Py_TYPE(object)));
    require(found != classes.end(), "a step must be of the types in decodestep.ops.decode_step.steps");
    const auto field = [&](Py_ssize_t i) { return PyTuple_GET_ITEM(object, i); };
    static constexpr std::array<Py_ssize_t, 17> fields{2, 2, 2, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 1, 3, 0};
    Step step{.what = static_cast<Do>(found - classes.begin())};
    require(PyTuple_GET_SIZE(object) == fields[static_cast<size_t>(step.what)], "a step has the wrong fields");
    switch (step.what) {
        case Do::penalise:
            take_ids(step, field(0), vocab, held);
            step.amount = within(field(1), least, most);
            break;
        case Do::add:
            take_ids(step, field(0), vocab, held);
            take_values(step, field(1), held);
            break;
        case Do::lift:
            take_ids(step, field(0), vocab, held);
            step.amount = within(field(1), -most, most);
            break;
        case Do::ban:
        case Do::allow:
        case Do::force:
            take_ids(step, field(0), vocab, held);
            break;
        case Do::temperature:
            step.amount = within(field(0), least, most);
            break;
        case Do::top_k:
            step.k = integer(field(0), 1, any);
            step.keep = integer(field(1), 1, any);
            break;
        case Do::top_p:
        case Do::min_p:
            step.amount = within(field(0), 0, 1);
            step.keep = integer(field(1), 1, any);
            break;
        case Do::typical:
        case Do::epsilon:
        case Do::eta:
            step.amount = within(field(0), least, one);
            step.keep = integer(field(1), 1, any);
            break;
        case Do::top_h:
            step.amount = within(field(0), least, 1);
            step.k = integer(field(1), 1, any);
            break;
        case Do::top_n_sigma:
            step.amount = within(field(0), 0, most);
            break;
        case Do::xtc:
            step.amount = within(field(0), 0, 1);
            step.probability = within(field(1), 0, 1);
            step.seed = integer(field(2), 0, UINT64_MAX);
            break;
        case Do::normalise:
            break;
    }
    return step;
}

// One value for all rows, or a list of one for each.
PyObject* of_row(const nb::object& value, size_t row, size_t batch) {
    if (!PyList_CheckExact(value.ptr())) return value.ptr();
    require(static_cast<size_t>(PyList_GET_SIZE(value.ptr())) == batch, "a list must hold one value for each row");
    return PyList_GET_ITEM(value.ptr(), static_cast<Py_ssize_t>(row));
}

void want_logprobs(SampledRow& row, PyObject* wanted, size_t vocab, Arguments& held) {
    if (wanted == Py_None) return;
    Logprobs& logprobs = held.logprobs.emplace_back();
    logprobs.wanted = std::min<size_t>(integer(wanted, 0, PY_SSIZE_T_MAX), vocab);
    for (int which = 0; which < 2; ++which) {
        logprobs.ids[which] = held.ids.emplace_back(logprobs.wanted).data();
        logprobs.values[which] = held.values.emplace_back(logprobs.wanted).data();
    }
    row.logprobs = &logprobs;
}

// (raw, processed, top_raw, top_processed) of a row, or None.
nb::object as_python(const Logprobs* logprobs, int64_t token) {
    if (!logprobs || token < 0) return nb::none();
    const auto top = [&](int which) {
        nb::list pairs;
        for (size_t i = 0; i < logprobs->found[which]; ++i)
            pairs.append(nb::make_tuple(logprobs->ids[which][i], logprobs->values[which][i]));
        return nb::tuple(pairs);
    };
    return nb::make_tuple(logprobs->chosen[0], logprobs->chosen[1], top(0), top(1));
}

// Halves come as their bits.
using Reals = nb::ndarray<nb::ro, nb::ndim<2>, nb::device::cpu>;

nb::object decode_step_of(Reals logits, int dtype, nb::object steps, nb::object greedy, nb::object seed,
                          nb::object position, nb::object top_logprobs, Packed<int64_t, 1> tokens,
                          std::optional<Packed<float, 2>> processed, int threads) {
    const size_t batch = logits.shape(0), vocab = logits.shape(1);
    require(dtype >= 0 && dtype <= static_cast<int>(Real::f16), "the type of the logits is unknown");
    const auto real = static_cast<Real>(dtype);
    const bool f32 = real == Real::f32;
    require(logits.dtype() == (f32 ? nb::dtype<float>() : nb::dtype<uint16_t>()), "logits has the wrong type");
    const size_t item = f32 ? 4 : 2;
    require(vocab >= 1 && vocab < (size_t{1} << 31) - 1024, "the vocabulary must hold 1 to 2^31 tokens");
    require(batch == 0 || vocab == 1 || logits.stride(1) == 1, "a row of logits must be contiguous");
    require(reinterpret_cast<uintptr_t>(logits.data()) % item == 0, "an array must be aligned to its items");
    require_aligned(tokens, processed);
    require(tokens.shape(0) == batch, "tokens has the wrong shape");
    require(!processed || (processed->shape(0) == batch && processed->shape(1) == vocab),
            "processed has the wrong shape");
    require(PyList_CheckExact(steps.ptr()) && static_cast<size_t>(PyList_GET_SIZE(steps.ptr())) == batch,
            "steps must be a list of one sequence for each row");
    Arguments held;
    std::vector<size_t> counts(batch);
    for (size_t b = 0; b < batch; ++b) {
        PyObject* const row = PyList_GET_ITEM(steps.ptr(), static_cast<Py_ssize_t>(b));
        require(PyList_CheckExact(row) || PyTuple_CheckExact(row), "a row's steps must be a list or a tuple");
        counts[b] = static_cast<size_t>(PySequence_Fast_GET_SIZE(row));
        for (size_t i = 0; i < counts[b]; ++i)
            held.steps.push_back(parsed(PySequence_Fast_GET_ITEM(row, static_cast<Py_ssize_t>(i)), vocab, held));
    }
    const Step* next = held.steps.data();
    held.rows.reserve(batch);
    for (size_t b = 0; b < batch; ++b) {
        PyObject* const flag = of_row(greedy, b, batch);
        require(PyBool_Check(flag), "greedy must be bool");
        SampledRow& row = held.rows.emplace_back(
            SampledRow{next, counts[b], flag == Py_True, integer(of_row(seed, b, batch), 0, UINT64_MAX),
                       static_cast<uint32_t>(integer(of_row(position, b, batch), 0, UINT32_MAX)), nullptr});
        want_logprobs(row, of_row(top_logprobs, b, batch), vocab, held);
        next += counts[b];
    }
    const DecodeStep args{.logits = logits.data(),
                          .dtype = real,
                          .row_bytes = static_cast<ptrdiff_t>(logits.stride(0)) * static_cast<ptrdiff_t>(item),
                          .batch = batch,
                          .vocab = vocab,
                          .rows = held.rows.data(),
                          .tokens = tokens.data(),
                          .processed = processed ? processed->data() : nullptr,
                          .threads = thread_count(threads)};
    {
        nb::gil_scoped_release release;
        decode_step(args);
    }
    if (held.logprobs.empty()) return nb::none();
    nb::list reported;
    for (size_t b = 0; b < batch; ++b) reported.append(as_python(held.rows[b].logprobs, tokens.data()[b]));
    return reported;
}

}  // namespace

void bind_decode_step(nb::module_& m) {
    m.def("decode_step", &decode_step_of, nb::arg("logits").noconvert(), nb::arg("dtype"), nb::arg("steps"),
          nb::arg("greedy"), nb::arg("seed"), nb::arg("position"), nb::arg("top_logprobs").none(),
          nb::arg("tokens").noconvert(), nb::arg("processed").none().noconvert(), nb::arg("threads"));
}

}  // namespace decodestep
