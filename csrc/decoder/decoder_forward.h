// One step of a decoder of grouped-query heads: tokens of any sequences in, logits out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/isa.h"
#include "linear/linear_panels.h"

namespace decodestep {

constexpr size_t kPagePositions = 16;  // of a sequence, in a page of the cache

struct DecoderLayer {
    const float *attention_norm, *ffn_norm;  // [hidden]
    Panels query;                            // heads * width outputs, rope pairs side by side
    Panels values_keys;                      // groups * width outputs of values, then as many of keys, like the queries
    Panels output, gate, up, down;
};

// Inputs and outputs of weights are multiples of 32, but for the vocabulary; `width` is a multiple of 16.
struct Decoder {
    size_t hidden, heads, groups, width, feed_forward;
    float eps, scale;
    std::vector<DecoderLayer> layers;
    const float* norm;
    Panels logits;
    Rows embedding;
};

// For each token the layers compute, from its row x of the residual stream, and its position:
//   h = rms_norm(x, attention_norm);  q, k, v = h W;  q and k rotated;  all three as bfloat16;  k and v join the cache
//   x += attention(q, cache up to the position) W_o
//   h = rms_norm(x, ffn_norm);  x += swiglu(h W_gate, h W_up) W_down
// and logits = rms_norm(x, norm) W for the tokens in `wanted`. The bits of a token depend on its own sequence alone.
struct DecoderForward {
    const Decoder* decoder;
    size_t tokens;
    const int64_t *ids, *sequence, *positions;  // [tokens]
    const float *sin, *cos;                     // [positions, width / 2]
    // Pages of every layer, bfloat16: keys [layers, groups, pages, width / 2, 16, 2], the position between the columns
    // of a pair; values [layers, groups, pages, 8, width, 2], the column between the positions of a pair.
    uint16_t *keys, *values;
    size_t pages;
    const int64_t* page_table;  // [sequences, table_width]
    size_t table_width;
    const int64_t* wanted;  // [rows]: numbers of tokens
    size_t rows;
    float* logits;  // [rows, vocabulary]
    int threads;
};

DECODESTEP_KERNEL(decoder_forward, DecoderForward)

}  // namespace decodestep
