// The tokens of a row that its leading patches change, kept beside the logits, which are never written to.
#pragma once

#include "sampling/decode_step/list_steps.h"
#include "sampling/row/logits.h"

namespace decodestep::DECODESTEP_BUILD {

class Overlay {
  public:
    explicit Overlay(Workspace& work) : work_(work) {}
    ~Overlay() { clear(); }
    Overlay(const Overlay&) = delete;
    Overlay& operator=(const Overlay&) = delete;

    void clear() {
        for (size_t i = 0; i < count_; ++i) work_.marks[static_cast<size_t>(work_.patched_ids[i]) / 64] = 0;
        count_ = 0;
    }

    size_t count() const { return count_; }
    const int32_t* ids() const { return work_.patched_ids.get(); }
    const float* raw() const { return work_.patched_raw.get(); }  // their logits
    const float* now() const { return work_.patched_now.get(); }  // patched; -inf where dropped

    bool holds(size_t id) const { return work_.marks[id / 64] >> (id % 64) & 1; }

    // The patched logit of a token that it holds.
    float now_of(size_t id) const { return now()[work_.places[id]]; }

    // visit(lane, now) for those that it holds of the sixteen tokens from `first` on, a multiple of sixteen.
    template <class Visit>
    DECODESTEP_INLINE void each_of_sixteen(size_t first, Visit&& visit) const {
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

    // Applies a patch of single tokens; the logits are read of those that it does not hold yet.
    template <class Row>
    void apply(const Step& step, const Row& row) {
        switch (step.kind) {
            case StepKind::penalise:
                return apply<StepKind::penalise>(step, row);
            case StepKind::add:
                return apply<StepKind::add>(step, row);
            case StepKind::lift:
                return apply<StepKind::lift>(step, row);
            default:
                return apply<StepKind::ban>(step, row);
        }
    }

  private:
    template <StepKind kind, class Row>
    void apply(const Step& step, const Row& row) {
        // The first patch of a row usually finds none of its tokens here. Those are patched in a loop without a branch.
        const size_t before = count_, fresh = insert_fresh(step, row);
        float* const now = work_.patched_now.get();
        for (size_t j = 0; j < fresh; ++j) now[before + j] = changed<kind>(step, j, now[before + j]);
        for (size_t i = fresh; i < step.count; ++i) {
            const auto id = static_cast<size_t>(step.ids[i]);
            const size_t place = holds(id) ? work_.places[id] : insert(id, row.at(id));
            now[place] = changed<kind>(step, i, now[place]);
        }
    }

    // Inserts the tokens of a step up to the first that is here already; returns their number.
    template <class Row>
    size_t insert_fresh(const Step& step, const Row& row) {
        constexpr size_t distance = 32;  // prefetch: scattered logits then arrive together, not one after the other
        // Local copies: otherwise the compiler must assume that stores through `marks` change the members, and reload
        // them.
        uint64_t* const marks = work_.marks.get();
        uint32_t* const places = work_.places.get();
        int32_t* const ids = work_.patched_ids.get() + count_;
        float* const raw = work_.patched_raw.get() + count_;
        size_t n = 0;
        for (; n < step.count; ++n) {
            if (n + distance < step.count) prefetch(row.data + step.ids[n + distance]);
            const auto id = static_cast<size_t>(step.ids[n]);
            const uint64_t mark = uint64_t{1} << (id % 64);
            if (marks[id / 64] & mark) break;
            marks[id / 64] |= mark;
            places[id] = static_cast<uint32_t>(count_ + n);
            ids[n] = static_cast<int32_t>(id);
            raw[n] = row.at(id);
        }
        std::copy_n(raw, n, work_.patched_now.get() + count_);
        count_ += n;
        return n;
    }

    // A token that is dropped stays dropped, and NaN drops it too.
    template <StepKind kind>
    static float changed(const Step& step, size_t which, float score) {
        const float after = patched<kind>(step, which, score);
        return score > kMinusInfinity && after > kMinusInfinity ? after : kMinusInfinity;
    }

    DECODESTEP_INLINE size_t insert(size_t id, float raw) {
        work_.marks[id / 64] |= uint64_t{1} << (id % 64);
        work_.patched_ids[count_] = static_cast<int32_t>(id);
        work_.patched_raw[count_] = work_.patched_now[count_] = raw;
        work_.places[id] = static_cast<uint32_t>(count_);
        return count_++;
    }

    Workspace& work_;
    size_t count_ = 0;
};

}  // namespace decodestep::DECODESTEP_BUILD
