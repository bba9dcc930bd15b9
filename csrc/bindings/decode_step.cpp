#include "sampling/decode_step/decode_step.h"

#include <vector>

#include "bindings/steps.h"
#include "core/float_environment.h"

namespace decodestep {
namespace {

// The value of one row, borrowed: of a list with one value for each row, or of one value for all rows.
PyObject* of_row(nb::handle value, size_t row, size_t batch) {
    if (!PyList_CheckExact(value.ptr())) return value.ptr();
    require(static_cast<size_t>(NB_LIST_GET_SIZE(value.ptr())) == batch, "a list must hold one value for each row");
    return NB_LIST_GET_ITEM(value.ptr(), static_cast<Py_ssize_t>(row));
}

nb::object decode_step_of(nb::handle logits, nb::handle steps, nb::handle greedy, nb::handle seed, nb::handle position,
                          nb::handle top_logprobs, bool need_processed, int threads) {
    const DefaultFloats floats;  // values are rounded here too
    const LogitsArgument given(logits.ptr());
    const size_t batch = given.batch, vocab = given.vocab;
    require(PyList_CheckExact(steps.ptr()) && static_cast<size_t>(NB_LIST_GET_SIZE(steps.ptr())) == batch,
            "steps must be a list of one sequence for each row");
    StepArrays arrays;
    std::vector<Step> all;
    std::vector<RowRequest> rows(batch);
    std::vector<std::unique_ptr<LogprobsBuffer>> buffers;
    for (size_t b = 0; b < batch; ++b) {
        const size_t before = all.size();
        append_steps(all, NB_LIST_GET_ITEM(steps.ptr(), static_cast<Py_ssize_t>(b)), vocab, arrays);
        PyObject* const flag = of_row(greedy, b, batch);
        PyObject* const wanted = of_row(top_logprobs, b, batch);
        require(PyBool_Check(flag), "greedy must be bool");
        RowRequest& row = rows[b];
        row.count = all.size() - before;
        row.greedy = flag == Py_True;
        row.seed = integer_of(of_row(seed, b, batch), 0, UINT64_MAX);
        row.position = static_cast<uint32_t>(integer_of(of_row(position, b, batch), 0, UINT32_MAX));
        if (wanted != Py_None) {
            buffers.push_back(std::make_unique<LogprobsBuffer>(integer_of(wanted, 0, PY_SSIZE_T_MAX), vocab));
            row.logprobs = &buffers.back()->logprobs;
        }
    }
    const Step* next = all.data();
    for (RowRequest& row : rows) {
        row.steps = next;
        next += row.count;
    }
    DecodeStep args = given.arguments(rows, threads);
    const nb::object tokens = new_int64(batch);
    const nb::object processed = need_processed ? new_float32(batch, vocab) : nb::none();
    args.tokens = static_cast<int64_t*>(NumpyArray(tokens.ptr()).data());
    if (need_processed) args.processed = static_cast<float*>(NumpyArray(processed.ptr()).data());
    {
        const ReleasedGil released;
        decode_step(args);
    }
    return nb::make_tuple(tokens, processed, logprobs_of(rows, args.tokens));
}

}  // namespace

void bind_decode_step(nb::module_& m) {
    m.def("decode_step", &decode_step_of, nb::arg("logits"), nb::arg("steps"), nb::arg("greedy"), nb::arg("seed"),
          nb::arg("position"), nb::arg("top_logprobs").none(), nb::arg("need_processed"), nb::arg("threads"));
}

}  // namespace decodestep
