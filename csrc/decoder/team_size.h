// How many threads a step is worth.
//
// A thread more takes its part of the work, and costs every stage the cache lines by which it joins: those that it
// reads of what others have just written, and those by which it tells that it has ended. The time of S stages with W of
// work on n threads is about W / n + S * n * (the cost of joining a stage), which is least with n = sqrt(W / (S *
// cost)): for a model of 135 million weights that would be about thirty threads, whatever the machine has; a
// prompt, a batch or a long context is worth more. Estimated, and never below kAlwaysWorth, so that it matters on large
// machines alone.
#pragma once

#include <algorithm>

#include "decoder/decoder_forward.h"

namespace decodestep::DECODESTEP_BUILD {

constexpr size_t kAlwaysWorth = 16;

// Work is measured in bytes that a thread reads from memory, ten a nanosecond; joining a stage takes about 50 ns.
constexpr size_t kJoiningCost = 512;
constexpr size_t kTokensAsReading = 16;  // multiplying a weight by so many takes as long as reading it
constexpr size_t kStagesOfLayer = 8;

// The bytes of weights that a step of one token reads.
inline size_t weight_bytes(const DecoderLayer& layer) {
    size_t sum = 0;
    const auto add = [&](const LinearPanelWeight& w) { sum += w.data ? w.count() * w.panel_bytes() : 0; };
    const auto add_block = [&](const FeedForwardPanels& block, size_t used) {
        for (const LinearPanelWeight* w : {&block.gate, &block.up, &block.down})
            sum += w->data ? w->count() / block.count * used * w->panel_bytes() : 0;
    };
    const GroupedAttention& grouped = layer.grouped;
    for (const LinearPanelWeight* w :
         {&grouped.query, &grouped.values_keys, &grouped.keys, &grouped.output, &grouped.gate})
        add(*w);
    const LatentAttention& latent = layer.latent;
    for (const LinearPanelWeight* w : {&latent.query_down, &latent.query, &latent.latent, &latent.key_up,
                                       &latent.value_up, &latent.output, &latent.indexer.query, &latent.indexer.key})
        add(*w);
    for (const LinearPanelWeight& w : layer.recurrent.inputs) add(w);
    add(layer.recurrent.output);
    add_block(layer.feed_forward, 1);
    add_block(layer.mixture.routed, layer.mixture.rule.used);
    add_block(layer.mixture.shared, 1);
    add(layer.input.gate);
    add(layer.input.output);
    return sum;
}

// At most step.threads.
inline int team_size(const DecoderForward& step) {
    if (static_cast<size_t>(step.threads) <= kAlwaysWorth) return step.threads;
    const Decoder& d = *step.decoder;
    size_t weights = d.logits.count() * d.logits.panel_bytes(), keys = 0;
    for (const DecoderLayer& layer : d.layers) weights += weight_bytes(layer);
    for (size_t t = 0; t < step.tokens; ++t) keys += static_cast<size_t>(step.positions[t]) + 1;
    const size_t of_key = d.latent.is_given() ? d.latent.latent + d.latent.rope : 2 * d.kv_heads * d.head_dim;
    const double work = static_cast<double>(weights) * (1.0 + static_cast<double>(step.tokens) / kTokensAsReading) +
                        static_cast<double>(keys * of_key * 2 * d.cache_layers),
                 joining = static_cast<double>((d.layers.size() * kStagesOfLayer + 1) * kJoiningCost);
    return std::clamp(static_cast<int>(__builtin_sqrt(work / joining)), static_cast<int>(kAlwaysWorth), step.threads);
}

}  // namespace decodestep::DECODESTEP_BUILD
