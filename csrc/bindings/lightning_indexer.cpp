#include "attention/lightning_indexer.h"

#include "bindings/paged_rows.h"
#include "bindings/table_copy.h"

namespace decodestep {
namespace {

// query: float32, or int8 where the keys are.
void call_lightning_indexer(const Any& query, Packed<const float, 2> weights, PagedCache keys,
                            std::optional<Packed<const float, 2>> key_scales, Packed<const int64_t, 2> block_table,
                            Ids sequence, Ids visible, bool ordered, Packed<int32_t, 2> selected,
                            std::optional<Packed<float, 2>> values, int threads) {
    const size_t tokens = weights.shape(0), heads = weights.shape(1), width = keys.shape(3), blocks = keys.shape(0),
                 block_size = keys.shape(1), count = selected.shape(1);
    require_aligned(weights, key_scales, block_table, sequence, visible, selected, values);
    require_aligned_any(query);
    const PagedRows rows = paged_rows_of(keys, std::nullopt, false);
    require(!rows.float8, "keys are not eight-bit floats");
    const bool in_bytes = rows.type == CacheType::i8;
    require(query.dtype() == (in_bytes ? nb::dtype<int8_t>() : nb::dtype<float>()), "query has the wrong type");
    require(query.ndim() == 3 && query.shape(0) == tokens && query.shape(1) == heads && query.shape(2) == width &&
                contiguous(query),
            "query has the wrong shape");
    require(heads > 0 && width > 0 && count > 0 && (!in_bytes || width % 4 == 0), "an axis has the wrong length");
    require(tokens < kMaxAxis && heads < kMaxAxis && width < kMaxAxis, "an axis is too long");
    require(key_scales.has_value() == in_bytes, "int8 keys have scales, and no others");
    require(!key_scales || (key_scales->shape(0) == blocks && key_scales->shape(1) == block_size),
            "key_scales has the wrong shape");
    require(selected.shape(0) == tokens && (!values || (values->shape(0) == tokens && values->shape(1) == count)),
            "selected or values has the wrong shape");
    require(sequence.shape(0) == tokens && visible.shape(0) == tokens, "sequence or visible has the wrong shape");
    const auto own = copy_of(sequence), seen = copy_of(visible);
    require(all_within(own, block_table.shape(0)), "a sequence is out of range");
    const size_t room = std::min<size_t>(block_table.shape(1) * block_size, INT32_MAX);
    require(all_within(seen, room + 1), "a number of visible keys is out of range");
    const TableCopy table = copy_of_table(
        block_table, own,
        [&](size_t t) { return seen[t] ? (static_cast<size_t>(seen[t]) - 1) / block_size + 1 : size_t{0}; }, blocks,
        "a block is out of range");
    const LightningIndexer args{.query = query.data(),
                                .weights = weights.data(),
                                .tokens = tokens,
                                .heads = heads,
                                .keys = rows,
                                .key_scales = key_scales ? key_scales->data() : nullptr,
                                .block_size = block_size,
                                .block_table = table.entries.get(),
                                .blocks = table.width,
                                .sequence = table.rows.data(),
                                .visible = seen.data(),
                                .count = count,
                                .ordered = ordered,
                                .selected = selected.data(),
                                .values = values ? values->data() : nullptr,
                                .slots = nullptr,
                                .slot_table = nullptr,
                                .threads = thread_count(threads)};
    if (tokens == 0) return;
    const ReleasedGil released;
    lightning_indexer(args);
}

}  // namespace

void bind_lightning_indexer(nb::module_& m) {
    m.def("lightning_indexer", &call_lightning_indexer, nb::arg("query").noconvert(), nb::arg("weights").noconvert(),
          nb::arg("keys").noconvert(), nb::arg("key_scales").none().noconvert(), nb::arg("block_table").noconvert(),
          nb::arg("sequence").noconvert(), nb::arg("visible").noconvert(), nb::arg("ordered"),
          nb::arg("selected").noconvert(), nb::arg("values").none().noconvert(), nb::arg("threads"));
}

}  // namespace decodestep
