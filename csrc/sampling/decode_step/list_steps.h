// Every step on a list of candidates, as in reference.py, operation for operation.
#pragma once

#include <cmath>

#include "sampling/decode_step/candidate_list.h"

namespace decodestep::DECODESTEP_BUILD {

struct Candidates : CandidateList {
    uint32_t position;

    void run(const Step& step);

  private:
    template <StepKind kind>
    void patch(const Step& step);
    void allow_bits(const Step& step);
    void allow(const Step& step);
    void force(const Step& step);
    void temperature(double temperature);
    void top_k(size_t k);
    void top_p(double p, size_t min_keep);
    void min_p(double p, size_t min_keep);
    void typical(double mass, size_t min_keep);
    void epsilon(double least, size_t min_keep);
    void eta(double largest, size_t min_keep);
    void top_h(double share, size_t count);
    void top_n_sigma(double n);
    void xtc(const Step& step);
    void normalise();
};

// One score after a patch; `which` is the place of the id in the step. Used for the overlay too, before there is a
// list.
template <StepKind kind>
DECODESTEP_INLINE float patched(const Step& step, size_t which, float s) {
    const auto factor = static_cast<float>(step.amount);
    if constexpr (kind == StepKind::penalise) return s < 0.0f ? s * factor : s / factor;
    if constexpr (kind == StepKind::add) return s + step.values[which];
    if constexpr (kind == StepKind::lift) return std::isfinite(s) ? s + std::fabs(s) * factor : s;
    return kMinusInfinity;  // ban
}

}  // namespace decodestep::DECODESTEP_BUILD
