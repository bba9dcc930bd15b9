#include "recurrent/gated_delta_rule.h"

#include "bindings/bindings.h"
#include "bindings/state_rows.h"

namespace decodestep {
namespace {

using Heads = Array<const float, 3>;

TokenHeads token_heads(const Heads& a, size_t tokens, size_t heads, size_t width) {
    require_aligned(a);
    require(a.shape(0) == tokens && a.shape(1) == heads && a.shape(2) == width, "an array has the wrong shape");
    require(last_axis_is_packed(a), "the last axis must be contiguous");
    return {a.data(), a.stride(0), a.stride(1)};
}

}  // namespace

void bind_gated_delta_rule(nb::module_& m) {
    m.def(
        "gated_delta_rule",
        [](Heads query, Heads key, Heads value, const std::optional<Heads>& decay, const std::optional<Heads>& beta,
           Array<float, 4> state, Ids starts, Ids read, Ids written, bool tiled, bool l2_norm, float scale,
           Packed<float, 3> out, int threads) {
            const size_t tokens = value.shape(0), heads = value.shape(1), value_width = value.shape(2);
            const size_t key_heads = key.shape(1), key_width = key.shape(2);
            require(heads < kMaxAxis && key_width < kMaxAxis && value_width < kMaxAxis, "a size is out of range");
            require(key_heads > 0 && heads % key_heads == 0, "the key heads must divide the heads");
            require_aligned(state, out);
            require(state.shape(1) == heads && state.shape(2) == key_width && state.shape(3) == value_width,
                    "state has the wrong shape");
            require(last_axis_is_packed(state), "the rows of a state must be contiguous");
            require(out.shape(0) == tokens && out.shape(1) == heads && out.shape(2) == value_width,
                    "out has the wrong shape");
            const bool decays_rows = decay && decay->shape(2) != 1;
            const StateRowsArgument rows(starts, read, written, tokens, state.shape(0));
            const GatedDeltaRule args{
                .query = token_heads(query, tokens, key_heads, key_width),
                .key = token_heads(key, tokens, key_heads, key_width),
                .value = token_heads(value, tokens, heads, value_width),
                .decay = decay ? token_heads(*decay, tokens, heads, decays_rows ? key_width : 1) : TokenHeads{},
                .beta = beta ? token_heads(*beta, tokens, heads, 1) : TokenHeads{},
                .heads = heads,
                .key_heads = key_heads,
                .key_width = key_width,
                .value_width = value_width,
                .decays_rows = decays_rows,
                .tiled = tiled,
                .l2_norm = l2_norm,
                .scale = scale,
                .state = state.data(),
                .state_stride = state.stride(0),
                .state_head_stride = state.stride(1),
                .state_row_stride = state.stride(2),
                .rows = rows.rows(),
                .out = out.data(),
                .out_token_stride = static_cast<ptrdiff_t>(heads * value_width),
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
