#include "decoder/decoder_forward.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "bindings/mixture_of_experts.h"
#include "bindings/table_copy.h"

namespace decodestep {
namespace {

// used, scores, groups, kept_groups, group_score, normalise, scale
using RuleArgument = std::tuple<size_t, int, size_t, size_t, int, bool, float>;
// router, bias, rule, routed, shared
using MixtureArgument =
    std::tuple<PanelArgument, std::optional<Vector>, RuleArgument, FeedForwardArgument, FeedForwardArgument>;
// attention_norm, ffn_norm and those after the two blocks
using LayerNorms = std::tuple<Vector, Vector, std::optional<Vector>, std::optional<Vector>>;
// Of grouped-query attention: the biases of query, values_keys and output; the norms of query and key; window, rope
using GroupedOptions =
    std::tuple<std::array<std::optional<Vector>, 3>, std::array<std::optional<Vector>, 2>, size_t, size_t>;
// Of latent attention: the norms of query_down, if there is one, and latent; the biases of query_down, latent and
// output
using LatentVectors = std::tuple<std::vector<Vector>, std::array<std::optional<Vector>, 3>>;
// The norms of the layer; the products of attention, and its vectors if it is latent or its options if it is not; a
// dense block, or a mixture
using LayerArgument = std::tuple<LayerNorms, std::vector<PanelArgument>, std::optional<LatentVectors>,
                                 std::optional<GroupedOptions>, FeedForwardArgument, std::optional<MixtureArgument>>;
// nope, rope, latent, value, eps
using LatentArgument = std::tuple<size_t, size_t, size_t, size_t, float>;

// A decoder and the arrays that it points into.
struct HeldDecoder {
    Decoder decoder;
    std::vector<nb::ndarray<nb::ro>> arrays;
    size_t ropes = 1;
};

// Checks the arrays of a decoder and keeps them alive.
class DecoderBuilder {
  public:
    explicit DecoderBuilder(HeldDecoder& held) : held_(held) {}

    const float* vector(const Vector& v, size_t length) {
        require_aligned(v);
        require(v.shape(0) == length, "a norm or bias has the wrong length");
        held_.arrays.emplace_back(v);
        return v.data();
    }

    const float* vector(const std::optional<Vector>& v, size_t length) { return v ? vector(*v, length) : nullptr; }

    LinearPanelWeight panels(const PanelArgument& argument, size_t in, size_t out) {
        const auto& [bytes, format, outputs] = argument;
        require(outputs == out, "a weight has the wrong number of outputs");
        held_.arrays.emplace_back(bytes);
        return panel_weight_of(bytes, format, in, outputs);
    }

    GroupedAttention grouped(const std::vector<PanelArgument>& products, const GroupedOptions& options) {
        const Decoder& d = held_.decoder;
        const auto& [biases, norms, window, rope] = options;
        require(products.size() == 3, "grouped-query attention has three products");
        require(norms[0].has_value() == norms[1].has_value(), "queries and keys have norms, or neither has");
        require(rope < kMost, "a size is out of range");
        const size_t queries = d.heads * d.head_dim, keys = d.kv_heads * d.head_dim;
        held_.ropes = std::max(held_.ropes, rope + 1);
        return {.query = panels(products[0], d.hidden, queries),
                .values_keys = panels(products[1], d.hidden, 2 * keys),
                .output = panels(products[2], d.heads * d.head_values, d.hidden),
                .query_bias = vector(biases[0], queries),
                .values_keys_bias = vector(biases[1], 2 * keys),
                .output_bias = vector(biases[2], d.hidden),
                .query_norm = vector(norms[0], d.head_values),
                .key_norm = vector(norms[1], d.head_values),
                .window = window,
                .rope = rope};
    }

