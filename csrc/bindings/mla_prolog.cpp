#include "../mla_prolog.h"

#include "bindings.h"

namespace decodestep {
namespace {

// `Real` is what holds a value of the tensors: float, or the sixteen bits of a bfloat16.
template <class Real>
void bind(nb::module_& m, const char* name) {
    m.def(
        name,
        [](Matrix x, std::optional<Bytes> w_dq, int w_dq_format, Bytes w_uq_qr, int w_uq_qr_format, Bytes w_dkv_kr,
           int w_dkv_kr_format, Packed<const Real, 3> w_uk, std::optional<Vector> gamma_cq,
           std::optional<Vector> gamma_ckv, float eps_cq, float eps_ckv, float alpha_cq, float alpha_ckv, Matrix sin,
           Matrix cos, Ids slots, Array<Real, 4> kv_cache, Array<Real, 4> kr_cache, size_t rope_groups,
           std::optional<Packed<Real, 3>> query, Packed<Real, 3> query_rope, Packed<float, 2> cq, Packed<float, 2> q,
           Packed<float, 2> ckv_kr, int threads) {
            const size_t tokens = x.shape(0), heads = w_uk.shape(0), nope = w_uk.shape(1), latent = w_uk.shape(2),
                         rope = sin.shape(1), width = w_dq ? w_dq->shape(0) : x.shape(1);
            require_aligned(x, w_uk, gamma_cq, gamma_ckv, sin, cos, slots, kv_cache, kr_cache, query, query_rope, cq, q,
                            ckv_kr);
            require(heads > 0 && rope_groups > 0 && heads % rope_groups == 0 && rope % rope_groups == 0 &&
                        rope / rope_groups % 2 == 0,
                    "heads and rope pairs must fall into the groups");
            const Rows down = w_dq ? rows_of(*w_dq, w_dq_format, x.shape(1)) : Rows{};
            const Rows up = rows_of(w_uq_qr, w_uq_qr_format, width),
                       kv = rows_of(w_dkv_kr, w_dkv_kr_format, x.shape(1));
            require(up.out == heads * (nope + rope / rope_groups), "w_uq_qr has the wrong number of outputs");
            require(kv.out == latent + rope, "w_dkv_kr has the wrong number of outputs");
            require(!gamma_cq || gamma_cq->shape(0) == width, "gamma_cq has the wrong shape");
            require(!gamma_ckv || gamma_ckv->shape(0) == latent, "gamma_ckv has the wrong shape");
            require(sin.shape(0) == tokens && cos.shape(0) == tokens && cos.shape(1) == rope,
                    "sin or cos has the wrong shape");
            require(slots.shape(0) == tokens, "slots has the wrong shape");
            require(kv_cache.shape(3) == latent && kr_cache.shape(3) == rope &&
                        kv_cache.shape(0) == kr_cache.shape(0) && kv_cache.shape(1) == kr_cache.shape(1),
                    "a cache has the wrong shape");
            const auto end = static_cast<int64_t>(kv_cache.shape(0) * kv_cache.shape(1));
            for (size_t t = 0; t < tokens; ++t) require(slots.data()[t] < end, "a slot is out of range");
            require(!query || (query->shape(0) == tokens && query->shape(1) == heads && query->shape(2) == latent),
                    "query has the wrong shape");
            require(query_rope.shape(0) == tokens && query_rope.shape(1) == heads && query_rope.shape(2) == rope,
                    "query_rope has the wrong shape");
            require(cq.shape(0) == tokens && cq.shape(1) == width && q.shape(0) == tokens && q.shape(1) == up.out &&
                        ckv_kr.shape(0) == tokens && ckv_kr.shape(1) == kv.out,
                    "the work space has the wrong shape");
            const MlaProlog args{.x = x.data(),
                                 .tokens = tokens,
                                 .heads = heads,
                                 .nope = nope,
                                 .rope = rope,
                                 .latent = latent,
                                 .rope_groups = rope_groups,
                                 .w_dq = down,
                                 .w_uq_qr = up,
                                 .w_dkv_kr = kv,
                                 .bf16 = sizeof(Real) == 2,
                                 .w_uk = w_uk.data(),
                                 .gamma_cq = gamma_cq ? gamma_cq->data() : nullptr,
                                 .gamma_ckv = gamma_ckv ? gamma_ckv->data() : nullptr,
                                 .eps_cq = eps_cq,
                                 .eps_ckv = eps_ckv,
                                 .alpha_cq = alpha_cq,
                                 .alpha_ckv = alpha_ckv,
                                 .sin = sin.data(),
                                 .cos = cos.data(),
                                 .slots = slots.data(),
                                 .kv_cache = kv_cache.data(),
                                 .kr_cache = kr_cache.data(),
                                 .kv_block_stride = block_stride(kv_cache),
                                 .kr_block_stride = block_stride(kr_cache),
                                 .block_size = kv_cache.shape(1),
                                 .query = query ? query->data() : nullptr,
                                 .query_rope = query_rope.data(),
                                 .cq = cq.data(),
                                 .q = q.data(),
                                 .ckv_kr = ckv_kr.data(),
                                 .threads = thread_count(threads)};
            nb::gil_scoped_release release;
            mla_prolog(args);
        },
        nb::arg("x").noconvert(), nb::arg("w_dq").none().noconvert(), nb::arg("w_dq_format"),
        nb::arg("w_uq_qr").noconvert(), nb::arg("w_uq_qr_format"), nb::arg("w_dkv_kr").noconvert(),
        nb::arg("w_dkv_kr_format"), nb::arg("w_uk").noconvert(), nb::arg("gamma_cq").none().noconvert(),
        nb::arg("gamma_ckv").none().noconvert(), nb::arg("eps_cq"), nb::arg("eps_ckv"), nb::arg("alpha_cq"),
        nb::arg("alpha_ckv"), nb::arg("sin").noconvert(), nb::arg("cos").noconvert(), nb::arg("slots").noconvert(),
        nb::arg("kv_cache").noconvert(), nb::arg("kr_cache").noconvert(), nb::arg("rope_groups"),
        nb::arg("query").none().noconvert(), nb::arg("query_rope").noconvert(), nb::arg("cq").noconvert(),
        nb::arg("q").noconvert(), nb::arg("ckv_kr").noconvert(), nb::arg("threads"));
}

}  // namespace

void bind_mla_prolog(nb::module_& m) {
    bind<float>(m, "mla_prolog");
    bind<uint16_t>(m, "mla_prolog_bf16");
}

}  // namespace decodestep
