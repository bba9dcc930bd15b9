#include "attention/mla_attention.h"

#include "bindings/paged_rows.h"
#include "bindings/table_copy.h"

namespace decodestep {
namespace {

void call_mla_attention(std::optional<Packed<const float, 3>> query, Packed<const float, 3> query_rope,
                        PagedCache kv_cache, PagedCache kr_cache, bool nz, std::optional<Vector> kv_scale,
                        std::optional<Vector> kr_scale, Packed<const int64_t, 2> block_table, Ids sequence, Ids lengths,
                        float scale, size_t groups, Packed<float, 3> out, int threads) {
    const size_t tokens = query_rope.shape(0), heads = query_rope.shape(1), rope = query_rope.shape(2),
                 latent = kv_cache.shape(3), block_size = kv_cache.shape(1);
    require_aligned(query, query_rope, kv_scale, kr_scale, block_table, sequence, lengths, out);
    require(groups > 0 && heads % groups == 0 && latent % groups == 0 && rope % groups == 0 && rope / groups % 2 == 0,
            "heads, latent and rope pairs must be multiples of groups");
    require(!query || (query->shape(0) == tokens && query->shape(1) == heads && query->shape(2) == latent),
            "query has the wrong shape");
    require(kr_cache.shape(3) == rope && kr_cache.shape(0) == kv_cache.shape(0) && kr_cache.shape(1) == block_size,
            "kr_cache has the wrong shape");
    require(out.shape(0) == tokens && out.shape(1) == heads && out.shape(2) == latent / groups,
            "out has the wrong shape");
    require(sequence.shape(0) == tokens && lengths.shape(0) == tokens, "sequence or lengths has the wrong shape");
    const auto rows = copy_of(sequence), seen = copy_of(lengths);
    require(all_within(rows, block_table.shape(0)), "a sequence is out of range");
    for (const int64_t length : seen)
        require(length >= 1 && length <= static_cast<int64_t>(block_table.shape(1) * block_size),
                "a length is out of range");
    const TableCopy table = copy_of_table(
        block_table, rows, [&](size_t t) { return (static_cast<size_t>(seen[t]) - 1) / block_size + 1; },
        kv_cache.shape(0), "a block is out of range");
    const MlaAttention args{.query = query ? query->data() : nullptr,
                            .query_rope = query_rope.data(),
                            .tokens = tokens,
                            .heads = heads,
                            .groups = groups,
                            .kv = paged_rows_of(kv_cache, kv_scale, nz),
                            .kr = paged_rows_of(kr_cache, kr_scale, nz),
                            .block_size = block_size,
                            .block_table = table.entries.get(),
                            .blocks = table.width,
                            .sequence = table.rows.data(),
                            .lengths = seen.data(),
                            .scale = scale,
                            .out = out.data(),
                            .threads = thread_count(threads)};
    if (out.size() == 0) return;
    const ReleasedGil released;
    mla_attention(args);
}

}  // namespace

void bind_mla_attention(nb::module_& m) {
    m.def("mla_attention", &call_mla_attention, nb::arg("query").none().noconvert(), nb::arg("query_rope").noconvert(),
          nb::arg("kv_cache").noconvert(), nb::arg("kr_cache").noconvert(), nb::arg("nz"),
          nb::arg("kv_scale").none().noconvert(), nb::arg("kr_scale").none().noconvert(),
          nb::arg("block_table").noconvert(), nb::arg("sequence").noconvert(), nb::arg("lengths").noconvert(),
          nb::arg("scale"), nb::arg("groups"), nb::arg("out").noconvert(), nb::arg("threads"));
}

}  // namespace decodestep
