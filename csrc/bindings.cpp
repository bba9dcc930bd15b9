// The extension module: checks that no argument can lead a kernel out of bounds, and calls the kernel without the GIL.
// The public functions check the meaning of arguments before; what is refused here is a fault of this library's own
// code.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <optional>
#include <stdexcept>
#include <string>

#include "columns.h"
#include "isa.h"
#include "linear.h"
#include "mla_attention.h"
#include "mla_prolog.h"
#include "random.h"
#include "rms_norm.h"
#include "swiglu.h"
#include "tensor_scatter.h"

namespace nb = nanobind;

namespace decodestep {
namespace {

template <class T, size_t N>
using Array = nb::ndarray<T, nb::ndim<N>, nb::device::cpu>;
template <class T, size_t N>
using Packed = nb::ndarray<T, nb::ndim<N>, nb::device::cpu, nb::c_contig>;

void require(bool ok, const char* what) {
    if (!ok) throw std::invalid_argument(std::string("_native: ") + what);
}

template <class A>
bool is_aligned(const A& array) {
    return reinterpret_cast<uintptr_t>(array.data()) % alignof(typename A::Scalar) == 0;
}

template <class A>
bool is_aligned(const std::optional<A>& array) {
    return !array || is_aligned(*array);
}

template <class... A>
void require_aligned(const A&... arrays) {
    require((is_aligned(arrays) && ...), "an array must be aligned to its items");
}

int thread_count(int threads) {
    require(threads >= 1 && threads <= 256, "the thread count must be in [1, 256]");
    return threads;
}

// Rows may lie apart, each is contiguous. NumPy leaves every stride of an empty array undefined, and that of an axis of
// length 1.
template <class T>
ptrdiff_t row_stride(const Array<T, 2>& a) {
    require(a.size() == 0 || a.shape(1) == 1 || a.stride(1) == 1, "the rows of a matrix must be contiguous");
    return a.stride(0);
}

Format format_of(int number) {
    require(number >= 0 && number <= static_cast<int>(Format::q8_0), "the weight format is unknown");
    return static_cast<Format>(number);
}

using Bytes = Array<const uint8_t, 2>;

Rows rows_of(const Bytes& w, int format_number, size_t in) {
    const Format format = format_of(format_number);
    const size_t bytes = row_bytes(format, in);
    require(w.shape(0) == 0 || in == 0 || (bytes > 0 && w.shape(1) == bytes), "a weight row has the wrong length");
    const ptrdiff_t stride = row_stride(w);
    require(w.shape(0) <= 1 || stride >= 0, "the rows of a weight must ascend in memory");
    return {w.data(), static_cast<size_t>(stride), in, w.shape(0), format};
}

void bind_linear(nb::module_& m) {
    m.def(
        "linear",
        [](Array<const float, 2> x, Bytes w, int format, Array<float, 2> y, int threads) {
            const Rows rows = rows_of(w, format, x.shape(1));
            require_aligned(x, y);
            require(y.shape(0) == x.shape(0) && y.shape(1) == w.shape(0), "y has the wrong shape");
            const Linear args{x.data(),    row_stride(x), x.shape(0), x.shape(1),    w.shape(0),           rows.data,
                              rows.stride, rows.format,   y.data(),   row_stride(y), thread_count(threads)};
            nb::gil_scoped_release release;
            linear(args);
        },
        nb::arg("x").noconvert(), nb::arg("w").noconvert(), nb::arg("format"), nb::arg("y").noconvert(),
        nb::arg("threads"));
    m.def(
        "take_rows",
        [](Bytes w, int format, Packed<const int64_t, 1> ids, Packed<float, 2> values) {
            const Rows rows = rows_of(w, format, values.shape(1));
            require_aligned(ids, values);
            require(values.shape(0) == ids.shape(0), "values has the wrong shape");
            for (size_t i = 0; i < ids.shape(0); ++i)
                require(ids.data()[i] >= 0 && ids.data()[i] < static_cast<int64_t>(w.shape(0)),
                        "a row id is out of range");
            take_rows({rows.data, rows.stride, rows.in, rows.format, ids.data(), ids.shape(0), values.data()});
        },
        nb::arg("w").noconvert(), nb::arg("format"), nb::arg("ids").noconvert(), nb::arg("values").noconvert());
}

void bind_norm_and_gate(nb::module_& m) {
    m.def(
        "rms_norm",
        [](Array<const float, 2> x, std::optional<Packed<const float, 1>> gamma, float eps, float alpha,
           Array<float, 2> y) {
            require_aligned(x, gamma, y);
            require(y.shape(0) == x.shape(0) && y.shape(1) == x.shape(1), "y has the wrong shape");
            require(!gamma || gamma->shape(0) == x.shape(1), "gamma has the wrong shape");
            rms_norm({x.data(), row_stride(x), x.shape(0), x.shape(1), gamma ? gamma->data() : nullptr, eps, alpha,
                      y.data(), row_stride(y)});
        },
        nb::arg("x").noconvert(), nb::arg("gamma").none().noconvert(), nb::arg("eps"), nb::arg("alpha"),
        nb::arg("y").noconvert());
    m.def(
        "swiglu",
        [](Array<const float, 2> gate, Array<const float, 2> up, Array<float, 2> y) {
            require_aligned(gate, up, y);
            require(up.shape(0) == gate.shape(0) && up.shape(1) == gate.shape(1), "up has the wrong shape");
            require(y.shape(0) == gate.shape(0) && y.shape(1) == gate.shape(1), "y has the wrong shape");
            swiglu({gate.data(), up.data(), row_stride(gate), row_stride(up), gate.shape(0), gate.shape(1), y.data(),
                    row_stride(y)});
        },
        nb::arg("gate").noconvert(), nb::arg("up").noconvert(), nb::arg("y").noconvert());
}

// The sums of int8 are exact because of this.
bool holds_int8(const Array<const float, 3>& x) {
    bool all = true;
    for (size_t b = 0; b < x.shape(0); ++b)
        for (size_t t = 0; t < x.shape(1); ++t) {
            const float* row =
                x.data() + static_cast<ptrdiff_t>(b) * x.stride(0) + static_cast<ptrdiff_t>(t) * x.stride(1);
            for (size_t k = 0; k < x.shape(2); ++k) all &= row[k] >= -128.0f && row[k] <= 127.0f;
        }
    return all;
}

// A weight (batch, inputs, outputs), or cut into panels as (outputs / c0, inputs, c0) of one batch row.
template <class W>
void bind_columns(nb::module_& m, const char* name, Value value) {
    m.def(
        name,
        [value](Array<const float, 3> x, Array<const W, 3> w, bool panels, Array<float, 3> y, int threads) {
            require_aligned(x, w, y);
            const size_t batch = x.shape(0), tokens = x.shape(1), in = x.shape(2), out = y.shape(2);
            require(y.shape(0) == batch && y.shape(1) == tokens, "y has the wrong shape");
            require(value != Value::i8 || in < (size_t{1} << 17), "an exact sum of int8 needs fewer inputs");
            require(x.size() == 0 || in == 1 || x.stride(2) == 1, "the values of a token must be contiguous");
            require(value != Value::i8 || holds_int8(x), "a value of a token must be within int8");
            require(y.size() == 0 || out == 1 || y.stride(2) == 1, "the results of a token must be contiguous");
            require(w.size() == 0 || w.shape(2) == 1 || w.stride(2) == 1, "a row of the weight must be contiguous");
            require(w.size() == 0 || (w.stride(0) >= 0 && w.stride(1) >= 0), "a weight must ascend in memory");
            if (panels)
                require(batch == 1 && w.shape(1) >= in && w.shape(2) % 16 == 0 && w.shape(0) * w.shape(2) >= out,
                        "the panels have the wrong shape");
            else
                require(w.shape(0) == batch && w.shape(1) == in && w.shape(2) == out, "the weight has the wrong shape");
            const size_t stride = w.stride(0);
            const Columns args{.x = x.data(),
                               .x_batch = x.stride(0),
                               .x_token = x.stride(1),
                               .batch = batch,
                               .tokens = tokens,
                               .in = in,
                               .out = out,
                               .w = w.data(),
                               .value = value,
                               .panel = w.shape(2) ? w.shape(2) : 1,
                               .panel_stride = panels ? stride : 0,
                               .row_stride = static_cast<size_t>(w.stride(1)),
                               .w_batch = panels ? 0 : stride,
                               .y = y.data(),
                               .y_batch = y.stride(0),
                               .y_token = y.stride(1),
                               .threads = thread_count(threads)};
            nb::gil_scoped_release release;
            columns(args);
        },
        nb::arg("x").noconvert(), nb::arg("w").noconvert(), nb::arg("panels"), nb::arg("y").noconvert(),
        nb::arg("threads"));
}

// A paged cache (blocks, block size, 1, width): the rows of a block follow each other, blocks may lie apart.
template <class T>
ptrdiff_t block_stride(const Array<T, 4>& cache) {
    const auto width = static_cast<int64_t>(cache.shape(3));
    require(cache.shape(2) == 1, "a cache has one head");
    if (cache.size() == 0) return 0;
    require(width == 1 || cache.stride(3) == 1, "a cache row must be contiguous");
    require(cache.shape(1) <= 1 || cache.stride(1) == width, "the rows of a cache block must follow each other");
    return cache.stride(0);
}

using Vector = Packed<const float, 1>;
using Matrix = Packed<const float, 2>;
using Ids = Packed<const int64_t, 1>;

// `Real` is what holds a value of the tensors: float, or the sixteen bits of a bfloat16.
template <class Real>
void bind_mla_prolog(nb::module_& m, const char* name) {
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

void bind_tensor_scatter(nb::module_& m) {
    m.def(
        "tensor_scatter",
        [](Array<uint8_t, 4> cache, Array<const uint8_t, 4> update, Ids start) {
            const size_t run = cache.shape(3);
            require(update.shape(0) == cache.shape(0) && update.shape(1) == cache.shape(1) && update.shape(3) == run &&
                        update.shape(2) <= cache.shape(2),
                    "update has the wrong shape");
            require_aligned(start);
            require(start.shape(0) == cache.shape(0), "start has the wrong shape");
            require(update.size() == 0 || run == 1 || (cache.stride(3) == 1 && update.stride(3) == 1),
                    "a row must be contiguous");
            const TensorScatter args{cache.data(),     update.data(),   start.data(),    cache.shape(0),
                                     cache.shape(1),   cache.shape(2),  update.shape(2), run,
                                     cache.stride(0),  cache.stride(1), cache.stride(2), update.stride(0),
                                     update.stride(1), update.stride(2)};
            nb::gil_scoped_release release;
            tensor_scatter(args);
        },
        nb::arg("cache").noconvert(), nb::arg("update").noconvert(), nb::arg("start").noconvert());
}

template <class T>
void bind_noise(nb::module_& m, const char* name, void (*fill)(const Records&, T*, size_t)) {
    m.def(
        name,
        [fill](Packed<const uint64_t, 1> seed, Packed<const uint32_t, 1> position, Packed<const uint32_t, 1> token,
               Packed<T, 1> out) {
            require_aligned(seed, position, token, out);
            const size_t n = out.shape(0);
            for (const size_t length : {seed.shape(0), position.shape(0), token.shape(0)})
                require(length == n || length == 1, "a column has the wrong length");
            const Records records{seed.data(),   position.data(),   token.data(),
                                  seed.shape(0), position.shape(0), token.shape(0)};
            nb::gil_scoped_release release;
            fill(records, out.data(), n);
        },
        nb::arg("seed").noconvert(), nb::arg("position").noconvert(), nb::arg("token").noconvert(),
        nb::arg("out").noconvert());
}

}  // namespace
}  // namespace decodestep

NB_MODULE(_native, m) {
    using namespace decodestep;
    m.def("isa", &isa_name);
    bind_linear(m);
    bind_norm_and_gate(m);
    bind_columns<float>(m, "columns_f32", Value::f32);
    bind_columns<uint16_t>(m, "columns_bf16", Value::bf16);
    bind_columns<int8_t>(m, "columns_i8", Value::i8);
    bind_mla_prolog<float>(m, "mla_prolog");
    bind_mla_prolog<uint16_t>(m, "mla_prolog_bf16");
    bind_mla_attention(m);
    bind_tensor_scatter(m);
    bind_noise<uint32_t>(m, "noise_bits", noise_bits);
    bind_noise<float>(m, "uniform", uniform);
    bind_noise<float>(m, "exponential", exponential);
    bind_noise<float>(m, "gumbel", gumbel);
}
