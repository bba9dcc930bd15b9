// The extension module: every operator binds itself.
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "core/isa.h"
#include "core/parallel.h"

#ifdef __clang__
#define COMPILER "Clang " __clang_version__
#else
#define COMPILER "GCC " __VERSION__
#endif

NB_MODULE(_native, m) {
    using namespace decodestep;
    current_tier();  // refuses an unknown DECODESTEP_ISA at import, not in a kernel on another thread
    m.def("isa", &tier_name);
    m.def("compiler", [] { return COMPILER; });
    m.def(
        "pin_workers",
        [](std::vector<int> cpus) {
            require(!cpus.empty(), "at least one CPU must be named");
            return pin_workers(std::move(cpus));
        },
        nb::arg("cpus"));
    m.def("tiers", [] { return nb::str(usable_tiers().c_str()); });
    bind_causal_conv1d(m);
    bind_checked_bytes(m);
    bind_column_weight(m);
    bind_decode_step(m);
    bind_decoder(m);
    bind_float_environment(m);
    bind_gated_delta_rule(m);
    bind_history(m);
    bind_lightning_indexer(m);
    bind_linear(m);
    bind_mixture_of_experts(m);
    bind_mla_attention(m);
    bind_mla_prolog(m);
    bind_onnxruntime(m);
    bind_random(m);
    bind_rms_norm(m);
    bind_rows(m);
    bind_selective_state_update(m);
    bind_state_replay(m);
    bind_swiglu(m);
    bind_tensor_scatter(m);
    bind_top_k_top_p_sample(m);
}
