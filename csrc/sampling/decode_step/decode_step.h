// Logits to the next token of every row, each row with its own steps: src/decodestep/ops/decode_step is the contract,
// reference.py beside it the truth, decision for decision and bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/isa.h"

namespace decodestep {

// The classes of src/decodestep/ops/decode_step/steps.py.
enum class Do {
    penalise,
    add,
    lift,
    ban,
    allow,
    force,
    temperature,
    top_k,
    top_p,
    min_p,
    typical,
    epsilon,
    eta,
    top_h,
    top_n_sigma,
    xtc,
    normalise
};

struct Step {
    Do what;
    const int64_t* ids = nullptr;   // of a patch: `count` token ids in [0, vocab)
    const float* values = nullptr;  // of `add`: one for each id
    size_t count = 0;
    double amount = 0;       // factor, temperature, p, mass, epsilon, share, n or threshold
    double probability = 0;  // of `xtc`
    size_t k = 1;            // of top_k: k; of top_h: top
    size_t keep = 1;
    uint64_t seed = 0;  // of `xtc`
};

// Natural logarithms of probabilities, [0] of the raw logits, [1] of what the steps leave.
struct Logprobs {
    size_t wanted = 0;  // how many of the most likely tokens; ids and values have room for them
    double chosen[2];   // of the token drawn
    size_t found[2];    // how many there were
    int64_t* ids[2] = {};
    double* values[2] = {};
};

struct SampledRow {
    const Step* steps;
    size_t count;
    bool greedy;
    uint64_t seed;
    uint32_t position;
    Logprobs* logprobs;  // null: not wanted
};

enum class Real { f32, bf16, f16 };

struct DecodeStep {
    const void* logits;  // [batch, vocab]
    Real dtype;
    ptrdiff_t row_bytes;  // from one row to the next
    size_t batch, vocab;  // 1 <= vocab < 2^31 - 512
    const SampledRow* rows;
    int64_t* tokens;   // [batch]; -1 where a row's steps leave nothing
    float* processed;  // [batch, vocab] or null
    int threads;
};

DECODESTEP_KERNEL(decode_step, DecodeStep)

}  // namespace decodestep
