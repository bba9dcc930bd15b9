// The panel tiles of avx512_amx: integer tiles for many tokens, otherwise the tiles of the tier below.
#include "linear/integer_tile.h"
#include "linear/panel_product.h"
#include "linear/panel_tile.h"
#include "linear/with_format.h"

namespace decodestep::avx512_vnni {
void panel_tile(const PanelTile&);  // where the tier below runs it
}

namespace decodestep::DECODESTEP_BUILD {
namespace {

// A partial group takes as long as a whole one: with fewer tokens the tier below is faster.
constexpr size_t kFewest = 12;

}  // namespace

void panel_tile(const PanelTile& a) {
    const size_t rest = a.tokens % kGroup, many = rest < kFewest ? a.tokens - rest : a.tokens;
    if (!quantises_activations(a.format) || many == 0) return avx512_vnni::panel_tile(a);
    with_format(a.format, [&]<Format F>() {
        if constexpr (quantises_activations(F)) integer_tiles<F>(a.part(0, many));
    });
    if (many < a.tokens) avx512_vnni::panel_tile(a.part(many, a.tokens - many));
}

}  // namespace decodestep::DECODESTEP_BUILD
