// Products of pairs of bfloat16, their rounding, and lists for targets that have no instructions for them, from their
// other primitives. Included at the end of such a target's file.
//
// A target multiplies sixteen pairs by sixteen pairs and adds the products to sixteen sums. A pair adds its second
// product, then its first, each with the one rounding of a fused multiply-add; the dot-product instruction does the
// same, but flushes subnormals.
#pragma once

namespace decodestep::DECODESTEP_BUILD {

struct Bf16Pairs {
    f32x16 first, second;
};
DECODESTEP_INLINE Bf16Pairs bf16_pairs(i32x16 bits) { return {low_bf16(bits), high_bf16(bits)}; }
DECODESTEP_INLINE f32x16 add_products(f32x16 sums, const Bf16Pairs& x, const Bf16Pairs& w) {
    return fma(x.first, w.first, fma(x.second, w.second, sums));
}

// Pairs of bfloat16 of a token and of weights, as above, but in kSteps steps, where a token's values lie in memory in
// the form that is read fastest: here a product a step, the second one first, and values widened to float32.
struct PairDot {
    static constexpr int kSteps = 2;
    using Value = float;  // rounded to bfloat16

    template <int step>
    static DECODESTEP_INLINE f32x16 token(const Value* pair) {
        return broadcast(pair[1 - step]);
    }
    template <int step>
    static DECODESTEP_INLINE f32x16 weights(const void* p) {
        return step == 0 ? high_bf16(load_bits(p)) : low_bf16(load_bits(p));
    }
    // With zeros in place of the first of each pair, or of the second, unless that is wanted.
    template <int step>
    static DECODESTEP_INLINE f32x16 weights(const void* p, bool first, bool second) {
        return (step == 0 ? second : first) ? weights<step>(p) : broadcast(0.0f);
    }
    static DECODESTEP_INLINE f32x16 add(f32x16 sums, f32x16 x, f32x16 w) { return fma(x, w, sums); }

    // Rounds sixteen values of a token, none of them a signalling NaN: to nearest, ties to even. Of NaN whose upper
    // bits are ones the lower ones are left out, so that the sum does not pass into the sign.
    static DECODESTEP_INLINE void round_values(Value* out, f32x16 values) {
        const i32x16 bits = bits_of(values), most = broadcast_int(0x7fff0000),
                     past = max(bits & broadcast_int(0x7fffffff), most) ^ most;
        round_bits(out, bits ^ past);
    }
    // The same for weights of attention: of NaN, which come from products of bfloat16, the lower bits are zeros.
    static DECODESTEP_INLINE void round_weights(Value* out, f32x16 weights) { round_bits(out, bits_of(weights)); }

  private:
    static DECODESTEP_INLINE void round_bits(Value* out, i32x16 bits) {
        const i32x16 odd = shift_right<16>(bits) & broadcast_int(1);
        store(out, high_bf16(bits + (odd + broadcast_int(0x7fff))));
    }
};

// Rounds sums of products of bfloat16.
DECODESTEP_INLINE void store_sums(Bf16* p, f32x16 sums) {
    float lanes[kLanes];
    store(lanes, sums);
    for (int i = 0; i < kLanes; ++i) p[i] = to_bf16(lanes[i]);
}

// Whether list_word writes the marked ones of 64 items at once.
constexpr bool kListsWords = false;
template <class Item>
size_t list_word(uint64_t word, const Item* p, int32_t first, int32_t* ids, float* scores) = delete;

}  // namespace decodestep::DECODESTEP_BUILD
