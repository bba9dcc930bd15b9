#include "linear/panel_tile.h"

#include "linear/byte_tile.h"
#include "linear/panel_product.h"
#include "linear/panel_streams.h"
#include "linear/stored_tile.h"
#include "linear/with_format.h"

namespace decodestep::DECODESTEP_BUILD {
namespace {

template <Format F>
void multiply_bytes(const PanelTile& a) {
    if constexpr (kStoresBytes)
        if (a.tokens > size_t{kUnstoredTokens}) return stored_tiles<F>(a);
    const uint8_t* next = a.next_panel ? a.next_panel : a.panel;  // read after it, or likely to be cached
    stream_bytes<F>({F, a.blocks, &a.panel, &next, a.x, a.first, a.tokens, a.outputs}, 1);
}

}  // namespace

void panel_tile(const PanelTile& a) {
    if (!quantises_activations(a.format)) return decodestep::dense_panel_tile(a);
    with_format(a.format, [&]<Format F>() {
        if constexpr (quantises_activations(F)) multiply_bytes<F>(a);
    });
}

void panel_streams(const PanelStreams& a) {
    if (!quantises_activations(a.format)) return decodestep::dense_panel_streams(a);
    if constexpr (kStreams > 1)
        with_format(a.format, [&]<Format F>() {
            if constexpr (quantises_activations(F)) {
                if (kStreamsTokens || a.tokens == 1) return stream_bytes<F>(a, kStreams);
                for (size_t s = 0; s < kStreams; ++s)
                    multiply_bytes<F>(
                        {F, a.blocks, a.panels[s], a.next[s], a.x, a.first, a.tokens, a.outputs + s * a.tokens});
            }
        });
}

}  // namespace decodestep::DECODESTEP_BUILD
