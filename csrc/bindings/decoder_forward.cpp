#include "decoder/decoder_forward.h"

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "bindings/mixture_of_experts.h"
#include "bindings/table_copy.h"

namespace decodestep {
namespace {

// attention_norm, ffn_norm; query, values_keys, output, gate, up, down
using LayerArgument = std::tuple<Vector, Vector, std::vector<PanelArgument>>;

// A decoder and the arrays that it points into.
struct HeldDecoder {
    Decoder decoder;
    std::vector<nb::ndarray<nb::ro>> arrays;
};

// Checks the arrays of a decoder and keeps them alive.
class DecoderBuilder {
  public:
    explicit DecoderBuilder(HeldDecoder& held) : held_(held) {}

    const float* vector(const Vector& v, size_t length) {
        require_aligned(v);
        require(v.shape(0) == length, "a norm has the wrong length");
        held_.arrays.emplace_back(v);
        return v.data();
    }

    LinearPanelWeight panels(const PanelArgument& argument, size_t in, size_t out) {
        const auto& [bytes, format, outputs] = argument;
        require(outputs == out, "a weight has the wrong number of outputs");
        held_.arrays.emplace_back(bytes);
        return panel_weight_of(bytes, format, in, outputs);
    }

  private:
    HeldDecoder& held_;
};

void make_decoder(HeldDecoder* self, size_t heads, size_t kv_heads, size_t head_dim, size_t feed_forward, float eps,
                  float scale, const std::vector<LayerArgument>& layers, const Vector& norm,
                  const PanelArgument& logits, Bytes embedding, int embedding_format) {
    constexpr size_t kMost = size_t{1} << 24;
    const size_t hidden = norm.shape(0);
    require(!layers.empty(), "a decoder needs a layer");
    require(heads > 0 && kv_heads > 0 && heads % kv_heads == 0, "heads must be a multiple of kv_heads");
    require(head_dim > 0 && head_dim % 16 == 0, "head_dim must be a multiple of 16");
    require(hidden < kMost && feed_forward < kMost && heads < kMost && head_dim < kMost, "a size is out of range");
    require(hidden > 0 && feed_forward > 0 && hidden % 32 == 0 && feed_forward % 32 == 0 && heads * head_dim % 32 == 0,
            "the inputs of weights must be multiples of 32");
    HeldDecoder held;
    DecoderBuilder builder(held);
    Decoder& d = held.decoder;
    d.hidden = hidden;
    d.heads = heads;
    d.kv_heads = kv_heads;
    d.head_dim = head_dim;
    d.feed_forward = feed_forward;
    d.eps = eps;
    d.scale = scale;
    for (const auto& [attention_norm, ffn_norm, weights] : layers) {
        require(weights.size() == 6, "a layer has six weights");
        d.layers.push_back({.attention_norm = builder.vector(attention_norm, hidden),
                            .ffn_norm = builder.vector(ffn_norm, hidden),
                            .query = builder.panels(weights[0], hidden, heads * head_dim),
                            .values_keys = builder.panels(weights[1], hidden, 2 * kv_heads * head_dim),
                            .output = builder.panels(weights[2], heads * head_dim, hidden),
                            .gate = builder.panels(weights[3], hidden, feed_forward),
                            .up = builder.panels(weights[4], hidden, feed_forward),
                            .down = builder.panels(weights[5], feed_forward, hidden)});
    }
    d.norm = builder.vector(norm, hidden);
    d.logits = builder.panels(logits, hidden, std::get<2>(logits));
    require(d.logits.out > 0, "the vocabulary is empty");
    d.embedding = row_weight_of(embedding, embedding_format, hidden);
    held.arrays.emplace_back(embedding);
    new (self) HeldDecoder(std::move(held));
}

bool all_within(const std::vector<int64_t>& ids, size_t end) {
    return std::all_of(ids.begin(), ids.end(), [=](int64_t id) { return id >= 0 && static_cast<size_t>(id) < end; });
}

void call_decoder_forward(const HeldDecoder& held, Ids ids_array, Ids sequence_array, Ids positions_array, Matrix sin,
                          Matrix cos, Packed<uint16_t, 7> keys, Packed<uint16_t, 7> values,
                          Packed<const int64_t, 2> page_table, Ids wanted_array, Packed<float, 2> logits, int threads) {
    const Decoder& d = held.decoder;
    const size_t tokens = ids_array.shape(0), slabs = keys.shape(0), slab_pages = keys.shape(3);
    require_aligned(ids_array, sequence_array, positions_array, sin, cos, keys, values, page_table, wanted_array,
                    logits);
    require(sequence_array.shape(0) == tokens && positions_array.shape(0) == tokens,
            "sequence or positions has the wrong shape");
    const auto ids = copy_of(ids_array), sequence = copy_of(sequence_array), positions = copy_of(positions_array),
               wanted = copy_of(wanted_array);
    require(sin.shape(1) == d.head_dim / 2 && cos.shape(0) == sin.shape(0) && cos.shape(1) == sin.shape(1),
            "sin or cos has the wrong shape");
    require(keys.shape(1) == d.layers.size() && keys.shape(2) == d.kv_heads && keys.shape(4) == d.head_dim / 2 &&
                keys.shape(5) == kPagePositions && keys.shape(6) == 2,
            "keys has the wrong shape");
    require(values.shape(0) == slabs && values.shape(1) == keys.shape(1) && values.shape(2) == d.kv_heads &&
                values.shape(3) == slab_pages && values.shape(4) == kPagePositions / 2 &&
                values.shape(5) == d.head_dim && values.shape(6) == 2,
            "values has the wrong shape");
    require(logits.shape(0) == wanted.size() && logits.shape(1) == d.logits.out, "logits has the wrong shape");
    require(all_within(ids, d.embedding.out), "a token id is out of range");
    require(all_within(sequence, page_table.shape(0)), "a sequence is out of range");
    require(all_within(positions, std::min<size_t>(sin.shape(0), page_table.shape(1) * kPagePositions)),
            "a position is out of range");
    require(all_within(wanted, tokens), "a wanted row is out of range");
    const size_t slab_places = d.layers.size() * d.kv_heads * slab_pages;
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
                              .keys = keys.data(),
                              .values = values.data(),
                              .slab_pages = slab_pages,
                              .page_table = table.entries.get(),
                              .table_width = table.width,
                              .wanted = wanted.data(),
                              .rows = wanted.size(),
                              .logits = logits.data(),
                              .threads = thread_count(threads)};
    if (tokens == 0) return;
    nb::gil_scoped_release release;
    decoder_forward(args);
}

}  // namespace

void bind_decoder(nb::module_& m) {
    nb::class_<HeldDecoder>(m, "Decoder")
        .def("__init__", &make_decoder, nb::arg("heads"), nb::arg("kv_heads"), nb::arg("head_dim"),
             nb::arg("feed_forward"), nb::arg("eps"), nb::arg("scale"), nb::arg("layers"), nb::arg("norm").noconvert(),
             nb::arg("logits"), nb::arg("embedding").noconvert(), nb::arg("embedding_format"));
    m.def("decoder_forward", &call_decoder_forward, nb::arg("decoder"), nb::arg("ids").noconvert(),
          nb::arg("sequence").noconvert(), nb::arg("positions").noconvert(), nb::arg("sin").noconvert(),
          nb::arg("cos").noconvert(), nb::arg("keys").noconvert(), nb::arg("values").noconvert(),
          nb::arg("page_table").noconvert(), nb::arg("wanted").noconvert(), nb::arg("logits").noconvert(),
          nb::arg("threads"));
}

}  // namespace decodestep
