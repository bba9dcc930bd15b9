#include "decoder/state_replay.h"

#include "bindings/decoder_reader.h"
#include "bindings/state_rows.h"

namespace decodestep {

void bind_state_replay(nb::module_& m) {
    m.def(
        "replay_states",
        [](const HeldDecoder& held, const nb::tuple& kept, Packed<float, 2> states, const Ids& slots, const Ids& into,
           int threads) {
            const Decoder& d = held.decoder;
            require_aligned(states, slots, into);
            require(d.state_size > 0 && states.shape(1) == d.state_size, "states has the wrong shape");
            std::vector<Packed<const float, 2>> arrays(kept.size());
            std::vector<const float*> rows;
            std::vector<size_t> tokens;
            for (size_t i = 0; i < kept.size(); ++i) {
                Packed<const float, 2>& each = arrays[i];
                const nb::object item = kept[i];
                require(nb::try_cast(item, each, false) && each.shape(1) == d.kept_size,
                        "kept must be packed arrays of inputs");
                require_aligned(each);
                rows.push_back(each.data());
                tokens.push_back(each.shape(0));
            }
            const auto read = copy_of(slots), written = copy_of(into);
            require(read.size() == rows.size() && written.size() == rows.size(), "slots or into has the wrong shape");
            require_states_apart(read, written, states.shape(0));
            const StateReplay args{.decoder = &d,
                                   .rows = rows.size(),
                                   .kept = rows.data(),
                                   .tokens = tokens.data(),
                                   .read = read.data(),
                                   .written = written.data(),
                                   .states = states.data(),
                                   .threads = thread_count(threads)};
            const ReleasedGil released;
            replay_states(args);
        },
        nb::arg("decoder"), nb::arg("kept"), nb::arg("states").noconvert(), nb::arg("slots").noconvert(),
        nb::arg("into").noconvert(), nb::arg("threads"));
}

}  // namespace decodestep
