// Brings states forward by tokens that have run before: of drafts that were rejected in part, those that were accepted.
// Their inputs have been kept (DecoderForward::kept), so that no weight is read.
#pragma once

#include "decoder/decoder_forward.h"

namespace decodestep {

// Each row reads one of the states and writes one, which may be the same. The states have the bits that a step of these
// tokens alone would leave.
struct StateReplay {
    const Decoder* decoder;
    size_t rows;
    const float* const* kept;       // [rows]: of each its tokens' inputs, [tokens, kept_size]
    const size_t* tokens;           // [rows]
    const int64_t *read, *written;  // [rows]: the numbers of the states; no row writes what another reads or writes
    float* states;                  // [slots, state_size]
    int threads;
};

DECODESTEP_KERNEL(vectors, replay_states, StateReplay)

}  // namespace decodestep