    // products: query_down if there is one, query, latent, key_up, value_up, output.
    LatentAttention latent(const std::vector<PanelArgument>& products, const LatentVectors& vectors) {
        const Decoder& d = held_.decoder;
        const auto& [norms, biases] = vectors;
        const LatentSizes& s = d.latent;
        const bool is_compressed = products.size() == 6;
        require(products.size() == size_t{5} + is_compressed && norms.size() == size_t{1} + is_compressed,
                "latent attention has five or six products, and a norm or two");
        LatentAttention w{};
        auto next = products.begin();
        size_t read = d.hidden;
        if (is_compressed) {
            read = std::get<2>(*next);
            require(read > 0 && read < kMost && read % 32 == 0, "the compressed query must be a multiple of 32");
            w.query_down = panels(*next++, d.hidden, read);
            w.query_norm = vector(norms[0], read);
        }
        w.query = panels(*next++, read, d.heads * d.head_dim);
        w.latent = panels(*next++, d.hidden, s.latent + s.rope);
        w.latent_norm = vector(norms.back(), s.latent);
        w.key_up = panels(*next++, s.nope, d.heads * s.latent);
        w.value_up = panels(*next++, s.latent, d.heads * s.value);
        w.output = panels(*next, d.heads * s.value, d.hidden);
        w.query_down_bias = vector(biases[0], is_compressed ? read : 0);
        w.latent_bias = vector(biases[1], s.latent + s.rope);
        w.output_bias = vector(biases[2], d.hidden);
        return w;
    }

    FeedForwardPanels feed_forward(const FeedForwardArgument& argument, size_t count) {
        for (const PanelArgument& weight : std::get<0>(argument)) held_.arrays.emplace_back(std::get<0>(weight));
        for (const auto& bias : std::get<2>(argument))
            if (bias) held_.arrays.emplace_back(*bias);
        return feed_forward_of(argument, count, held_.decoder.hidden);
    }

    Mixture mixture(const MixtureArgument& argument) {
        const auto& [router, bias, rule, routed, shared] = argument;
        const auto& [used, scores, groups, kept_groups, group_score, normalise, scale] = rule;
        const size_t experts = std::get<2>(router);
        Mixture m{};
        m.rule = router_rule_of(experts, used, scores, groups, kept_groups, group_score, normalise, scale, bias);
        if (bias) held_.arrays.emplace_back(*bias);
        m.router = panels(router, held_.decoder.hidden, experts);
        require(m.router.data != nullptr, "a router has no weights");
        m.routed = feed_forward(routed, experts);
        if (!std::get<0>(shared).empty()) m.shared = feed_forward(shared, 1);
        return m;
    }

    static constexpr size_t kMost = size_t{1} << 24;

  private:
    HeldDecoder& held_;
};

void make_decoder(HeldDecoder* self, size_t heads, size_t kv_heads, size_t head_dim, size_t head_values,
                  const std::optional<LatentArgument>& latent, float eps, float scale, float embedding_scale,
                  float residual_scale, float logits_scale, const std::vector<LayerArgument>& layers,
                  const Vector& norm, const PanelArgument& logits, Bytes embedding, int embedding_format) {
    constexpr size_t kMost = DecoderBuilder::kMost;
    const size_t hidden = norm.shape(0);
    require(!layers.empty(), "a decoder needs a layer");
    require(heads > 0 && kv_heads > 0 && heads % kv_heads == 0, "heads must be a multiple of kv_heads");
    require(head_dim > 0 && head_dim % 16 == 0, "head_dim must be a multiple of 16");
    require(hidden < kMost && heads < kMost && head_dim < kMost, "a size is out of range");
    require(head_values > 0 && head_values <= head_dim && (!latent || head_values == head_dim),
            "head_values is out of range");
    require(hidden > 0 && hidden % 32 == 0, "the inputs of weights must be multiples of 32");
    HeldDecoder held;
    DecoderBuilder builder(held);
    Decoder& d = held.decoder;
    d = {.hidden = hidden,
         .heads = heads,
         .kv_heads = kv_heads,
         .head_dim = head_dim,
         .head_values = head_values,
         .latent = {},
         .eps = eps,
         .scale = scale,
         .embedding_scale = embedding_scale,
         .residual_scale = residual_scale,
         .logits_scale = logits_scale,
         .layers = {},
         .norm = nullptr,
         .logits = {},
         .embedding = {}};
    if (latent) {
        const auto& [nope, rope, width, value, latent_eps] = *latent;
        require(nope > 0 && width > 0 && value > 0 && nope < kMost && width < kMost && value < kMost &&
                    nope % 32 == 0 && width % 32 == 0 && value % 32 == 0,
                "the widths of latent attention must be multiples of 32");
        require(rope > 0 && rope < kMost && rope % 16 == 0, "rope must be a multiple of 16");
        require(kv_heads == 1 && head_dim == nope + rope, "latent attention has one key of nope + rope");
        d.latent = {nope, rope, width, value, latent_eps};
    }
    for (const auto& [of_layer, products, vectors, grouped, dense, mixture] : layers) {
        const auto& [attention_norm, ffn_norm, attention_post_norm, ffn_post_norm] = of_layer;
        require(latent.has_value() == vectors.has_value() && latent.has_value() != grouped.has_value(),
                "vectors or options of the other kind of attention");
        require(std::get<0>(dense).empty() == mixture.has_value(), "a layer has a dense block or a mixture");
        require(!mixture || !ffn_post_norm, "a mixture has no norm after it");
        DecoderLayer w{};
        w.attention_norm = builder.vector(attention_norm, hidden);
        w.ffn_norm = builder.vector(ffn_norm, hidden);
        w.attention_post_norm = builder.vector(attention_post_norm, hidden);
        w.ffn_post_norm = builder.vector(ffn_post_norm, hidden);
        if (latent)
            w.latent = builder.latent(products, *vectors);
        else
            w.grouped = builder.grouped(products, *grouped);
        if (mixture)
            w.mixture = builder.mixture(*mixture);
        else
            w.feed_forward = builder.feed_forward(dense, 1);
        d.layers.push_back(w);
    }
    d.norm = builder.vector(norm, hidden);
    d.logits = builder.panels(logits, hidden, std::get<2>(logits));
    require(d.logits.out > 0, "the vocabulary is empty");
    d.embedding = row_weight_of(embedding, embedding_format, hidden);
    held.arrays.emplace_back(embedding);
    new (self) HeldDecoder(std::move(held));
}

// Keys or values of the cache, of 16 or 8 bits each.
using CacheArgument = std::variant<nb::ndarray<uint16_t, nb::device::cpu, nb::c_contig>,
                                   nb::ndarray<int8_t, nb::device::cpu, nb::c_contig>>;

using Shape = std::vector<size_t>;

// A cache, whatever its type.
struct CacheView {
    uint8_t* data;
    bool in_bytes;
    Shape shape;

