#include "recurrent/gated_delta_rule.h"

#include "bindings/bindings.h"
#include "bindings/state_heads.h"

namespace decodestep {

void bind_gated_delta_rule(nb::module_& m) {
    m.def(
        "gated_delta_rule",
        [](Heads query, Heads key, Heads value, const std::optional<Heads>& decay, const std::optional<Heads>& beta,
           States state, Ids starts, Ids read, Ids written, bool tiled, bool l2_norm, float scale, Packed<float, 3> out,
           int threads) {
            const size_t tokens = value.shape(0), heads = value.shape(1), width = value.shape(2);
            const size_t key_heads = key.shape(1), key_width = key.shape(2);
            require(key_heads > 0 && heads % key_heads == 0, "the key heads must divide the heads");
            const bool decays_rows = decay && decay->shape(2) != 1;
            const StateRowsArgument rows(starts, read, written, tokens, state.shape(0));
            const GatedDeltaRule args{
                .query = token_heads(query, tokens, key_heads, key_width),
                .key = token_heads(key, tokens, key_heads, key_width),
                .value = token_heads(value, tokens, heads, width),
                .decay = decay ? token_heads(*decay, tokens, heads, decays_rows ? key_width : 1) : TokenHeads{},
                .beta = beta ? token_heads(*beta, tokens, heads, 1) : TokenHeads{},
                .key_heads = key_heads,
                .decays_rows = decays_rows,
                .tiled = tiled,
                .l2_norm = l2_norm,
                .scale = scale,
                .state = state_heads(state, heads, key_width, width),
                .rows = rows.rows(),
                .out = head_results(out, tokens, heads, width),
                .threads = thread_count(threads)};
            const ReleasedGil released;
            gated_delta_rule(args);
        },
        nb::arg("query").noconvert(), nb::arg("key").noconvert(), nb::arg("value").noconvert(),
        nb::arg("decay").none().noconvert(), nb::arg("beta").none().noconvert(), nb::arg("state").noconvert(),
        nb::arg("starts").noconvert(), nb::arg("read").noconvert(), nb::arg("written").noconvert(), nb::arg("tiled"),
        nb::arg("l2_norm"), nb::arg("scale"), nb::arg("out").noconvert(), nb::arg("threads"));
}

}  // namespace decodestep
