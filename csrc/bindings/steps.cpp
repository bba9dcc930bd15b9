#include "bindings/steps.h"

#include <algorithm>
#include <array>
#include <limits>

namespace decodestep {
namespace {

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

void take_ids(Step& step, PyObject* object, size_t vocab, StepArrays& arrays) {
    const NumpyArray& ids = arrays.vector(object);
    require(ids.holds('i', sizeof(int64_t)), "a step's ids must be int64");
    step.ids = static_cast<const int64_t*>(ids.data());
    step.count = ids.length(0);
    require(step.count <= vocab, "a step has more ids than there are tokens");
    bool inside = true;
    for (size_t i = 0; i < step.count; ++i) inside &= static_cast<uint64_t>(step.ids[i]) < vocab;
    require(inside, "a step's id is out of range");
}

void take_values(Step& step, PyObject* object, StepArrays& arrays) {
    const NumpyArray& values = arrays.vector(object);
    require(values.length(0) == step.count, "values must be one for each id");
    if (values.holds('f', sizeof(float))) {
        step.values = static_cast<const float*>(values.data());
        return;
    }
    require(values.holds('f', sizeof(double)), "values must be float32 or float64");
    float* const narrow = arrays.floats(step.count);
    for (size_t i = 0; i < step.count; ++i)
        narrow[i] = static_cast<float>(static_cast<const double*>(values.data())[i]);
    step.values = narrow;
}

}  // namespace

void StepArrays::keep(Step& step) {
    if (step.ids) {
        ids_.push_back(std::make_unique_for_overwrite<int64_t[]>(step.count));
        std::copy_n(step.ids, step.count, ids_.back().get());
        step.ids = ids_.back().get();
    }
    if (step.values) step.values = std::copy_n(step.values, step.count, floats(step.count)) - step.count;
    arrays_.clear();
}

double number_of(PyObject* object, double low, double high) {
    // Of other types the conversion is code that anybody may have written.
    require(PyFloat_Check(object) || PyLong_CheckExact(object), "a number must be a Python float or int");
    const double value = PyFloat_AsDouble(object);
    if (value == -1 && PyErr_Occurred()) {
        PyErr_Clear();
        throw std::invalid_argument("_native: a number is out of range");
    }
    require(value >= low && value <= high, "a number is out of range");
    return value;
}

uint64_t integer_of(PyObject* object, uint64_t low, uint64_t high) {
    require(PyLong_CheckExact(object), "an integer must be a Python int");
    const uint64_t value = PyLong_AsUnsignedLongLong(object);
    if (value == UINT64_MAX && PyErr_Occurred()) {
        PyErr_Clear();
        throw std::invalid_argument("_native: an integer is out of range");
    }
    require(value >= low && value <= high, "an integer is out of range");
    return value;
}

Step step_of(PyObject* object, size_t vocab, StepArrays& arrays) {
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
            take_ids(step, field(0), vocab, arrays);
            step.amount = number_of(field(1), least, most);
            break;
        case Do::add:
            take_ids(step, field(0), vocab, arrays);
            take_values(step, field(1), arrays);
            break;
        case Do::lift:
            take_ids(step, field(0), vocab, arrays);
            step.amount = number_of(field(1), -most, most);
            break;
        case Do::ban:
        case Do::allow:
        case Do::force:
            take_ids(step, field(0), vocab, arrays);
            break;
        case Do::temperature:
            step.amount = number_of(field(0), least, most);
            break;
        case Do::top_k:
            step.k = integer_of(field(0), 1, any);
            step.keep = integer_of(field(1), 1, any);
            break;
        case Do::top_p:
        case Do::min_p:
            step.amount = number_of(field(0), 0, 1);
            step.keep = integer_of(field(1), 1, any);
            break;
        case Do::typical:
        case Do::epsilon:
        case Do::eta:
            step.amount = number_of(field(0), least, one);
            step.keep = integer_of(field(1), 1, any);
            break;
        case Do::top_h:
            step.amount = number_of(field(0), least, 1);
            step.k = integer_of(field(1), 1, any);
            break;
        case Do::top_n_sigma:
            step.amount = number_of(field(0), 0, most);
            break;
        case Do::xtc:
            step.amount = number_of(field(0), 0, 1);
            step.probability = number_of(field(1), 0, 1);
            step.seed = integer_of(field(2), 0, UINT64_MAX);
            break;
        case Do::normalise:
            break;
    }
    return step;
}

void append_steps(std::vector<Step>& steps, PyObject* sequence, size_t vocab, StepArrays& arrays) {
    require(PyList_CheckExact(sequence) || PyTuple_CheckExact(sequence), "steps must be a list or a tuple");
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(sequence); ++i)
        steps.push_back(step_of(PySequence_Fast_GET_ITEM(sequence, i), vocab, arrays));
}

LogprobsRoom::LogprobsRoom(size_t wanted, size_t vocab) {
    logprobs.wanted = std::min(wanted, vocab);
    for (int which = 0; which < 2; ++which) {
        ids[which] = std::make_unique_for_overwrite<int64_t[]>(logprobs.wanted);
        values[which] = std::make_unique_for_overwrite<double[]>(logprobs.wanted);
        logprobs.ids[which] = ids[which].get();
        logprobs.values[which] = values[which].get();
    }
}

nb::object logprobs_of(const std::vector<SampledRow>& rows, const int64_t* tokens) {
    if (std::all_of(rows.begin(), rows.end(), [](const SampledRow& row) { return !row.logprobs; })) return nb::none();
    nb::list reported;
    for (size_t b = 0; b < rows.size(); ++b) {
        if (!rows[b].logprobs || tokens[b] < 0) {
            reported.append(nb::none());
            continue;
        }
        const Logprobs& found = *rows[b].logprobs;
        const auto top = [&](int which) {
            nb::list pairs;
            for (size_t i = 0; i < found.found[which]; ++i)
                pairs.append(nb::make_tuple(found.ids[which][i], found.values[which][i]));
            return nb::tuple(pairs);
        };
        reported.append(nb::make_tuple(found.chosen[0], found.chosen[1], top(0), top(1)));
    }
    return reported;
}

LogitsArgument::LogitsArgument(PyObject* object) : array(object) {
    require(array.dimensions() == 2, "logits must be a matrix");
    batch = array.length(0);
    vocab = array.length(1);
    require(vocab >= 1 && vocab < (size_t{1} << 31) - 1024, "the vocabulary must hold 1 to 2^31 tokens");
    dtype = array.holds('f', 4) ? Real::f32 : array.holds('f', 2) ? Real::f16 : Real::bf16;
    require(dtype != Real::bf16 || array.holds_bfloat16(), "the type of the logits is unknown");
    require(batch == 0 || vocab == 1 || array.stride(1) == (dtype == Real::f32 ? 4 : 2),
            "a row of logits must be contiguous");
}

DecodeStep LogitsArgument::over(const std::vector<SampledRow>& rows, int threads) const {
    return {.logits = array.data(),
            .dtype = dtype,
            .row_bytes = array.stride(0),
            .batch = batch,
            .vocab = vocab,
            .rows = rows.data(),
            .tokens = nullptr,
            .processed = nullptr,
            .threads = thread_count(threads)};
}

}  // namespace decodestep
