// Transposes of the bits of words, by which panels are made of rows and rows of panels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/compiler.h"

namespace decodestep::DECODESTEP_BUILD {

// Takes each of `Count` words as runs of `Count` fields of `Bits` bits, the lowest first: in every run, field j of word
// i and field i of word j change places. from(i), to(i): where word i is read, where it is written. Its own inverse.
template <size_t Count, size_t Bits, class Word, class From, class To>
DECODESTEP_INLINE void transpose_fields(From&& from, To&& to) {
    Word words[Count];
    for (size_t i = 0; i < Count; ++i) std::memcpy(&words[i], from(i), sizeof(Word));
    for (size_t distance = 1; distance < Count; distance *= 2) {
        const size_t shift = Bits * distance;
        const Word every_other = static_cast<Word>(~Word{0}) / ((Word{1} << shift) + 1);  // `shift` bits of 2 * shift
        for (size_t i = 0; i < Count; ++i) {
            if (i & distance) continue;
            const Word changes = (words[i] >> shift ^ words[i + distance]) & every_other;
            words[i] ^= changes << shift;
            words[i + distance] ^= changes;
        }
    }
    for (size_t i = 0; i < Count; ++i) std::memcpy(to(i), &words[i], sizeof(Word));
}

}  // namespace decodestep::DECODESTEP_BUILD
