// The few tokens of a row whose scores its leading patches change, kept beside the logits, which are never written to.
#pragma once

#include "sampling/decode_step/candidates.h"
#include "sampling/row/logits.h"

namespace decodestep::DECODESTEP_ISA {

class Overlay {
  public:
    explicit Overlay(Workspace& work) : work_(work) { work.slot_bits = 0; }
    ~Overlay() { clear(); }
    Overlay(const Overlay&) = delete;
    Overlay& operator=(const Overlay&) = delete;

    void clear() {
        for (size_t i = 0; i < count_; ++i) work_.marks[static_cast<size_t>(work_.patched_ids[i]) / 64] = 0;
        count_ = 0;
        searches_ = 0;
        work_.slot_bits = 0;
    }

    size_t count() const { return count_; }
    const int32_t* ids() const { return work_.patched_ids.get(); }
    const float* raw() const { return work_.patched_raw.get(); }  // what the logits say
    const float* now() const { return work_.patched_now.get(); }  // what the patches made of it; -inf where dropped

    bool holds(size_t id) const { return work_.marks[id / 64] >> (id % 64) & 1; }

    // Of a token that it holds.
    float now_of(size_t id) { return now()[find(id)]; }

    // visit(lane, now) for those of the sixteen tokens from a multiple of sixteen on.
    template <class Visit>
    DECODESTEP_INLINE void each_of_sixteen(size_t first, Visit&& visit) {
        for (uint64_t held = work_.marks[first / 64] >> (first % 64) & kAllLanes; held; held &= held - 1) {
            const auto lane = static_cast<size_t>(std::countr_zero(held));
            visit(lane, now_of(first + lane));
        }
    }

    // visit(id, now) for those that are at least `threshold`, and above -inf.
    template <class Visit>
    void each_from(float threshold, Visit&& visit) const {
        const f32x16 least = broadcast(std::max(threshold, std::numeric_limits<float>::lowest()));
        for (size_t i = 0; i < count_; i += kLanes) {
            Mask mask = at_least(load(now() + i), least);
            if (count_ - i < kLanes) mask &= (1u << (count_ - i)) - 1;
            for (; mask; mask &= mask - 1) {
                const size_t at = i + static_cast<size_t>(std::countr_zero(mask));
                visit(ids()[at], now()[at]);
            }
        }
    }

    template <class Row>
    void apply(const Step& step, const Row& row) {
        switch (step.what) {
            case Do::penalise:
                return apply<Do::penalise>(step, row);
            case Do::add:
                return apply<Do::add>(step, row);
            case Do::lift:
                return apply<Do::lift>(step, row);
            default:
                return apply<Do::ban>(step, row);
        }
    }

  private:
    template <Do what, class Row>
    void apply(const Step& step, const Row& row) {
        // The first step on a row meets new tokens alone: these are patched in a loop of their own, which has no
        // branch.
        const size_t before = count_, fresh = insert_fresh(step, row);
        float* const now = work_.patched_now.get();
        for (size_t j = 0; j < fresh; ++j) now[before + j] = changed<what>(step, j, now[before + j]);
        for (size_t i = fresh; i < step.count; ++i) {
            const auto id = static_cast<size_t>(step.ids[i]);
            const size_t slot = holds(id) ? find(id) : insert(id, row.at(id));
            now[slot] = changed<what>(step, i, now[slot]);
        }
    }

    // Takes in the tokens of a step up to the first that is here already; returns their number.
    template <class Row>
    size_t insert_fresh(const Step& step, const Row& row) {
        constexpr size_t ahead = 32;  // cold logits of scattered tokens arrive together, not one after the other
        // Local, for all the compiler knows a store to a mark may be one to a member.
        uint64_t* const marks = work_.marks.get();
        int32_t* const ids = work_.patched_ids.get() + count_;
        float* const raw = work_.patched_raw.get() + count_;
        size_t n = 0;
        for (; n < step.count; ++n) {
            if (n + ahead < step.count) prefetch(row.data + step.ids[n + ahead]);
            const auto id = static_cast<size_t>(step.ids[n]);
            const uint64_t mark = uint64_t{1} << (id % 64);
            if (marks[id / 64] & mark) break;
            marks[id / 64] |= mark;
            ids[n] = static_cast<int32_t>(id);
            raw[n] = row.at(id);
        }
        std::copy_n(raw, n, work_.patched_now.get() + count_);
        count_ += n;
        if (work_.slot_bits)
            for (size_t i = count_ - n; i < count_; ++i) hash(i);
        return n;
    }

    // What is dropped, by becoming NaN too, is dropped for good.
    template <Do what>
    static float changed(const Step& step, size_t which, float score) {
        const float after = patched<what>(step, which, score);
        return score > kNothing && after > kNothing ? after : kNothing;
    }

    DECODESTEP_INLINE size_t insert(size_t id, float raw) {
        work_.marks[id / 64] |= uint64_t{1} << (id % 64);
        work_.patched_ids[count_] = static_cast<int32_t>(id);
        work_.patched_raw[count_] = work_.patched_now[count_] = raw;
        if (work_.slot_bits) hash(count_);
        return count_++;
    }

    // Most rows have one patch step, or few tokens in a second one, so a table is made late.
    size_t find(size_t id) {
        constexpr int early = 16;
        if (++searches_ <= early) {
            size_t at = 0;
            for (size_t i = 0; i < count_; ++i) at += work_.patched_ids[i] == static_cast<int32_t>(id) ? i : 0;
            return at;
        }
        if (!work_.slot_bits || (size_t{1} << work_.slot_bits) < 2 * count_) {
            work_.slot_bits = std::bit_width(2 * count_ + 62);
            std::fill_n(work_.slots.get(), size_t{1} << work_.slot_bits, 0u);
            for (size_t i = 0; i < count_; ++i) hash(i);
        }
        size_t at = first_slot(id);
        while (work_.patched_ids[work_.slots[at] - 1] != static_cast<int32_t>(id)) at = next_slot(at);
        return work_.slots[at] - 1;
    }

    void hash(size_t index) {
        if (2 * index >= size_t{1} << work_.slot_bits) return;  // full: the next `find` makes a larger one
        size_t at = first_slot(static_cast<size_t>(work_.patched_ids[index]));
        while (work_.slots[at]) at = next_slot(at);
        work_.slots[at] = static_cast<uint32_t>(index + 1);
    }

    size_t first_slot(size_t id) const { return static_cast<uint32_t>(id) * 0x9E3779B1u >> (32 - work_.slot_bits); }
    size_t next_slot(size_t at) const { return (at + 1) & ((size_t{1} << work_.slot_bits) - 1); }

    Workspace& work_;
    size_t count_ = 0;
    int searches_ = 0;
};

}  // namespace decodestep::DECODESTEP_ISA
