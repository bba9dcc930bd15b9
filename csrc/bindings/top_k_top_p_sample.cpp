#include "sampling/top_k_top_p_sample/top_k_top_p_sample.h"

#include "bindings/bindings.h"

namespace decodestep {
namespace {

using Logits = nb::ndarray<nb::ro, nb::ndim<2>, nb::device::cpu>;  // float16 and bfloat16 as uint16

// Sets the arguments that describe the logits, for both kernels.
template <class Args>
void set_logits(Args& args, const Logits& logits, int dtype) {
    require(dtype >= 0 && dtype <= static_cast<int>(LogitType::f16), "dtype must be a LogitType");
    args.dtype = static_cast<LogitType>(dtype);
    const bool f32 = args.dtype == LogitType::f32;
    require(logits.dtype() == (f32 ? nb::dtype<float>() : nb::dtype<uint16_t>()),
            "logits must be float32, or uint16 for the bits of float16 and bfloat16");
    const ptrdiff_t item = f32 ? 4 : 2;
    args.batch = logits.shape(0);
    args.vocab = logits.shape(1);
    require(args.vocab >= 1 && args.vocab <= size_t{1} << 20, "the vocabulary must have 1 to 2^20 tokens");
    require(args.batch == 0 || args.vocab == 1 || logits.stride(1) == 1, "a row of logits must be contiguous");
    require(reinterpret_cast<uintptr_t>(logits.data()) % static_cast<size_t>(item) == 0,
            "an array must be aligned to its items");
    args.logits = logits.data();
    args.row_bytes = static_cast<ptrdiff_t>(logits.stride(0)) * item;
}

template <class T>
using Column = Packed<const T, 1>;

// One value for each row, or none for std::nullopt.
template <class T>
std::vector<T> column_of(const std::optional<Column<T>>& column, size_t batch) {
    if (!column) return {};
    require_aligned(*column);
    require(column->shape(0) == batch, "a column must hold one value for each row");
    return copy_of(*column);
}

template <class T>
const T* data_of(const std::vector<T>& column) {
    return column.empty() ? nullptr : column.data();
}

template <class T>
T* matrix_of(std::optional<Packed<T, 2>>& matrix, size_t batch, size_t vocab) {
    if (!matrix) return nullptr;
    require_aligned(*matrix);
    require(matrix->shape(0) == batch && matrix->shape(1) == vocab, "a result must have the shape of the logits");
    return matrix->data();
}

void sample(Logits logits, int dtype, Column<int32_t> k, Column<float> p, std::optional<Column<float>> m,
            size_t largest_k, bool input_is_logits, bool kernel_exact, size_t guess,
            std::optional<Array<const float, 2>> q, std::optional<Column<uint64_t>> seed,
            std::optional<Column<uint32_t>> position, float eps, std::optional<Packed<int64_t, 1>> chosen,
            std::optional<Packed<float, 2>> masked, std::optional<Packed<int64_t, 2>> ids,
            std::optional<Packed<float, 2>> values, int threads) {
    TopKTopPSample args{};
    set_logits(args, logits, dtype);
    const auto each_k = column_of(std::optional(k), args.batch);
    const auto each_p = column_of(std::optional(p), args.batch), each_m = column_of(m, args.batch);
    args.k = data_of(each_k);
    args.p = data_of(each_p);
    args.m = data_of(each_m);
    require(m || input_is_logits, "without min-p the input must be logits");
    args.largest_k = largest_k;
    args.input_is_logits = input_is_logits;
    args.kernel_exact = kernel_exact;
    args.guess = guess;
    if (q) {
        require_aligned(*q);
        require(q->shape(0) == args.batch && q->shape(1) == args.vocab, "q must have the shape of the logits");
        args.q = q->data();
        args.q_row = row_stride(*q);
    }
    require(seed.has_value() == position.has_value() && !(q && seed),
            "seed and position must come together, and without q");
    const auto seeds = column_of(seed, args.batch);
    const auto positions = column_of(position, args.batch);
    args.seed = data_of(seeds);
    args.position = data_of(positions);
    require(eps >= 0.0f && eps <= std::numeric_limits<float>::max(), "eps must be finite and not negative");
    args.eps = eps;
    if (chosen) {
        require_aligned(*chosen);
        require(chosen->shape(0) == args.batch, "chosen must have one item for each row");
        args.chosen = chosen->data();
    }
    args.masked = matrix_of(masked, args.batch, args.vocab);
    require(ids.has_value() == values.has_value(), "ids and values must come together");
    args.ids = matrix_of(ids, args.batch, args.vocab);
    args.values = matrix_of(values, args.batch, args.vocab);
    args.threads = thread_count(threads);
    const ReleasedGil released;
    if (args.batch > 0) top_k_top_p_sample(args);
}

void apply(Logits logits, int dtype, std::optional<Column<int32_t>> k, std::optional<Column<float>> p,
           nb::ndarray<nb::ndim<2>, nb::device::cpu, nb::c_contig> out, int threads) {
    ApplyTopKTopP args{};
    set_logits(args, logits, dtype);
    const auto each_k = column_of(k, args.batch);
    const auto each_p = column_of(p, args.batch);
    args.k = data_of(each_k);
    args.p = data_of(each_p);
    require(out.dtype() == logits.dtype(), "out must have the type of the logits");
    require(out.shape(0) == args.batch && out.shape(1) == args.vocab, "out must have the shape of the logits");
    require(reinterpret_cast<uintptr_t>(out.data()) % (args.dtype == LogitType::f32 ? 4 : 2) == 0,
            "an array must be aligned to its items");
    args.out = out.data();
    args.threads = thread_count(threads);
    const ReleasedGil released;
    if (args.batch > 0) apply_top_k_top_p(args);
}

}  // namespace

void bind_top_k_top_p_sample(nb::module_& m) {
    m.def("top_k_top_p_sample", &sample, nb::arg("logits").noconvert(), nb::arg("dtype"), nb::arg("k").noconvert(),
          nb::arg("p").noconvert(), nb::arg("m").none().noconvert(), nb::arg("largest_k"), nb::arg("input_is_logits"),
          nb::arg("kernel_exact"), nb::arg("guess"), nb::arg("q").none().noconvert(),
          nb::arg("seed").none().noconvert(), nb::arg("position").none().noconvert(), nb::arg("eps"),
          nb::arg("chosen").none().noconvert(), nb::arg("masked").none().noconvert(), nb::arg("ids").none().noconvert(),
          nb::arg("values").none().noconvert(), nb::arg("threads"));
    m.def("apply_top_k_top_p", &apply, nb::arg("logits").noconvert(), nb::arg("dtype"), nb::arg("k").none().noconvert(),
          nb::arg("p").none().noconvert(), nb::arg("out").noconvert(), nb::arg("threads"));
}

}  // namespace decodestep
