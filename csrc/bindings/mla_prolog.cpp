#include "mla_prolog/mla_prolog.h"

#include "bindings/keywords.h"

namespace decodestep {
namespace {

using Out = nb::ndarray<nb::device::cpu>;

constexpr size_t kExactInputs = size_t{1} << 17;  // fewer products of two int8 stay within int32

template <class A>
bool shaped(const A& a, std::initializer_list<size_t> shape) {
    if (a.ndim() != shape.size()) return false;
    size_t i = 0;
    for (const size_t length : shape)
        if (a.shape(i++) != length) return false;
    return true;
}

// A contiguous result of this type and shape, or null for None.
void* result(const std::optional<Out>& out, const nb::dlpack::dtype& type, std::initializer_list<size_t> shape,
             const char* what) {
    if (!out) return nullptr;
    require(out->dtype() == type && shaped(*out, shape) && contiguous(Any(*out)), what);
    require_aligned_any(Any(*out));
    return out->data();
}

// A vector of `length` float32 if `wanted`, and then only; else null.
const float* vector(const std::optional<Vector>& given, bool wanted, size_t length, const char* what) {
    require(given.has_value() == wanted && (!wanted || given->shape(0) == length), what);
    if (!wanted) return nullptr;
    require_aligned(*given);
    return given->data();
}

const float* optional_vector(const std::optional<Vector>& given, size_t length, const char* what) {
    return vector(given, given.has_value(), length, what);
}

using Exponents = Packed<const uint8_t, 2>;

// Powers of two for each 32 of `width` values of `rows` rows if `wanted`, and then only; else null.
const uint8_t* exponents_of(const std::optional<Exponents>& given, bool wanted, size_t rows, size_t width) {
    constexpr size_t block = 32;
    require(given.has_value() == wanted &&
                (!wanted || (width % block == 0 && given->shape(0) == rows && given->shape(1) == width / block)),
            "exponents have the wrong shape, or are one too many or too few");
    return wanted ? given->data() : nullptr;
}

// `format`: of GGUF blocks, rows as a matrix of bytes or panels as a flat array of them; -1 for columns.
Projection projection(const Any& w, int format, size_t in, size_t out, WeightType value, const float* scale,
                      const uint8_t* exponents) {
    Projection made{};
    made.scale = scale;
    if (format < 0) {
        made.form = WeightForm::columns;
        made.columns = column_weight_of(w, in, out);
        made.columns.exponents = exponents;
        require(made.columns.value == value, "a weight has the wrong type");
        require(value != WeightType::i8 || in < kExactInputs, "an exact sum of int8 needs fewer inputs");
        return made;
    }
    require(value != WeightType::i8 && value != WeightType::f8 && w.dtype() == nb::dtype<uint8_t>() &&
                (w.ndim() == 1 || w.ndim() == 2),
            "blocks are a matrix of bytes or a flat array of them");
    if (w.ndim() == 2) {
        made.form = WeightForm::rows;
        made.rows = row_weight_of(Bytes(w), format, in);
        require(made.rows.out == out, "a weight has the wrong number of outputs");
    } else {
        require(contiguous(w), "panels must be contiguous");
        made.form = WeightForm::panels;
        made.panels = panel_weight_of(Packed<const uint8_t, 1>(w), format, in, out);
    }
    return made;
}

PrologCache cache_of(const std::optional<Out>& cache, const nb::dlpack::dtype& type, size_t width, bool nz) {
    if (!cache || cache->size() == 0) return {};
    const size_t bytes = cache->itemsize();
    require(cache->dtype() == type && cache->ndim() == 4 && cache->shape(2) == 1 && cache->shape(3) == width,
            "a cache has the wrong type or shape");
    const size_t fractal = nz ? 32 / bytes : width;
    require(width % fractal == 0, "an NZ cache has whole fractals");
    const auto stride = [&](size_t axis) { return cache->stride(axis) * static_cast<ptrdiff_t>(bytes); };
    return {static_cast<uint8_t*>(cache->data()), stride(0), stride(1), stride(3), width, bytes, fractal};
}

// Reads a call into `a`, in the order in which later arguments need the sizes and types that earlier ones fix. The call
// may be made as long as the reader lives.
class CallReader {
  public:
    CallReader(const nb::kwargs& given, MlaProlog& call) : k_("mla_prolog", given), a(call) {}

    void read() {
        tokens();
        weights();
        norms_and_rope();
        caches();
        results();
        a.threads = thread_count(k_.number<int>("threads"));
        k_.require_all_read();
    }

  private:
    // Kept with the reader: the memory may be this export's alone.
    template <class A>
    A array(const char* name) {
        const A found = k_.array<A>(name);
        arrays_.emplace_back(found);
        return found;
    }

