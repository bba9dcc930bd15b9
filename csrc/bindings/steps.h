// The typed steps of src/decodestep/ops/decode_step/steps.py, read straight from their Python objects: a call costs
// microseconds less than through arrays made for it.
#pragma once

#include <memory>
#include <vector>

#include "bindings/numpy_array.h"
#include "sampling/decode_step/decode_step.h"

namespace decodestep {

// The arrays that steps point into.
class StepArrays {
  public:
    // A packed vector; refused where the object is none.
    const NumpyArray& vector(PyObject* object) {
        arrays_.emplace_back(object);
        require(arrays_.back().packed_vector(), "a step's array must be a packed vector");
        return arrays_.back();
    }

    float* floats(size_t count) {
        numbers_.push_back(std::make_unique_for_overwrite<float[]>(count));
        return numbers_.back().get();
    }

    // Copies what a step points to, so that it holds when its arrays change.
    void keep(Step& step);

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

// Numbers within bounds: std::invalid_argument for all else, which Python sees as ValueError.
double number_of(PyObject* object, double low, double high);
uint64_t integer_of(PyObject* object, uint64_t low, uint64_t high);

// A step over `vocab` tokens.
Step step_of(PyObject* object, size_t vocab, StepArrays& arrays);

// Appends the steps of a list or a tuple.
void append_steps(std::vector<Step>& steps, PyObject* sequence, size_t vocab, StepArrays& arrays);

// Where a row's log-probabilities go.
struct LogprobsRoom {
    // wanted: Python's None, or how many of the most likely tokens.
    LogprobsRoom(size_t wanted, size_t vocab);

    Logprobs logprobs;
    std::unique_ptr<int64_t[]> ids[2];
    std::unique_ptr<double[]> values[2];
};

// A list of what the rows' log-probabilities are, (raw, processed, top_raw, top_processed) or None; None where no row
// has any.
nb::object logprobs_of(const std::vector<SampledRow>& rows, const int64_t* tokens);

// The (B, V) logits of a call.
struct LogitsArgument {
    explicit LogitsArgument(PyObject* object);

    NumpyArray array;
    size_t batch, vocab;
    Real dtype;

    // The arguments of the kernel, which has yet to be told where its results go.
    DecodeStep over(const std::vector<SampledRow>& rows, int threads) const;
};

}  // namespace decodestep
