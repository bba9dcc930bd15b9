// One step of a decoder: tokens of any sequences in, logits out, in one native call, so that the threads synchronise
// between stages of a layer rather than in Python. A layer has attention, of one kind in all of them, grouped-query or
// latent, or a recurrence, or neither; and a feed-forward block of one of two kinds, or both beside each other, or
// none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

#include "attention/cache_type.h"
#include "core/isa.h"
#include "decoder/recurrent_mixer.h"
#include "decoder/step_costs.h"
#include "linear/linear_panels.h"
#include "mixture_of_experts/expert_router.h"
#include "mixture_of_experts/mixture_of_experts.h"
#include "recurrent/state_rows.h"

namespace decodestep {

// Grouped-query attention. Its sizes are at most the decoder's.
struct GroupedAttention {
    size_t kv_heads, head_dim, head_values;
    // hidden to heads * head_dim; the two values of a rope pair side by side
    LinearPanelWeight query;
    // hidden to kv_heads * head_dim values, then as many keys, in pairs like the queries; or the values alone, if the
    // keys have a weight of their own, in another format
    LinearPanelWeight values_keys, keys;
    LinearPanelWeight output;
    LinearPanelWeight gate;  // optional: hidden to heads * head_dim, whose sigmoids multiply the heads' results
    // Biases of the products, [outputs], and the norms of every head of queries and keys, [head_values]; null without.
    const float *query_bias, *values_keys_bias, *output_bias, *query_norm, *key_norm;
    const float* sinks;       // [heads]: of each a score without a value, which takes a part of the softmax; or null
    bool norms_of_rows;       // a norm is of all heads of a token as one row: [heads or kv_heads, head_values]
    bool norms_after_rope;    // else they are before it
    size_t window;            // the number of positions that a token attends to, its own included; 0: all up to its own
    size_t rope, query_rope;  // indices of the rotations of keys and of queries in sin and cos
    float score_cap;          // c of scores that become c tanh(score / c); 0: none
    bool value_norm;          // every head of values is divided by its root mean square

    // Else it attends to those of an earlier layer of the same sizes.
    bool has_keys() const { return values_keys.data != nullptr; }
};

// The sizes of multi-head latent attention: of a head's part without rope, the rope key, the latent, a head's value.
// All are multiples of 32, except rope, which is a multiple of 16. With an indexer, its heads and their width, a
// multiple of 16 and at least rope, and how many positions a token attends to at most; else 0.
struct LatentSizes {
    size_t nope, rope, latent, value;
    float eps;  // of the norms of the latent and of the compressed query
    size_t index_heads, index_width, selected;

    bool is_given() const { return latent > 0; }
    bool selects() const { return selected > 0; }
};

// A lightning indexer, by which tokens select the positions that they attend to. The two values of a rope pair, of the
// first columns of a head, are adjacent.
struct Indexer {
    LinearPanelWeight query;                // the compressed query to index_heads * index_width
    LinearPanelWeight key;                  // hidden to index_width, then its norm (LayerNorm)
    LinearPanelWeight by_head;              // hidden to index_heads
    const float *key_norm, *key_norm_bias;  // [index_width]
    size_t cache_layer;                     // the number of the index cache's layer

    bool is_given() const { return key.data != nullptr; }
};

// Multi-head latent attention, absorbed: queries are multiplied by `key_up` instead of the cached latents, and the
// attention outputs by `value_up`. The two values of a rope pair are adjacent.
struct LatentAttention {
    LinearPanelWeight query_down;  // hidden to the compressed query, then its norm; optional
    const float* query_norm;
    LinearPanelWeight query;     // the compressed query, or hidden, to heads * (nope + rope)
    LinearPanelWeight latent;    // hidden to the latent, then the rope key
    const float* latent_norm;    // [latent]
    LinearPanelWeight key_up;    // nope to heads * latent: the outputs of a head read its own part of the query
    LinearPanelWeight value_up;  // latent to heads * value: the outputs of a head read its own attention output
    LinearPanelWeight output;    // heads * value to hidden
    // Biases of these products, [outputs], or null. That of query_down is null if query_down is not given.
    const float *query_down_bias, *latent_bias, *output_bias;
    // Of a decoder that selects; a layer without one attends to what the last one before it with one has selected.
    Indexer indexer;
};

// A mixture of experts: the router from hidden to its logits, the selection rule, and the blocks.
struct Mixture {
    LinearPanelWeight router;
    const float* router_bias;  // [experts], added to the logits; or null
    RouterRule rule;
    const float* factors;              // [experts], of the weights of the chosen; or null
    FeedForwardPanels routed, shared;  // shared is optional
    LinearPanelWeight shared_gate;     // optional: hidden to 1, whose sigmoid multiplies the shared block
    // Optional: hidden to the rows that the routed experts read, and from their sum, as wide, back to hidden.
    LinearPanelWeight latent_down, latent_up;

