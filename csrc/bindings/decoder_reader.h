// A decoder's weights as Python has them, checked.
#pragma once

#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "bindings/keywords.h"
#include "bindings/mixture_of_experts.h"
#include "decoder/decoder_forward.h"

namespace decodestep {

using OptionalVector = std::optional<Vector>;
using RowArgument = std::tuple<Bytes, int>;  // rows, format

// A decoder and the arrays that it points into.
struct HeldDecoder {
    Decoder decoder{};
    std::vector<nb::ndarray<nb::ro>> arrays;
    size_t ropes = 1, input_width = 0;
};

inline constexpr const char* kDecoderOp = "Decoder";
inline constexpr const char* kMixers[] = {"attention", "delta", "mamba", "convolution", "none"};  // in Mixer's order
inline constexpr size_t kStateAlignment = 16;                                                     // floats

// Checks the weights of a decoder and keeps their arrays alive. Groups of arguments have the names of the classes'
// fields in src/decodestep/ops/decoder_forward: layers.py, weights.py.
class DecoderReader {
  public:
    explicit DecoderReader(HeldDecoder& held) : held_(held), d_(held.decoder) {}

    void read(Keywords given) {
        const auto norm = given.array<Vector>("norm");
        d_.hidden = norm.shape(0);
        d_.heads = given.number<size_t>("heads"), d_.kv_heads = given.number<size_t>("kv_heads");
        d_.head_dim = given.number<size_t>("head_dim"), d_.head_values = given.number<size_t>("head_values");
        require(d_.hidden > 0 && d_.hidden < kMaxAxis && d_.hidden % 32 == 0,
                "the inputs of weights must be multiples of 32");
        require(d_.heads > 0 && d_.heads < kMaxAxis && d_.kv_heads > 0 && d_.heads % d_.kv_heads == 0,
                "heads must be a multiple of kv_heads");
        require(d_.head_dim > 0 && d_.head_dim < kMaxAxis && d_.head_dim % 16 == 0,
                "head_dim must be a multiple of 16");
        require(d_.head_values > 0 && d_.head_values <= d_.head_dim, "head_values is out of range");
        d_.eps = given.number<float>("norm_eps"), d_.scale = given.number<float>("scale");
        d_.embedding_scale = given.number<float>("embedding_scale");
        d_.residual_scale = given.number<float>("residual_scale");
        d_.logits_scale = given.number<float>("logits_scale");
        d_.logits_cap = cap(given, "logits_cap");
        d_.centred_norms = given.number<bool>("centred_norms");
        if (const auto latent = given.array<std::optional<nb::dict>>("latent"))
            d_.latent = latent_sizes({kDecoderOp, *latent});
        for (const nb::handle item : given.array<nb::tuple>("layers")) {
            require(nb::isinstance<nb::dict>(item), "a layer is a dict");
            d_.layers.push_back(layer({kDecoderOp, nb::borrow<nb::dict>(item)}));
        }
        d_.state_size = round_up(d_.state_size, kStateAlignment);
        require(!d_.layers.empty(), "a decoder needs a layer");
        d_.norm = keep(norm, d_.hidden);
        const auto logits = given.array<PanelArgument>("logits");
        d_.logits = weight(logits, d_.hidden);
        require(d_.logits.out > 0, "the vocabulary is empty");
        const auto embedding = given.array<std::variant<RowArgument, PanelArgument>>("embedding");
        std::visit([&](const auto& argument) { d_.embedding = weight(argument, d_.hidden); }, embedding);
        given.require_all_read();
    }

  private:
    LatentSizes latent_sizes(Keywords given) {
        const LatentSizes s{.nope = given.number<size_t>("nope"),
                            .rope = given.number<size_t>("rope"),
                            .latent = given.number<size_t>("latent"),
                            .value = given.number<size_t>("value"),
                            .eps = given.number<float>("eps"),
                            .index_heads = given.number<size_t>("index_heads"),
                            .index_width = given.number<size_t>("index_width"),
                            .selected = given.number<size_t>("selected")};
        given.require_all_read();
        const auto in_blocks = [](size_t size, size_t block) {
            return size > 0 && size < kMaxAxis && size % block == 0;
        };
        require(in_blocks(s.nope, 32) && in_blocks(s.latent, 32) && in_blocks(s.value, 32),
                "the widths of latent attention must be multiples of 32");
        require(in_blocks(s.rope, 16), "rope must be a multiple of 16");
        require(s.selects() ? s.selected < kMaxAxis && in_blocks(s.index_heads, 1) && in_blocks(s.index_width, 16) &&
                                  s.index_width >= s.rope
                            : s.index_heads == 0 && s.index_width == 0,
                "the sizes of an indexer are out of range");
        require(d_.kv_heads == 1 && d_.head_dim == s.nope + s.rope && d_.head_values == d_.head_dim,
                "latent attention has one key of nope + rope");
        return s;
    }

