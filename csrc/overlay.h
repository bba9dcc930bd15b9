// The few tokens of a row whose scores its leading patches change, kept beside the logits, which are never written to.
#pragma once

#include "candidates.h"
#include "logits.h"

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
        work_.slot_bits = 0;
    }

    size_t count() const { return count_; }
    const int32_t* ids() const { return work_.patched_ids.get(); }
    const float* raw() const { return work_.patched_raw.get(); }  // what the logits say
    const float* now() const { return work_.patched_now.get(); }  // what the patches made of it; -inf where dropped

    bool holds(size_t id) const { return work_.marks[id / 64] >> (id % 64) & 1; }

    template <class Row>
    void apply(const Step& step, const Row& row) {
        constexpr size_t ahead = 32;  // cold logits of scattered tokens arrive together, not one after the other
        for (size_t i = 0; i < step.count; ++i) {
            if (i + ahead < step.count) prefetch(row.data + step.ids[i + ahead]);
            const auto id = static_cast<size_t>(step.ids[i]);
            const size_t slot = holds(id) ? find(id) : insert(id, row.at(id));
            float& score = work_.patched_now[slot];
            if (score > kNothing) score = patched(step, i, score);
            if (!(score > kNothing)) score = kNothing;  // NaN, too, is dropped for good
        }
    }

  private:
    size_t insert(size_t id, float raw) {
        work_.marks[id / 64] |= uint64_t{1} << (id % 64);
        work_.patched_ids[count_] = static_cast<int32_t>(id);
        work_.patched_raw[count_] = work_.patched_now[count_] = raw;
        if (work_.slot_bits) hash(count_);
        return count_++;
    }

    // Most rows have one patch step, so the table is made when a token is patched a second time.
    size_t find(size_t id) {
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
};

}  // namespace decodestep::DECODESTEP_ISA