    bool is_given() const { return router.data != nullptr; }
    bool has_latent() const { return latent_down.data != nullptr; }
};

// What a layer adds of an input of its own, after its blocks:
//   x += residual_scale * rms_norm((gelu(x W_gate) * input) W_output, norm)
struct LayerInput {
    LinearPanelWeight gate, output;  // hidden to the width of an input, a multiple of 32, and back
    const float* norm;               // [hidden]

    size_t width() const { return gate.out; }
    bool is_given() const { return gate.data != nullptr; }
};

// Norms, [hidden], of a dense block and a mixture that both read x, and whose outputs are added: of what the router and
// the experts read, and of what each of the blocks gives. The mixture has neither a shared block nor a latent.
struct BesideNorms {
    const float *router, *experts, *dense_post, *experts_post;

    bool is_given() const { return router != nullptr; }
};

struct DecoderLayer {
    const float *attention_norm, *ffn_norm;            // [hidden], of a block's input; null if there is none
    const float *attention_post_norm, *ffn_post_norm;  // [hidden], of a block's output; null if there is none
    Mixer mixer;
    GroupedAttention grouped;        // of attention, unless the decoder has LatentSizes
    LatentAttention latent;          // if it has
    RecurrentMixer recurrent;        // of the mixers with a state
    size_t cache_layer;              // of attention: the number of the cache's layer that it reads
    FeedForwardPanels feed_forward;  // a dense block, or the mixture, or neither; both with the norms of `beside`
    Mixture mixture;
    BesideNorms beside;
    bool parallel;     // the feed-forward block reads x as it was before the mixer; without post norms
    LayerInput input;  // optional
    float scale;  // a factor of x after the layer; 1 without a norm after the feed-forward block and without an input

