// The draw from a row that no filter shortens, in one pass without a list.
#pragma once

#include <optional>

#include "sampling/decode_step/gumbel_race.h"
#include "sampling/decode_step/patched_row.h"

namespace decodestep::DECODESTEP_BUILD {

// The token; nullopt if there is none, or unless every score is the logit divided by the temperature (scales_plainly).
template <LogitType type>
std::optional<int64_t> draw_from_row(PatchedRow<type>& row, uint64_t seed, uint32_t position) {
    static constexpr int32_t lane_ids[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const auto inverse = static_cast<float>(1.0 / row.temperature());
    if (!std::isfinite(inverse)) return {};
    GumbelRace race(seed, position);
    const auto enter = [&](int32_t id, float logit) {
        const float score = row.score_of(logit);
        if (score > kMinusInfinity && score < std::numeric_limits<float>::infinity()) race.enter(id, score);
    };
    f32x16 best = broadcast(kMinusInfinity);
    const f32x16 scale = broadcast(inverse);
    const i32x16 lanes = load_bits(lane_ids), even = lanes + lanes;
    for (size_t block = 0; block < row.logits.blocks(); ++block) {
        row.logits.each_vector_in_any_order(block, [&](f32x16 x, size_t first, size_t step) {
            best = max(x, best);
            const i32x16 ids = (step == 1 ? lanes : even) + broadcast_int(static_cast<int32_t>(first));
            for (Mask mask = race.may_win(x * scale, ids); mask; mask &= mask - 1) {
                const size_t id = first + step * static_cast<size_t>(std::countr_zero(mask));
                if (id < row.logits.vocab && !row.overlay.holds(id)) enter(static_cast<int32_t>(id), row.logits.at(id));
            }
        });
    }
    const Overlay& overlay = row.overlay;
    for (size_t i = 0; i < overlay.count(); i += kLanes) {
        Mask mask = race.may_win(load(overlay.now() + i) * scale, load_bits(overlay.ids() + i));
        if (overlay.count() - i < kLanes) mask &= (1u << (overlay.count() - i)) - 1;
        for (; mask; mask &= mask - 1) {
            const size_t at = i + static_cast<size_t>(std::countr_zero(mask));
            enter(overlay.ids()[at], overlay.now()[at]);
        }
    }
    if (!row.scales_plainly(std::max(largest(best), largest(overlay.now(), overlay.count())))) return {};
    // The bound may be the logit of a token that a patch has lowered. Without a winner the largest score itself may
    // have overflowed, below.
    if (race.winner() < 0) return {};
    return race.winner();
}

}  // namespace decodestep::DECODESTEP_BUILD
