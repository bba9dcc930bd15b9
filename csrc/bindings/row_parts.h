// Where the steps of a row come from: the parts of src/decodestep/ops/decode_step/rows.py, read from their Python
// objects once. What a part has looked up in the history is kept in it, for the kernel to read.
#pragma once

#include <variant>
#include <vector>

#include "bindings/steps.h"
#include "sampling/decode_step/history.h"
#include "sampling/decode_step/sequence_endings.h"

namespace decodestep {

struct WhilePart {
    std::vector<Step> steps;  // in force while
    size_t first, last;       // first <= length of the history < last
};

struct PenaliseSeenPart {
    size_t skipped;
    double factor;
};

struct AddCountedPart {
    size_t skipped;
    double frequency, presence;
    std::vector<float> values = {};  // what is added to each token of the tally
    size_t counted = 0;              // how many tokens of the history `values` accounts for
    size_t truncations = 0;          // of the history then
};

struct BanFollowersPart {
    size_t n;
};

// AddEndings or BanEndings.
struct EndingsPart {
    nb::object owner;  // of `sequences`
    const SequenceEndings* sequences;
    StepKind kind;
    FoundEndings found;
};

struct AddContinuationsPart {
    Continuations found;
    size_t shortest;
    std::vector<double> amounts;     // by the length of a repetition, from the shortest on
    std::vector<float> values = {};  // what is added to each token found
};

// Any other object: it is called with the history and returns steps.
struct CallPart {
    nb::object function;
};

using Part = std::variant<WhilePart, PenaliseSeenPart, AddCountedPart, BanFollowersPart, EndingsPart,
                          AddContinuationsPart, CallPart>;

// The part of a Python object. Constant steps point into `arrays`.
Part part_of(PyObject* object, size_t vocab, StepArrays& arrays);

// Appends the steps of a part, but a CallPart, for the history. They point into the part and the history.
void append_steps(std::vector<Step>& steps, Part& part, History& history);

}  // namespace decodestep
