#include "../mla_attention.h"

#include "bindings.h"

namespace decodestep {

void bind_mla_attention(nb::module_& m) {
    m.def(
        "mla_attention",
        [](std::optional<Packed<const float, 3>> query, Packed<const float, 3> query_rope,
           Array<const float, 4> kv_cache, Array<const float, 4> kr_cache, Packed<const int64_t, 2> block_table,
           Ids sequence, Ids lengths, float scale, size_t groups, Packed<float, 3> out, int threads) {
            const size_t tokens = query_rope.shape(0), heads = query_rope.shape(1), rope = query_rope.shape(2),
                         latent = kv_cache.shape(3), block_size = kv_cache.shape(1), blocks = block_table.shape(1);
            require_aligned(query, query_rope, kv_cache, kr_cache, block_table, sequence, lengths, out);
            require(groups > 0 && heads % groups == 0 && latent % groups == 0 && rope % groups == 0 &&
                        rope / groups % 2 == 0,
                    "heads, latent and rope pairs must fall into the groups");
            require(!query || (query->shape(0) == tokens && query->shape(1) == heads && query->shape(2) == latent),
                    "query has the wrong shape");
            require(
                kr_cache.shape(3) == rope && kr_cache.shape(0) == kv_cache.shape(0) && kr_cache.shape(1) == block_size,
                "kr_cache has the wrong shape");
            require(out.shape(0) == tokens && out.shape(1) == heads && out.shape(2) == latent / groups,
                    "out has the wrong shape");
            require(sequence.shape(0) == tokens && lengths.shape(0) == tokens,
                    "sequence or lengths has the wrong shape");
            for (size_t t = 0; t < tokens; ++t) {
                const int64_t row = sequence.data()[t], length = lengths.data()[t];
                require(row >= 0 && row < static_cast<int64_t>(block_table.shape(0)), "a sequence is out of range");
                require(length >= 1 && length <= static_cast<int64_t>(blocks * block_size), "a length is out of range");
                const int64_t* table = block_table.data() + row * blocks;
                for (size_t b = 0; b * block_size < static_cast<size_t>(length); ++b)
                    require(table[b] >= 0 && table[b] < static_cast<int64_t>(kv_cache.shape(0)),
                            "a block is out of range");
            }
            const MlaAttention args{query ? query->data() : nullptr,
                                    query_rope.data(),
                                    tokens,
                                    heads,
                                    latent,
                                    rope,
                                    groups,
                                    kv_cache.data(),
                                    kr_cache.data(),
                                    block_stride(kv_cache),
                                    block_stride(kr_cache),
                                    block_size,
                                    block_table.data(),
                                    blocks,
                                    sequence.data(),
                                    lengths.data(),
                                    scale,
                                    out.data(),
                                    thread_count(threads)};
            nb::gil_scoped_release release;
            mla_attention(args);
        },
        nb::arg("query").none().noconvert(), nb::arg("query_rope").noconvert(), nb::arg("kv_cache").noconvert(),
        nb::arg("kr_cache").noconvert(), nb::arg("block_table").noconvert(), nb::arg("sequence").noconvert(),
        nb::arg("lengths").noconvert(), nb::arg("scale"), nb::arg("groups"), nb::arg("out").noconvert(),
        nb::arg("threads"));
}

}  // namespace decodestep