    explicit CacheView(const CacheArgument& argument) : in_bytes(argument.index() == 1) {
        std::visit(
            [&](const auto& a) {
                require_aligned(a);
                data = reinterpret_cast<uint8_t*>(a.data());
                for (size_t i = 0; i < a.ndim(); ++i) shape.push_back(a.shape(i));
            },
            argument);
    }
};

// keys.shape: with as many dimensions as a cache of this decoder has; the slabs and the pages of a slab are free.
void require_cache(const Decoder& d, const CacheView& keys, const CacheView& values, CacheType cache) {
    const size_t slabs = keys.shape[0], layers = d.layers.size();
    Shape expected_keys, expected_values;
    if (d.latent.is_given()) {
        require(!keys.in_bytes && cache != CacheType::f16,
                "a cache of latents has rope keys and latents of other types");
        const size_t row = d.latent.latent + (values.in_bytes ? sizeof(float) : 0);
        expected_keys = {slabs, layers, keys.shape[2], kPagePositions, d.latent.rope};
        expected_values = {slabs, layers, keys.shape[2], kPagePositions, row};
    } else {
        require(keys.in_bytes == values.in_bytes, "keys and values are of one type");
        const size_t heads = d.kv_heads, width = d.head_dim, pages = keys.shape[3];
        if (cache == CacheType::bf16) {
            expected_keys = {slabs, layers, heads, pages, width / 2, kPagePositions, 2};
            expected_values = {slabs, layers, heads, pages, kPagePositions / 2, width, 2};
        } else {
            const size_t rows = kPagePositions + (values.in_bytes ? 2 : 0);
            expected_keys = expected_values = {slabs, layers, heads, pages, width / 16, rows, 16};
        }
    }
    require(keys.shape == expected_keys, "keys has the wrong shape");
    require(values.shape == expected_values, "values has the wrong shape");
}

bool all_within(const std::vector<int64_t>& ids, size_t end) {
    return std::all_of(ids.begin(), ids.end(), [=](int64_t id) { return id >= 0 && static_cast<size_t>(id) < end; });
}

void call_decoder_forward(const HeldDecoder& held, Ids ids_array, Ids sequence_array, Ids positions_array,
                          Packed<const float, 3> sin, Packed<const float, 3> cos, const CacheArgument& keys_array,
                          const CacheArgument& values_array, bool half, Packed<const int64_t, 2> page_table,
                          Ids wanted_array, Packed<float, 2> logits, int threads,
                          const std::optional<Packed<double, 2>>& costs) {
    const Decoder& d = held.decoder;
    const bool is_latent = d.latent.is_given();
    const CacheView keys(keys_array), values(values_array);
    const CacheType cache = values.in_bytes ? CacheType::i8 : half ? CacheType::f16 : CacheType::bf16;
    require(keys.shape.size() == (is_latent ? 5 : 7), "keys has the wrong shape");
    const size_t tokens = ids_array.shape(0), slabs = keys.shape[0], slab_pages = keys.shape[is_latent ? 2 : 3],
                 layers = d.layers.size(), rope = is_latent ? d.latent.rope : d.head_dim;
    require_aligned(ids_array, sequence_array, positions_array, sin, cos, page_table, wanted_array, logits);
    require(sequence_array.shape(0) == tokens && positions_array.shape(0) == tokens,
            "sequence or positions has the wrong shape");
    const auto ids = copy_of(ids_array), sequence = copy_of(sequence_array), positions = copy_of(positions_array),
               wanted = copy_of(wanted_array);
    const size_t rope_positions = sin.shape(1);
    require(sin.shape(0) >= held.ropes && sin.shape(2) == rope / 2 && cos.shape(0) == sin.shape(0) &&
                cos.shape(1) == rope_positions && cos.shape(2) == sin.shape(2),
            "sin or cos has the wrong shape");
    require_cache(d, keys, values, cache);
    require(logits.shape(0) == wanted.size() && logits.shape(1) == d.logits.out, "logits has the wrong shape");
    require(!costs || (costs->shape(0) == std::size(kStepParts) && costs->shape(1) == 2), "costs has the wrong shape");
    if (costs) require_aligned(*costs);
    require(all_within(ids, d.embedding.out), "a token id is out of range");
    require(all_within(sequence, page_table.shape(0)), "a sequence is out of range");
    require(all_within(positions, std::min<size_t>(rope_positions, page_table.shape(1) * kPagePositions)),
            "a position is out of range");
    require(all_within(wanted, tokens), "a wanted row is out of range");
    const size_t slab_places = layers * d.kv_heads * slab_pages;
    const TableCopy table = copy_of_table(
        page_table, sequence, [&](size_t t) { return static_cast<size_t>(positions[t]) / kPagePositions + 1; },
        slabs * slab_pages, "a page is out of range",
        [=](int64_t page) {
            const auto p = static_cast<size_t>(page);
            return static_cast<int64_t>(p / slab_pages * slab_places + p % slab_pages);
        });
    const DecoderForward args{.decoder = &d,
                              .tokens = tokens,
                              .ids = ids.data(),
                              .sequence = table.rows.data(),
                              .positions = positions.data(),
                              .sin = sin.data(),
                              .cos = cos.data(),
                              .rope_positions = rope_positions,
                              .keys = keys.data,
                              .values = values.data,
                              .cache = cache,
                              .slab_pages = slab_pages,
                              .page_table = table.entries.get(),
                              .table_width = table.width,
                              .wanted = wanted.data(),
                              .rows = wanted.size(),
                              .logits = logits.data(),
                              .threads = thread_count(threads),
                              .costs = costs ? reinterpret_cast<StepCost*>(costs->data()) : nullptr};
    if (tokens == 0) return;
    nb::gil_scoped_release release;
    decoder_forward(args);
}

}  // namespace

void bind_decoder(nb::module_& m) {
    nb::class_<HeldDecoder>(m, "Decoder")
        .def("__init__", &make_decoder, nb::arg("heads"), nb::arg("kv_heads"), nb::arg("head_dim"),
             nb::arg("head_values"), nb::arg("latent").none(), nb::arg("eps"), nb::arg("scale"),
             nb::arg("embedding_scale"), nb::arg("residual_scale"), nb::arg("logits_scale"), nb::arg("layers"),
             nb::arg("norm").noconvert(), nb::arg("logits"), nb::arg("embedding").noconvert(),
             nb::arg("embedding_format"));
    m.def("decoder_forward", &call_decoder_forward, nb::arg("decoder"), nb::arg("ids").noconvert(),
          nb::arg("sequence").noconvert(), nb::arg("positions").noconvert(), nb::arg("sin").noconvert(),
          nb::arg("cos").noconvert(), nb::arg("keys").noconvert(), nb::arg("values").noconvert(), nb::arg("half"),
          nb::arg("page_table").noconvert(), nb::arg("wanted").noconvert(), nb::arg("logits").noconvert(),
          nb::arg("threads"), nb::arg("costs").noconvert().none() = nb::none());
    nb::list parts;
    for (const char* part : kStepParts) parts.append(part);
    m.attr("STEP_PARTS") = nb::tuple(parts);
}

}  // namespace decodestep
