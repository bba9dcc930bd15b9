// A share of a stage's work, the unit in which the threads of a team claim it.
#pragma once

#include <algorithm>
#include <cstddef>

#include "core/compiler.h"
#include "core/division.h"

namespace decodestep {

// Units [first, end).
struct Range {
    size_t first, end;
};

// Part `i` of `parts` of a range, in multiples of `grain` units except at the end.
DECODESTEP_INLINE Range part_of(Range whole, size_t i, size_t parts, size_t grain = 1) {
    const size_t grains = ceil_div(whole.end - whole.first, grain);
    const auto bound = [&](size_t n) { return std::min(whole.first + grains * n / parts * grain, whole.end); };
    return {bound(i), bound(i + 1)};
}

// A stage's units are divided among the seats of the team, a thread each, and the part of a seat into chunks: a thread
// reads the same weights from step to step, and others can take over what it has not begun.
struct StageShare {
    size_t member;  // the seat of the thread that runs the share: its own memory is found by it
    size_t seat, seats;
    size_t chunk, chunks;

    Range part_of_seat(size_t units) const { return part_of({0, units}, seat, seats); }

    // The share's units. grain: chunks are multiples of it, except the last of a seat.
    DECODESTEP_INLINE Range of(size_t units, size_t grain = 1) const {
        return part_of(part_of_seat(units), chunk, chunks, grain);
    }

    // Calls body(i) for each of the share's units.
    template <class Body>
    void each(size_t units, Body&& body) const {
        const Range part = of(units);
        for (size_t i = part.first; i < part.end; ++i) body(i);
    }

    // Calls body(i) for the share's part of `count` tasks in descending order of cost: they are dealt to the seats back
    // and forth, so that the parts of the seats differ by less than one task.
    template <class Body>
    void each_dealt(size_t count, Body&& body) const {
        const Range rounds = part_of({0, ceil_div(count, seats)}, chunk, chunks);
        for (size_t round = rounds.first; round < rounds.end; ++round) {
            const size_t task = round * seats + (round % 2 ? seats - 1 - seat : seat);
            if (task < count) body(task);
        }
    }
};

}  // namespace decodestep
