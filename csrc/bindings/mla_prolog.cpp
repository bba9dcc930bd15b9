#include "mla_prolog/mla_prolog.h"

#include "bindings/bindings.h"

namespace decodestep {
namespace {

using Out = nb::ndarray<nb::device::cpu>;
using Scale = std::optional<Vector>;

constexpr size_t kExactInputs = size_t{1} << 17;  // fewer products of two int8 stay inside int32

template <class A>
bool shaped(const A& a, std::initializer_list<size_t> shape) {
    if (a.ndim() != shape.size()) return false;
    size_t i = 0;
    for (const size_t length : shape)
        if (a.shape(i++) != length) return false;
    return true;
}

// A result: contiguous, of the type and shape that it must have.
void* result(const Out& out, const nb::dlpack::dtype& type, std::initializer_list<size_t> shape, const char* what) {
    require(out.dtype() == type && shaped(out, shape) && contiguous(Any(out)), what);
    require_aligned_any(Any(out));
    return out.data();
}

const float* scale_of(const Scale& scale, bool wanted, size_t length, const char* what) {
    require(scale.has_value() == wanted && (!wanted || scale->shape(0) == length), what);
    if (!wanted) return nullptr;
    require_aligned(*scale);
    return scale->data();
}

const float* optional_scale(const Scale& scale, size_t length, const char* what) {
    return scale_of(scale, scale.has_value(), length, what);
}

// `format`: of rows (linear.h), or -1 for columns.
Projection projection(const Any& w, int format, size_t in, size_t out, bool bf16, const Scale& scale, bool int8) {
    Projection made{};
    if (format >= 0) {
        require(!int8 && w.dtype() == nb::dtype<uint8_t>() && w.ndim() == 2,
                "the rows of a weight are a matrix of bytes");
        made.rows = row_weight_of(Bytes(w), format, in);
        require(made.rows.out == out, "a weight has the wrong number of outputs");
    } else {
        made.columns = columns_of(w, in, out);
        require(made.columns.value == (int8   ? WeightType::i8
                                       : bf16 ? WeightType::bf16
                                              : WeightType::f32),
                "a weight has the wrong type");
        require(!int8 || in < kExactInputs, "an exact sum of int8 needs fewer inputs");
    }
    made.scale = scale_of(scale, int8, out, "the scale of a weight has the wrong shape, or is one too many or too few");
    return made;
}

Cache cache_of(const std::optional<Out>& cache, const nb::dlpack::dtype& type, size_t width, bool nz) {
    if (!cache || cache->size() == 0) return {};
    const size_t bytes = cache->itemsize();
    require(cache->dtype() == type && cache->ndim() == 4 && cache->shape(2) == 1 && cache->shape(3) == width,
            "a cache has the wrong type or shape");
    const size_t run = nz ? 32 / bytes : width;
    require(width % run == 0, "an NZ cache has whole fractals");
    const auto stride = [&](size_t axis) { return cache->stride(axis) * static_cast<ptrdiff_t>(bytes); };
    return {static_cast<uint8_t*>(cache->data()), stride(0), stride(1), stride(3), width, bytes, run};
}

void call(Any x, Scale x_scale, size_t width, size_t heads, size_t nope, size_t latent, size_t rope_groups,
          std::optional<Any> w_dq, int w_dq_format, Scale w_dq_scale, Any w_uq_qr, int w_uq_qr_format,
          Scale w_uq_qr_scale, Any w_dkv_kr, int w_dkv_kr_format, Scale w_dkv_kr_scale, Any w_uk, Scale gamma_cq,
          Scale gamma_ckv, float eps_cq, float eps_ckv, float alpha_cq, float alpha_ckv, Matrix sin, Matrix cos,
          Scale smooth, Ids slots, std::optional<Out> kv_cache, std::optional<Out> kr_cache, bool nz, int cache_scale,
          Scale ckv_scale, Scale ckr_scale, float clip, std::optional<Out> query,
          std::optional<Packed<float, 2>> query_scale, bool half_away, Out query_rope, std::optional<Out> query_norm,
          std::optional<Packed<float, 1>> norm_scale, int threads) {
    const bool full = x.dtype() == nb::dtype<int8_t>(), partial = w_uq_qr_scale.has_value();
    const bool bf16 = query_rope.dtype() == nb::dtype<uint16_t>();
    const nb::dlpack::dtype real = bf16 ? nb::dtype<uint16_t>() : nb::dtype<float>(), int8 = nb::dtype<int8_t>();
    require(x.ndim() == 2 && (full || x.dtype() == real) && contiguous(x), "x has the wrong type or shape");
    require_aligned_any(x);
    require_aligned(sin, cos, slots, query_scale, norm_scale);
    const size_t tokens = x.shape(0), hidden = x.shape(1), rope = sin.shape(1);
    require(heads > 0 && rope_groups > 0 && heads % rope_groups == 0 && rope % rope_groups == 0 &&
                rope / rope_groups % 2 == 0,
            "heads and rope pairs must fall into the groups");
    constexpr size_t most = size_t{1} << 24;
    require(tokens <= most && hidden <= most && width <= most && heads <= most && nope <= most && latent <= most &&
                rope <= most,
            "an axis is too long");
    require(hidden > 0 && width > 0 && latent > 0, "an axis is empty");
    require(w_dq || (width == hidden && !full), "without w_dq the width is that of x, which is not int8");
    require(cache_scale >= 0 && cache_scale <= 3, "cache_scale is unknown");
    const auto kind = static_cast<CacheScale>(cache_scale);
    const size_t up = heads * (nope + rope / rope_groups);
    require(up <= most, "an axis is too long");

    MlaProlog a{};
    a.x = x.data();
    a.x_scale = scale_of(x_scale, full, tokens, "x_scale has the wrong shape, or x is not int8");
    a.tokens = tokens, a.hidden = hidden, a.width = width, a.heads = heads, a.nope = nope, a.rope = rope;
    a.latent = latent, a.rope_groups = rope_groups, a.bf16 = bf16;
    if (w_dq) a.w_dq = projection(*w_dq, w_dq_format, hidden, width, bf16, w_dq_scale, full);
    require(w_dq || !w_dq_scale, "w_dq_scale is one too many");
    require(partial || !full, "with int8 tokens w_uq_qr is int8");
    a.w_uq_qr = projection(w_uq_qr, w_uq_qr_format, width, up, bf16, w_uq_qr_scale, partial);
    a.w_dkv_kr = projection(w_dkv_kr, w_dkv_kr_format, hidden, latent + rope, bf16, w_dkv_kr_scale, full);
    a.w_uk = columns_of(w_uk, nope, latent, heads);
    require(a.w_uk.value == (bf16 ? WeightType::bf16 : WeightType::f32), "w_uk has the wrong type");
    a.w_uk_stride = a.w_uk.packed ? static_cast<ptrdiff_t>(panel_count(latent) * panel_bytes(a.w_uk.value, nope))
                    : w_uk.size() ? w_uk.stride(0) * static_cast<ptrdiff_t>(value_bytes(a.w_uk.value))
                                  : 0;
    a.gamma_cq = optional_scale(gamma_cq, width, "gamma_cq has the wrong shape");
    a.gamma_ckv = optional_scale(gamma_ckv, latent, "gamma_ckv has the wrong shape");
    a.eps_cq = eps_cq, a.eps_ckv = eps_ckv, a.alpha_cq = alpha_cq, a.alpha_ckv = alpha_ckv;
    require(shaped(sin, {tokens, rope}) && shaped(cos, {tokens, rope}), "sin or cos has the wrong shape");
    a.sin = sin.data(), a.cos = cos.data();
    require(partial || !smooth, "smooth is for an int8 w_uq_qr");
    a.smooth = optional_scale(smooth, width, "smooth has the wrong shape");

    require(slots.shape(0) == tokens, "slots has the wrong shape");
    a.slots = slots.data();
    const bool tile = kind == CacheScale::tile, channel = kind == CacheScale::channel;
    require(!tile || (bf16 && latent % kCacheTile == 0 && !nz), "tiles are whole, in rows, beside bfloat16");
    a.kv = cache_of(kv_cache, kind == CacheScale::none ? real : int8,
                    tile ? latent + 2 * rope + latent / kCacheTile * sizeof(float) : latent, nz);
    require(!tile || !kr_cache, "with tiles there is one cache");
    a.kr = cache_of(kr_cache, channel ? int8 : real, rope, nz);
    require(!a.kv.data || tile || a.kr.data, "there is a kv_cache and no kr_cache");
    require(a.kv.data || !a.kr.data, "there is a kr_cache and no kv_cache");
    a.block_size = a.kv.data ? kv_cache->shape(1) : 1;
    require(!a.kr.data || (kr_cache->shape(0) == kv_cache->shape(0) && kr_cache->shape(1) == a.block_size),
            "the caches have different blocks");
    const auto end = a.kv.data ? static_cast<int64_t>(kv_cache->shape(0) * a.block_size) : 0;
    for (size_t t = 0; t < tokens; ++t) require(a.slots[t] < end, "a slot is out of range");
    a.cache_scale = kind;
    const size_t factors = kind == CacheScale::tensor ? 1 : latent;
    a.ckv_scale = scale_of(ckv_scale, channel || kind == CacheScale::tensor, factors, "ckv_scale has the wrong shape");
    a.ckr_scale = scale_of(ckr_scale, channel, rope, "ckr_scale has the wrong shape");
    a.clip = clip;

    const bool query_int8 = query_scale.has_value();
    require(!query_int8 || (query && kind == CacheScale::tensor && shaped(*query_scale, {tokens, heads})),
            "query_scale has the wrong shape, or there is no int8 query");
    if (query) a.query = result(*query, query_int8 ? int8 : real, {tokens, heads, latent}, "query is wrong");
    a.query_scale = query_int8 ? query_scale->data() : nullptr;
    a.half_away = half_away;
    a.query_rope = result(query_rope, real, {tokens, heads, rope}, "query_rope is wrong");
    if (query_norm) a.query_norm = result(*query_norm, partial ? int8 : real, {tokens, width}, "query_norm is wrong");
    require(!norm_scale || (partial && norm_scale->shape(0) == tokens), "norm_scale is wrong");
    a.norm_scale = norm_scale ? norm_scale->data() : nullptr;
    a.threads = thread_count(threads);
    nb::gil_scoped_release release;
    mla_prolog(a);
}

}  // namespace

void bind_mla_prolog(nb::module_& m) {
    m.def("mla_prolog", &call, nb::arg("x").noconvert(), nb::arg("x_scale").none().noconvert(), nb::arg("width"),
          nb::arg("heads"), nb::arg("nope"), nb::arg("latent"), nb::arg("rope_groups"),
          nb::arg("w_dq").none().noconvert(), nb::arg("w_dq_format"), nb::arg("w_dq_scale").none().noconvert(),
          nb::arg("w_uq_qr").noconvert(), nb::arg("w_uq_qr_format"), nb::arg("w_uq_qr_scale").none().noconvert(),
          nb::arg("w_dkv_kr").noconvert(), nb::arg("w_dkv_kr_format"), nb::arg("w_dkv_kr_scale").none().noconvert(),
          nb::arg("w_uk").noconvert(), nb::arg("gamma_cq").none().noconvert(), nb::arg("gamma_ckv").none().noconvert(),
          nb::arg("eps_cq"), nb::arg("eps_ckv"), nb::arg("alpha_cq"), nb::arg("alpha_ckv"), nb::arg("sin").noconvert(),
          nb::arg("cos").noconvert(), nb::arg("smooth").none().noconvert(), nb::arg("slots").noconvert(),
          nb::arg("kv_cache").none().noconvert(), nb::arg("kr_cache").none().noconvert(), nb::arg("nz"),
          nb::arg("cache_scale"), nb::arg("ckv_scale").none().noconvert(), nb::arg("ckr_scale").none().noconvert(),
          nb::arg("clip"), nb::arg("query").none().noconvert(), nb::arg("query_scale").none().noconvert(),
          nb::arg("half_away"), nb::arg("query_rope").noconvert(), nb::arg("query_norm").none().noconvert(),
          nb::arg("norm_scale").none().noconvert(), nb::arg("threads"));
}

}  // namespace decodestep
