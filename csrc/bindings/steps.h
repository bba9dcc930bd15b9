// The typed steps of src/decodestep/ops/decode_step/steps.py, read straight from their Python objects: that takes
// microseconds less than arrays made for the call.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "bindings/numpy_array.h"
#include "sampling/decode_step/decode_step.h"

namespace decodestep {

// The arrays that steps point into: copies, which live as long as this. The kernel runs without the GIL,
// so another thread may change the arrays that they are copied from.
class StepArrays {
  public:
    int64_t* ids(size_t count) {
        ids_.push_back(std::make_unique_for_overwrite<int64_t[]>(count));
        return ids_.back().get();
    }

    float* floats(size_t count) {
        numbers_.push_back(std::make_unique_for_overwrite<float[]>(count));
        return numbers_.back().get();
    }

    uint32_t* words(size_t count) {
        words_.push_back(std::make_unique_for_overwrite<uint32_t[]>(count));
        return words_.back().get();
    }

    void clear() {
        ids_.clear();
        numbers_.clear();
        words_.clear();
    }

  private:
    std::vector<std::unique_ptr<int64_t[]>> ids_;
    std::vector<std::unique_ptr<float[]>> numbers_;
    std::vector<std::unique_ptr<uint32_t[]>> words_;
};

// A class of steps.py: a named tuple with this many fields.
struct StepClass {
    const char* name;
    Py_ssize_t fields;
};

// Their class objects. The references are never given back, so the pointers stay valid.
template <size_t count>
std::array<PyObject*, count> class_objects(const std::array<StepClass, count>& classes) {
    const nb::module_ steps = nb::module_::import_("decodestep.ops.decode_step.steps");
    std::array<PyObject*, count> objects;
    for (size_t i = 0; i < count; ++i) objects[i] = nb::object(steps.attr(classes[i].name)).release().ptr();
    return objects;
}

// A number in [low, high]; otherwise std::invalid_argument, which Python sees as ValueError.
double number_of(PyObject* object, double low, double high);
uint64_t integer_of(PyObject* object, uint64_t low, uint64_t high);

// The step of a Python object; its ids must be below `vocab`. It points into `arrays`.
Step step_of(PyObject* object, size_t vocab, StepArrays& arrays);

// Appends the steps of a list or a tuple.
void append_steps(std::vector<Step>& steps, PyObject* sequence, size_t vocab, StepArrays& arrays);

// The memory that a row's log-probabilities are written to.
struct LogprobsBuffer {
    // wanted: how many of the most likely tokens.
    LogprobsBuffer(size_t wanted, size_t vocab);

    Logprobs logprobs;
    std::unique_ptr<int64_t[]> ids;
    std::unique_ptr<double[]> values;
};

// The rows' log-probabilities as a list of (raw, processed, top_raw, top_processed), of None for a row that wants none
// or has no token; None if no row wants any.
nb::object logprobs_of(const std::vector<RowRequest>& rows, const int64_t* tokens);

// The (batch, vocab) logits of a call.
struct LogitsArgument {
    explicit LogitsArgument(PyObject* object);

    NumpyArray array;
    size_t batch, vocab;
    LogitType dtype;

    // The arguments of the kernel, but for `tokens` and `processed`, the results.
    DecodeStep arguments(const std::vector<RowRequest>& rows, int threads) const;
};

}  // namespace decodestep