    DecoderLayer layer(Keywords given) {
        DecoderLayer w{};
        w.attention_norm = vector(given, "attention_norm", d_.hidden);
        w.ffn_norm = vector(given, "ffn_norm", d_.hidden);
        w.attention_post_norm = vector(given, "attention_post_norm", d_.hidden);
        w.ffn_post_norm = vector(given, "ffn_post_norm", d_.hidden);
        w.parallel = given.number<bool>("parallel");
        w.scale = given.number<float>("scale");
        if (const auto input = given.array<std::optional<nb::dict>>("input"))
            w.input = layer_input({kDecoderOp, *input});
        require(w.scale == 1.0f || w.ffn_post_norm || w.input.is_given(), "nothing is added with a scale");
        require(!w.parallel || (!w.attention_post_norm && !w.ffn_post_norm),
                "parallel blocks have no norms after them");
        w.mixer = mixer_named(given.array<std::string>("mixer"));
        if (w.has_state()) w.recurrent = recurrent(w.mixer, given.group("weights"));
        if (w.mixer == Mixer::attention) {
            w.cache_layer = d_.cache_layers;
            if (d_.latent.is_given())
                w.latent = latent(given.group("weights"));
            else
                w.grouped = grouped(given.group("weights"), w.cache_layer);
            d_.cache_layers += w.cache_layer == d_.cache_layers;
        }
        const bool mixes = w.mixer != Mixer::none;
        require(mixes || (!w.attention_norm && !w.attention_post_norm && !w.parallel),
                "a layer without a mixer has no norms of one");
        if (const auto argument = given.array<std::optional<nb::dict>>("mixture"))
            w.mixture = mixture({kDecoderOp, *argument});
        if (const auto argument = given.array<std::optional<nb::dict>>("beside"))
            w.beside = beside_norms({kDecoderOp, *argument});
        w.feed_forward = feed_forward(given, "feed_forward", 1, d_.hidden);
        const bool is_dense = w.feed_forward.is_given(), has_mixture = w.mixture.is_given();
        require(w.beside.is_given() == (is_dense && has_mixture), "two blocks have norms of both, and only two");
        require(!w.beside.is_given() || (!w.parallel && !w.mixture.shared.is_given() && !w.mixture.has_latent()),
                "a mixture beside a dense block has neither a shared block nor a latent");
        require(is_dense || !has_mixture || !w.ffn_post_norm, "a mixture that is alone has no norm after it");
        require(is_dense || has_mixture || (mixes && !w.ffn_norm && !w.ffn_post_norm && !w.parallel),
                "a layer has a mixer or a feed-forward block, and norms of what it has");
        given.require_all_read();
        return w;
    }

    static Mixer mixer_named(const std::string& name) {
        const auto* const found = std::find(std::begin(kMixers), std::end(kMixers), name);
        require(found != std::end(kMixers), "a mixer is unknown");
        return static_cast<Mixer>(found - std::begin(kMixers));
    }

