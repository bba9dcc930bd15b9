// Which keys a token attends to: those with the largest sums of products with the token's index queries.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/mla_attention.h"

namespace decodestep {

// For token t, with k the rows of its sequence in order:
//   score[j] = sum over heads h of weights[t, h] * max(query[t, h] . k[j], 0)    for the visible[t] first rows
//   selected[t] = the `count` positions j of the largest scores, or all, if they are fewer; then -1
// Of equal scores the lower position comes first; 0 and -0 are equal; NaN comes after all numbers.
//
// Products of int8 are exact, and a score is multiplied by its row's scale in the end.
// Determinism: a product is one ascending sum over the columns and a score one ascending sum over the heads, both of
// fused multiply-adds, so a token's bits depend neither on the other tokens of the call nor on the thread count.
struct LightningIndexer {
    const void* query;     // [tokens, heads, keys.width], float32; int8 if the keys are
    const float* weights;  // [tokens, heads]
    size_t tokens, heads;
    PagedRows keys;  // rows of values alone, or int8 with their own scales; of int8 the width is a multiple of 4
    const float* key_scales;  // of int8 keys without scales of their own, [blocks of the cache, block_size]; else null
    size_t block_size;
    const int64_t* block_table;  // [sequences, blocks]
    size_t blocks;
    const int64_t* sequence;  // [tokens]: row of the block table
    const int64_t* visible;   // [tokens], each at least 0
    size_t count;             // at least 1
    bool ordered;             // from the largest score on; else by position
    int32_t* selected;        // [tokens, count]
    float* values;            // the scores of `selected`, -inf where that is -1: [tokens, count]; or null
    // Their rows in another cache with the same positions, block * block_size + row, where not -1: [tokens, count]; or
    // null. slot_table: the blocks of that cache, as block_table.
    int64_t* slots;
    const int64_t* slot_table;
    int threads;

    size_t row_words() const { return keys.width * (keys.type == CacheType::i8 ? 1 : 4) / 4; }  // while multiplied
};

DECODESTEP_KERNEL(vectors, lightning_indexer, LightningIndexer)

// The scores of tokens [token, token + tokens), all of one sequence, for its keys [first, end).
struct IndexScores {
    const LightningIndexer& call;
    size_t token, tokens, first, end;
    float* scores;  // of the first token's first key; past `end` there is room for fifteen more
    size_t stride;  // from one token's scores to the next
    float* memory;  // index_memory(call, tokens) floats, used exclusively by the call
};

// For int8 keys.
DECODESTEP_KERNEL(bytes, score_byte_keys, IndexScores)

}  // namespace decodestep
