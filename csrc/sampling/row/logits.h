// One row of logits in float32, bfloat16 or float16, sixteen at a time, and the passes over it. NaN is passed on: it
// loses every comparison.
#pragma once

#include <array>
#include <numeric>

#include "sampling/decode_step/decode_step.h"
#include "sampling/row/workspace.h"
#include "simd/lanes.h"

namespace decodestep::DECODESTEP_ISA {

template <Real real>
struct Logits {
    using Item = std::conditional_t<real == Real::f32, float, uint16_t>;

    const Item* data;
    size_t vocab;

    static DECODESTEP_INLINE f32x16 widen(const Item* p) {
        if constexpr (real == Real::f32)
            return decodestep::DECODESTEP_ISA::load(p);
        else if constexpr (real == Real::bf16)
            return from_bf16(p);
        else
            return from_f16(p);
    }

    DECODESTEP_INLINE f32x16 load(size_t i) const { return widen(data + i); }

#if defined(__AVX512F__)
    static constexpr size_t kPairStep = real == Real::bf16 ? 2 : 1;
#else
    static constexpr size_t kPairStep = 1;
#endif

    // 32 logits from p on: the even and the odd ones where kPairStep is 2, else sixteen and sixteen.
    static DECODESTEP_INLINE void load_pair(const Item* p, f32x16& a, f32x16& b) {
#if defined(__AVX512F__)
        if constexpr (real == Real::bf16) {  // at half the work of widening them in their order
            const __m512i both = _mm512_loadu_si512(p);
            a = {_mm512_castsi512_ps(_mm512_slli_epi32(both, 16))};
            b = {_mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))))};
            return;
        }
#endif
        a = widen(p);
        b = widen(p + kLanes);
    }

    static constexpr Item nothing() {  // -inf
        if constexpr (real == Real::f32)
            return kNothing;
        else
            return real == Real::bf16 ? 0xFF80u : 0xFC00u;
    }

    // The last n < 16 logits, and -inf behind them.
    f32x16 load_last(size_t i, size_t n) const {
        Item items[kLanes];
        for (Item& item : items) item = nothing();
        std::memcpy(items, data + i, n * sizeof(Item));
        return widen(items);
    }

    // One logit; NaN is -inf.
    float at(size_t i) const {
        float value;
        if constexpr (real == Real::f32) {
            value = data[i];
        } else if constexpr (real == Real::bf16) {
            value = std::bit_cast<float>(static_cast<uint32_t>(data[i]) << 16);
        } else {
            Item items[kLanes] = {data[i]};
            float lanes[kLanes];
            store(lanes, widen(items));
            value = lanes[0];
        }
        return std::max(kNothing, value);
    }

    size_t blocks() const { return (vocab + kBlock - 1) / kBlock; }

    // visit(sixteen logits, the first's id) over a block.
    template <class Visit>
    DECODESTEP_INLINE void each_vector(size_t block, Visit&& visit) const {
        each_vector_from(block * kBlock, std::min(vocab, (block + 1) * kBlock), visit);
    }

    // The same in an order that costs less: visit(sixteen logits, id, step), of which lane i is token id + step * i.
    template <class Visit>
    DECODESTEP_INLINE void each_vector_in_any_order(size_t block, Visit&& visit) const {
        size_t i = block * kBlock;
        const size_t end = std::min(vocab, i + kBlock);
        if constexpr (kPairStep == 2) {
            for (; i + 2 * kLanes <= end; i += 2 * kLanes) {
                f32x16 even, odd;
                load_pair(data + i, even, odd);
                visit(even, i, 2);
                visit(odd, i + 1, 2);
            }
        }
        each_vector_from(i, end, [&](f32x16 x, size_t first) { visit(x, first, 1); });
    }

    // Cold logits arrive at twice the speed when they are asked for two blocks ahead. A pass that computes spreads this
    // over its work: too many lines at once wait for each other.
    DECODESTEP_INLINE static void prefetch_behind(const Item* p) {
        if (sizeof(Item) == 4 || reinterpret_cast<uintptr_t>(p) % 64 < 32) prefetch(p + 2 * kBlock);
    }

    void prefetch_block(size_t block) const { prefetch(data + block * kBlock, kBlock * sizeof(Item)); }

    // Writes the tokens first + i, and their logits, for each bit i of a word, ascending; there must be room for
    // sixteen more of each. Returns their number.
    DECODESTEP_INLINE size_t list_marked(uint64_t word, size_t first, int32_t* ids, float* scores) const {
        const auto count = static_cast<size_t>(std::popcount(word));
#if defined(__AVX512VBMI2__)
        if (first + 64 <= vocab) {
            __m512i places = _mm512_maskz_compress_epi8(word, _mm512_load_si512(kPlaces.data()));
            const auto write = [&](size_t i) {
                const __m128i sixteen = _mm512_castsi512_si128(places);
                const auto id =
                    _mm512_add_epi32(_mm512_cvtepu8_epi32(sixteen), _mm512_set1_epi32(static_cast<int>(first)));
                _mm512_storeu_si512(ids + i, id);
                store(scores + i, max(pick(data + first, sixteen), broadcast(kNothing)));
            };
            write(0);
            if (count > kLanes) [[unlikely]]
                for (size_t i = kLanes; i < count; i += kLanes) {
                    places = _mm512_shuffle_i64x2(places, places, 0x39);
                    write(i);
                }
            return count;
        }
#endif
        // Four at a time whether there are as many or not, for that number is hard to foretell.
        stay_scalar(word);
        for (size_t i = 0; i < count;)
            for (size_t j = 0; j < 4; ++j, ++i) {
                const int bit = std::countr_zero(word | uint64_t{1} << 63);  // never zero, so no branch
                ids[i] = static_cast<int32_t>(first) + bit;
                word &= word - 1;
                stay_scalar(word);
            }
        for (size_t i = 0; i < count; ++i) scores[i] = at(static_cast<size_t>(ids[i]));
        return count;
    }

    // The largest logit of every group of a block, -inf where there is none.
    template <bool and_prefetch>
    DECODESTEP_INLINE f32x16 maxima(size_t block) const {
        f32x16 best[4] = {broadcast(kNothing), broadcast(kNothing), broadcast(kNothing), broadcast(kNothing)};
        if ((block + 1) * kBlock <= vocab) {
            const Item* const p = data + block * kBlock;
            // Eight loads a turn: with all 32 written out, each comes back at strides that the prefetcher of the first
            // cache does not follow, and logits in the second take twice the time.
#pragma GCC unroll 2
            for (size_t i = 0; i < kBlock; i += 4 * kLanes) {
#pragma GCC unroll 4
                for (size_t j = 0; j < 4; ++j) {
                    const Item* const at = p + i + j * kLanes;
                    if constexpr (and_prefetch) prefetch_behind(at);
                    best[j] = max(widen(at), best[j]);
                }
            }
        } else {
            each_vector(block, [&](f32x16 x, size_t) { best[0] = max(x, best[0]); });
        }
        return max(max(best[0], best[1]), max(best[2], best[3]));
    }

    // group_max of the whole row.
    void sweep(Workspace& work) const {
        for (size_t block = 0; block < blocks(); ++block) {
            store(&work.group_max[block * kLanes], maxima<true>(block));
        }
    }

    // Writes the tokens with logits >= threshold (all above -inf where it is that), ascending, and returns their
    // number. A branch for every vector pays only where few vectors hold one.
    template <bool few>
    size_t collect(Workspace& work, float threshold) const {
        const f32x16 least = broadcast(std::max(threshold, std::numeric_limits<float>::lowest()));
        float* const scores = work.scores.get();
        int32_t* const ids = work.ids.get();
        size_t n = 0;
        for (size_t block = 0; block < blocks(); ++block) {
            if (!at_least(load_maxima(work, block), least)) continue;
            each_vector(block, [&](f32x16 x, size_t i) {
                const Mask mask = at_least(x, least);
                if (few && !mask) return;
                n += compact(mask, x, static_cast<int32_t>(i), scores + n, ids + n);
            });
        }
        return n;
    }

