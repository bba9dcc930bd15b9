#include "decoder/decoder_forward.h"

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"

namespace decodestep {
namespace {

using PanelBytes = Packed<const uint8_t, 1>;
using PanelArgument = std::tuple<PanelBytes, int, size_t>;  // bytes, format, outputs
using LayerArgument = std::tuple<Vector, Vector, std::vector<PanelArgument>>;

// A decoder and the arrays that it points into.
struct HeldDecoder {
    Decoder decoder;
    std::vector<nb::ndarray<nb::ro>> arrays;
};

class Maker {
  public:
    explicit Maker(HeldDecoder& held) : held_(held) {}

    const float* vector(const Vector& v, size_t length) {
        require_aligned(v);
        require(v.shape(0) == length, "a norm has the wrong length");
        held_.arrays.emplace_back(v);
        return v.data();
    }

    Panels panels(const PanelArgument& argument, size_t in, size_t out) {
        const auto& [bytes, format, outputs] = argument;
        require(outputs == out, "a weight has the wrong number of outputs");
        held_.arrays.emplace_back(bytes);
        return panels_of(bytes, format, in, outputs);
    }

  private:
    HeldDecoder& held_;
};

void make(HeldDecoder* self, size_t heads, size_t groups, size_t width, size_t feed_forward, float eps, float scale,
          const std::vector<LayerArgument>& layers, const Vector& norm, const PanelArgument& logits, Bytes embedding,
          int embedding_format) {
    constexpr size_t kMost = size_t{1} << 24;
    const size_t hidden = norm.shape(0);
    require(!layers.empty(), "a decoder has layers");
    require(heads > 0 && groups > 0 && heads % groups == 0, "heads must fall into the groups");
    require(width > 0 && width % 16 == 0, "the width of a head must be a multiple of 16");
    require(hidden < kMost && feed_forward < kMost && heads < kMost && width < kMost, "a size is out of range");
    require(hidden > 0 && feed_forward > 0 && hidden % 32 == 0 && feed_forward % 32 == 0 && heads * width % 32 == 0,
            "the inputs of weights must be multiples of 32");
    HeldDecoder held;
    Maker made(held);
    Decoder& d = held.decoder;
    d.hidden = hidden;
    d.heads = heads;
    d.groups = groups;
    d.width = width;
    d.feed_forward = feed_forward;
    d.eps = eps;
    d.scale = scale;
    for (const auto& [attention_norm, ffn_norm, weights] : layers) {
        require(weights.size() == 6, "a layer has six weights");
        d.layers.push_back({.attention_norm = made.vector(attention_norm, hidden),
                            .ffn_norm = made.vector(ffn_norm, hidden),
                            .query = made.panels(weights[0], hidden, heads * width),
                            .values_keys = made.panels(weights[1], hidden, 2 * groups * width),
                            .output = made.panels(weights[2], heads * width, hidden),
                            .gate = made.panels(weights[3], hidden, feed_forward),
                            .up = made.panels(weights[4], hidden, feed_forward),
                            .down = made.panels(weights[5], feed_forward, hidden)});
    }
    d.norm = made.vector(norm, hidden);
    d.logits = made.panels(logits, hidden, std::get<2>(logits));
    require(d.logits.out > 0, "the vocabulary is empty");
    d.embedding = rows_of(embedding, embedding_format, hidden);
    held.arrays.emplace_back(embedding);
    new (self) HeldDecoder(std::move(held));
}

template <class T>
bool all_within(const T& ids, size_t end) {
    for (size_t i = 0; i < ids.shape(0); ++i)
        if (ids.data()[i] < 0 || static_cast<size_t>(ids.data()[i]) >= end) return false;
    return true;
}

void step(const HeldDecoder& held, Ids ids, Ids sequence, Ids positions, Matrix sin, Matrix cos,
          Packed<uint16_t, 6> keys, Packed<uint16_t, 6> values, Packed<const int64_t, 2> page_table, Ids wanted,
          Packed<float, 2> logits, int threads) {
    const Decoder& d = held.decoder;
    const size_t tokens = ids.shape(0), pages = keys.shape(2), table_width = page_table.shape(1);
    require_aligned(ids, sequence, positions, sin, cos, keys, values, page_table, wanted, logits);
    require(sequence.shape(0) == tokens && positions.shape(0) == tokens, "sequence or positions has the wrong shape");
    require(sin.shape(1) == d.width / 2 && cos.shape(0) == sin.shape(0) && cos.shape(1) == sin.shape(1),
            "sin or cos has the wrong shape");
    require(keys.shape(0) == d.layers.size() && keys.shape(1) == d.groups && keys.shape(3) == d.width / 2 &&
                keys.shape(4) == kPagePositions && keys.shape(5) == 2,
            "keys has the wrong shape");
    require(values.shape(0) == keys.shape(0) && values.shape(1) == d.groups && values.shape(2) == pages &&
                values.shape(3) == kPagePositions / 2 && values.shape(4) == d.width && values.shape(5) == 2,
            "values has the wrong shape");
    require(logits.shape(0) == wanted.shape(0) && logits.shape(1) == d.logits.out, "logits has the wrong shape");
    require(all_within(ids, d.embedding.out), "a token id is out of range");
    require(all_within(sequence, page_table.shape(0)), "a sequence is out of range");
    require(all_within(positions, std::min<size_t>(sin.shape(0), table_width * kPagePositions)),
            "a position is out of range");
    require(all_within(wanted, tokens), "a wanted row is out of range");
    for (size_t t = 0; t < tokens; ++t) {
        const int64_t* table = page_table.data() + sequence.data()[t] * table_width;
        for (size_t p = 0; p <= positions.data()[t] / kPagePositions; ++p)
            require(table[p] >= 0 && table[p] < static_cast<int64_t>(pages), "a page is out of range");
    }
    const DecoderForward args{.decoder = &d,
                              .tokens = tokens,
                              .ids = ids.data(),
                              .sequence = sequence.data(),
                              .positions = positions.data(),
                              .sin = sin.data(),
                              .cos = cos.data(),
                              .keys = keys.data(),
                              .values = values.data(),
                              .pages = pages,
                              .page_table = page_table.data(),
                              .table_width = table_width,
                              .wanted = wanted.data(),
                              .rows = wanted.shape(0),
                              .logits = logits.data(),
                              .threads = thread_count(threads)};
    if (tokens == 0) return;
    nb::gil_scoped_release release;
    decoder_forward(args);
}

}  // namespace

void bind_decoder(nb::module_& m) {
    nb::class_<HeldDecoder>(m, "Decoder")
        .def("__init__", &make, nb::arg("heads"), nb::arg("groups"), nb::arg("width"), nb::arg("feed_forward"),
             nb::arg("eps"), nb::arg("scale"), nb::arg("layers"), nb::arg("norm").noconvert(), nb::arg("logits"),
             nb::arg("embedding").noconvert(), nb::arg("embedding_format"));
    m.def("decoder_forward", &step, nb::arg("decoder"), nb::arg("ids").noconvert(), nb::arg("sequence").noconvert(),
          nb::arg("positions").noconvert(), nb::arg("sin").noconvert(), nb::arg("cos").noconvert(),
          nb::arg("keys").noconvert(), nb::arg("values").noconvert(), nb::arg("page_table").noconvert(),
          nb::arg("wanted").noconvert(), nb::arg("logits").noconvert(), nb::arg("threads"));
}

}  // namespace decodestep