    RecurrentMixer recurrent(Mixer kind, Keywords given) {
        RecurrentMixer w{.kind = kind,
                         .heads = given.number<size_t>("heads"),
                         .columns = given.number<size_t>("columns"),
                         .key_heads = given.number<size_t>("key_heads"),
                         .rows = given.number<size_t>("rows"),
                         .tiled = given.number<bool>("tiled")};
        const auto within = [](size_t least, size_t size) { return size >= least && size < kMaxAxis; };
        const bool alone = kind == Mixer::convolution;
        require(within(1, w.heads) && within(1, w.columns) && within(!alone, w.key_heads) && within(!alone, w.rows),
                "a size of a recurrence is out of range");
        require(alone ? w.heads == 1 && w.columns == d_.hidden && w.key_heads == 0 && w.rows == 0
                      : w.heads % w.key_heads == 0,
                "the heads of a recurrence do not fit");
        size_t outputs = 0;
        const auto inputs = given.array<std::vector<PanelArgument>>("inputs");
        require(inputs.size() <= std::size(w.inputs), "a recurrence has too many products");
        for (size_t i = 0; i < inputs.size(); ++i) {
            w.inputs[i] = weight(inputs[i], d_.hidden);
            require(w.inputs[i].out > 0, "a weight has no outputs");
            outputs += w.inputs[i].out;
        }
        require(outputs == w.input_width(), "the products of a recurrence have the wrong number of outputs");
        w.output = panels(given, "output", w.width(), d_.hidden);
        w.input_bias = vector(given, "input_bias", outputs);
        w.output_bias = vector(given, "output_bias", d_.hidden);
        const auto taps = given.array<Packed<const float, 2>>("convolution");
        require_aligned(taps);
        w.taps = taps.shape(0);
        require(w.taps > 0 && taps.shape(1) == w.channels(), "the taps of a convolution have the wrong shape");
        held_.arrays.emplace_back(taps);
        w.weight = taps.data();
        w.conv_bias = vector(given, "convolution_bias", w.channels());
        w.decay = vector(given, "decay", w.heads);
        w.step_bias = vector(given, "step_bias", w.heads);
        w.skip = vector(given, "skip", w.heads);
        w.norm = vector(given, "norm", kind == Mixer::delta ? w.columns : w.width());
        given.require_all_read();
        require(alone || (w.decay && w.step_bias && w.norm), "a recurrence has decays and a norm");
        const auto place = [&](size_t floats) {
            const size_t at = round_up(d_.state_size, kStateAlignment);
            d_.state_size = at + floats;
            return at;
        };
        w.state_at = place(w.state_floats());
        w.inputs_at = place(w.input_floats());
        w.kept_at = d_.kept_size;
        d_.kept_size += w.kept_width();
        return w;
    }

    // cache_layer: that of the layer's own keys and values, or what it becomes where it reads those of another.
    GroupedAttention grouped(Keywords given, size_t& cache_layer) {
        const size_t kv_heads = given.number<size_t>("kv_heads"), head_dim = given.number<size_t>("head_dim"),
                     head_values = given.number<size_t>("head_values");
        require(kv_heads > 0 && kv_heads <= d_.kv_heads && d_.heads % kv_heads == 0,
                "kv_heads of a layer is out of range");
        require(head_dim > 0 && head_dim <= d_.head_dim && head_dim % 16 == 0 && head_values > 0 &&
                    head_values <= head_dim && head_values <= d_.head_values,
                "head_dim of a layer is out of range");
        const size_t queries = d_.heads * head_dim, keys = kv_heads * head_dim, number = d_.layers.size();
        const auto shared = given.array<std::optional<size_t>>("keys_of");
        require(!shared || (*shared < number && has_cache(*shared, kv_heads, head_dim)), "keys_of is no such layer");
        if (shared) cache_layer = d_.layers[*shared].cache_layer;
        const auto values_keys = given.array<std::optional<PanelArgument>>("values_keys");
        require(shared.has_value() != values_keys.has_value(), "a layer has keys and values, or those of another");
        const auto apart = given.array<std::optional<PanelArgument>>("keys");
        const bool rows = given.number<bool>("norms_of_rows");
        require(!shared || !apart, "a layer has keys and values, or those of another");
        const GroupedAttention w{
            .kv_heads = kv_heads,
            .head_dim = head_dim,
            .head_values = head_values,
            .query = panels(given, "query", d_.hidden, queries),
            .values_keys = shared ? LinearPanelWeight{} : panels(*values_keys, d_.hidden, apart ? keys : 2 * keys),
            .keys = apart ? panels(*apart, d_.hidden, keys) : LinearPanelWeight{},
            .output = panels(given, "output", d_.heads * head_values, d_.hidden),
            .gate = optional_panels(given, "gate", d_.hidden, queries),
            .query_bias = vector(given, "query_bias", queries),
            .values_keys_bias = vector(given, "values_keys_bias", 2 * keys),
            .output_bias = vector(given, "output_bias", d_.hidden),
            .query_norm = vector(given, "query_norm", head_values * (rows ? d_.heads : 1)),
            .key_norm = vector(given, "key_norm", head_values * (rows ? kv_heads : 1)),
            .sinks = vector(given, "sinks", d_.heads),
            .norms_of_rows = rows,
            .norms_after_rope = given.number<bool>("norms_after_rope"),
            .window = given.number<size_t>("window"),
            .rope = given.number<size_t>("rope"),
            .query_rope = given.number<size_t>("query_rope"),
            .score_cap = cap(given, "score_cap"),
            .value_norm = given.number<bool>("value_norm")};
        given.require_all_read();
        require(shared ? !w.key_norm : (w.query_norm == nullptr) == (w.key_norm == nullptr),
                "queries and keys have norms, or neither has");
        require(!w.value_norm || w.query_norm, "values have norms where queries have");
        require(w.rope < kMaxAxis && w.query_rope < kMaxAxis, "a size is out of range");
        held_.ropes = std::max({held_.ropes, w.rope + 1, w.query_rope + 1});
        return w;
    }