    bool has_state() const { return mixer != Mixer::attention && mixer != Mixer::none; }
    // Whether the experts read other rows than the router, and their sum is not added to x as it is.
    bool has_experts_apart() const { return mixture.has_latent() || beside.is_given(); }
};

// heads is a multiple of kv_heads, head_dim of 16; hidden and the widths of feed-forward blocks are multiples of 32.
// The values of a head from head_values on are zero padding, which `output` does not read. With latent attention
// kv_heads is 1 and head_dim is nope + rope. A mixture that is alone has no norm after it.
struct Decoder {
    size_t hidden, heads, kv_heads, head_dim, head_values;
    LatentSizes latent;
    float eps, scale;                                     // of the norms; of the attention scores
    bool centred_norms;                                   // those of the residual stream and of what is added to it
    float embedding_scale, residual_scale, logits_scale;  // factors
    float logits_cap;                                     // c of logits that become c tanh(logit / c); 0: none
    std::vector<DecoderLayer> layers;
    size_t cache_layers, state_size;                       // layers of the cache; floats of a sequence's states
    size_t kept_size;                                      // floats of a token's kept inputs
    size_t index_layers;                                   // layers of the index cache
    const float* norm;                                     // [hidden]
    LinearPanelWeight logits;                              // hidden to vocabulary
    std::variant<RowWeight, LinearPanelWeight> embedding;  // [vocabulary, hidden]; panels may be those of the logits
};

// For each token, with x its row of the residual stream, first embedding_scale * the embedding:
//   in every layer
//     h = rms_norm(x, attention_norm);  x += residual_scale * (attention(h), or the recurrence's results) W_output
//     h = rms_norm(x, ffn_norm);  x += residual_scale * (swiglu(h W_gate, h W_up) W_down, or the mixture of experts);
//     a block without W_gate has max(h W_up, 0)^2 in place of swiglu, others what their `activation` says
//     a block without a norm before it reads x; with a post norm, what is added is normalised before residual_scale
//     in a parallel layer both blocks read x as it was before the layer, and both outputs are added
//   centred norms: of x minus its mean (LayerNorm)
//   hidden = rms_norm(x, norm), for all tokens, if it is given
//   logits = logits_scale * rms_norm(x, norm) W_logits, for the tokens in `wanted`
// Grouped-query attention:
//   q, v, k = h W_query, h W_values_keys (or v = h W_values_keys, k = h W_keys), and their biases
//   every head of q and of k normalised, or q and k as one row each, where there are norms; or after the next line
//   q and k rotated by the position;  k and v rounded to the cache's type, q to bfloat16 where that is the cache's
//   k and v written to the cache at the token's position;  attention of q to positions 0 to the token's own, or to the
//   last `window` of them, with capped scores and a sink where there are, times sigmoid(h W_gate) with a gate;
//   output_bias is added to its product with W_output
// Latent attention:
//   q = h W_query, or rms_norm(h W_query_down, query_norm) W_query;  c, r = h W_latent;  c = rms_norm(c, latent_norm)
//   biases are added to the products by W_query_down, W_latent and W_output
//   r and the rope part of q rotated by the position;  c and r rounded to the cache's types and written to it
//   for each head: attention of (q_nope W_key_up, q_rope) to the rows (c, r) of positions 0 to the token's own, of
//   which c are the values; what it gives times W_value_up
//   with an indexer: k = h W_key;  k = (k - mean(k)) / sqrt(variance + 1e-6) * key_norm + key_norm_bias
//   i = rms_norm(h W_query_down, query_norm) W_index_query;  the first columns of k and of each head of i rotated
//   k rounded to the index cache's type and written there;  w = h W_by_head / sqrt(index_heads * index_width)
//   if that is int8, i is rounded as k is, and w multiplied by the scale of its head
//   attention to the `selected` positions with the largest sums over heads of w * max(i . k, 0) alone, in their order
// Recurrences, of parts of h W_inputs:
//   delta: q, k, v = silu(causal_conv1d);  gated_delta_rule with decays e^(decay * softplus(step + step_bias)) and
//     betas sigmoid(beta), every head normalised by `norm`, times silu(gate)
//   mamba: x, b, c = silu(causal_conv1d);  selective_state_update, times silu(gate), and the heads of each key head
//     normalised by `norm` as one row
//   convolution: gate * causal_conv1d of (factor * x), without silu
// A dense block beside a mixture: rms_norm(dense(h), dense_post) + rms_norm(experts(rms_norm(x, experts)),
// experts_post) is what is added, and the router reads rms_norm(x, router). The weights of chosen experts are
// multiplied by their factors where there are. A mixture's shared block is multiplied by sigmoid(h W_shared_gate) where
// there is that gate; experts of a latent read h W_latent_down, and their weighted sum is multiplied by W_latent_up.
// Products are those of linear_panels.h: activations are quantised if the weight's format requires it. Attention is
// that of attention/group_attention.h or attention/mla_attention.h, the mixture that of mixture_of_experts/.
//
// Layout of the cache, slabs of pages of every layer with attention. Grouped-query attention, bfloat16:
//   keys [slabs, layers, kv_heads, slab_pages, head_dim / 2, 16, 2]: the two columns of a pair innermost, then the
//   position
//   values [slabs, layers, kv_heads, slab_pages, 8, head_dim, 2]: the two positions of a pair innermost, then the
//   column
// float16: keys [slabs, layers, kv_heads, slab_pages, head_dim / 16, 16 columns, 16 positions], values the same with
// positions before columns; int8: the same with two rows before them, the 16 positions' scales as bfloat16
// (attention/group_cache.h).
// Latent attention, with kv_heads = 1, bfloat16 or float16:
//   keys [slabs, layers, slab_pages, 16, rope], values [slabs, layers, slab_pages, 16, latent]; or in place of values
//   int8 rows [slabs, layers, slab_pages, 16, latent + 4], each with its scale as float32 at its end: largest / 127
// Index keys, bfloat16 or float16: index [slabs, index_layers, slab_pages, 16, index_width]; or int8 rows of
// index_width + 4, as those of latents.
// The page table names a page by its place among the pages of the first layer and head of all slabs:
//   slab * layers * kv_heads * slab_pages + page of the slab
// Reads the cache at positions before a token's own; these were written by earlier calls or by this one. Writes the
// cache at the tokens' positions and nowhere else, in any order, and in each layer before it reads, so that sequences
// that share a page see what the call writes to it. Two tokens of a call must not have one place of a page; a later
// call may write it again. The contents of later positions, of this sequence or left by
// another one, have no effect. NaN: reaches later tokens of its own sequence and nothing else. Determinism: a token's
// bits depend on the tokens up to its own in its sequence alone, not on the other tokens of the call, on how a prompt
// is split into calls, or on the thread count.
// The states of a sequence, a row of float32: those of its layers in order, from multiples of 16 floats on, first the
// matrices as gated_delta_rule or selective_state_update have them, then the last inputs of the convolution.
struct DecoderForward {
    const Decoder* decoder;
    size_t tokens;
    const int64_t *ids, *sequence, *positions;  // [tokens]
    const float *sin, *cos;                     // [ropes, rope_positions, head_dim / 2], or rope / 2
    size_t rope_positions;
    uint8_t *keys, *values;
    CacheType cache;  // of keys and values, or of latents, whose rope keys are bf16 beside i8
    size_t slab_pages;
    const int64_t* page_table;  // [sequences, table_width]: the page of positions 16 i to 16 i + 15
    size_t table_width;
    uint8_t* index;              // the index cache, if the decoder selects
    CacheType index_type;        // that of the rope keys, or i8
    const int64_t* index_table;  // as page_table: the pages of the index cache
    const int64_t* wanted;       // [rows]: indices of tokens
    size_t rows;
    const float* layer_inputs;  // [tokens, layers, width], if layers have inputs
    float* states;              // [slots, state_size], if layers have states
    StateRows state_rows;       // then the runs of a sequence's tokens, in order, each of another sequence
    float* kept;                // [rows, kept_size]: what state_replay.h reads of tokens that may be rejected; or null
    const int64_t* kept_rows;   // then [tokens]: the row of each of them, -1 of others
    float* logits;              // [rows, vocabulary]
    float* hidden;              // [tokens, hidden], or null
    int threads;
    StepCost* costs;  // one for each StepPart, or null
};

DECODESTEP_KERNEL(vectors, decoder_forward, DecoderForward)

}  // namespace decodestep
