#include "linear/quantise_blocks.h"

#include <algorithm>
#include <cstring>

#include "core/parallel.h"
#include "linear/quantise_k_quants.h"
#include "linear/with_format.h"
#include "simd/simd.h"

namespace decodestep::DECODESTEP_BUILD {
namespace {

constexpr size_t kChunk = size_t{1} << 14;  // values that a thread takes at a time

void put_q8_0(const float* x, uint8_t* out) {
    const f32x16 first = load(x), second = load(x + kLanes);
    const float scale = largest_magnitude(first, second) / 127, unit = rounded<F16>(scale);
    const f32x16 inverse = broadcast(unit > 0 ? 1 / unit : 0), most = broadcast(127.0f);
    const auto bounded = [&](f32x16 v) { return max(broadcast(-127.0f), min(most, v * inverse)); };
    put_f16(scale, out);
    round_to_bytes(bounded(first), bounded(second), reinterpret_cast<int8_t*>(out + 2));
}

// A block of Q4_0 or Q5_0.
template <Format F>
void put_around_middle(const float* x, uint8_t* out) {
    constexpr float middle = traits(F).offset;
    float extreme = x[0];
    for (size_t i = 1; i < 32; ++i)
        if (__builtin_fabsf(x[i]) > __builtin_fabsf(extreme)) extreme = x[i];
    const float scale = largest_magnitude(x, 32) < kInfinity ? extreme / -middle : kInfinity;
    const float inverse = scale == 0 ? 0 : 1 / scale;
    uint8_t q[32];
    for (size_t i = 0; i < 32; ++i) {
        const float shifted = x[i] * inverse + (middle + 0.5f);
        q[i] = static_cast<uint8_t>(shifted > 0 ? std::min(shifted, 2 * middle - 1) : 0);
    }
    SplitBlock block;
    put_f16(scale, block.pieces[0].scales);
    put_integers<F>(q, block.pieces[0]);
    join_block<F>(block, out);
}

template <Format F>
void put_blocks(const float* x, size_t blocks, uint8_t* out) {
    size_t b = 0;
    if constexpr (F == Format::q2_k || F == Format::q4_k || F == Format::q5_k) {
        constexpr size_t at_once = kBlocksAtOnce<F>;
        for (; b + at_once <= blocks; b += at_once)
            put_blocks_with_minima<F>(x + kKQuantValues * b, at_once, out + kBlockBytes<F> * b);
        if (b == blocks) return;
        float padded[at_once * kKQuantValues] = {};
        std::memcpy(padded, x + kKQuantValues * b, (blocks - b) * kKQuantValues * sizeof(float));
        put_blocks_with_minima<F>(padded, blocks - b, out + kBlockBytes<F> * b);
    } else {
        for (; b < blocks; ++b, x += kBlockValues<F>, out += kBlockBytes<F>) {
            if constexpr (F == Format::q3_k)
                put_block_around_zero<F, 32>(x, out);
            else if constexpr (F == Format::q6_k)
                put_block_around_zero<F, 128>(x, out);
            else if constexpr (F == Format::q8_0)
                put_q8_0(x, out);
            else if constexpr (F == Format::q4_0 || F == Format::q5_0)
                put_around_middle<F>(x, out);
            else
                static_assert(!traits(F).is_quantised_to);
        }
    }
}

template <Format F>
void quantise(const QuantiseBlocks& a) {
    constexpr size_t in_chunk = kChunk / kBlockValues<F>;
    parallel_for(ceil_div(a.blocks, in_chunk), a.threads, [&](size_t chunk) {
        const size_t first = in_chunk * chunk;
        put_blocks<F>(a.values + kBlockValues<F> * first, std::min(in_chunk, a.blocks - first),
                      a.out + kBlockBytes<F> * first);
    });
}

}  // namespace

void quantise_blocks(const QuantiseBlocks& a) {
    with_format(a.format, [&]<Format F>() {
        if constexpr (traits(F).is_quantised_to) quantise<F>(a);
    });
}

}  // namespace decodestep::DECODESTEP_BUILD
