#include "decoder/decoder_forward.h"

#include "bindings/decoder_reader.h"
#include "bindings/state_rows.h"
#include "bindings/table_copy.h"

namespace decodestep {
namespace {

void make_decoder(HeldDecoder* self, const nb::kwargs& given) {
    HeldDecoder held;
    DecoderReader(held).read({kDecoderOp, given});
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
    const size_t slabs = keys.shape[0], layers = d.cache_layers;
    Shape expected_keys, expected_values;
    if (d.latent.is_given()) {
        require(!keys.in_bytes, "rope keys are not int8");
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

// The index cache, of the slabs of the others and of the type of the rope keys or int8, if the decoder selects.
void require_index(const Decoder& d, const std::optional<CacheView>& index, const CacheView& keys) {
    require(index.has_value() == d.latent.selects(), "index is given if the decoder selects positions");
    if (!index) return;
    const size_t row = d.latent.index_width + (index->in_bytes ? sizeof(float) : 0);
    require(index->shape == Shape{keys.shape[0], d.index_layers, keys.shape[2], kPagePositions, row},
            "index has the wrong shape");
}

// The tokens of a call as runs of one sequence's tokens, and the states of these sequences.
class StatesArgument {
  public:
    // slots, into: of every sequence the state that it reads and the one that it writes.
    StatesArgument(const Decoder& d, const std::optional<Packed<float, 2>>& states, const std::optional<Ids>& slots,
                   const std::optional<Ids>& into, const std::vector<int64_t>& sequence,
                   const std::vector<int64_t>& positions, size_t sequences) {
        const bool given = d.state_size > 0;
        require(states.has_value() == given && slots.has_value() == given && into.has_value() == given,
                "states, slots and into are given if layers have states");
        if (!given) return;
        require_aligned(*states, *slots, *into);
        require(states->shape(1) == d.state_size && slots->shape(0) == sequences && into->shape(0) == sequences,
                "states, slots or into has the wrong shape");
        data_ = states->data();
        const auto read_by = copy_of(*slots), written_by = copy_of(*into);
        for (size_t t = 0; t < sequence.size(); ++t) {
            if (t > 0 && sequence[t] == sequence[t - 1]) {
                require(positions[t] == positions[t - 1] + 1, "the tokens of a sequence are in order");
                continue;
            }
            starts_.push_back(static_cast<int64_t>(t));
            read_.push_back(read_by[static_cast<size_t>(sequence[t])]);
            written_.push_back(written_by[static_cast<size_t>(sequence[t])]);
        }
        starts_.push_back(static_cast<int64_t>(sequence.size()));
        require_states_apart(read_, written_, states->shape(0));
    }

    float* data() const { return data_; }
    StateRows rows() const { return {read_.size(), starts_.data(), read_.data(), written_.data()}; }

  private:
    float* data_ = nullptr;
    std::vector<int64_t> starts_, read_, written_;
};

// Where the inputs of tokens are kept for a replay, and the row of each of them.
class KeptArgument {
  public:
    KeptArgument(const Decoder& d, const std::optional<Packed<float, 2>>& kept, const std::optional<Ids>& rows,
                 size_t tokens) {
        require(kept.has_value() == rows.has_value(), "kept is given with kept_rows");
        if (!kept) return;
        require_aligned(*kept, *rows);
        require(d.kept_size > 0 && kept->shape(1) == d.kept_size && rows->shape(0) == tokens,
                "kept or kept_rows has the wrong shape");
        data_ = kept->data();
        rows_ = copy_of(*rows);
        std::vector<bool> taken(kept->shape(0));
        for (const int64_t row : rows_) {
            if (row == -1) continue;
            require(row >= 0 && static_cast<size_t>(row) < taken.size() && !taken[static_cast<size_t>(row)],
                    "a kept row is out of range, or that of two tokens");
            taken[static_cast<size_t>(row)] = true;
        }
    }

    float* data() const { return data_; }
    const int64_t* rows() const { return rows_.data(); }

  private:
    float* data_ = nullptr;
    std::vector<int64_t> rows_;
};

void call_decoder_forward(const HeldDecoder& held, Ids ids_array, Ids sequence_array, Ids positions_array,
                          Packed<const float, 3> sin, Packed<const float, 3> cos, const CacheArgument& keys_array,
                          const CacheArgument& values_array, bool half, Packed<const int64_t, 2> page_table,
                          Ids wanted_array, Packed<float, 2> logits, int threads,
                          const std::optional<Packed<double, 2>>& costs, const std::optional<Packed<float, 2>>& hidden,
                          const std::optional<Packed<const float, 3>>& layer_inputs,
                          const std::optional<Packed<float, 2>>& states_array, const std::optional<Ids>& slots,
                          const std::optional<Ids>& into, const std::optional<CacheArgument>& index_array,
                          const std::optional<Packed<float, 2>>& kept_array, const std::optional<Ids>& kept_rows) {
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
    const auto index = index_array ? std::optional<CacheView>(*index_array) : std::nullopt;
    require_index(d, index, keys);
    require(logits.shape(0) == wanted.size() && logits.shape(1) == d.logits.out, "logits has the wrong shape");
    require(!hidden || (hidden->shape(0) == tokens && hidden->shape(1) == d.hidden), "hidden has the wrong shape");
    if (hidden) require_aligned(*hidden);
    require(layer_inputs.has_value() == (held.input_width > 0), "layer_inputs are given if layers have inputs");
    require(!layer_inputs || (layer_inputs->shape(0) == tokens && layer_inputs->shape(1) == layers &&
                              layer_inputs->shape(2) == held.input_width),
            "layer_inputs has the wrong shape");
    if (layer_inputs) require_aligned(*layer_inputs);
    require(!costs || (costs->shape(0) == std::size(kStepParts) && costs->shape(1) == 2), "costs has the wrong shape");
    if (costs) require_aligned(*costs);
    const size_t embeddings = std::visit([](const auto& w) { return w.out; }, d.embedding);
    require(all_within(ids, embeddings), "a token id is out of range");
    require(all_within(sequence, page_table.shape(0)), "a sequence is out of range");
    require(all_within(positions, std::min<size_t>(rope_positions, page_table.shape(1) * kPagePositions)),
            "a position is out of range");
    require(all_within(wanted, tokens), "a wanted row is out of range");
    const StatesArgument states(d, states_array, slots, into, sequence, positions, page_table.shape(0));
    const KeptArgument kept(d, kept_array, kept_rows, tokens);
    // The page table of a cache of which a slab has pages of so many layers and heads.
    const auto copied_table = [&](size_t layers_and_heads) {
        const size_t slab_places = layers_and_heads * slab_pages;
        return copy_of_table(
            page_table, sequence, [&](size_t t) { return static_cast<size_t>(positions[t]) / kPagePositions + 1; },
            slabs * slab_pages, "a page is out of range",
            [=](int64_t page) {
                const auto p = static_cast<size_t>(page);
                return static_cast<int64_t>(p / slab_pages * slab_places + p % slab_pages);
            });
    };
    const TableCopy table = copied_table(d.cache_layers * d.kv_heads);
    const TableCopy index_table = index ? copied_table(d.index_layers) : TableCopy{};
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
                              .index = index ? index->data : nullptr,
                              .index_type = index && index->in_bytes ? CacheType::i8 : rope_key_type(cache),
                              .index_table = index_table.entries.get(),
                              .wanted = wanted.data(),
                              .rows = wanted.size(),
                              .layer_inputs = layer_inputs ? layer_inputs->data() : nullptr,
                              .states = states.data(),
                              .state_rows = states.rows(),
                              .kept = kept.data(),
                              .kept_rows = kept.rows(),
                              .logits = logits.data(),
                              .hidden = hidden ? hidden->data() : nullptr,
                              .threads = thread_count(threads),
                              .costs = costs ? reinterpret_cast<StepCost*>(costs->data()) : nullptr};
    if (tokens == 0) return;
    const ReleasedGil released;
    decoder_forward(args);
}

}  // namespace

void bind_decoder(nb::module_& m) {
    nb::class_<HeldDecoder>(m, "Decoder").def("__init__", &make_decoder);
    m.def("decoder_forward", &call_decoder_forward, nb::arg("decoder"), nb::arg("ids").noconvert(),
          nb::arg("sequence").noconvert(), nb::arg("positions").noconvert(), nb::arg("sin").noconvert(),
          nb::arg("cos").noconvert(), nb::arg("keys").noconvert(), nb::arg("values").noconvert(), nb::arg("half"),
          nb::arg("page_table").noconvert(), nb::arg("wanted").noconvert(), nb::arg("logits").noconvert(),
          nb::arg("threads"), nb::arg("costs").noconvert().none() = nb::none(),
          nb::arg("hidden").noconvert().none() = nb::none(), nb::arg("layer_inputs").noconvert().none() = nb::none(),
          nb::arg("states").noconvert().none() = nb::none(), nb::arg("slots").noconvert().none() = nb::none(),
          nb::arg("into").noconvert().none() = nb::none(), nb::arg("index").noconvert().none() = nb::none(),
          nb::arg("kept").noconvert().none() = nb::none(), nb::arg("kept_rows").noconvert().none() = nb::none());
    nb::list parts;
    for (const char* part : kStepParts) parts.append(part);
    m.attr("STEP_PARTS") = nb::tuple(parts);
}

}  // namespace decodestep
