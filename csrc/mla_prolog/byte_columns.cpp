#include "linear/dense_panels.h"
#include "mla_prolog/column_weight.h"

namespace decodestep::DECODESTEP_BUILD {
namespace {

struct StoredByteDot;

// int8 times int8, with exact sums.
struct ByteDot {
    using Value = int8_t;
    using Weights = I8Quads;
    using Sums = i32x16;
    static constexpr size_t kInputs = 4, kBytes = kPanelOutputs * kInputs;
    static constexpr int kSteps = 1;
    static constexpr bool kConverts = !std::is_same_v<I8Quads, i32x16>;
    using Converted = StoredByteDot;

    template <int>
    static DECODESTEP_INLINE I8Quads token(const int8_t* group) {
        int32_t bits;
        std::memcpy(&bits, group, sizeof bits);
        return i8_quads(broadcast_int(bits));
    }
    template <int>
    static DECODESTEP_INLINE I8Quads weights(const uint8_t* group, size_t v) {
        const i32x16 bits = load_bits(group + v * (kBytes / 2));
        return i8_quads(kUnsignedWeights ? bits : bits ^ broadcast_int(static_cast<int32_t>(0x80808080u)));
    }
    static DECODESTEP_INLINE i32x16 add(i32x16 sums, const I8Quads& x, const I8Quads& w) {
        return add_products(sums, w, x);
    }
    static DECODESTEP_INLINE i32x16 load_sums(const float* p) { return load_bits(p); }
    static DECODESTEP_INLINE void store_sums(float* p, i32x16 sums) { store_bits(p, sums); }
};

// The same with weights that lie in memory as they are multiplied.
struct StoredByteDot : ByteDot {
    static constexpr size_t kBytes = 2 * sizeof(I8Quads);

    template <int>
    static DECODESTEP_INLINE I8Quads weights(const uint8_t* group, size_t v) {
        I8Quads stored;
        std::memcpy(&stored, group + v * sizeof stored, sizeof stored);
        return stored;
    }
    static DECODESTEP_INLINE void convert(const uint8_t* group, uint8_t* to) {
        for (size_t v = 0; v < 2; ++v) {
            const I8Quads quads = ByteDot::weights<0>(group, v);
            std::memcpy(to + v * sizeof quads, &quads, sizeof quads);
        }
    }
};

}  // namespace

void multiply_byte_columns(const ByteColumns& a) {
    DenseTile<ByteDot> tile{.panel = a.panel,
                            .next_panel = a.next_panel,
                            .blocks = a.blocks,
                            .x = {const_cast<int8_t*>(a.x), a.x_tokens},
                            .first = a.first,
                            .tokens = a.tokens,
                            .outputs = a.outputs,
                            .first_block = a.first_block,
                            .adds = a.adds};
    // What the offset of the weights adds to the products is subtracted before.
    if (kUnsignedWeights && !a.adds) {
        tile.adds = true;
        for (size_t t = 0; t < a.tokens; ++t) {
            const i32x16 start =
                broadcast_int(static_cast<int32_t>(-128u * static_cast<uint32_t>(a.x_sums[a.first + t])));
            for (size_t p = 0; p < a.panels; ++p)
                for (size_t v = 0; v < 2; ++v) store_bits(a.outputs[p * a.tokens + t] + v * kLanes, start);
        }
    }
    dense_panels(tile, a.panels, a.panel_stride);
}

}  // namespace decodestep::DECODESTEP_BUILD
