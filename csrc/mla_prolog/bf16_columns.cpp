#include "linear/dense_panels.h"
#include "mla_prolog/column_weight.h"
#include "mla_prolog/dense_token.h"

namespace decodestep::DECODESTEP_BUILD {
namespace {

// bfloat16 times bfloat16. Products are added in the order of the dot-product instruction: see PairDot.
struct Bf16Dot {
    using Value = PairDot::Value;
    using Weights = decltype(PairDot::weights<0>(nullptr));
    using Sums = f32x16;
    static constexpr size_t kInputs = 2, kBytes = kPanelOutputs * kInputs * sizeof(Bf16);
    static constexpr int kSteps = PairDot::kSteps;
    static constexpr bool kConverts = kSteps == 2;
    using Converted = ConvertedDot<Bf16Dot>;

    template <int step>
    static DECODESTEP_INLINE auto token(const Value* group) {
        return PairDot::token<step>(group);
    }
    template <int step>
    static DECODESTEP_INLINE Weights weights(const uint8_t* group, size_t v) {
        return PairDot::weights<step>(group + v * (kBytes / 2));
    }
    static DECODESTEP_INLINE f32x16 add(f32x16 sums, const auto& x, const auto& w) { return PairDot::add(sums, x, w); }
    static DECODESTEP_INLINE f32x16 load_sums(const float* p) { return load(p); }
    static DECODESTEP_INLINE void store_sums(float* p, f32x16 sums) { store(p, sums); }
};

static_assert(sizeof(Bf16Dot::Value) <= kBf16TokenBytes);

}  // namespace

void read_bf16_token(const Bf16Token& a) {
    const DenseRows<Bf16Dot::Value> to{static_cast<Bf16Dot::Value*>(a.x), a.x_tokens};
    read_dense_token(to, a.token, a.row, a.in);
}

void multiply_bf16_columns(const Bf16Columns& a) {
    dense_panels<Bf16Dot>({.panel = a.panel,
                           .next_panel = a.next_panel,
                           .blocks = a.blocks,
                           .x = {static_cast<Bf16Dot::Value*>(a.x), a.x_tokens},
                           .first = a.first,
                           .tokens = a.tokens,
                           .outputs = a.outputs,
                           .first_block = a.first_block,
                           .adds = a.adds},
                          a.panels, a.panel_stride);
}

}  // namespace decodestep::DECODESTEP_BUILD
