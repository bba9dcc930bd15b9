#include "bindings/steps.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "bindings/made_once.h"

namespace decodestep {
namespace {

// In the order of StepKind.
constexpr auto kStepClasses = std::to_array<StepClass>({
    {"Penalise", 2},
    {"Add", 2},
    {"Lift", 2},
    {"Ban", 1},
    {"AllowBits", 1},
    {"Allow", 1},
    {"Force", 1},
    {"Temperature", 1},
    {"TopK", 2},
    {"TopP", 2},
    {"MinP", 2},
    {"Typical", 2},
    {"Epsilon", 2},
    {"Eta", 2},
    {"TopH", 2},
    {"TopNSigma", 1},
    {"Xtc", 4},
    {"Normalise", 0},
});
static_assert(kStepClasses.size() == static_cast<size_t>(StepKind::normalise) + 1);

struct StepObjects {
    std::array<PyObject*, kStepClasses.size()> classes = class_objects(kStepClasses);
};

NumpyArray packed_vector(PyObject* object) {
    NumpyArray array(object);
    require(array.packed_vector(), "a step's array must be a packed vector");
    return array;
}

void read_ids(Step& step, PyObject* object, size_t vocab, StepArrays& arrays) {
    const NumpyArray ids = packed_vector(object);
    require(ids.holds('i', sizeof(int64_t)), "a step's ids must be int64");
    step.count = ids.length(0);
    require(step.count <= vocab, "a step must have at most as many ids as the vocabulary has tokens");
    int64_t* const copy = arrays.ids(step.count);
    std::copy_n(static_cast<const int64_t*>(ids.data()), step.count, copy);
    step.ids = copy;
    bool inside = true;
    for (size_t i = 0; i < step.count; ++i) inside &= static_cast<uint64_t>(step.ids[i]) < vocab;
    require(inside, "a step's ids must be in [0, vocab)");
}

// They may be beyond the vocabulary, where no row has a token.
void read_special(Step& step, PyObject* object, StepArrays& arrays) {
    require(PyTuple_CheckExact(object), "special tokens must be a tuple");
    step.count = static_cast<size_t>(NB_TUPLE_GET_SIZE(object));
    int64_t* const ids = arrays.ids(step.count);
    for (size_t i = 0; i < step.count; ++i)
        ids[i] = static_cast<int64_t>(integer_of(NB_TUPLE_GET_ITEM(object, static_cast<Py_ssize_t>(i)), 0, INT32_MAX));
    step.ids = ids;
}

// Masks that leave so few of the tokens are read as a list of them: a pass over the row costs more.
constexpr size_t kTokensForEachListed = 256;

void read_bits(Step& step, PyObject* object, size_t vocab, StepArrays& arrays) {
    const NumpyArray bits = packed_vector(object);
    require(bits.holds('i', sizeof(uint32_t)), "a step's bits must be int32");
    step.count = bits.length(0);
    require(step.count == (vocab + 31) / 32, "a step must have one bit for each token of the vocabulary");
    uint32_t* const copy = arrays.words(step.count);
    std::memcpy(copy, bits.data(), step.count * sizeof(uint32_t));
    step.bits = copy;
    if (vocab % 32 != 0) copy[step.count - 1] &= (1u << (vocab % 32)) - 1;
    size_t allowed = 0;
    for (size_t i = 0; i < step.count; ++i) allowed += static_cast<size_t>(std::popcount(copy[i]));
    if (allowed > vocab / kTokensForEachListed) return;
    int64_t* const ids = arrays.ids(allowed);
    size_t n = 0;
    for (size_t i = 0; i < step.count; ++i)
        for (uint32_t word = copy[i]; word != 0; word &= word - 1)
            ids[n++] = static_cast<int64_t>(32 * i) + std::countr_zero(word);
    step = {.kind = StepKind::allow, .ids = ids, .count = allowed};
}

void read_values(Step& step, PyObject* object, StepArrays& arrays) {
    const NumpyArray values = packed_vector(object);
    require(values.length(0) == step.count, "a step must have one value for each id");
    const bool narrow = values.holds('f', sizeof(float));
    require(narrow || values.holds('f', sizeof(double)), "a step's values must be float32 or float64");
    float* const copy = arrays.floats(step.count);
    if (narrow)
        std::copy_n(static_cast<const float*>(values.data()), step.count, copy);
    else
        std::transform(static_cast<const double*>(values.data()),
                       static_cast<const double*>(values.data()) + step.count, copy,
                       [](double value) { return static_cast<float>(value); });
    step.values = copy;
}

}  // namespace

double number_of(PyObject* object, double low, double high) {
    // Other types would be converted by their own methods, which may be any code.
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
    const auto& classes = made_once<StepObjects>().classes;
    const auto found = std::find(classes.begin(), classes.end(), reinterpret_cast<PyObject*>(Py_TYPE(object)));
    require(found != classes.end(), "a step must be of the types in decodestep.steps");
    const auto field = [&](Py_ssize_t i) { return NB_TUPLE_GET_ITEM(object, i); };
    Step step{.kind = static_cast<StepKind>(found - classes.begin())};
    require(NB_TUPLE_GET_SIZE(object) == kStepClasses[static_cast<size_t>(step.kind)].fields,
            "a step must have the fields of its type");
    switch (step.kind) {
        case StepKind::penalise:
            read_ids(step, field(0), vocab, arrays);
            step.amount = number_of(field(1), least, most);
            break;
        case StepKind::add:
            read_ids(step, field(0), vocab, arrays);
            read_values(step, field(1), arrays);
            break;
        case StepKind::lift:
            read_ids(step, field(0), vocab, arrays);
            step.amount = number_of(field(1), -most, most);
            break;
        case StepKind::ban:
        case StepKind::allow:
        case StepKind::force:
            read_ids(step, field(0), vocab, arrays);
            break;
        case StepKind::allow_bits:
            read_bits(step, field(0), vocab, arrays);
            break;
        case StepKind::temperature:
            step.amount = number_of(field(0), least, most);
            break;
        case StepKind::top_k:
            step.k = integer_of(field(0), 1, any);
            step.min_keep = integer_of(field(1), 1, any);
            break;
        case StepKind::top_p:
        case StepKind::min_p:
            step.amount = number_of(field(0), 0, 1);
            step.min_keep = integer_of(field(1), 1, any);
            break;
        case StepKind::typical:
        case StepKind::epsilon:
        case StepKind::eta:
            step.amount = number_of(field(0), least, one);
            step.min_keep = integer_of(field(1), 1, any);
            break;
        case StepKind::top_h:
            step.amount = number_of(field(0), least, 1);
            step.k = integer_of(field(1), 1, any);
            break;
        case StepKind::top_n_sigma:
            step.amount = number_of(field(0), 0, most);
            break;
        case StepKind::xtc:
            step.amount = number_of(field(0), 0, 1);
            step.probability = number_of(field(1), 0, 1);
            step.seed = integer_of(field(2), 0, UINT64_MAX);
            read_special(step, field(3), arrays);
            break;
        case StepKind::normalise:
            break;
    }
    return step;
}

void append_steps(std::vector<Step>& steps, PyObject* sequence, size_t vocab, StepArrays& arrays) {
    const bool listed = PyList_CheckExact(sequence);
    require(listed || PyTuple_CheckExact(sequence), "steps must be a list or a tuple");
    for (Py_ssize_t i = 0; i < (listed ? NB_LIST_GET_SIZE(sequence) : NB_TUPLE_GET_SIZE(sequence)); ++i)
        steps.push_back(
            step_of(listed ? NB_LIST_GET_ITEM(sequence, i) : NB_TUPLE_GET_ITEM(sequence, i), vocab, arrays));
}

LogprobsBuffer::LogprobsBuffer(size_t wanted, size_t vocab) {
    logprobs.wanted = std::min(wanted, vocab);
    ids = std::make_unique_for_overwrite<int64_t[]>(2 * logprobs.wanted);
    values = std::make_unique_for_overwrite<double[]>(2 * logprobs.wanted);
    logprobs.raw.ids = ids.get();
    logprobs.raw.values = values.get();
    logprobs.processed.ids = ids.get() + logprobs.wanted;
    logprobs.processed.values = values.get() + logprobs.wanted;
}

nb::object logprobs_of(const std::vector<RowRequest>& rows, const int64_t* tokens) {
    if (std::all_of(rows.begin(), rows.end(), [](const RowRequest& row) { return !row.logprobs; })) return nb::none();
    nb::list reported;
    for (size_t b = 0; b < rows.size(); ++b) {
        if (!rows[b].logprobs || tokens[b] < 0) {
            reported.append(nb::none());
            continue;
        }
        const auto most_likely = [](const RowLogprobs& found) {
            nb::list pairs;
            for (size_t i = 0; i < found.count; ++i) pairs.append(nb::make_tuple(found.ids[i], found.values[i]));
            return nb::tuple(pairs);
        };
        const auto& [wanted, raw, processed] = *rows[b].logprobs;
        reported.append(nb::make_tuple(raw.chosen, processed.chosen, most_likely(raw), most_likely(processed)));
    }
    return reported;
}

LogitsArgument::LogitsArgument(PyObject* object) : array(object) {
    require(array.dimensions() == 2, "logits must be 2-dimensional");
    batch = array.length(0);
    vocab = array.length(1);
    require(vocab >= 1 && vocab < (size_t{1} << 31) - 1024, "the vocabulary must have 1 to 2^31 - 1025 tokens");
    dtype = array.holds('f', 4) ? LogitType::f32 : array.holds('f', 2) ? LogitType::f16 : LogitType::bf16;
    require(dtype != LogitType::bf16 || array.holds_bfloat16(), "logits must be float32, float16 or bfloat16");
    require(batch == 0 || vocab == 1 || array.stride(1) == (dtype == LogitType::f32 ? 4 : 2),
            "a row of logits must be contiguous");
}

DecodeStep LogitsArgument::arguments(const std::vector<RowRequest>& rows, int threads) const {
    return {.logits = array.data(),
            .dtype = dtype,
            .row_bytes = array.stride(0),
            .batch = rows.size(),
            .vocab = vocab,
            .rows = rows.data(),
            .tokens = nullptr,
            .processed = nullptr,
            .threads = thread_count(threads)};
}

}  // namespace decodestep
