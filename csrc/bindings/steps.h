// The typed steps of src/decodestep/ops/decode_step/steps.py, read straight from their Python objects: that takes
// microseconds less than arrays made for the call.
#pragma once

#include <memory>
#include <vector>

#include "bindings/numpy_array.h"
#include "sampling/decode_step/decode_step.h"

namespace decodestep {

// The arrays that steps point into; they live as long as this.
class StepArrays {
  public:
    // Holds an array, which must be a packed vector.
    const NumpyArray& packed_vector(PyObject* object) {
        arrays_.emplace_back(object);
        require(arrays_.back().packed_vector(), "a step's array must be a packed vector");
        return arrays_.back();
    }

    float* floats(size_t count) {
        numbers_.push_back(std::make_unique_for_overwrite<float[]>(count));
        return numbers_.back().get();
    }

    // Copies what a step points to, so that later changes of its arrays do not reach it.
    void copy_arrays_of(Step& step);

    void clear() {
        arrays_.clear();
        numbers_.clear();
        ids_.clear();
    }

  private:
    std::vector<NumpyArray> arrays_;
    std::vector<std::unique_ptr<float[]>> numbers_;
    std::vector<std::unique_ptr<int64_t[]>> ids_;
};

// A number in [low, high]; otherwise std::invalid_argument, which Python sees as ValueError.
double number_of(PyObject* object, double low, double high);
uint64_t integer_of(PyObject* object, uint64_t low, uint64_t high);

// The step of a Python object; its ids must be below `vocab`. It points into the object's arrays, which `arrays` holds.
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
