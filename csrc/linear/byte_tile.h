// Products of int8 activations with panels, several tokens at once (a tile). linear_panels.h defines the order of the
// sums; no tile changes it.
#pragma once

#include <cstring>
#include <type_traits>

#include "linear/activations.h"
#include "linear/float_sums.h"
#include "linear/panel_bytes.h"
#include "linear/panel_product.h"

namespace decodestep::DECODESTEP_BUILD {

// The largest number of tokens that are multiplied by a panel without storing its bytes. Of AVX-512 without dot
// products, which few CPUs have, the instances for more than two would be a third of the code.
constexpr int kUnstoredTokens = kManyRegisters && !kWideSums ? 2 : kRegisterTokens;

// Whether the sums of a sub-block start at the correction for the quads' offset from the values, instead of adding it
// at the end.
template <Format F>
constexpr bool kStartsAtOffset = traits(F).offset != 0 && (kWideSums || sub_blocks(F) > 1);

// The largest amount by which a quad's weight changes a sum, per unit of activation.
template <Format F>
constexpr int kLargestChange =
    sub_blocks(F) > 1 ? std::max(traits(F).offset, largest_byte(F) - traits(F).offset) : largest_byte(F);

// An accumulation span: as many quads of a sub-block as ByteSums can add up without overflow.
template <Format F>
constexpr size_t span_quads() {
    const size_t hold = kByteSumsHold / kLargestChange<F>, most = kQuads / sub_blocks(F);
    return hold >= most ? most : 4;
}

// Quad i of a span: alternates between the low and high nibbles of a byte, unless they have different scales.
template <Format F>
constexpr size_t quad_of(size_t span, size_t i) {
    const size_t at = span * span_quads<F>() + i;
    return sub_blocks(F) > 1 ? at : at / 2 + at % 2 * 4;
}

// Blocks of some tokens, of 32 inputs: `at` of the first token, and those of the others each `stride` further.
struct TokenBlocks {
    const QuantisedBlocks& blocks;
    size_t at, stride;
    const int32_t* starts = nullptr;  // see Starts

    DECODESTEP_INLINE size_t block(size_t t) const { return at + t * stride; }
    // Inputs 4j to 4j + 3 of token t.
    DECODESTEP_INLINE i8x4 quad(size_t t, size_t j) const {
        return broadcast_quad(blocks.bytes + kBlockInputs * at + t * kBlockInputs * stride + 4 * j);
    }
    // The i-th blocks after these.
    DECODESTEP_INLINE TokenBlocks after(size_t i) const { return {blocks, at + i, stride, starts + 2 * i}; }
};

// What the sums of T tokens start at in both sub-blocks of some pieces, where these have scales of their own: from
// token to token 2 * kStretch apart. It is computed once for all outputs.
template <Format F, int T>
class Starts {
  public:
    // Of a stretch from x on, or of one piece.
    DECODESTEP_INLINE void compute_stretch(const TokenBlocks& x) {
        if constexpr (kNeeded)
            for (size_t t = 0; t < T; ++t) compute(t, load_bits(x.blocks.half_sums + 2 * x.block(t)));
    }
    DECODESTEP_INLINE void compute_piece(const TokenBlocks& x) {
        if constexpr (kNeeded)
            for (size_t t = 0; t < T; ++t) {
                int32_t half_sums[2 * kStretch] = {};
                std::memcpy(half_sums, x.blocks.half_sums + 2 * x.block(t), 2 * sizeof *half_sums);
                compute(t, load_bits(half_sums));
            }
    }
    // x, of the tokens from number t on, with their starts.
    DECODESTEP_INLINE TokenBlocks with(const TokenBlocks& x, size_t t = 0) const {
        return {x.blocks, x.at, x.stride, starts_[kNeeded ? t : 0]};
    }

  private:
    DECODESTEP_INLINE void compute(size_t t, i32x16 half_sums) {
        store_bits(starts_[t], times(half_sums, -traits(F).offset));
    }