    template <class A>
    std::optional<A> optional(const char* name) {
        const auto found = k_.array<std::optional<A>>(name);
        if (found) arrays_.emplace_back(*found);
        return found;
    }

    void tokens() {
        const auto x = array<Any>("x");
        const auto sin = array<Matrix>("sin"), cos = array<Matrix>("cos");
        query_rope_ = array<Out>("query_rope");
        bf16_ = query_rope_.dtype() == nb::dtype<uint16_t>();
        real_ = bf16_ ? nb::dtype<uint16_t>() : nb::dtype<float>();
        a.float8 = k_.number<bool>("float8");
        code_ = a.float8 ? nb::dtype<uint8_t>() : nb::dtype<int8_t>();
        full_ = x.dtype() == code_;
        require(x.ndim() == 2 && (full_ || x.dtype() == real_) && contiguous(x), "x has the wrong type or shape");
        require_aligned_any(x);
        require_aligned(sin, cos);
        a.x = x.data(), a.bf16 = bf16_;
        a.tokens = x.shape(0), a.hidden = x.shape(1), a.rope = sin.shape(1);
        a.width = k_.number<size_t>("width"), a.heads = k_.number<size_t>("heads");
        a.nope = k_.number<size_t>("nope"), a.latent = k_.number<size_t>("latent");
        require(a.rope % 2 == 0, "the rope part has whole pairs");
        for (const size_t axis : {a.tokens, a.hidden, a.width, a.heads, a.nope, a.latent, a.rope})
            require(axis <= kMaxAxis, "an axis is too long");
        require(a.hidden > 0 && a.width > 0 && a.heads > 0 && a.latent > 0, "an axis is empty");
        const auto exponents = optional<Exponents>("x_exponents");
        blocks_ = exponents.has_value();
        require(!blocks_ || (full_ && a.float8), "exponents are for eight-bit floats");
        a.x_exponents = exponents_of(exponents, blocks_, a.tokens, a.hidden);
        a.x_scale = vector(optional<Vector>("x_scale"), full_ && !blocks_, a.tokens,
                           "x_scale has the wrong shape, or x is not quantised");
        require(shaped(sin, {a.tokens, a.rope}) && shaped(cos, {a.tokens, a.rope}), "sin or cos has the wrong shape");
        a.sin = sin.data(), a.cos = cos.data();
    }

    void weights() {
        const WeightType real = bf16_ ? WeightType::bf16 : WeightType::f32,
                         code = a.float8 ? WeightType::f8 : WeightType::i8;
        const size_t up = a.heads * (a.nope + a.rope), latent = a.latent + a.rope;
        require(up <= kMaxAxis, "an axis is too long");
        partial_ = k_.number<bool>("partial");
        require(partial_ || !full_, "with quantised tokens w_uq_qr is quantised");
        require(partial_ == full_ || !a.float8, "eight-bit floats are for all projections");
        struct Names {
            const char *weight, *format, *scale, *exponents;
        };
        const auto read = [&](const Names& names, size_t in, size_t out, bool quantised) {
            const auto w = array<Any>(names.weight);
            return projection(w, k_.number<int>(names.format), in, out, quantised ? code : real,
                              vector(optional<Vector>(names.scale), quantised && !blocks_, out,
                                     "the scale of a weight has the wrong shape, or is one too many or too few"),
                              exponents_of(optional<Exponents>(names.exponents), blocks_, out, in));
        };
        a.w_dq = read({"w_dq", "w_dq_format", "w_dq_scale", "w_dq_exponents"}, a.hidden, a.width, full_);
        a.w_uq_qr = read({"w_uq_qr", "w_uq_qr_format", "w_uq_qr_scale", "w_uq_qr_exponents"}, a.width, up, partial_);
        a.w_dkv_kr =
            read({"w_dkv_kr", "w_dkv_kr_format", "w_dkv_kr_scale", "w_dkv_kr_exponents"}, a.hidden, latent, full_);
        const auto w_uk = array<Any>("w_uk");
        a.w_uk = column_weight_of(w_uk, a.nope, a.latent, a.heads);
        require(a.w_uk.value == real, "w_uk has the wrong type");
        a.w_uk_stride = a.w_uk.packed() ? static_cast<ptrdiff_t>(panel_count(a.latent) * panel_bytes(real, a.nope))
                        : w_uk.size()   ? w_uk.stride(0) * static_cast<ptrdiff_t>(value_bytes(real))
                                        : 0;
    }

    void norms_and_rope() {
        a.gamma_cq = vector(array<Vector>("gamma_cq"), true, a.width, "gamma_cq has the wrong shape");
        a.gamma_ckv = vector(array<Vector>("gamma_ckv"), true, a.latent, "gamma_ckv has the wrong shape");
        a.eps_cq = k_.number<float>("eps_cq"), a.eps_ckv = k_.number<float>("eps_ckv");
        a.alpha_cq = k_.number<float>("alpha_cq"), a.alpha_ckv = k_.number<float>("alpha_ckv");
        a.smooth = optional_vector(optional<Vector>("smooth"), a.width, "smooth has the wrong shape");
        require((partial_ && !blocks_) || !a.smooth, "smooth is for a w_uq_qr with a scale for each output");
    }

