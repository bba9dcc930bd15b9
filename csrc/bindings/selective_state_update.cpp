#include "recurrent/selective_state_update.h"

#include "bindings/bindings.h"
#include "bindings/state_heads.h"

namespace decodestep {

void bind_selective_state_update(nb::module_& m) {
    m.def(
        "selective_state_update",
        [](Heads x, Heads dt, Vector a, Heads b, Heads c, const std::optional<Vector>& d,
           const std::optional<Vector>& dt_bias, States state, Ids starts, Ids read, Ids written, Packed<float, 3> y,
           int threads) {
            const size_t tokens = x.shape(0), heads = x.shape(1), width = x.shape(2);
            const size_t groups = b.shape(1), state_width = b.shape(2);
            require(groups > 0 && heads % groups == 0, "the groups must divide the heads");
            const auto of_heads = [heads](const std::optional<Vector>& v) -> const float* {
                require(!v || v->shape(0) == heads, "a vector has the wrong shape");
                require_aligned(v);
                return v ? v->data() : nullptr;
            };
            const StateRowsArgument rows(starts, read, written, tokens, state.shape(0));
            const SelectiveStateUpdate args{.x = token_heads(x, tokens, heads, width),
                                            .dt = token_heads(dt, tokens, heads, 1),
                                            .b = token_heads(b, tokens, groups, state_width),
                                            .c = token_heads(c, tokens, groups, state_width),
                                            .groups = groups,
                                            .a = of_heads(a),
                                            .d = of_heads(d),
                                            .dt_bias = of_heads(dt_bias),
                                            .state = state_heads(state, heads, state_width, width),
                                            .rows = rows.rows(),
                                            .y = head_results(y, tokens, heads, width),
                                            .threads = thread_count(threads)};
            const ReleasedGil released;
            selective_state_update(args);
        },
        nb::arg("x").noconvert(), nb::arg("dt").noconvert(), nb::arg("a").noconvert(), nb::arg("b").noconvert(),
        nb::arg("c").noconvert(), nb::arg("d").none().noconvert(), nb::arg("dt_bias").none().noconvert(),
        nb::arg("state").noconvert(), nb::arg("starts").noconvert(), nb::arg("read").noconvert(),
        nb::arg("written").noconvert(), nb::arg("y").noconvert(), nb::arg("threads"));
}

}  // namespace decodestep
