#include "attention/mla_attention.h"

#include "bindings/paged_rows.h"
#include "bindings/table_copy.h"

namespace decodestep {
namespace {

// Both parts of rows that hold a latent in bytes, its rope key in bfloat16 and a float32 for each tile of the latent.
struct JoinedRows {
    PagedRows kv, kr;
};
JoinedRows joined_rows_of(const PagedCache& cache, size_t rope) {
    const bool float8 = cache.dtype() == nb::dtype<uint8_t>();
    require(float8 || cache.dtype() == nb::dtype<int8_t>(), "a cache of joined rows has an unknown type");
    const size_t width = cache.shape(3), key = 2 * rope,
                 tiles = width > key ? (width - key) / (kLatentTile + sizeof(float)) : 0, latent = tiles * kLatentTile;
    const ptrdiff_t stride = block_stride(cache);
    require(tiles > 0 && latent + key + tiles * sizeof(float) == width, "joined rows have the wrong width");
    require(stride % 4 == 0 && reinterpret_cast<uintptr_t>(cache.data()) % 4 == 0,
            "joined rows must be aligned to words");
    JoinedRows made{{cache.data(), CacheType::i8, latent, stride, nullptr},
                    {static_cast<const uint8_t*>(cache.data()) + latent, CacheType::bf16, rope, stride / 2, nullptr}};
    made.kv.behind = width - latent;
    made.kv.tile_scales = latent + key;
    made.kv.float8 = float8;
    made.kr.behind = (width - key) / 2;
    return made;
}

void call_mla_attention(std::optional<Packed<const float, 3>> query, Packed<const float, 3> query_rope,
                        PagedCache kv_cache, std::optional<PagedCache> kr_cache, bool nz,
                        std::optional<Vector> kv_scale, std::optional<Vector> kr_scale,
                        Packed<const int64_t, 2> block_table, Ids sequence, Ids lengths, float scale, size_t groups,
                        Packed<float, 3> out, std::optional<Packed<float, 2>> lse, int threads,
                        std::optional<Vector> sinks, std::optional<Packed<float, 2>> largest,
                        std::optional<Packed<float, 2>> sums) {
    const size_t tokens = query_rope.shape(0), heads = query_rope.shape(1), rope = query_rope.shape(2),
                 block_size = kv_cache.shape(1);
    require_aligned(query, query_rope, kv_scale, kr_scale, block_table, sequence, lengths, out, lse, sinks, largest,
                    sums);
    require(kr_cache || (!nz && !kv_scale && !kr_scale && groups == 1),
            "joined rows have one group, no scales of their own and no NZ order");
    const JoinedRows rows_of =
        kr_cache ? JoinedRows{paged_rows_of(kv_cache, kv_scale, nz), paged_rows_of(*kr_cache, kr_scale, nz)}
                 : joined_rows_of(kv_cache, rope);
    require(!rows_of.kr.float8, "rope keys are not eight-bit floats");
    const size_t latent = rows_of.kv.width;
    require(groups > 0 && heads % groups == 0 && latent % groups == 0 && rope % groups == 0 && rope / groups % 2 == 0,
            "heads, latent and rope pairs must be multiples of groups");
    require(!query || (query->shape(0) == tokens && query->shape(1) == heads && query->shape(2) == latent),
            "query has the wrong shape");
    require(!kr_cache || (kr_cache->shape(3) == rope && kr_cache->shape(0) == kv_cache.shape(0) &&
                          kr_cache->shape(1) == block_size),
            "kr_cache has the wrong shape");
    for (const auto* each : {&lse, &largest, &sums})
        require(!*each || ((*each)->shape(0) == tokens && (*each)->shape(1) == heads),
                "lse, largest or sums has the wrong shape");
    require(!sinks || sinks->shape(0) == heads, "sinks has the wrong shape");
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
                            .kv = rows_of.kv,
                            .kr = rows_of.kr,
                            .block_size = block_size,
                            .block_table = table.entries.get(),
                            .blocks = table.width,
                            .sequence = table.rows.data(),
                            .lengths = seen.data(),
                            .scale = scale,
                            .sinks = sinks ? sinks->data() : nullptr,
                            .out = out.data(),
                            .lse = lse ? lse->data() : nullptr,
                            .largest = largest ? largest->data() : nullptr,
                            .sums = sums ? sums->data() : nullptr,
                            .threads = thread_count(threads)};
    if (out.size() == 0) return;
    const ReleasedGil released;
    mla_attention(args);
}

}  // namespace

void bind_mla_attention(nb::module_& m) {
    m.def("mla_attention", &call_mla_attention, nb::arg("query").none().noconvert(), nb::arg("query_rope").noconvert(),
          nb::arg("kv_cache").noconvert(), nb::arg("kr_cache").none().noconvert(), nb::arg("nz"),
          nb::arg("kv_scale").none().noconvert(), nb::arg("kr_scale").none().noconvert(),
          nb::arg("block_table").noconvert(), nb::arg("sequence").noconvert(), nb::arg("lengths").noconvert(),
          nb::arg("scale"), nb::arg("groups"), nb::arg("out").noconvert(), nb::arg("lse").none().noconvert(),
          nb::arg("threads"), nb::arg("sinks").none().noconvert() = nb::none(),
          nb::arg("largest").none().noconvert() = nb::none(), nb::arg("sums").none().noconvert() = nb::none());
}

}  // namespace decodestep
