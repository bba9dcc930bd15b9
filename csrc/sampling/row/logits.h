// One row of logits in float32, bfloat16 or float16, read sixteen at a time, and the passes over it. NaN is passed on:
// it loses every comparison.
#pragma once

#include <algorithm>

#include "core/division.h"
#include "sampling/row/group_maxima.h"
#include "sampling/row/logit_type.h"
#include "simd/simd.h"

namespace decodestep::DECODESTEP_BUILD {

template <LogitType type>
struct Logits {
    using Item =
        std::conditional_t<type == LogitType::f32, float, std::conditional_t<type == LogitType::bf16, Bf16, F16>>;

    const Item* data;
    size_t vocab;

    static DECODESTEP_INLINE f32x16 widen(const Item* p) { return decodestep::DECODESTEP_BUILD::load(p); }

    DECODESTEP_INLINE f32x16 load(size_t i) const { return widen(data + i); }

    static constexpr size_t kPairStep = kSplitsBf16 && type == LogitType::bf16 ? 2 : 1;

    // 32 logits from p on: the even and the odd ones where kPairStep is 2, else sixteen and sixteen.
    static DECODESTEP_INLINE void load_pair(const Item* p, f32x16& a, f32x16& b) {
        if constexpr (kPairStep == 2) {  // at half the work of widening them in their order
            const i32x16 both = load_bits(p);
            a = low_bf16(both);
            b = high_bf16(both);
            return;
        }
        a = widen(p);
        b = widen(p + kLanes);
    }

    static constexpr Item minus_infinity() {
        if constexpr (type == LogitType::f32)
            return kMinusInfinity;
        else if constexpr (type == LogitType::bf16)
            return {0xFF80u};
        else
            return {0xFC00u};
    }

    // The last n < 16 logits, followed by -inf.
    f32x16 load_last(size_t i, size_t n) const {
        Item items[kLanes];
        for (Item& item : items) item = minus_infinity();
        std::memcpy(items, data + i, n * sizeof(Item));
        return widen(items);
    }

    // One logit; NaN is -inf.
    float at(size_t i) const {
        float value;
        if constexpr (type == LogitType::f32) {
            value = data[i];
        } else if constexpr (type == LogitType::bf16) {
            value = decodestep::to_float(data[i]);
        } else {
            Item items[kLanes] = {data[i]};
            float lanes[kLanes];
            store(lanes, widen(items));
            value = lanes[0];
        }
        return std::max(kMinusInfinity, value);
    }

    size_t blocks() const { return ceil_div(vocab, kLogitsBlock); }

    // visit(sixteen logits, the first's id) over a block.
    template <class Visit>
    DECODESTEP_INLINE void each_vector(size_t block, Visit&& visit) const {
        each_vector_from(block * kLogitsBlock, std::min(vocab, (block + 1) * kLogitsBlock), visit);
    }

    // The same in an order that costs less: visit(sixteen logits, id, step), where lane i is token id + step * i.
    template <class Visit>
    DECODESTEP_INLINE void each_vector_in_any_order(size_t block, Visit&& visit) const {
        size_t i = block * kLogitsBlock;
        const size_t end = std::min(vocab, i + kLogitsBlock);
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

    // Logits that are not in the cache arrive at twice the speed when they are prefetched two blocks ahead. Done vector
    // by vector between the other work: prefetches of too many lines at once wait for each other.
    DECODESTEP_INLINE static void prefetch_ahead_of(const Item* p) {
        if (sizeof(Item) == 4 || reinterpret_cast<uintptr_t>(p) % 64 < 32) prefetch(p + 2 * kLogitsBlock);
    }

    void prefetch_block(size_t block) const { prefetch(data + block * kLogitsBlock, kLogitsBlock * sizeof(Item)); }

    // Writes the tokens first + i, and their logits, for each bit i of a word, ascending; there must be room for
    // sixteen more of each. Returns their number.
    DECODESTEP_INLINE size_t list_marked(uint64_t word, size_t first, int32_t* ids, float* scores) const {
        if constexpr (kListsWords)
            if (first + 64 <= vocab) return list_word(word, data + first, static_cast<int32_t>(first), ids, scores);
        // Four at a time, whether there are as many or not: a branch on their number would be mispredicted.
        const auto count = static_cast<size_t>(std::popcount(word));
        keep_scalar(word);
        for (size_t i = 0; i < count;)
            for (size_t j = 0; j < 4; ++j, ++i) {
                const int bit = std::countr_zero(word | uint64_t{1} << 63);  // never zero, so no branch
                ids[i] = static_cast<int32_t>(first) + bit;
                word &= word - 1;
                keep_scalar(word);
            }
        for (size_t i = 0; i < count; ++i) scores[i] = at(static_cast<size_t>(ids[i]));
        return count;
    }

    // The largest logit of every group of a block, -inf where there is none.
    template <bool and_prefetch>
    DECODESTEP_INLINE f32x16 maxima(size_t block) const {
        f32x16 best[4] = {broadcast(kMinusInfinity), broadcast(kMinusInfinity), broadcast(kMinusInfinity),
                          broadcast(kMinusInfinity)};
        if ((block + 1) * kLogitsBlock <= vocab) {
            const Item* const p = data + block * kLogitsBlock;
            // Eight loads an iteration: fully unrolled, each load instruction would advance by strides that the L1
            // prefetcher does not follow, and logits in L2 would take twice the time.
#pragma GCC unroll 2
            for (size_t i = 0; i < kLogitsBlock; i += 4 * kLanes) {
#pragma GCC unroll 4
                for (size_t j = 0; j < 4; ++j) {
                    const Item* const at = p + i + j * kLanes;
                    if constexpr (and_prefetch) prefetch_ahead_of(at);
                    best[j] = max(widen(at), best[j]);
                }
            }
        } else {
            each_vector(block, [&](f32x16 x, size_t) { best[0] = max(x, best[0]); });
        }
        return max(max(best[0], best[1]), max(best[2], best[3]));
    }

    GroupMaxima group_maxima(Workspace& work) const {
        return {work, blocks(),
                [this](size_t block, float* out) DECODESTEP_INLINE_LAMBDA { store(out, maxima<true>(block)); }};
    }

    // Lists the tokens with logits >= threshold, of -inf all above that, ascending, and returns their number. groups:
    // of this row. few: whether most vectors hold none.
    size_t list_from(float threshold, const GroupMaxima& groups, bool few, int32_t* ids, float* scores) const {
        return few && threshold > kMinusInfinity ? list_from<true>(threshold, groups, ids, scores)
                                                 : list_from<false>(threshold, groups, ids, scores);
    }

    // A branch for every vector pays only where few vectors hold a token of the list.
    template <bool few>
    size_t list_from(float threshold, const GroupMaxima& groups, int32_t* ids, float* scores) const {
        const f32x16 least = broadcast(std::max(threshold, std::numeric_limits<float>::lowest()));
        size_t n = 0;
        for (size_t block = 0; block < blocks(); ++block) {
            if (!at_least(groups.of_block(block), least)) continue;
            each_vector(block, [&](f32x16 x, size_t i) {
                const Mask mask = at_least(x, least);
                if (few && !mask) return;
                n += compact(mask, x, static_cast<int32_t>(i), scores + n, ids + n);
            });
        }
        return n;
    }

    template <class Visit>
    DECODESTEP_INLINE void each_vector_from(size_t i, size_t end, Visit&& visit) const {
        for (; i + kLanes <= end; i += kLanes) visit(load(i), i);
        if (i < end) visit(load_last(i, end - i), i);
    }
};

}  // namespace decodestep::DECODESTEP_BUILD
