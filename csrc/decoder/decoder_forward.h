// One step of a decoder with grouped-query attention: tokens of any sequences in, logits out. One call of the core, so
// that the threads meet between two stages of a layer instead of in Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "attention/kv_page.h"
#include "core/isa.h"
#include "linear/linear_panels.h"

namespace decodestep {

struct DecoderLayer {
    const float *attention_norm, *ffn_norm;  // [hidden]
    LinearPanelWeight query;                 // hidden to heads * head_dim; the two values of a rope pair side by side
    LinearPanelWeight
        values_keys;  // hidden to kv_heads * head_dim values, then as many keys, in pairs like the queries
    LinearPanelWeight output, gate, up, down;
};

// heads is a multiple of kv_heads, head_dim of 16; hidden, feed_forward and heads * head_dim are multiples of 32.
struct Decoder {
    size_t hidden, heads, kv_heads, head_dim, feed_forward;
    float eps, scale;  // of the norms; of the attention scores
    std::vector<DecoderLayer> layers;
    const float* norm;         // [hidden]
    LinearPanelWeight logits;  // hidden to vocabulary
    RowWeight embedding;       // [vocabulary, hidden]
};

// For each token, with x its row of the residual stream, first the embedding:
//   in every layer
//     h = rms_norm(x, attention_norm);  q, v, k = h W_query, h W_values_keys;  q and k rotated by the position
//     q, k and v rounded to bfloat16;  k and v written to the cache at the token's position
//     x += attention(q, positions 0 to the token's own of its sequence) W_output
//     h = rms_norm(x, ffn_norm);  x += swiglu(h W_gate, h W_up) W_down
//   logits = rms_norm(x, norm) W_logits, for the tokens in `wanted`
// Products are those of linear_panels.h: activations are quantised where the weight's format says so. Attention is that
// of attention/group_attention.h.
//
// Layout of the cache, slabs of pages of every layer, bfloat16:
//   keys [slabs, layers, kv_heads, slab_pages, head_dim / 2, 16, 2]: the two columns of a pair innermost, then the
//   position values [slabs, layers, kv_heads, slab_pages, 8, head_dim, 2]: the two positions of a pair innermost, then
//   the column
// The page table names a page by its place among the pages of the first layer and head of all slabs:
//   slab * layers * kv_heads * slab_pages + page of the slab
// Reads the cache at positions before a token's own; these are written by earlier calls or by the same one.
// Writes the cache at the tokens' positions and nowhere else, in any order; a position may be written again. Whatever
// lies at later positions, of this sequence or left by another one, has no effect. NaN: reaches later tokens of its own
// sequence and nothing else. Determinism: a token's bits depend on the tokens up to its own of its sequence alone, not
// on the other tokens of the call, on how a prompt is cut into calls, or on the thread count.
struct DecoderForward {
    const Decoder* decoder;
    size_t tokens;
    const int64_t *ids, *sequence, *positions;  // [tokens]
    const float *sin, *cos;                     // [positions, head_dim / 2]
    uint16_t *keys, *values;
    size_t slab_pages;
    const int64_t* page_table;  // [sequences, table_width]: the place of positions 16 i to 16 i + 15
    size_t table_width;
    const int64_t* wanted;  // [rows]: numbers of tokens
    size_t rows;
    float* logits;  // [rows, vocabulary]
    int threads;
};

DECODESTEP_KERNEL(decoder_forward, DecoderForward)

}  // namespace decodestep