    static constexpr bool kNeeded = kStartsAtOffset<F> && sub_blocks(F) > 1;
    alignas(64) int32_t starts_[kNeeded ? T : 1][2 * kStretch];
};

// The integers of a piece whose weights are bytes.
template <int T, int V, class Quads>
DECODESTEP_INLINE void byte_integers(const Quads& quads, size_t first_v, const TokenBlocks& x,
                                     i32x16 (&integers)[T][V]) {
#pragma GCC unroll kUnrolled
    for (int t = 0; t < T; ++t)
#pragma GCC unroll kUnrolled
        for (int v = 0; v < V; ++v)
            integers[t][v] = broadcast_int(kByteOffset ? -kByteOffset * x.blocks.sum[x.block(t)] : 0);
#pragma GCC unroll kUnrolled
    for (size_t j = 0; j < kQuads; ++j) {
        decltype(quads.quad(j, first_v)) w[V];
#pragma GCC unroll kUnrolled
        for (int v = 0; v < V; ++v) w[v] = quads.quad(j, first_v + v);
#pragma GCC unroll kUnrolled
        for (int t = 0; t < T; ++t) {
            const i8x4 quad = x.quad(t, j);
#pragma GCC unroll kUnrolled
            for (int v = 0; v < V; ++v) integers[t][v] = dot_bytes(integers[t][v], w[v], quad);
        }
    }
}

// The sums of one span.
template <Format F, int T, int V, class Quads>
DECODESTEP_INLINE void span_sums(const Quads& quads, size_t span, size_t first_v, const TokenBlocks& x,
                                 ByteSums (&sums)[T][V]) {
    constexpr size_t count = span_quads<F>();
    if constexpr (kStartsAtOffset<F>) {
#pragma GCC unroll kUnrolled
        for (int t = 0; t < T; ++t)
#pragma GCC unroll kUnrolled
            for (int v = 0; v < V; ++v)
                sums[t][v] = broadcast_int(sub_blocks(F) > 1 ? x.starts[2 * kStretch * t + span]
                                                             : -traits(F).offset * x.blocks.sum[x.block(t)]);
    }
#pragma GCC unroll kUnrolled
    for (size_t i = 0; i < count; ++i) {
        const size_t j = quad_of<F>(span, i);
        u8x64 w[V];
#pragma GCC unroll kUnrolled
        for (int v = 0; v < V; ++v) w[v] = quads.quad(j, first_v + v);
#pragma GCC unroll kUnrolled
        for (int t = 0; t < T; ++t) {
            const i8x4 quad = x.quad(t, j);
#pragma GCC unroll kUnrolled
            for (int v = 0; v < V; ++v) {
                if (i == 0 && !kStartsAtOffset<F>)
                    sums[t][v] = multiply_bytes(w[v], quad);
                else
                    add_byte_products(sums[t][v], w[v], quad);
            }
        }
    }
}

// The scales of outputs 16v.. of a piece, for both of its sub-blocks, as pairs of int16.
template <Format F>
DECODESTEP_INLINE i32x16 scale_pairs(const uint8_t* scales, size_t v) {
    static_assert(traits(F).scale == ScaleType::u4 || traits(F).scale == ScaleType::i8);
    const i32x16 pairs = int8_pairs(scales + 32 * v);
    return traits(F).scale == ScaleType::u4 ? pairs & broadcast_int(0x000F000F) : pairs;
}

// The minima beside them.
DECODESTEP_INLINE i32x16 minimum_pairs(const uint8_t* scales, size_t v) {
    return shift_right<4>(int8_pairs(scales + 32 * v)) & broadcast_int(0x000F000F);
}

// The products of a piece whose weights are a few bits, times the format's integer scales, if it has any.
template <Format F, int T, int V, class Quads, class Products>
DECODESTEP_INLINE void few_bit_products(const Quads& quads, size_t first_v, const uint8_t* scales, const TokenBlocks& x,
                                        Products (&products)[T][V]) {
    constexpr size_t spans = kQuads / span_quads<F>();
#pragma GCC unroll kUnrolled
    for (size_t span = 0; span < spans; ++span) {
        ByteSums sums[T][V];
        span_sums<F, T, V>(quads, span, first_v, x, sums);
#pragma GCC unroll kUnrolled
        for (int v = 0; v < V; ++v) {
            if constexpr (has_integer_scales(F)) {
                const auto scale = [&]() DECODESTEP_INLINE_LAMBDA {
                    if constexpr (sub_blocks(F) > 1) {
                        const i32x16 pairs = scale_pairs<F>(scales, first_v + v);
                        return span == 0 ? first_scales(pairs) : second_scales(pairs);
                    } else {
                        static_assert(traits(F).scale == ScaleType::u8);
                        return load_scales(scales + 16 * (first_v + v));
                    }
                }();
#pragma GCC unroll kUnrolled
                for (int t = 0; t < T; ++t)
                    products[t][v] =
                        span == 0 ? reduce(sums[t][v], scale) : add_reduced(products[t][v], sums[t][v], scale);
            } else {
#pragma GCC unroll kUnrolled
                for (int t = 0; t < T; ++t) {
                    i32x16 sum = reduce(sums[t][v]);
                    if constexpr (traits(F).offset != 0 && !kStartsAtOffset<F>)
                        if (span == 0) sum = sum + broadcast_int(-traits(F).offset * x.blocks.sum[x.block(t)]);
                    products[t][v] = span == 0 ? sum : products[t][v] + sum;
                }
            }
        }
    }
}

// The scales of outputs 16v.. of a piece, for formats whose scales are applied as float32.
template <Format F>
DECODESTEP_INLINE f32x16 float_scales(const uint8_t* piece, size_t v) {
    constexpr PanelLayout layout = panel_layout(F);
    const uint8_t* scales = piece + layout.low + layout.upper;
    if constexpr (has_integer_scales(F))
        return broadcast(1.0f);
    else if constexpr (traits(F).scale == ScaleType::e8m0)
        return half_powers(load_u8(scales + 16 * v));
    else if constexpr (traits(F).scale == ScaleType::i8)
        return from_i8(scales + 16 * v);
    else if constexpr (traits(F).scale == ScaleType::f16)
        return from_f16(scales + 32 * v);
}

// y + a token's sums of a piece, scaled; `scale` is from float_scales.
template <Format F>
DECODESTEP_INLINE f32x16 add_sums(f32x16 sums, f32x16 scale, f32x16 x_scale, f32x16 y) {
    if constexpr (panel_layout(F).pieces == 1)
        return fma(scale * x_scale, sums, y);
    else if constexpr (has_integer_scales(F))
        return fma(sums, x_scale, y);
    else  // the product is less than 2^24: exact
        return fma(sums * scale, x_scale, y);
}

// y += the products of a piece with outputs 16 first_v.., without minima.
template <Format F, int T, int V, class Quads>
DECODESTEP_INLINE void add_piece(const Quads& quads, size_t first_v, const uint8_t* piece, const TokenBlocks& x,
                                 FloatSums<T, V>& y) {
    constexpr PanelLayout layout = panel_layout(F);
    // Integers, or floats that hold the integers exactly.
    std::conditional_t<has_integer_scales(F), ByteProducts, i32x16> products[T][V];
    if constexpr (is_bytes(F))
        byte_integers<T, V>(quads, first_v, x, products);
    else
        few_bit_products<F, T, V>(quads, first_v, piece + layout.low + layout.upper, x, products);
#pragma GCC unroll kUnrolled
    for (int v = 0; v < V; ++v) {
        const f32x16 scale = float_scales<F>(piece, first_v + v);
#pragma GCC unroll kUnrolled
        for (int t = 0; t < T; ++t)
            y[t][v] = add_sums<F>(to_float(products[t][v]), scale, broadcast(x.blocks.scale[x.block(t)]), y[t][v]);
    }
}

// y -= the minima of both sub-blocks of a piece times the sums of the tokens' values there.
template <Format F, int T, int V>
DECODESTEP_INLINE void subtract_minima(size_t first_v, const uint8_t* piece, const TokenBlocks& x, FloatSums<T, V>& y) {
    static_assert(traits(F).scale == ScaleType::u4);
    constexpr PanelLayout layout = panel_layout(F);
#pragma GCC unroll kUnrolled
    for (int v = 0; v < V; ++v) {
        const i32x16 pairs = minimum_pairs(piece + layout.low + layout.upper, first_v + v);
        const auto first = first_scales(pairs), second = second_scales(pairs);
#pragma GCC unroll kUnrolled
        for (int t = 0; t < T; ++t) {
            const int32_t* halves = x.blocks.half_sums + 2 * x.block(t);
            const ByteSums first_half = times(broadcast_int(halves[0]), 1),
                           second_half = times(broadcast_int(halves[1]), 1);
            const ByteProducts products = add_reduced(reduce(first_half, first), second_half, second);
            y[t][v] = fma(to_float(products), broadcast(-x.blocks.scale[x.block(t)]), y[t][v]);
        }
    }
}

// y += the minima of the piece times the sums of the tokens' values; minima of blocks of 256 are subtracted.
template <Format F, int T, int V>
DECODESTEP_INLINE void add_minima(size_t first_v, const uint8_t* piece, const Activations& x, size_t at,
                                  FloatSums<T, V>& y) {
    constexpr PanelLayout layout = panel_layout(F);
    if constexpr (sub_blocks(F) > 1) return subtract_minima<F, T, V>(first_v, piece, {x.quantised, at, kStretch}, y);
    const uint8_t* minima = piece + layout.low + layout.upper + layout.scales / 2;
#pragma GCC unroll kUnrolled
    for (int v = 0; v < V; ++v) {
        f32x16 minimum;
        if constexpr (layout.pieces == 1)
            minimum = from_f16(minima + 32 * (first_v + v));
        else
            minimum = broadcast(0.0f) - to_float(load_u8(minima + 16 * (first_v + v)));
#pragma GCC unroll kUnrolled
        for (int t = 0; t < T; ++t) y[t][v] = fma(minimum, broadcast(x.block_sum[at + t * kStretch]), y[t][v]);
    }
}

// y += sums * the float16 scales in a block's tail, which start `at` bytes after its pieces.
template <Format F, int T, int V>
DECODESTEP_INLINE void add_scaled(const FloatSums<T, V>& sums, const uint8_t* block, size_t at, size_t first_v,
                                  FloatSums<T, V>& y) {
    constexpr PanelLayout layout = panel_layout(F);
    const uint8_t* scales = block + layout.pieces * layout.piece_bytes() + at;
#pragma GCC unroll kUnrolled
    for (int v = 0; v < V; ++v) {
        const f32x16 scale = from_f16(scales + 32 * (first_v + v));
#pragma GCC unroll kUnrolled
        for (int t = 0; t < T; ++t) y[t][v] = fma(scale, sums[t][v], y[t][v]);
    }
}

// y += a block of 256, whose piece products are in `sums`; overwrites `sums`.
template <Format F, int T, int V>
DECODESTEP_INLINE void finish_block(size_t first_v, const uint8_t* block, const Activations& x, size_t at,
                                    FloatSums<T, V>& sums, FloatSums<T, V>& y) {
    constexpr PanelLayout layout = panel_layout(F);
    add_scaled<F, T, V>(sums, block, 0, first_v, y);
    if constexpr (traits(F).minima) {
        clear<T, V>(sums);
        for (size_t i = 0; i < layout.pieces; ++i)
            add_minima<F, T, V>(first_v, block + i * layout.piece_bytes(), x, at + i, sums);
        add_scaled<F, T, V>(sums, block, 64, first_v, y);
    }
}

}  // namespace decodestep::DECODESTEP_BUILD