    void caches() {
        const int number = k_.number<int>("cache_scale");
        require(number >= 0 && number <= 3, "cache_scale is unknown");
        const auto kind = a.cache_scale = static_cast<CacheScale>(number);
        const bool tile = kind == CacheScale::tile, channel = kind == CacheScale::channel;
        const bool nz = k_.number<bool>("nz");
        require(!channel || !a.float8, "a scale for each channel is for int8");
        require(!tile || (bf16_ && a.latent % kCacheTile == 0 && !nz), "tiles need bfloat16, whole tiles, and no NZ");
        const auto kv = optional<Out>("kv_cache"), kr = optional<Out>("kr_cache");
        a.kv = cache_of(kv, kind == CacheScale::none ? real_ : code_,
                        tile ? a.latent + 2 * a.rope + a.latent / kCacheTile * sizeof(float) : a.latent, nz);
        require(!tile || !kr, "with tiles there is one cache");
        a.kr = cache_of(kr, channel ? code_ : real_, a.rope, nz);
        require(!a.kv.data || tile || a.kr.data, "there is a kv_cache and no kr_cache");
        require(a.kv.data || !a.kr.data, "there is a kr_cache and no kv_cache");
        a.block_size = a.kv.data ? kv->shape(1) : 1;
        require(!a.kr.data || (kr->shape(0) == kv->shape(0) && kr->shape(1) == a.block_size),
                "the caches have different blocks");
        const auto end = a.kv.data ? static_cast<int64_t>(kv->shape(0) * a.block_size) : 0;
        const auto slots = array<Ids>("slots");
        require_aligned(slots);
        require(slots.shape(0) == a.tokens, "slots has the wrong shape");
        slots_ = copy_of(slots);
        for (const int64_t slot : slots_) require(slot < end, "a slot is out of range");
        a.slots = slots_.data();
        a.ckv_scale = vector(optional<Vector>("ckv_scale"), channel || kind == CacheScale::tensor,
                             channel ? a.latent : 1, "ckv_scale has the wrong shape");
        a.ckr_scale = vector(optional<Vector>("ckr_scale"), channel, a.rope, "ckr_scale has the wrong shape");
        a.clip = k_.number<float>("clip");
    }

    void results() {
        const auto query_scale = optional<Packed<float, 2>>("query_scale");
        const auto norm_scale = optional<Packed<float, 1>>("norm_scale");
        const auto norm_exponents = optional<Packed<uint8_t, 2>>("norm_exponents");
        require_aligned(query_scale, norm_scale);
        a.query =
            result(array<Out>("query"), query_scale ? code_ : real_, {a.tokens, a.heads, a.latent}, "query is wrong");
        require(!query_scale || (a.cache_scale == CacheScale::tensor && shaped(*query_scale, {a.tokens, a.heads})),
                "query_scale has the wrong shape, or the caches are not quantised by tensor");
        a.query_scale = query_scale ? query_scale->data() : nullptr;
        a.half_away = k_.number<bool>("half_away");
        a.query_rope = result(query_rope_, real_, {a.tokens, a.heads, a.rope}, "query_rope is wrong");
        a.query_norm =
            result(optional<Out>("query_norm"), partial_ ? code_ : real_, {a.tokens, a.width}, "query_norm is wrong");
        require(!norm_scale || (partial_ && !blocks_ && norm_scale->shape(0) == a.tokens), "norm_scale is wrong");
        a.norm_scale = norm_scale ? norm_scale->data() : nullptr;
        require(!norm_exponents ||
                    (blocks_ && norm_exponents->shape(0) == a.tokens && norm_exponents->shape(1) == a.width / 32),
                "norm_exponents are wrong");
        a.norm_exponents = norm_exponents ? norm_exponents->data() : nullptr;
    }

    Keywords k_;
    MlaProlog& a;
    std::vector<Any> arrays_;
    std::vector<int64_t> slots_;
    Out query_rope_;
    nb::dlpack::dtype real_{}, code_{};                   // of what is not quantised, and of what is
    bool bf16_ = false, full_ = false, partial_ = false;  // full: x is quantised; partial: w_uq_qr is
    bool blocks_ = false;                                 // by blocks with exponents
};

}  // namespace

void bind_mla_prolog(nb::module_& m) {
    m.def("mla_prolog", [](nb::kwargs given) {
        MlaProlog call{};
        CallReader reader(given, call);
        reader.read();
        const ReleasedGil released;
        mla_prolog(call);
    });
}

}  // namespace decodestep
