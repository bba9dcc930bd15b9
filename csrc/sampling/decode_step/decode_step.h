// Logits to the next token of every row, each row with its own steps. src/decodestep/ops/decode_step is the contract;
// reference.py beside it defines the result, decision for decision and bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/isa.h"
#include "sampling/row/logit_type.h"

namespace decodestep {

// The classes of src/decodestep/ops/decode_step/steps.py: patches up to `force`, filters from `top_k` on.
enum class StepKind {
    penalise,
    add,
    lift,
    ban,
    allow_bits,
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
    StepKind kind;
    const int64_t* ids = nullptr;   // `count` token ids: of a patch, in [0, vocab); of `xtc`, any that it does not drop
    const float* values = nullptr;  // of `add`: one for each id
    size_t count = 0;
    const uint32_t* bits = nullptr;  // of allow_bits: a bit for each token, 1 where it stays, lowest first
    double amount = 0;               // factor, temperature, p, mass, epsilon, share, n or threshold
    double probability = 0;          // of `xtc`
    size_t k = 1;                    // of top_k: k; of top_h: top
    size_t min_keep = 1;             // the field `keep`: how many tokens a filter leaves at least
    uint64_t seed = 0;               // of `xtc`
};

// Log-probabilities of one row: of the token drawn, and of the most likely ones.
struct RowLogprobs {
    double chosen;
    size_t count;  // how many of the most likely tokens there are
    int64_t* ids;  // with room for all that are wanted
    double* values;
};

struct Logprobs {
    size_t wanted = 0;        // how many of the most likely tokens
    RowLogprobs raw{};        // of the logits
    RowLogprobs processed{};  // of what the steps leave
};

struct RowRequest {
    const Step* steps;
    size_t count;
    bool greedy;
    uint64_t seed;
    uint32_t position;
    Logprobs* logprobs;  // null: not wanted
};

struct DecodeStep {
    const void* logits;  // [batch, vocab], or more rows with `places`
    LogitType dtype;
    ptrdiff_t row_bytes;  // from one row to the next
    size_t batch, vocab;  // 1 <= vocab < 2^31 - 1024
    const RowRequest* rows;
    int64_t* tokens;   // [batch]; -1 for a row whose steps leave no token
    float* processed;  // [batch, vocab] or null: the scores that the steps leave
    int threads;
    const size_t* places = nullptr;  // [batch] or null: which row of the logits each row reads; null: its own
};

// NaN counts as -inf. A row's results depend on that row alone, and have the same bits for every number of threads.
DECODESTEP_KERNEL(lists, decode_step, DecodeStep)

}  // namespace decodestep