#if defined(__AVX512VBMI2__)
    alignas(64) static constexpr auto kPlaces = [] {
        std::array<uint8_t, 64> places;
        std::iota(places.begin(), places.end(), 0);
        return places;
    }();

    // Sixteen of the 64 logits from p on.
    static DECODESTEP_INLINE f32x16 pick(const Item* p, __m128i places) {
        const auto of = [&](size_t i) { return _mm512_loadu_si512(p + i); };
        if constexpr (real == Real::f32) {
            const __m512i at = _mm512_cvtepu8_epi32(places);
            const __m512i low = _mm512_permutex2var_epi32(of(0), at, of(16));
            const __m512i high = _mm512_permutex2var_epi32(of(32), at, of(48));
            return {_mm512_castsi512_ps(
                _mm512_mask_mov_epi32(low, _mm512_test_epi32_mask(at, _mm512_set1_epi32(32)), high))};
        } else {
            const __m512i at = _mm512_castsi256_si512(_mm256_cvtepu8_epi16(places));
            Item items[kLanes];
            const __m512i picked = _mm512_permutex2var_epi16(of(0), at, of(32));
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(items), _mm512_castsi512_si256(picked));
            return widen(items);
        }
    }
#endif

    template <class Visit>
    DECODESTEP_INLINE void each_vector_from(size_t i, size_t end, Visit&& visit) const {
        for (; i + kLanes <= end; i += kLanes) visit(load(i), i);
        if (i < end) visit(load_last(i, end - i), i);
    }

    static f32x16 load_maxima(const Workspace& work, size_t block) {
        return decodestep::DECODESTEP_ISA::load(&work.group_max[block * kLanes]);
    }
};

}  // namespace decodestep::DECODESTEP_ISA