    bool has_cache(size_t layer, size_t kv_heads, size_t head_dim) const {
        const GroupedAttention& w = d_.layers[layer].grouped;
        return d_.layers[layer].mixer == Mixer::attention && w.has_keys() && w.kv_heads == kv_heads &&
               w.head_dim == head_dim;
    }

    LayerInput layer_input(Keywords given) {
        const auto gate = given.array<PanelArgument>("gate");
        const size_t width = std::get<2>(gate);
        require(width > 0 && width < kMaxAxis && width % 32 == 0,
                "the width of a layer's input must be a multiple of 32");
        require(held_.input_width == 0 || held_.input_width == width, "inputs of layers have one width");
        held_.input_width = width;
        const LayerInput w{.gate = panels(gate, d_.hidden, width),
                           .output = panels(given, "output", width, d_.hidden),
                           .norm = keep(given.array<Vector>("norm"), d_.hidden)};
        given.require_all_read();
        return w;
    }

    LatentAttention latent(Keywords given) {
        const LatentSizes& s = d_.latent;
        LatentAttention w{};
        size_t read = d_.hidden;  // inputs of `query`
        const auto down = given.array<std::optional<PanelArgument>>("query_down");
        if (down) {
            read = std::get<2>(*down);
            require(read > 0 && read < kMaxAxis && read % 32 == 0, "the compressed query must be a multiple of 32");
            w.query_down = panels(*down, d_.hidden, read);
        }
        w.query_norm = vector(given, "query_norm", read);
        w.query_down_bias = vector(given, "query_down_bias", read);
        require(down ? w.query_norm != nullptr : !w.query_norm && !w.query_down_bias,
                "a compressed query has a norm, another one neither norm nor bias");
        w.query = panels(given, "query", read, d_.heads * d_.head_dim);
        w.latent = panels(given, "latent", d_.hidden, s.latent + s.rope);
        w.latent_norm = keep(given.array<Vector>("latent_norm"), s.latent);
        w.latent_bias = vector(given, "latent_bias", s.latent + s.rope);
        w.key_up = panels(given, "key_up", s.nope, d_.heads * s.latent);
        w.value_up = panels(given, "value_up", s.latent, d_.heads * s.value);
        w.output = panels(given, "output", d_.heads * s.value, d_.hidden);
        w.output_bias = vector(given, "output_bias", d_.hidden);
        if (const auto index = given.array<std::optional<nb::dict>>("indexer")) {
            require(s.selects() && down, "an indexer reads a compressed query, and has sizes");
            w.indexer = indexer({kDecoderOp, *index}, read);
        }
        require(!s.selects() || d_.index_layers > 0, "the first layer that selects has an indexer");
        given.require_all_read();
        return w;
    }

    Indexer indexer(Keywords given, size_t compressed) {
        const LatentSizes& s = d_.latent;
        const Indexer w{.query = panels(given, "query", compressed, s.index_heads * s.index_width),
                        .key = panels(given, "key", d_.hidden, s.index_width),
                        .by_head = panels(given, "by_head", d_.hidden, s.index_heads),
                        .key_norm = keep(given.array<Vector>("key_norm"), s.index_width),
                        .key_norm_bias = keep(given.array<Vector>("key_norm_bias"), s.index_width),
                        .cache_layer = d_.index_layers++};
        given.require_all_read();
        return w;
    }

    Mixture mixture(Keywords given) {
        const auto router = given.array<PanelArgument>("router");
        const size_t experts = std::get<2>(router);
        Keywords rule = given.group("rule");
        const auto bias = given.array<OptionalVector>("bias");
        Mixture m{};
        m.rule = router_rule_of(experts, rule.number<size_t>("used"), rule.number<int>("scores"),
                                rule.number<size_t>("groups"), rule.number<size_t>("kept_groups"),
                                rule.number<int>("group_score"), rule.number<bool>("normalise"),
                                rule.number<float>("scale"), rule.number<float>("eps"), bias);
        rule.require_all_read();
        if (bias) held_.arrays.emplace_back(*bias);
        m.router = panels(router, d_.hidden, experts);
        require(m.router.data != nullptr, "a router has no weights");
        m.router_bias = vector(given, "router_bias", experts);
        m.factors = vector(given, "factors", experts);
        const auto down = given.array<std::optional<PanelArgument>>("latent_down");
        const size_t read = down ? std::get<2>(*down) : d_.hidden;
        require(read > 0 && read < kMaxAxis && read % 32 == 0, "the rows of experts must be multiples of 32");
        m.latent_down = down ? panels(*down, d_.hidden, read) : LinearPanelWeight{};
        m.latent_up = optional_panels(given, "latent_up", read, d_.hidden);
        require(down.has_value() == (m.latent_up.data != nullptr), "experts of a latent have both of its products");
        m.routed = feed_forward(given, "routed", experts, read);
        require(m.routed.is_given(), "a mixture has experts");
        m.shared = feed_forward(given, "shared", 1, d_.hidden);
        m.shared_gate = optional_panels(given, "shared_gate", d_.hidden, 1);
        require(!m.shared_gate.data || (m.shared.is_given() && !m.shared.down_bias),
                "a gate is that of a shared block without a bias of its outputs");
        given.require_all_read();
        return m;
    }

    BesideNorms beside_norms(Keywords given) {
        const auto norm = [&](const char* name) { return keep(given.array<Vector>(name), d_.hidden); };
        const BesideNorms w{.router = norm("router_norm"),
                            .experts = norm("experts_norm"),
                            .dense_post = norm("dense_post_norm"),
                            .experts_post = norm("experts_post_norm")};
        given.require_all_read();
        return w;
    }

    const float* keep(const Vector& v, size_t length) {
        require_aligned(v);
        require(v.shape(0) == length, "a norm or bias has the wrong length");
        held_.arrays.emplace_back(v);
        return v.data();
    }

    static float cap(Keywords& given, const char* name) {
        const auto cap = given.number<float>(name);
        require(cap >= 0 && cap <= 3e38f, "a cap is out of range");
        return cap;
    }

    // Null for None.
    const float* vector(Keywords& given, const char* name, size_t length) {
        const auto v = given.array<OptionalVector>(name);
        return v ? keep(*v, length) : nullptr;
    }

    LinearPanelWeight panels(Keywords& given, const char* name, size_t in, size_t out) {
        return panels(given.array<PanelArgument>(name), in, out);
    }

    // No weight for None.
    LinearPanelWeight optional_panels(Keywords& given, const char* name, size_t in, size_t out) {
        const auto argument = given.array<std::optional<PanelArgument>>(name);
        return argument ? panels(*argument, in, out) : LinearPanelWeight{};
    }

    LinearPanelWeight panels(const PanelArgument& argument, size_t in, size_t out) {
        require(std::get<2>(argument) == out, "a weight has the wrong number of outputs");
        return weight(argument, in);
    }

    LinearPanelWeight weight(const PanelArgument& argument, size_t in) {
        const auto& [bytes, format, outputs] = argument;
        held_.arrays.emplace_back(bytes);
        return panel_weight_of(bytes, format, in, outputs);
    }

    RowWeight weight(const RowArgument& argument, size_t in) {
        const auto& [rows, format] = argument;
        held_.arrays.emplace_back(rows);
        return row_weight_of(rows, format, in);
    }

    // A block that is not given has no weights.
    FeedForwardPanels feed_forward(Keywords& given, const char* name, size_t count, size_t inputs) {
        const auto argument = given.array<FeedForwardArgument>(name);
        const auto& [weights, activation, biases] = argument;
        if (weights.empty()) return {};
        for (const PanelArgument& weight : weights) held_.arrays.emplace_back(std::get<0>(weight));
        for (const OptionalVector& bias : biases)
            if (bias) held_.arrays.emplace_back(*bias);
        return feed_forward_of(argument, count, inputs);
    }

    HeldDecoder& held_;
    Decoder& d_;
};

}  // namespace decodestep
